"""What training tells the clock process about the progress of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_clocks import MS, Device, FakeClocks, Queue
from hypothesis import given
from test_instruction_tracker import STEPS, B, F, Told, follow, run

from pfo_fs.device import shared_page
from pfo_fs.device.clocks.clock_requests import ClockRequests
from pfo_fs.device.clocks.followed_plan import START
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.gpu.driver_errors import NEVER
from pfo_fs.device.shared_page import (
    FOLLOWS,
    IDLE,
    LAUNCHED,
    POINT_MASK,
    PROGRESS,
    REPLAYED,
    SLEEPING,
    TURNS,
    UNMARKED,
)
from pfo_fs.errors import DeviceError
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.progress_marker import ProgressMarker
from pfo_fs.turns import Turn


@pytest.fixture
def device(clocks: FakeClocks, told: list[str]) -> Device:
    return Device(clocks, told.append)


@pytest.fixture
def queue(device: Device) -> Queue:
    return device.queue


@pytest.fixture
def marker(device: Device) -> ProgressMarker:
    return device.marker


@pytest.fixture
def tracker(clocks: FakeClocks, marker: ProgressMarker, queue: Queue) -> InstructionTracker:
    return InstructionTracker(clocks, marker=marker, on_mismatch=Told(), is_capturing=lambda: queue.captures)


def codes(queue: Queue) -> list[int]:
    return [point & POINT_MASK for point in queue]


# ---- marks


@pytest.mark.parametrize("ends", ["the schedule", "the clock process"])
def test_without_a_schedule_or_a_clock_process_nothing_is_marked(
    tracker: InstructionTracker, marker: ProgressMarker, queue: Queue, ends: str
) -> None:
    run(tracker, F, B)
    assert queue == []
    tracker.set_schedule([(F, 900), (B, 1200)])
    run(tracker, F, B)
    marked = len(queue)
    if ends == "the schedule":
        tracker.set_schedule(None)
    else:
        marker.stop()
    run(tracker, F, B)
    assert len(queue) == marked > 0


def test_each_step_has_another_turn_and_the_turns_wrap_around(marker: ProgressMarker, queue: Queue) -> None:
    marker.set_plan([900], [0])
    for _ in range(REPLAYED):
        marker.begin_step()
    assert len(set(queue)) == REPLAYED
    marker.begin_step()
    assert queue[-1] == queue[0]
    assert max(queue) < 1 << 32


def test_the_last_point_that_was_launched_is_known_before_the_doorbell_rings(clocks: FakeClocks, queue: Queue) -> None:
    seen = []
    clocks.ring_doorbell = lambda: seen.append(clocks.words[LAUNCHED])  # type: ignore[method-assign]
    marker = ProgressMarker(clocks, queue.enqueue)
    marker.set_plan([900], [0])
    clocks.words[SLEEPING] = 1
    marker.begin_step()
    assert seen == [queue[-1]]


# ---- what the clock process makes of them


@given(STEPS)
def test_the_device_has_the_clock_of_each_instruction_that_it_gets_to(steps: Any) -> None:
    clocks, told = FakeClocks(), Told()
    device = Device(clocks)
    follow(InstructionTracker(clocks, marker=device.marker, on_mismatch=told), clocks, told, steps, device.catch_up)


def test_steps_that_are_still_in_the_queue_keep_their_schedule_when_it_changes(
    tracker: InstructionTracker, device: Device, queue: Queue
) -> None:
    for mhz in (900, 1005, 1200):
        tracker.set_schedule([(F, mhz)])
        run(tracker, F)
        run(tracker, F)
    tracker.set_schedule(None)
    run(tracker, F)
    got = [device.reach() for _ in range(len(queue))]
    assert got == [clock for mhz in (900, 1005, 1200) for clock in [mhz, mhz, mhz, 0] * 2]


@pytest.mark.parametrize("names", [(F, B, F), (F, F), (F,)])
def test_a_step_that_does_not_run_as_scheduled_teaches_no_durations(
    tracker: InstructionTracker, device: Device, names: tuple[str, ...], queue: Queue
) -> None:
    tracker.set_schedule([(F, 900), (B, 1200), (F, 900), (B, 900)])
    for _ in range(3):
        run(tracker, F, B, F, B)
        while queue:
            device.reach()
    plan = device.requests._follower.plan
    before = plan.gap_ns[-1], plan.expected_ns(0, plan.last)
    for _ in range(3):
        run(tracker, *names)
        while queue:
            device.reach()
    assert device.requests._follower.plan is plan
    assert (plan.gap_ns[-1], plan.expected_ns(0, plan.last)) == before


def test_a_step_that_an_exception_left_does_not_leave_its_clock_to_steps_without_schedule(
    tracker: InstructionTracker, device: Device
) -> None:
    tracker.set_schedule([(F, 900), (B, 900)])
    tracker.step_begin(0, 0)
    tracker.begin(F)
    assert device.catch_up() == 900
    tracker.set_schedule(None)
    tracker.step_begin(1, 0)
    assert device.catch_up() == 0


def test_two_stages_of_a_rank_have_kinds_of_their_own(tracker: InstructionTracker, clocks: FakeClocks) -> None:
    tracker.set_schedule([(F, 900), (F, 900), (B, 900), (F, 1200)], [0, 1, 0, 0])
    clocks_mhz, kinds = shared_page.read_plan(clocks.words, 0)
    assert clocks_mhz == [900, 900, 900, 1200]
    assert kinds[0] == kinds[3]
    assert len(set(kinds)) == 3


def test_the_longest_schedule_is_followed_to_its_end(tracker: InstructionTracker, device: Device, queue: Queue) -> None:
    count = 65_535  # of more names than the page's table holds
    tracker.set_schedule([(f"name {place}", 900 + 15 * (place % 2)) for place in range(count)])
    run(tracker, *[f"name {place}" for place in range(count)])
    assert tracker._on_mismatch == []
    assert len(queue) == 2 * count + 2
    assert len(set(queue)) == len(queue)
    assert device.reach(2 * count) in {900, 915}
    assert device.catch_up() == 0


def test_a_page_with_nonsense_in_it_leads_to_no_error(clocks: FakeClocks, device: Device) -> None:
    for progress, slot in ((-1, 1 << 40), (1 << 62, -7), (5, 3), ((1 << 32) - 1, 2)):
        clocks.words[TURNS : TURNS + 16] = memoryview(b"".join([slot.to_bytes(8, "little", signed=True)] * 16)).cast(
            "q"
        )
        clocks.words[PROGRESS] = progress
        device.now_ns += MS
        assert device.requests.wanted(device.now_ns) == 0


# ---- a whole iteration in one CUDA graph


def capture_step(tracker: InstructionTracker, queue: Queue, *names: str, step: int = 0) -> None:
    """A step whose instructions are captured, and which is then replayed for the first time."""
    tracker.step_begin(step, -1)
    with queue.capture():
        for name in names:
            tracker.begin(name)
            tracker.end(name)
    queue.replay()
    tracker.step_end()


def replay_step(tracker: InstructionTracker, queue: Queue, *, replays: int = 1, **options: Any) -> None:
    tracker.step_begin(1, 0, **options)
    for _ in range(replays):
        queue.replay()
    tracker.step_end()


@pytest.mark.parametrize("planned", [False, True])
def test_the_replays_of_a_captured_iteration_follow_the_schedule_of_their_step(
    tracker: InstructionTracker, device: Device, queue: Queue, clocks: FakeClocks, told: list[str], planned: bool
) -> None:
    if planned:
        tracker.set_schedule([(F, 1005), (B, 1005)])
    capture_step(tracker, queue, F, B)
    assert [point & POINT_MASK for point in queue.graph or ()] == [0, 1, 2, 3]
    assert ["follow a schedule" in text for text in told] == [True]
    device.catch_up()
    clocks.kinds()
    tracker.set_schedule([(F, 900), (B, 1200)], in_turns=True)
    replay_step(tracker, queue, until=9)
    replay_step(tracker, queue, until=9, turn=Turn(follows=False))
    tracker.set_schedule([(F, 1410), (B, 900)])  # training is ahead of the device
    replay_step(tracker, queue)
    tracker.set_schedule(None)
    replay_step(tracker, queue)
    got = [device.reach() for _ in range(len(queue))]
    assert got == [900, 900, 1200, 1200, 1200, 0] + [0] * 6 + [1410, 1410, 900, 900, 900, 0] + [0] * 6
    assert tracker._on_mismatch == []
    ends = [code for _, code in clocks.marks() if code & 0xFF == shared_page.STEP_END]
    assert [end >> 8 for end in ends] == [UNMARKED] * 4, "their instructions have no times"


def test_a_begin_of_a_replay_that_was_not_seen_is_known_by_the_fall_of_the_number(
    tracker: InstructionTracker, device: Device, queue: Queue
) -> None:
    capture_step(tracker, queue, F, B)
    tracker.set_schedule([(F, 900), (B, 1200)])
    device.catch_up()
    for mhz in (900, 1005):
        tracker.set_schedule([(F, mhz), (B, 1200)])
        replay_step(tracker, queue)
        assert device.reach(2) == mhz  # the begin of the step and of its first instruction were one look
        assert device.reach(3) == 1200  # its end is not seen
        del queue[:]


@pytest.mark.parametrize("replays", [2, 3])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_more_replays_than_steps_are_default_clocks_and_one_line(
    tracker: InstructionTracker,
    clocks: FakeClocks,
    device: Device,
    queue: Queue,
    told: list[str],
    replays: int,
    is_ahead: bool,
) -> None:
    capture_step(tracker, queue, F, B)
    device.catch_up()
    tracker.set_schedule([(F, 900), (B, 1200)])
    for _ in range(3):
        replay_step(tracker, queue, replays=replays)
        while queue and not is_ahead:
            device.reach()
    for _ in range(1 + 4 * replays + 1 if is_ahead else 0):
        device.reach()
    assert clocks.words[shared_page.REPLAYS_DIFFER], "seen by the end of the first step"
    replay_step(tracker, queue, replays=replays)
    assert {device.reach() for _ in range(len(queue))} == {0}
    assert {"not replayed once in each step" in text for text in told[1:]} == {True}


def test_a_step_that_calls_its_instructions_is_no_replay_and_one_with_one_clock_is_not_captured(
    tracker: InstructionTracker, queue: Queue, clocks: FakeClocks
) -> None:
    capture_step(tracker, queue, F, B)
    clocks.kinds()
    run(tracker, F, B)
    assert clocks.marks()[-1][1] >> 8 == 0, "it is measured"
    tracker.step_begin(0, 0, 900)
    with queue.capture():
        tracker.begin(F)
        tracker.end(F)
    tracker.step_end()
    assert queue.graph == []


def test_a_step_that_begins_within_the_capture_is_told_and_its_replays_have_default_clocks(
    tracker: InstructionTracker, device: Device, queue: Queue, told: list[str]
) -> None:
    tracker.set_schedule([(F, 900), (B, 1200)])
    with queue.capture():
        run(tracker, F, B)
    for _ in range(3):
        queue.replay()
    assert {device.reach() for _ in range(len(queue))} == {0}
    assert ["on_step_begin was called while a CUDA graph is captured" in text for text in told] == [True]


def test_a_schedule_of_another_length_than_the_graph_is_not_followed(
    tracker: InstructionTracker, device: Device, queue: Queue
) -> None:
    capture_step(tracker, queue, F, B)
    tracker.set_schedule([(F, 900), (B, 900), (F, 900), (B, 900)])
    replay_step(tracker, queue)
    assert {device.reach() for _ in range(len(queue))} == {0}
    assert tracker._on_mismatch == [(0, "4 instructions", "a CUDA graph of 2")]


def test_graphs_of_single_modules_run_within_their_instructions_as_other_work_does(
    tracker: InstructionTracker, device: Device, queue: Queue
) -> None:
    """Megatron, Transformer Engine and torch.compile capture modules; a mark is never called within one."""
    tracker.set_schedule([(F, 900), (B, 1200)])
    for _ in range(3):
        tracker.step_begin(0, 0)
        for name in (F, B):
            tracker.begin(name)
            with queue.capture():
                pass  # the module's kernels, without a mark
            queue.replay()
            tracker.end(name)
        tracker.step_end()
    assert codes(queue) == [START, 0, 1, 2, 3, IDLE] * 3
    assert [device.reach() for _ in range(len(queue))] == [900, 900, 1200, 1200, 1200, 0] * 3


# ---- when the clock process may sleep


def test_the_clock_process_waits_for_the_doorbell_when_the_device_has_done_everything(
    tracker: InstructionTracker, device: Device, queue: Queue
) -> None:
    assert device.requests.waits()
    tracker.set_schedule([(F, 900)])
    run(tracker, F)
    assert not device.requests.waits()
    assert device.requests.wake_ns(device.now_ns) < NEVER
    device.reach(len(queue) - 1)
    assert not device.requests.waits()
    device.catch_up()
    assert device.requests.waits()
    assert device.requests.wake_ns(device.now_ns) == NEVER


# ---- failures


def test_after_a_refused_mark_clocks_follow_the_callbacks_from_the_next_step_on(
    tracker: InstructionTracker, clocks: FakeClocks, queue: Queue, told: list[str], device: Device
) -> None:
    tracker.set_schedule([(F, 900), (B, 1200)])
    tracker.step_begin(0, 0)
    tracker.begin(F)
    assert device.catch_up() == 900
    queue.fails = DeviceError("the driver is gone")
    tracker.end(F)
    assert (clocks.words[FOLLOWS], clocks.target, clocks.rings) == (0, 0, 1)
    assert device.requests.wanted(device.now_ns) == 0
    tracker.begin(B)
    tracker.end(B)
    tracker.step_end()
    tracker.step_begin(1, 0)
    tracker.begin(F)
    assert device.requests.wanted(device.now_ns) == 900
    assert len(told) == 1
    assert "the driver is gone" in told[0]


def test_a_forked_child_marks_nothing(tracker: InstructionTracker, queue: Queue, clocks: FakeClocks) -> None:
    tracker.set_schedule([(F, 900)])
    tracker.step_begin(0, 0)
    before = list(queue)
    tracker.disconnect()
    tracker.begin(F)
    tracker.end(F)
    tracker.step_end()
    run(tracker, F)
    assert queue == before


def test_steps_in_which_half_of_the_ranks_follow_teach_nothing_of_the_others(
    clocks: FakeClocks, marker: ProgressMarker, queue: Queue
) -> None:
    requests = ClockRequests(clocks.words, LatencyModel(known_ns=dict.fromkeys((0, 900, 1200), 20 * MS)))
    marker.set_plan([900, 1200], [0, 1], in_turns=True)
    now_ns = 0

    def reach(mark: Callable[[], object], after_ns: int) -> None:
        nonlocal now_ns
        mark()
        requests.wanted(now_ns + after_ns - MS)  # it looks, and the device is not there yet
        now_ns += after_ns
        clocks.words[PROGRESS] = queue[-1]
        requests.wanted(now_ns)

    def step(turn: Turn, takes_ns: int) -> int:
        """Returns when, after the begin of the first instruction, the clock of the second is requested."""
        reach(lambda: marker.begin_step(turn), 500 * MS)
        reach(lambda: marker.mark(0), MS)
        due_ns = requests.wake_ns(now_ns) - now_ns
        reach(lambda: marker.mark(1), takes_ns)
        reach(lambda: marker.mark(2), MS)
        reach(lambda: marker.mark(3), 100 * MS)
        reach(marker.end_step, MS)
        return due_ns

    for _ in range(20):
        before_ns = step(Turn(), 100 * MS)
    for _ in range(20):
        beside_ns = step(Turn(follows=True, is_mixed=True), 200 * MS)
    assert beside_ns > before_ns + 50 * MS
    assert step(Turn(), 100 * MS) == pytest.approx(before_ns, abs=MS)
