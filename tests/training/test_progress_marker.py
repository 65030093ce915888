"""What training tells the clock process about the progress of the device."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_clocks import MS, Device, FakeClocks
from hypothesis import given
from test_instruction_tracker import STEPS, B, F, Tracker, follow

from pfo_fs.device import shared_page
from pfo_fs.device.clocks.clock_requests import ClockRequests
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.gpu.driver_errors import NEVER
from pfo_fs.device.shared_page import FOLLOWS, LAUNCHED, POINT_MASK, PROGRESS, REPLAYED, SLEEPING, TURNS, UNMARKED
from pfo_fs.errors import DeviceError
from pfo_fs.turns import Turn


class Training(Device, Tracker):
    """Training with a device, on which its clock process looks."""

    def __init__(self) -> None:
        Device.__init__(self, FakeClocks())
        Tracker.__init__(self, self.clocks, marker=self.marker, is_capturing=lambda: self.queue.captures)

    def capture_step(self, *names: str) -> None:
        """A step whose instructions are captured, and which is then replayed for the first time."""
        self.step_begin(0, -1)
        with self.queue.capture():
            for name in names:
                self.begin(name)
                self.end(name)
        self.queue.replay()
        self.step_end()

    def replay_step(self, *, replays: int = 1, **options: Any) -> None:
        self.step_begin(1, 0, **options)
        for _ in range(replays):
            self.queue.replay()
        self.step_end()


@pytest.fixture
def training() -> Training:
    return Training()


# ---- marks


@pytest.mark.parametrize("ends", ["the schedule", "the clock process"])
def test_without_a_schedule_or_a_clock_process_nothing_is_marked(training: Training, ends: str) -> None:
    training.run(F, B)
    assert training.queue == []
    training.set_schedule([(F, 900), (B, 1200)])
    training.run(F, B)
    marked = len(training.queue)
    if ends == "the schedule":
        training.set_schedule(None)
    else:
        training.marker.stop()
    training.run(F, B)
    assert len(training.queue) == marked > 0


def test_each_step_has_another_turn_and_the_turns_wrap_around(training: Training) -> None:
    training.marker.set_plan([900], [0])
    for _ in range(REPLAYED):
        training.marker.begin_step()
    assert len(set(training.queue)) == REPLAYED
    training.marker.begin_step()
    assert training.queue[-1] == training.queue[0]
    assert max(training.queue) < 1 << 32


def test_the_last_point_that_was_launched_is_known_before_the_doorbell_rings(training: Training) -> None:
    clocks, seen = training.clocks, []
    clocks.ring_doorbell = lambda: seen.append(clocks.words[LAUNCHED])  # type: ignore[method-assign]
    training.marker.set_plan([900], [0])
    training.clocks.words[SLEEPING] = 1
    training.marker.begin_step()
    assert seen == [training.queue[-1]]


# ---- what the clock process makes of them


@given(STEPS)
def test_the_device_has_the_clock_of_each_instruction_that_it_gets_to(steps: Any) -> None:
    training = Training()
    follow(training, steps, training.catch_up)


def test_steps_that_are_still_in_the_queue_keep_their_schedule_when_it_changes(training: Training) -> None:
    for mhz in (900, 1005, 1200):
        training.set_schedule([(F, mhz)])
        training.run(F)
        training.run(F)
    training.set_schedule(None)
    training.run(F)
    got = [training.reach() for _ in range(len(training.queue))]
    assert got == [clock for mhz in (900, 1005, 1200) for clock in [mhz, mhz, mhz, 0] * 2]


@pytest.mark.parametrize("names", [(F, B, F), (F, F), (F,)])
def test_a_step_that_does_not_run_as_scheduled_teaches_no_durations(training: Training, names: tuple[str, ...]) -> None:
    training.set_schedule([(F, 900), (B, 1200), (F, 900), (B, 900)])
    for _ in range(3):
        training.run(F, B, F, B)
        while training.queue:
            training.reach()
    plan = training.requests._follower.plan
    before = plan.gap_ns[-1], plan.expected_ns(0, plan.last)
    for _ in range(3):
        training.run(*names)
        while training.queue:
            training.reach()
    assert training.requests._follower.plan is plan
    assert (plan.gap_ns[-1], plan.expected_ns(0, plan.last)) == before


def test_a_step_that_an_exception_left_does_not_leave_its_clock_to_steps_without_schedule(training: Training) -> None:
    training.set_schedule([(F, 900), (B, 900)])
    training.step_begin(0, 0)
    training.begin(F)
    assert training.catch_up() == 900
    training.set_schedule(None)
    training.step_begin(1, 0)
    assert training.catch_up() == 0


def test_two_stages_of_a_rank_have_kinds_of_their_own(training: Training) -> None:
    training.set_schedule([(F, 900), (F, 900), (B, 900), (F, 1200)], [0, 1, 0, 0])
    clocks_mhz, kinds = shared_page.read_plan(training.clocks.words, 0)
    assert clocks_mhz == [900, 900, 900, 1200]
    assert kinds[0] == kinds[3]
    assert len(set(kinds)) == 3


def test_the_longest_schedule_is_followed_to_its_end(training: Training) -> None:
    count = 65_535  # of more names than the page's table holds
    training.set_schedule([(f"name {place}", 900 + 15 * (place % 2)) for place in range(count)])
    training.run(*[f"name {place}" for place in range(count)])
    assert training.told == []
    assert len(training.queue) == 2 * count + 2
    assert len(set(training.queue)) == len(training.queue)
    assert training.reach(2 * count) in {900, 915}
    assert training.catch_up() == 0


def test_a_page_with_nonsense_in_it_leads_to_no_error(training: Training) -> None:
    for progress, slot in ((-1, 1 << 40), (1 << 62, -7), (5, 3), ((1 << 32) - 1, 2)):
        for turn in range(16):
            training.clocks.words[TURNS + turn] = slot
        training.clocks.words[PROGRESS] = progress
        training.now_ns += MS
        assert training.requests.wanted(training.now_ns) == 0


# ---- a whole iteration in one CUDA graph


@pytest.mark.parametrize("planned", [False, True])
def test_the_replays_of_a_captured_iteration_follow_the_schedule_of_their_step(
    training: Training, planned: bool
) -> None:
    if planned:
        training.set_schedule([(F, 1005), (B, 1005)])
    training.capture_step(F, B)
    assert [point & POINT_MASK for point in training.queue.graph or ()] == [0, 1, 2, 3]
    assert ["follow a schedule" in text for text in training.problems] == [True]
    training.catch_up()
    training.clocks.kinds()
    training.set_schedule([(F, 900), (B, 1200)], in_turns=True)
    training.replay_step(until=9)
    training.replay_step(until=9, turn=Turn(follows=False))
    training.set_schedule([(F, 1410), (B, 900)])  # training is ahead of the device
    training.replay_step()
    training.set_schedule(None)
    training.replay_step()
    got = [training.reach() for _ in range(len(training.queue))]
    assert got == [900, 900, 1200, 1200, 1200, 0] + [0] * 6 + [1410, 1410, 900, 900, 900, 0] + [0] * 6
    assert training.told == []
    ends = [code for _, code in training.clocks.marks() if code & 0xFF == shared_page.STEP_END]
    assert [end >> 8 for end in ends] == [UNMARKED] * 4, "their instructions have no times"


def test_a_begin_of_a_replay_that_was_not_seen_is_known_by_the_fall_of_the_number(training: Training) -> None:
    training.capture_step(F, B)
    training.set_schedule([(F, 900), (B, 1200)])
    training.catch_up()
    for mhz in (900, 1005):
        training.set_schedule([(F, mhz), (B, 1200)])
        training.replay_step()
        assert training.reach(2) == mhz  # the begin of the step and of its first instruction were one look
        assert training.reach(3) == 1200  # its end is not seen
        del training.queue[:]


@pytest.mark.parametrize("replays", [2, 3])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_more_replays_than_steps_are_default_clocks_and_one_line(
    training: Training, replays: int, is_ahead: bool
) -> None:
    training.capture_step(F, B)
    training.catch_up()
    training.set_schedule([(F, 900), (B, 1200)])
    for _ in range(3):
        training.replay_step(replays=replays)
        while training.queue and not is_ahead:
            training.reach()
    for _ in range(1 + 4 * replays + 1 if is_ahead else 0):
        training.reach()
    assert training.clocks.words[shared_page.REPLAYS_DIFFER], "seen by the end of the first step"
    training.replay_step(replays=replays)
    assert {training.reach() for _ in range(len(training.queue))} == {0}
    assert {"not replayed once in each step" in text for text in training.problems[1:]} == {True}


def test_a_step_that_calls_its_instructions_is_no_replay_and_one_with_one_clock_is_not_captured(
    training: Training,
) -> None:
    training.capture_step(F, B)
    training.clocks.kinds()
    training.run(F, B)
    assert training.clocks.marks()[-1][1] >> 8 == 0, "it is measured"
    training.step_begin(0, 0, 900)
    with training.queue.capture():
        training.begin(F)
        training.end(F)
    training.step_end()
    assert training.queue.graph == []


def test_a_step_that_begins_within_the_capture_is_told_and_its_replays_have_default_clocks(training: Training) -> None:
    training.set_schedule([(F, 900), (B, 1200)])
    with training.queue.capture():
        training.run(F, B)
    for _ in range(3):
        training.queue.replay()
    assert {training.reach() for _ in range(len(training.queue))} == {0}
    assert ["on_step_begin was called while a CUDA graph is captured" in text for text in training.problems] == [True]


def test_a_schedule_of_another_length_than_the_graph_is_not_followed(training: Training) -> None:
    training.capture_step(F, B)
    training.set_schedule([(F, 900), (B, 900), (F, 900), (B, 900)])
    training.replay_step()
    assert {training.reach() for _ in range(len(training.queue))} == {0}
    assert training.told == [(0, "4 instructions", "a CUDA graph of 2")]


# ---- when the clock process may sleep


def test_the_clock_process_waits_for_the_doorbell_when_the_device_has_done_everything(training: Training) -> None:
    assert training.requests.waits()
    training.set_schedule([(F, 900)])
    training.run(F)
    assert not training.requests.waits()
    assert training.requests.wake_ns(training.now_ns) < NEVER
    training.reach(len(training.queue) - 1)
    assert not training.requests.waits()
    training.catch_up()
    assert training.requests.waits()
    assert training.requests.wake_ns(training.now_ns) == NEVER


# ---- failures


def test_after_a_refused_mark_clocks_follow_the_callbacks_from_the_next_step_on(training: Training) -> None:
    training.set_schedule([(F, 900), (B, 1200)])
    training.step_begin(0, 0)
    training.begin(F)
    assert training.catch_up() == 900
    training.queue.fails = DeviceError("the driver is gone")
    training.end(F)
    assert (training.clocks.words[FOLLOWS], training.clocks.target, training.clocks.rings) == (0, 0, 1)
    assert training.requests.wanted(training.now_ns) == 0
    training.begin(B)
    training.end(B)
    training.step_end()
    training.step_begin(1, 0)
    training.begin(F)
    assert training.requests.wanted(training.now_ns) == 900
    assert len(training.problems) == 1
    assert "the driver is gone" in training.problems[0]


def test_a_forked_child_marks_nothing(training: Training) -> None:
    training.set_schedule([(F, 900)])
    training.step_begin(0, 0)
    before = list(training.queue)
    training.disconnect()
    training.begin(F)
    training.end(F)
    training.step_end()
    training.run(F)
    assert training.queue == before


def test_steps_in_which_half_of_the_ranks_follow_teach_nothing_of_the_others(training: Training) -> None:
    requests = ClockRequests(training.clocks.words, LatencyModel(known_ns=dict.fromkeys((0, 900, 1200), 20 * MS)))
    training.marker.set_plan([900, 1200], [0, 1], in_turns=True)
    now_ns = 0

    def reach(mark: Callable[[], object], after_ns: int) -> None:
        nonlocal now_ns
        mark()
        requests.wanted(now_ns + after_ns - MS)  # it looks, and the device is not there yet
        now_ns += after_ns
        training.clocks.words[PROGRESS] = training.queue[-1]
        requests.wanted(now_ns)

    def step(turn: Turn, takes_ns: int) -> int:
        """Returns when, after the begin of the first instruction, the clock of the second is requested."""
        reach(lambda: training.marker.begin_step(turn), 500 * MS)
        reach(lambda: training.marker.mark(0), MS)
        due_ns = requests.wake_ns(now_ns) - now_ns
        reach(lambda: training.marker.mark(1), takes_ns)
        reach(lambda: training.marker.mark(2), MS)
        reach(lambda: training.marker.mark(3), 100 * MS)
        reach(training.marker.end_step, MS)
        return due_ns

    for _ in range(20):
        before_ns = step(Turn(), 100 * MS)
    for _ in range(20):
        beside_ns = step(Turn(follows=True, is_mixed=True), 200 * MS)
    assert beside_ns > before_ns + 50 * MS
    assert step(Turn(), 100 * MS) == pytest.approx(before_ns, abs=MS)
