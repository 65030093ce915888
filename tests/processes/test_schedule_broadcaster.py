"""The exchange of schedules between real processes, by gloo."""

import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from running import HANGS_AFTER_S

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.slow

RANKS = 3


def run_rank(rank: int, meeting: str, offers: Mapping[int, str], fails: tuple[int, int], found: Any) -> None:
    """Steps of 20 ms of a rank, which notes each event; rank 0 makes offers at some steps, an exchange may fail."""
    from pfo_fs.training.schedule_broadcaster import ScheduleBroadcaster

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    broadcaster = ScheduleBroadcaster(rank)
    broadcaster.send_first(b"first" if rank == 0 else None)
    events: list[dict[str, Any]] = [{"rank": rank, "first": broadcaster.step_begin(0, None)}]
    for step in range(40):
        if rank == 0 and step in offers:
            broadcaster.offer(offers[step].encode())
        if fails == (rank, step):
            broadcaster._phase, broadcaster._at_step = "header", step
            failed = {"is_completed.return_value": True, "wait.side_effect": RuntimeError("as asked")}
            broadcaster._work = MagicMock(**failed)
        packet = broadcaster.step_begin(step, 0.3)
        if packet is not None:
            events.append({"rank": rank, "step": step, "packet": packet[:3]})
        if broadcaster.lost and not any("lost" in event for event in events):
            events.append({"rank": rank, "step": step, "lost": True})
        time.sleep(0.02)
        dist.barrier()
    broadcaster.close()
    dist.destroy_process_group()
    found.put(events)


def play(folder: Path, offers: Mapping[int, str], fails: tuple[int, int] = (-1, -1)) -> list[dict[str, Any]]:
    """Runs all ranks to their end; returns what they have noted."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch.distributed"])
    found = forks.Queue()
    given = str(folder / "meeting"), offers, fails, found
    ranks = [forks.Process(target=run_rank, args=(rank, *given)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    events = [event for _ in ranks for event in found.get(timeout=HANGS_AFTER_S)]
    for rank in ranks:
        rank.join(HANGS_AFTER_S)
    assert [rank.exitcode for rank in ranks] == [0] * RANKS, "training ends as always"
    return events


def test_packets_arrive_on_all_ranks_at_the_same_step_and_the_newest_offer_wins(tmp_path: Path) -> None:
    events = play(tmp_path, {1: "x", 2: "y", 20: "z" * 100_000})
    assert [event["first"] for event in events if "first" in event] == [b"first"] * RANKS
    arrived = [(event["step"], event["packet"]) for event in events if "packet" in event]
    assert {packet for _, packet in arrived} >= {b"y", b"zzz"}
    assert len(arrived) == RANKS * len(set(arrived)), "each packet at one step"
    assert not [event for event in events if "lost" in event]


@pytest.mark.parametrize("rank", [0, 2])
def test_an_exchange_that_fails_on_one_rank_is_noticed_by_all_others_within_a_few_steps(
    tmp_path: Path, rank: int
) -> None:
    events = play(tmp_path, {1: "x"}, (rank, 20))
    lost = {event["rank"]: event["step"] for event in events if "lost" in event}
    assert (sorted(lost), lost[rank]) == (list(range(RANKS)), 20)
    assert max(lost.values()) <= 30
