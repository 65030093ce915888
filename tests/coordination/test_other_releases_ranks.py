"""A daemon and ranks one schema apart: default clocks and a message with both versions."""

from __future__ import annotations

from pathlib import Path

from clock import Clock
from coordinator_jobs import coordinate, poll
from jobs import make_job, rank_infos, register
from record_corpus import Place, load, plant, sign

from pfo_fs.helper import operations as op
from pfo_fs.helper.job import CoordinationChoice
from pfo_fs.store import SharedDirectory, bodies

INFOS = rank_infos(1, 2)


def test_ranks_of_the_next_release_keep_default_clocks_and_the_status_names_the_versions(
    tmp_path: Path, clock: Clock
) -> None:
    folder = make_job(tmp_path, 1, 2)
    register(folder, INFOS)
    place = Place(f"{folder.path}/ranks/1.json", bodies.RanksBody)
    plant(tmp_path, place, sign({**load(tmp_path, place), "schema": "pfo-fs/3"}))
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 5)
    assert (coordinator.state, folder.schedule_numbers()) == ("broken", [])
    assert "ranks/1.json" in coordinator.message
    assert "'pfo-fs/3', and this release reads 'pfo-fs/5'" in coordinator.message


def test_rank_0_schedules_itself_where_the_daemon_is_of_the_next_release_and_says_why(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1, 2)
    shared = SharedDirectory(folder.files, "daemon")
    shared.write(bodies.DaemonBody(generation=1, counter=1, host="h", pid=1, version="9", scheduler="S", interval_s=1))
    place = Place("daemon.json", bodies.DaemonBody)
    plant(tmp_path, place, sign({**load(tmp_path, place), "schema": "pfo-fs/3"}))
    operations = op.DirectoryOperations(str(tmp_path), "test", "Manual")
    body = bodies.RankBody(rank_info=INFOS[0], nonce="n")
    operations.execute(op.RegisterRanks((body,), folder.job_id, "attempt", shared.directory_id(), again=False))
    found = operations.execute(op.AskWhoSchedules())
    assert isinstance(found, op.WhoSchedules)
    choice = CoordinationChoice("auto", 0.0)
    assert isinstance(choice.learn(found, 0.0), op.ClaimForRank0)
    assert "daemon.json: the record has schema 'pfo-fs/3', and this release reads" in choice.warning
