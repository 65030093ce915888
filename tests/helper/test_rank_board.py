"""The progress record of a host: which way its ranks' clocks are set."""

from __future__ import annotations

import random

import msgspec
from jobs import rank_infos

from pfo_fs.helper.rank_board import RankBoard
from pfo_fs.ipc.messages import ProgressReport

REPORT = ProgressReport(
    step=3, number=0, iter_time=0.1, iter_energy=9.0, clock_mhz=900, message="", iteration_times=[], throttled=""
)


def test_the_record_names_the_way_in_which_the_clocks_of_each_rank_are_set() -> None:
    """Also of a rank whose clock process has reported before the rank joined."""
    board = RankBoard(random.Random(1))
    board.note_report(1, REPORT, now_s=1.0)
    for info, way in zip(rank_infos(2), ("zeusd", "none"), strict=True):
        board.join(info, None, way)
    board.note_report(0, REPORT, now_s=2.0)
    record = board.record(now_s=3.0, store_error="", local_mount=True)
    assert record is not None
    assert [(rank.clock_backend, rank.step) for rank in record.ranks] == [("zeusd", 3), ("none", 3)]


def test_what_a_clock_process_cannot_put_back_is_in_the_record_until_it_has() -> None:
    board = RankBoard(random.Random(1))
    board.join(rank_infos(1)[0], None, "nvml")
    texts = []
    for owed, message in ((1, "the default clocks could not be restored"), (0, "")):
        report = msgspec.structs.replace(REPORT, undo_owed=owed, undo_failures=7, message=message)
        board.note_report(0, report, now_s=100.0 * (2 - owed))
        record = board.record(now_s=100.0 * (2 - owed), store_error="", local_mount=True)
        assert record is not None
        assert (record.ranks[0].undo_owed, record.ranks[0].undo_failures) == (owed, 7)
        texts.append(record.ranks[0].error)
    assert texts == ["the default clocks could not be restored", ""]


def test_a_problem_of_training_stays_when_the_clock_process_has_none() -> None:
    board = RankBoard(random.Random(1))
    board.join(rank_infos(1)[0], None, "nvml")
    board.note_problem(0, "of training")
    board.note_report(0, REPORT, now_s=1.0)
    record = board.record(now_s=2.0, store_error="", local_mount=True)
    assert record is not None
    assert record.ranks[0].error == "of training"
