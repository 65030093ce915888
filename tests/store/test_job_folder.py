"""Files in a job's folder: registrations and results of a host's ranks, schedules and the index that commits them."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout
from jobs import index_of, make_job, rank_body, rank_infos, result_body, results_by_rank
from replaced_calls import Calls, refuses

from pfo_fs.errors import RecordError
from pfo_fs.models import FrequencySchedule, RankInfo
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies
from pfo_fs.turns import Term


def ranks(count: int, nonce: str = "n") -> list[bodies.RankBody]:
    return [rank_body(rank, f"{nonce}{rank}") for rank in range(count)]


def test_ranks_that_register_together_are_one_file_and_each_counts_only_once_it_has_a_name(tmp_path: Path) -> None:
    """The helper may die between two names; and a file that a user plants must not register other ranks."""
    folder = make_job(tmp_path, 4)
    assert folder.register_ranks(ranks(4)) == {}
    assert len({os.stat(folder.location / f"ranks/{rank}.json").st_ino for rank in range(4)}) == 1
    assert [body.nonce for body in folder.each_rank()] == ["n0", "n1", "n2", "n3"]
    (folder.location / "ranks/1.json").unlink()
    assert [body.rank_info.rank for body in folder.each_rank()] == [0, 2, 3]


def test_a_rank_of_another_process_is_refused_and_those_beside_it_are_not(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 4)
    for _ in range(2):  # the same process again, after a reply that was lost
        assert folder.register_ranks(ranks(4, "first")[1:2]) == {}
    refused = folder.register_ranks(ranks(4, "second"))
    assert list(refused) == [1]
    assert "rank 1 of job" in refused[1]
    assert "process 0 on node1" in refused[1]
    assert folder.numbers(bodies.RanksBody) == [0, 1, 2, 3]
    assert folder.read_rank(1) == ranks(4, "first")[1]


def test_a_registration_under_the_name_of_another_rank_is_refused_and_none_is_no_registration(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 2)
    folder.register_ranks(ranks(1))
    assert folder.read_rank(1) is None
    (folder.location / "ranks/0.json").rename(folder.location / "ranks/1.json")
    with pytest.raises(RecordError, match=r"1\.json: it is not of the rank in its name, but of rank 0"):
        folder.read_rank(1)


@pytest.mark.parametrize("together", [[3], [2, 3], [3, 4, 5]], ids=str)
def test_a_ranks_lock_is_held_while_its_file_is_written_with_others(tmp_path: Path, together: list[int]) -> None:
    """After a helper has died, the ranks of its host may register in other groups."""
    locked = []

    def link(source: str, name: str, **where: Any) -> None:
        try:
            with FileLock(folder.location / f"ranks/.{name.partition('.')[0]}.lock", timeout=0):
                pass
        except Timeout:
            locked.append(name)
        os.link(source, name, **where)

    job = make_job(tmp_path, 6)
    folder = JobFolder(Files(tmp_path, calls=Calls(link=link)), job.path, "test", job.attempt, job_id=job.job_id)
    assert folder.register_ranks([ranks(6)[rank] for rank in together]) == {}
    assert locked == [f"{rank}.json" for rank in together]


def test_results_of_a_host_are_one_file_and_a_second_writer_adds_only_what_is_missing(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 4)
    folder.write_results(0, [result_body(2), result_body(1)])
    folder.write_results(0, [result_body(rank, 9.0) for rank in (1, 2, 3)])  # a helper that replaces a dead one
    assert folder.numbers(bodies.ResultsBody, number=0) == [1, 3]
    found = results_by_rank(folder, 0)
    assert {rank: body.result.iter_time for rank, body in found.items()} == {1: [1.0] * 2, 2: [1.0] * 2, 3: [9.0] * 2}


def test_results_too_large_for_one_file_become_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_job(tmp_path, 4)
    monkeypatch.setattr("pfo_fs.store.layout.PLAN_LIMIT", 800)
    folder.write_results(0, [result_body(rank) for rank in range(16)])
    assert len(folder.numbers(bodies.ResultsBody, number=0)) > 1
    assert list(results_by_rank(folder, 0)) == list(range(16))


SOURCE = bodies.Source(kind="scheduler", index=0)


def write(folder: JobFolder, infos: list[RankInfo], clocks: dict[int, int] | None = None, number: int = 0) -> None:
    schedules = [
        FrequencySchedule(rank=info.rank, frequencies=[("forward", (clocks or {}).get(info.rank, 1200))])
        for info in infos
    ]
    assert folder.write_schedule(number, 1, 40, SOURCE, schedules, infos, Term(until=49))
    folder.write_rank_files(number, infos)


def rank_file(root: Path, folder: JobFolder, rank: int) -> dict[str, Any]:
    return dict(json.loads((root / folder.path / f"sched/0/{rank}.json").read_text()))


def test_ranks_of_a_stage_that_differ_get_files_of_their_own_and_a_number_is_committed_once(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 2, dp=2), rank_infos(2, dp=2)
    write(folder, infos, {3: 900})
    index = index_of(folder, 0)
    assert set(index.files) == {"stage:0", "rank:2", "rank:3"}
    found = [folder.read_schedule(index, info) for info in infos]
    assert [schedule and schedule.frequencies[0][1] for schedule in found] == [1200, 1200, 1200, 900]
    assert not folder.write_schedule(0, 2, 0, bodies.Source(kind="yaml", sha256="x"), [], infos)
    assert index_of(folder, 0) == index


def test_a_person_finds_the_schedule_of_a_rank_under_its_number(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 2, dp=3), rank_infos(2, dp=3)
    write(folder, infos, {5: 900})
    body = rank_file(tmp_path, folder, 5)["body"]
    assert (body["number"], body["start_step"], body["until"], body["ranks"]) == (0, 40, 49, [5])
    assert body["frequencies"] == [["forward", 900]]
    assert rank_file(tmp_path, folder, 1)["body"]["ranks"] == [0, 1, 2]
    text = (tmp_path / folder.path / "sched/0/5.json").read_text()
    assert '\n "start_step": 40,' in text
    assert '\n  ["forward", 900]' in text


def test_no_file_gets_more_names_than_every_file_system_takes(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 1, dp=100), rank_infos(1, dp=100)
    write(folder, infos)
    assert folder.write_rank_files(0, infos)
    paths = list((tmp_path / folder.path / "sched/0").glob("[0-9]*.json"))
    assert len(paths) == 100
    assert len({path.read_bytes() for path in paths}) == 1
    assert max(path.stat().st_nlink for path in paths) == 32


@pytest.mark.parametrize(("error", "most"), [(errno.EMLINK, 3), (errno.ENOSPC, 3), (errno.EOPNOTSUPP, 0)])
def test_a_file_system_that_takes_few_links_or_none_gets_copies(tmp_path: Path, error: int, most: int) -> None:
    def has_most(source: str, _: str, *, src_dir_fd: int, **__: Any) -> bool:
        return os.stat(source, dir_fd=src_dir_fd).st_nlink >= most

    calls = Calls(link=refuses(error, os.link, has_most))
    job, infos = make_job(tmp_path, 1, dp=9), rank_infos(1, dp=9)
    folder = SharedDirectory(Files(tmp_path, calls=calls)).job(job.job_id)
    folder.read_job()
    write(folder, infos)
    assert all(rank_file(tmp_path, folder, rank)["body"]["ranks"] == list(range(9)) for rank in range(9))


def test_a_large_job_gets_its_files_in_several_calls_also_of_another_coordinator(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 2, dp=100), rank_infos(2, dp=100)
    write(folder, infos)
    assert not (tmp_path / folder.path / "sched/0/199.json").exists()
    assert not folder.write_rank_files(0, infos)
    again = SharedDirectory(Files(tmp_path)).job(folder.job_id)
    again.read_job()
    assert [again.write_rank_files(0, infos) for _ in range(2)] == [False, True]
    assert rank_file(tmp_path, folder, 199)["body"]["number"] == 0
    again.files.calls = None
    assert again.write_rank_files(0, infos), "it does nothing more"


def test_a_damaged_index_gives_no_files_and_no_error(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 1), rank_infos(1)
    write(folder, infos)
    (tmp_path / folder.path / "sched/0/index.json").write_text("junk")
    again = SharedDirectory(Files(tmp_path)).job(folder.job_id)
    assert not again.write_rank_files(0, infos), "the next call tries again"


def test_a_plan_or_an_index_of_another_schedule_is_not_followed(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 1), rank_infos(1)
    write(folder, infos)
    write(folder, infos, {0: 900}, number=1)
    index, places = index_of(folder, 1), folder.location / "sched"
    for name, of_0 in ((index.files["stage:0"], "0.json"), ("index.json", "index.json")):
        (places / "1" / name).unlink()
        (places / "1" / name).write_bytes((places / "0" / of_0).read_bytes())
    with pytest.raises(RecordError, match="its body has number 0"):
        folder.read_schedule(index, infos[0])
    with pytest.raises(RecordError, match="its body has number 0"):
        folder.read(bodies.IndexBody, number=1)
