"""When the time of iterations is worth a write."""

from __future__ import annotations

from pfo_fs.helper.rank_board import IterationTimeLog


def test_the_first_iterations_are_written_at_once() -> None:
    log = IterationTimeLog(1.0)
    assert not log.due(100.0)
    log.add([(0, 0, 1.0)], "")
    assert log.due(100.0)


def test_iterations_that_take_the_same_are_written_seldom() -> None:
    log = IterationTimeLog(1.0)
    log.add([(0, 0, 1.0)], "")
    log.written(100.0)
    log.add([(1, 0, 1.002)], "")
    assert not log.due(105.0)
    assert log.due(116.0)


def test_a_longer_iteration_another_schedule_and_throttling_are_news() -> None:
    for steps, throttled in (([(1, 0, 1.2)], ""), ([(1, 1, 1.0)], ""), ([(1, 0, 1.0)], "thermal slowdown")):
        log = IterationTimeLog(1.0)
        log.add([(0, 0, 1.0)], "")
        log.written(100.0)
        log.add(steps, throttled)
        assert log.due(101.5)
        assert not log.due(100.5), "but not more often than the interval"


def test_a_rank_that_has_nothing_to_say_but_throttling_says_when_it_is_over() -> None:
    log = IterationTimeLog(1.0)
    log.add([], "")
    assert not log.due(100.0)
    log.add([], "power brake")
    assert log.due(100.0)
    log.written(100.0)
    assert not log.due(105.0)
    log.add([], "")
    assert log.due(105.0)


def test_only_the_last_iterations_are_kept() -> None:
    log = IterationTimeLog(1.0)
    log.add([(step, 0, 1.0) for step in range(100)], "")
    assert [step for step, _, _ in log.steps] == list(range(84, 100))


def test_iterations_after_a_change_are_written_soon_so_that_a_straggler_can_be_confirmed() -> None:
    log = IterationTimeLog(1.0)
    log.add([(0, 0, 1.0)], "")
    for step in range(1, 5):
        log.written(100.0 + 2 * step)  # the first record, and the confirmations of it
    log.add([(5, 0, 1.2)], "")
    log.written(120.0)
    due = []
    for step in range(6, 12):
        log.add([(step, 0, 1.2)], "")
        now = 110.0 + 2 * step
        due.append(log.due(now))
        if due[-1]:
            log.written(now)
    assert due == [True, True, True, False, False, False]
