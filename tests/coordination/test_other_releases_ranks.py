"""Ranks of another release than the daemon: default clocks, and a message with both versions."""

from __future__ import annotations

from pathlib import Path

from clock import Clock
from coordinator_jobs import coordinate, poll
from jobs import make_job, rank_infos, register
from record_corpus import Place, load, plant, sign

from pfo_fs.store import bodies

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
