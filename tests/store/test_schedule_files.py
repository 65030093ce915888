"""Schedules on disk: plans, the index that commits them, and a file for each rank that a person can read."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from jobs import index_of, make_job, rank_infos
from replaced_calls import Calls, refuses

from pfo_fs.errors import RecordError
from pfo_fs.models import FrequencySchedule, RankInfo
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies
from pfo_fs.turns import Term

SOURCE = bodies.Source(kind="scheduler", index=0)


def write(folder: JobFolder, infos: list[RankInfo], clocks: dict[int, int] | None = None, number: int = 0) -> None:
    schedules = [
        FrequencySchedule(rank=info.rank, frequencies=[("forward", (clocks or {}).get(info.rank, 1200))])
        for info in infos
    ]
    assert folder.write_schedule(number, 1, 40, SOURCE, schedules, infos, Term(until=49))
    folder.write_rank_files(number, infos)


def rank_file(root: Path, folder: JobFolder, rank: int, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / folder.path / "sched" / str(number) / f"{rank}.json").read_text())
    return found


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
    assert rank_file(tmp_path, folder, 5)["body"] == {
        "number": 0,
        "start_step": 40,
        "until": 49,
        "after": -1,
        "turns": [],
        "ranks": [5],
        "frequencies": [["forward", 900]],
        "stages": None,
    }
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


def test_a_large_job_gets_its_files_in_several_calls_after_the_commit_also_of_another_coordinator(
    tmp_path: Path,
) -> None:
    folder, infos = make_job(tmp_path, 2, dp=100), rank_infos(2, dp=100)
    write(folder, infos)
    assert not (tmp_path / folder.path / "sched/0/199.json").exists()
    assert not folder.write_rank_files(0, infos)
    again = SharedDirectory(Files(tmp_path)).job(folder.job_id)
    again.read_job()
    assert [again.write_rank_files(0, infos) for _ in range(2)] == [False, True]
    assert rank_file(tmp_path, folder, 199)["body"]["number"] == 0
    again.files.calls = None  # type: ignore[assignment]
    assert again.write_rank_files(0, infos), "it does nothing more"


def test_a_damaged_index_gives_no_files_and_no_error(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 1), rank_infos(1)
    write(folder, infos)
    (tmp_path / folder.path / "sched/0/index.json").write_text("junk")
    again = SharedDirectory(Files(tmp_path)).job(folder.job_id)
    assert again.write_rank_files(0, infos)


def test_a_plan_or_an_index_of_another_schedule_is_not_followed(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 1), rank_infos(1)
    write(folder, infos)
    write(folder, infos, {0: 900}, number=1)
    index, places = index_of(folder, 1), folder.location / "sched"
    for name, of_0 in ((index.files["stage:0"], "0.json"), ("index.json", "index.json")):
        (places / "1" / name).unlink()
        (places / "1" / name).write_bytes((places / "0" / of_0).read_bytes())
    with pytest.raises(RecordError, match="it is of number 0"):
        folder.read_schedule(index, infos[0])
    with pytest.raises(RecordError, match="it is of number 0"):
        folder.read(bodies.IndexBody, number=1)
