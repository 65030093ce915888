"""What a helper follows and writes: which schedule a host has, whether the directory answers, the progress record of a
host and the times of iterations, and GPUs whose clock process was stopped by a signal, or has died."""

import errno
import logging
import signal
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from jobs import rank_infos
from running import Processes, wait_for

from pfo_fs.errors import StoreError
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import ScheduleFound
from pfo_fs.helper.rank_board import IterationTimeLog, RankBoard
from pfo_fs.helper.resets import Resets
from pfo_fs.helper.watches import BELIEVED_AFTER_S, DirectoryHealth, ScheduleWatch
from pfo_fs.ipc import messages
from pfo_fs.ipc.messages import NewSchedule, PaceLeaseRenewed, ProgressReport, SchedulesWithdrawn
from pfo_fs.store.bodies import CurrentBody, ProgressBody

Pair = tuple[int, int]
"""Generation and number that `current.json` names."""


class Ranks:
    """The ranks of a host whose helper polls `current.json` once a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.watch = ScheduleWatch(1.0, Around(lambda: self.now_s, seed=0))
        self.follow: int | None = None

    def see(self, current: Pair | None, polls: int = 1) -> int | None:
        """Polls while the file says this; returns the number that the ranks follow then; None: default clocks."""
        for _ in range(polls):
            self.now_s += 1.0
            body = current and CurrentBody(generation=current[0], number=current[1], state="running")
            is_new = current is not None and current[1] >= 0 and current > self.watch.known
            found = ScheduleFound(body, NewSchedule(number=current[1]) if current and is_new else None)
            for told in self.watch.learn(found):
                if isinstance(told, SchedulesWithdrawn):
                    self.follow = None
                elif isinstance(told, NewSchedule):
                    self.follow = told.number
            self.watch.polled()
        return self.follow


LONG = int(BELIEVED_AFTER_S) + 3
pairs = st.tuples(st.sampled_from([0, 1, 2, 999_999_999]), st.sampled_from([-1, 0, 1, 7, 999_999_999]))


@given(st.lists(st.tuples(st.none() | pairs, st.integers(1, 30)), max_size=6), st.none() | pairs)
def test_ranks_follow_what_the_file_says_for_long(earlier: list[tuple[Pair | None, int]], last: Pair | None) -> None:
    ranks = Ranks()
    for current, polls in earlier:
        ranks.see(current, polls)
    assert ranks.see(last, LONG) == (last[1] if last is not None and last[1] >= 0 else None)


@pytest.mark.parametrize("stale", [(1, 3), (0, 9), (1, -1), None])
def test_one_stale_read_changes_nothing(stale: Pair | None) -> None:
    ranks = Ranks()
    for _ in range(20):
        assert ranks.see((1, 4), 3) == 4
        assert ranks.see(stale, 3) == 4


def test_words_that_hold_a_schedule_are_passed_on() -> None:
    watch, told = ScheduleWatch(1.0, Around()), []
    for number, lease_s, word in [(-1, 0, 0), (0, 0, 0), (0, 60, 1), (0, 60, 2), (0, 60, 0), (-1, 0, 0), (0, 0, 0)]:
        current = CurrentBody(generation=1, number=number, state="running", lease_s=lease_s, heartbeat=word)
        told.append([m.lease_s for m in watch.learn(ScheduleFound(current)) if isinstance(m, PaceLeaseRenewed)])
    # None: this coordinator does not follow the straggler, or knows nothing of schedules yet.
    assert told == [[], [0.0], [62.0], [62.0], [], [], [0.0]]


def test_a_schedule_that_came_after_a_withdrawal_stays() -> None:
    ranks = Ranks()
    ranks.see((999_999_999, 7))
    ranks.see((1, 2), LONG)
    assert ranks.see((1, 2), 5 * LONG) == 2
    assert ranks.see((1, 3)) == 3


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> DirectoryHealth:
    caplog.set_level(logging.WARNING, "pfo_fs")
    return DirectoryHealth(clock)


FULL = StoreError(errno.ENOSPC, "no space left")


def test_outages_and_ends_are_said(outage: DirectoryHealth, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        outage.ended("read", FULL)
        clock.now += 1
    assert outage.error == "no space left"
    clock.now += 10
    outage.ended("read", None)
    outage.ended("read", None)
    assert outage.error == ""
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the shared directory does not answer; training goes on with its present schedule",
        "the shared directory answers again",
    ]


def test_a_full_disk_that_takes_some_writes_is_one_outage(
    outage: DirectoryHealth, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        outage.ended("write", FULL)
        clock.now += 1
        outage.ended("write", None)
    assert len(caplog.records) == 1


def test_what_cannot_be_written_does_not_hide_that_nothing_is_read(outage: DirectoryHealth, clock: Clock) -> None:
    for _ in range(2):
        outage.ended("read", FULL)
        clock.now += 350
    outage.ended("write", None)
    assert outage.is_lost
    outage.ended("read", None)
    outage.ended("write", FULL)
    clock.now += 700
    assert not outage.is_lost
    assert outage.error == "no space left"


def test_what_a_plan_saves_is_logged_when_it_stays_and_again_only_when_that_changes() -> None:
    watch = ScheduleWatch(1.0, Around())
    tried = CurrentBody(generation=1, number=3, state="running", status_text="saves 9.0 ± 0.9 %")
    stays = tried.model_copy(update={"converged": True})
    again = stays.model_copy(update={"status_text": "saves 9.1 ± 0.2 %", "yaml_problem": "line 3: what?"})
    assert watch.texts_for_log(tried) == []
    assert watch.texts_for_log(stays) == [(logging.INFO, "schedule 3 stays: saves 9.0 ± 0.9 %")]
    assert watch.texts_for_log(stays) == []
    assert watch.texts_for_log(again) == [
        (logging.WARNING, "schedule.yaml: line 3: what?"),
        (logging.INFO, "schedule 3 stays: saves 9.1 ± 0.2 %"),
    ]


# ---- the progress record of a host, and when the time of iterations is worth a write


REPORT = ProgressReport(step=3, number=0, iter_time=0.1, iter_energy=9.0, clock_mhz=900)


def record_of(board: RankBoard, clock: Clock) -> ProgressBody:
    clock.now += 100.0
    return board.record("")


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
def test_longer_steps_schedules_and_throttling_are_news(steps: list[tuple[int, int, float]], throttled: str) -> None:
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
    log.not_written()
    assert log.take(106.0)


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


# ---- GPUs whose clock process was stopped, or has died


GPU = messages.GpuToReset("nvml:GPU-3")


class ClockHost:
    """A helper with the clock process of rank 3."""

    def __init__(self, processes: Processes, clock: Clock) -> None:
        self.resets: list[tuple[int, messages.GpuToReset]] = []
        self.stopped = Resets(lambda: None, lambda _: "", lambda *_: None, lambda *gpu: self.resets.append(gpu))
        self.process = processes.start("sleep", "60")
        self._clock = clock
        clocks = messages.Hello(rank=3, role="clocks", token="t", gpu=GPU)
        self.hear(2, clocks)

    def hear(self, client: int, message: messages.ToHelper) -> None:
        peer = {(socket.SOL_SOCKET, socket.SO_PEERCRED, 12): struct.pack("3i", self.process.pid, 0, 0)}
        self.stopped.hear(client, message, SimpleNamespace(getsockopt=lambda *asked: peer[asked]))

    def send(self, number: signal.Signals, then: str) -> None:
        self.process.send_signal(number)
        wait_for(lambda: self.state() == then, what=f"state {then}")

    def state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def look(self, times: int) -> None:
        for _ in range(times):
            self._clock.now += 2.1
            self.stopped.look(self._clock())


@pytest.fixture
def host(processes: Processes, clock: Clock) -> ClockHost:
    host = ClockHost(processes, clock)
    wait_for(lambda: host.state() == "S", what="the process")
    return host


def test_a_silent_clock_process_is_left_alone_and_its_stop_told_once_so_that_its_gpu_is_reset(host: ClockHost) -> None:
    host.look(1000)
    assert host.resets == [], "it runs"
    for count in (1, 2):
        host.send(signal.SIGSTOP, "T")
        host.look(1)
        assert len(host.resets) == count - 1, "it may be a debugger's stop"
        host.look(10)
        assert host.resets == count * [(3, GPU)]
        host.send(signal.SIGCONT, "S")
        host.look(3)


@pytest.mark.parametrize("end", ["released", "gone"])
def test_a_clock_process_that_has_reset_its_clocks_or_is_gone_is_not_looked_at(host: ClockHost, end: str) -> None:
    if end == "gone":
        host.stopped.gone(2)
    else:
        host.hear(2, messages.ClocksReleased())
    host.send(signal.SIGSTOP, "T")
    host.look(5)
    assert host.resets == []


@pytest.mark.parametrize("raises", [False, True])
def test_the_result_of_a_reset_is_told_also_if_it_raises(raises: bool) -> None:
    def reset(_: messages.GpuToReset) -> str:
        if raises:
            raise RuntimeError("the driver is away")
        return "the driver is away"

    told: list[tuple[object, ...]] = []
    Resets(lambda: None, reset, lambda *ended: told.append(ended), lambda *_: None).start(3, GPU)
    wait_for(lambda: told, what="the result")
    assert told == [(3, GPU, "the driver is away")]
