"""Registrations and results of a host's ranks: few files, and no rank is lost or counted twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout
from jobs import make_job, rank_infos, results_by_rank
from replaced_calls import Calls

from pfo_fs.errors import RecordError
from pfo_fs.models import ProfilingResult
from pfo_fs.store import Files, JobFolder, bodies


def ranks(count: int, nonce: str = "n") -> list[bodies.RankBody]:
    return [bodies.RankBody(rank_info=info, nonce=f"{nonce}{info.rank}", host="node1") for info in rank_infos(count)]


def result(rank: int, time_s: float = 1.0) -> bodies.ResultBody:
    return bodies.ResultBody(result=ProfilingResult(rank=rank, iter_time=[time_s], iter_energy=[1.0]))


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
    with pytest.raises(RecordError, match=r"1\.json: it is of rank 0"):
        folder.read_rank(1)


@pytest.mark.parametrize("together", [[3], [2, 3], [3, 4, 5]], ids=str)
def test_a_ranks_lock_is_held_while_its_file_is_written_whatever_ranks_register_with_it(
    tmp_path: Path, together: list[int]
) -> None:
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
    folder.write_results(0, [result(2), result(1)])
    folder.write_results(0, [result(1, 9.0), result(2, 9.0), result(3, 9.0)])  # a helper that replaces a dead one
    assert folder.numbers(bodies.ResultsBody, number=0) == [1, 3]
    found = results_by_rank(folder, 0)
    assert {rank: body.result.iter_time for rank, body in found.items()} == {1: [1.0], 2: [1.0], 3: [9.0]}


def test_results_too_large_for_one_file_become_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_job(tmp_path, 4)
    monkeypatch.setattr("pfo_fs.store.layout.PLAN_LIMIT", 800)
    folder.write_results(0, [result(rank) for rank in range(16)])
    assert len(folder.numbers(bodies.ResultsBody, number=0)) > 1
    assert list(results_by_rank(folder, 0)) == list(range(16))
