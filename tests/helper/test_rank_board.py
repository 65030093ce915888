"""The progress record of a host, and when the time of iterations is worth a write."""

from __future__ import annotations

import msgspec
import pytest
from clock import Clock
from jobs import rank_infos

from pfo_fs.helper.job import Around
from pfo_fs.helper.rank_board import IterationTimeLog, RankBoard
from pfo_fs.ipc.messages import ProgressReport
from pfo_fs.store.bodies import ProgressBody

REPORT = ProgressReport(step=3, number=0, iter_time=0.1, iter_energy=9.0, clock_mhz=900)


def record_of(board: RankBoard, clock: Clock) -> ProgressBody:
    """The next record of progress."""
    clock.now += 100.0
    record = board.record("")
    assert record is not None
    return record


@pytest.fixture
def board(clock: Clock) -> RankBoard:
    return RankBoard(Around(clock))


def test_the_record_names_the_way_in_which_the_clocks_of_each_rank_are_set(board: RankBoard, clock: Clock) -> None:
    """Also of a rank whose clock process has reported before the rank joined."""
    board.note_report(1, REPORT)
    for info, way in zip(rank_infos(2), ("zeusd", "none"), strict=True):
        board.join(info, None, way)
    board.note_report(0, REPORT)
    ranks = record_of(board, clock).ranks
    assert [(rank.clock_backend, rank.step) for rank in ranks] == [("zeusd", 3), ("none", 3)]


def test_what_a_clock_process_cannot_put_back_is_in_the_record_until_it_has(board: RankBoard, clock: Clock) -> None:
    board.join(rank_infos(1)[0], None, "nvml")
    for owed, message in ((1, "the default clocks could not be restored"), (0, "")):
        board.note_report(0, msgspec.structs.replace(REPORT, undo_owed=owed, undo_failures=7, message=message))
        (rank,) = record_of(board, clock).ranks
        assert (rank.undo_owed, rank.undo_failures, rank.error) == (owed, 7, message)


def test_a_problem_of_training_stays_when_the_clock_process_has_none(board: RankBoard, clock: Clock) -> None:
    board.join(rank_infos(1)[0], None, "nvml")
    board.note_problem(0, "of training")
    board.note_report(0, REPORT)
    assert record_of(board, clock).ranks[0].error == "of training"


def written(*steps: tuple[int, int, float], throttled: str = "") -> IterationTimeLog:
    """What was written at 100 s."""
    log = IterationTimeLog(1.0)
    log.add(steps, throttled)
    assert log.take(100.0) == bool(steps or throttled)
    return log


def test_iterations_that_take_the_same_are_written_seldom() -> None:
    log = written((0, 0, 10.0))
    log.add([(1, 0, 10.05)], "")
    assert [log.take(at_s) for at_s in (105.0, 116.0)] == [False, True]


@pytest.mark.parametrize(
    ("steps", "throttled"), [([(1, 0, 1.2)], ""), ([(1, 1, 1.0)], ""), ([(1, 0, 1.0)], "thermal slowdown")]
)
def test_a_longer_iteration_another_schedule_and_throttling_are_news(
    steps: list[tuple[int, int, float]], throttled: str
) -> None:
    log = written((0, 0, 1.0))
    log.add(steps, throttled)
    assert not log.take(100.5), "but not more often than the interval"
    assert log.take(101.5)


def test_a_rank_that_has_nothing_to_say_but_throttling_says_when_it_is_over() -> None:
    written()
    log = written(throttled="power brake")
    assert not log.take(105.0)
    log.add([], "")
    assert log.take(105.0)


def test_only_the_last_iterations_are_kept() -> None:
    assert [step for step, _, _ in written(*((step, 0, 1.0) for step in range(100))).steps] == list(range(84, 100))


def test_iterations_after_a_change_are_written_soon_so_that_a_straggler_can_be_confirmed() -> None:
    log = written((0, 0, 1.0))
    log.add([(5, 0, 1.2)], "")
    assert log.take(120.0)
    taken = []
    for step in range(6, 12):
        log.add([(step, 0, 1.2)], "")
        taken.append(log.take(110.0 + 2 * step))
    assert taken == [True, True, True, False, False, False]
