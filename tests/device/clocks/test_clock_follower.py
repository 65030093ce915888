"""When clocks are requested: a follower and what it has learned, with a device and a driver in virtual time."""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pfo_fs.device.clocks.clock_follower import ClockFollower
from pfo_fs.device.clocks.driver_calls import DriverCalls
from pfo_fs.device.clocks.followed_plan import START, FollowedPlan
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.shared_page import IDLE

MS = 1_000_000
TOP_MHZ = 1410
CLOCKS_MHZ = (900, 1005, 1200, TOP_MHZ)
LATENCIES_NS = {0: 4 * MS, 900: 12 * MS, 1005: 2 * MS, 1200: 7 * MS, TOP_MHZ: 5 * MS}
CALL_NS = 4 * MS
LOOK_NS = 2 * MS
"""The longest time between two looks while something is expected."""

Work = Callable[[int], int]  # MHz -> ns


def lasting(base_ns: int) -> Work:
    """An instruction that lasts so long at the highest clock, and longer at lower ones."""
    return lambda mhz: round(base_ns * (0.3 + 0.7 * TOP_MHZ / mhz))


def pause(duration_ns: int) -> Work:
    return lambda _: duration_ns


def step_of(works: Sequence[Work]) -> list[tuple[Work, int]]:
    """What the device does in a step: (work, the point that it reaches then)."""
    does = [(pause(0), START)]
    for position, work in enumerate(works):
        does += [(pause(0), position << 1), (work, position << 1 | 1)]
    return [*does, (pause(0), IDLE)]


class Bench:
    """A device that gets through its work, and a clock process that looks at it as late as the follower allows.

    Attributes:
        requests: (time in ns, MHz) of each request.
        in_force: (time in ns, MHz) of each change of the clock.
        reached: (time in ns, turn, code) of each point.
        looks: Number of looks.
        turn: That of the last step that was launched.
    """

    def __init__(
        self, latencies_ns: Mapping[int, int] = LATENCIES_NS, *, known: bool = True, calls_per_s: float = 10_000.0
    ) -> None:
        self.latencies = LatencyModel(DriverCalls(CALL_NS, calls_per_s), latencies_ns if known else None, TOP_MHZ)
        self.follower = ClockFollower(self.latencies)
        self.now_ns = 1_000 * MS
        self.requests: list[tuple[int, int]] = []
        self.in_force = [(0, 0)]
        self.reached: list[tuple[int, int, int]] = []
        self.looks = 0
        self._settle_ns = latencies_ns
        self._queue: deque[tuple[Work, tuple[int, int] | None]] = deque()
        self._left = 1.0
        self._pending: tuple[int, int] | None = None  # when, MHz
        self._progress: tuple[int, int] | None = None
        self._seen: tuple[int, int] | None = None
        self._plans: dict[int, FollowedPlan] = {}
        self.turn = 0
        self._rung = False
        self._set_mhz = 0

    def launch(self, plan: FollowedPlan, does: Sequence[tuple[Work, int]]) -> int:
        """Puts a step into the device's queue; returns its turn."""
        self.turn += 1
        self._rung = self._rung or not self._queue
        self._plans[self.turn] = plan
        self._queue.extend((work, (self.turn, code)) for work, code in does)
        return self.turn

    def rest(self, duration_ns: int) -> None:
        self._queue.append((pause(duration_ns), None))

    def run(self) -> None:
        if self._rung:  # the clock process sleeps while nothing is launched, and takes a moment to wake up
            self._rung = False
            self._advance(self.now_ns + LOOK_NS // 40)
        while self._queue or self._seen != self._progress:
            self._look()
            follower = self.follower
            self._advance(min(follower.due_ns, follower.next_look_ns(self.now_ns)))

    def step(self, plan: FollowedPlan, works: Sequence[Work], rest_ns: int = 300 * MS) -> int:
        turn = self.launch(plan, step_of(works))
        self.rest(rest_ns)
        self.run()
        return self.time_of(turn, IDLE) - self.time_of(turn, START)

    def steps(self, count: int, plan: FollowedPlan, works: Sequence[Work]) -> None:
        for _ in range(count):
            self.step(plan, works)

    def time_of(self, turn: int, code: int) -> int:
        return next(at_ns for at_ns, *point in self.reached if point == [turn, code])

    def _look(self) -> None:
        self.looks += 1
        if self._progress != self._seen:
            self._seen = self._progress
            self.follower.reached(*self._progress, self._plans[self._progress[0]], self.now_ns)
        else:
            self.follower.look(self.now_ns)
        mhz = self.follower.wanted(self.now_ns)
        if mhz != self._set_mhz:
            self.requests.append((self.now_ns, mhz))
            self._set_mhz = mhz
            self._advance(self.now_ns + CALL_NS)
            self.latencies.calls.called(self.now_ns, CALL_NS)
            self.latencies.clock_was_set(self.now_ns, mhz)
            self._pending = self.now_ns + self._settle_ns[mhz], mhz

    def _advance(self, to_ns: int) -> None:
        while self.now_ns < to_ns:
            until_ns = to_ns
            if self._pending is not None:
                until_ns = min(until_ns, max(self._pending[0], self.now_ns))
            if self._queue:
                work, point = self._queue[0]
                takes_ns = work(self.in_force[-1][1] or TOP_MHZ)
                end_ns = self.now_ns + round(self._left * takes_ns)
                if end_ns <= until_ns:
                    self.now_ns, self._left = end_ns, 1.0
                    self._queue.popleft()
                    if point is not None:
                        self._progress = point
                        self.reached.append((end_ns, *point))
                    continue
                self._left -= (until_ns - self.now_ns) / takes_ns
            self.now_ns = until_ns
            if self._pending is not None and self._pending[0] <= until_ns:
                self.in_force.append((until_ns, self._pending[1]))
                self._pending = None

    def below_ns(self, mhz: int, begin_ns: int, end_ns: int) -> int:
        ends_ns = [at_ns for at_ns, _ in self.in_force[1:]] + [1 << 62]
        return sum(
            max(0, min(end_ns, until_ns) - max(begin_ns, at_ns))
            for (at_ns, in_force), until_ns in zip(self.in_force, ends_ns, strict=True)
            if height(in_force) < height(mhz)
        )

    def in_force_at(self, at_ns: int) -> int:
        return next(mhz for when_ns, mhz in reversed(self.in_force) if when_ns <= at_ns)

    def requested_at(self, at_ns: int) -> int:
        return next((mhz for when_ns, mhz in reversed(self.requests) if when_ns <= at_ns), 0)


def plan_of(clocks_mhz: Sequence[int], kinds: Sequence[int] | None = None) -> FollowedPlan:
    return FollowedPlan(clocks_mhz, kinds if kinds is not None else range(len(clocks_mhz)))


def height(mhz: int) -> int:
    """The clock, with the default one above all."""
    return mhz or 1 << 20


plans = st.lists(st.sampled_from(CLOCKS_MHZ), min_size=1, max_size=12)
durations_ns = st.integers(15 * MS, 200 * MS)


@settings(max_examples=30)
@given(plans, st.data())
def test_no_instruction_runs_below_its_clock_for_long(clocks_mhz: list[int], data: st.DataObject) -> None:
    works = [lasting(data.draw(durations_ns)) for _ in clocks_mhz]
    bench, plan = Bench(), plan_of(clocks_mhz)
    bench.steps(4, plan, works)
    turn = bench.turn
    for position, mhz in enumerate(clocks_mhz):
        begin_ns, end_ns = bench.time_of(turn, position << 1), bench.time_of(turn, position << 1 | 1)
        assert bench.below_ns(mhz, begin_ns, end_ns) <= MS + (end_ns - begin_ns) // 50


@settings(max_examples=25)
@given(plans, st.data())
def test_with_learned_durations_a_step_takes_as_long_as_its_plan(clocks_mhz: list[int], data: st.DataObject) -> None:
    works = [lasting(data.draw(st.integers(60 * MS, 200 * MS))) for _ in clocks_mhz]
    bench, plan = Bench(), plan_of(clocks_mhz)
    for _ in range(5):
        took_ns = bench.step(plan, works)
        assert bench.requested_at(bench.now_ns) == bench.in_force[-1][1] == 0
    planned_ns = sum(work(mhz) for work, mhz in zip(works, clocks_mhz, strict=True))
    start_late_ns = 30 * MS  # a lower first clock acts later than the step begins
    assert planned_ns - start_late_ns <= took_ns <= planned_ns * 1.001 + MS


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 40))
@example(11657424, 0, 20)
@example(3403, 0, 35)
def test_the_latencies_that_are_learned_are_those_of_the_device(seed: int, low_ms: int, high_ms: int) -> None:
    rnd = random.Random(seed)
    latencies_ns = {mhz: round(rnd.uniform(min(low_ms, high_ms), max(low_ms, high_ms)) * MS) for mhz in LATENCIES_NS}
    bench = Bench(latencies_ns, known=False)
    kinds = [0, 1, 0, 1, 0, 1]
    of_kind = [lasting(rnd.randint(80 * MS, 150 * MS)) for _ in range(2)]
    works = [of_kind[kind] for kind in kinds]
    for mhz in (TOP_MHZ, 1200, 1005, 900):
        plan = plan_of([mhz] * len(works), kinds)
        for _ in range(6):
            bench.step(plan, works)
    learned_s = bench.latencies.learned_s
    assert learned_s
    for mhz, longest_s in learned_s.items():
        error_ns = bench.latencies.latency(mhz).error_ns
        likely_ns = 1e9 * longest_s - error_ns  # the longest likely latency lies an error above the likely one
        assert abs(likely_ns - latencies_ns[mhz]) < 3 * error_ns + MS


def test_where_durations_vary_by_more_than_a_change_takes_no_instruction_runs_at_the_lower_clock_after_it() -> None:
    bench, plan = Bench(), plan_of([TOP_MHZ, 1005])
    for length_ms in (100, 160, 60, 180, 70, 110, 60):
        bench.step(plan, [lasting(length_ms * MS), lasting(100 * MS)])
    bench.step(plan, [lasting(240 * MS), lasting(100 * MS)])
    turn = bench.turn
    assert bench.below_ns(TOP_MHZ, bench.time_of(turn, 0), bench.time_of(turn, 1)) < LOOK_NS


@pytest.mark.parametrize(
    ("clocks_mhz", "middle_ms", "requests_mhz"),
    [
        ([900, TOP_MHZ, 1005], 100, [900, TOP_MHZ, 1005, 0]),  # what was requested early is not taken back
        ([TOP_MHZ, 900, TOP_MHZ], 4, [TOP_MHZ, 0]),  # a short stretch at a low clock is not worth going down
    ],
)
def test_a_clock_is_requested_once_if_worth_it(clocks_mhz: list[int], middle_ms: int, requests_mhz: list[int]) -> None:
    bench, plan = Bench(), plan_of(clocks_mhz)
    works = [lasting(100 * MS), lasting(middle_ms * MS), lasting(100 * MS)]
    bench.steps(4, plan, works)
    asked = len(bench.requests)
    bench.step(plan, works)
    assert [mhz for _, mhz in bench.requests[asked:]] == requests_mhz


def test_a_lower_clock_whose_latency_is_unknown_does_not_slow_down_the_instruction_before() -> None:
    bench = Bench(dict.fromkeys(LATENCIES_NS, 0), known=False)
    plan = plan_of([TOP_MHZ, 900, TOP_MHZ, 900])
    bench.steps(4, plan, [lasting(100 * MS)] * 4)
    turn = bench.turn
    assert bench.below_ns(TOP_MHZ, bench.time_of(turn, 4), bench.time_of(turn, 5)) < MS


def test_a_lower_clock_is_not_requested_before_the_instruction_before_it_has_begun() -> None:
    bench, plan = Bench(), plan_of([TOP_MHZ, TOP_MHZ, 900])
    works = [lasting(100 * MS)] * 3
    bench.steps(3, plan, works)
    late = step_of(works)
    late[3] = pause(2_000 * MS), 2  # the second instruction waits for a neighbour
    turn = bench.launch(plan, late)
    bench.run()
    low_ns = next(at for at, mhz in bench.requests if mhz == 900 and at > bench.time_of(turn, START))
    assert low_ns > bench.time_of(turn, 2)


def test_while_calls_are_not_affordable_the_clock_stays_up() -> None:
    bench = Bench(calls_per_s=0.001)
    plan = plan_of([TOP_MHZ, 900] * 8)
    bench.steps(8, plan, [lasting(100 * MS)] * 16)
    assert len(bench.requests) <= 16
    assert height(bench.requested_at(bench.now_ns)) >= TOP_MHZ


@pytest.mark.parametrize(
    ("first", "first_mhz", "second", "second_mhz"),
    [
        (0, 900, 64, 0),  # the plan does not have the second point
        (2, 1200, 1, 1200),  # the end of the instruction before, marked on another stream, comes after a later begin
    ],
)
def test_an_unknown_or_late_point_does_no_harm(first: int, first_mhz: int, second: int, second_mhz: int) -> None:
    follower, plan = Bench().follower, plan_of([900, 1200, 900])
    follower.reached(1, first, plan, MS)
    assert follower.wanted(2 * MS) == first_mhz
    follower.reached(1, second, plan, 3 * MS)
    assert follower.wanted(4 * MS) == second_mhz


@pytest.mark.parametrize("known", [True, False])
def test_a_device_that_stands_still_is_looked_at_rarely(known: bool) -> None:
    bench, plan = Bench(), plan_of([900, 1200])
    if known:
        bench.steps(3, plan, [lasting(100 * MS)] * 2)
    before = bench.looks
    bench.launch(plan, [(pause(0), START), (pause(0), 0), (pause(60_000 * MS), 1)])
    bench.run()
    assert bench.looks - before < 20_000


def test_a_long_plan_is_not_added_up_at_each_look() -> None:
    plan = plan_of([900] * 65_535, [0] * 65_535)
    plan.gap_ns = [100 * MS] * (plan.last + 1)
    added: list[int] = []
    real = plan.expected_ns

    def expected_ns(first: int, last: int) -> int:
        added.append(last - first)
        return real(first, last)

    plan.expected_ns = expected_ns  # type: ignore[method-assign]
    follower = Bench().follower
    follower.reached(1, 0, plan, MS)
    assert follower.wanted(2 * MS) == 900
    follower.next_look_ns(2 * MS)
    assert sum(added) < 500


def test_a_stall_in_one_step_does_not_shift_the_requests_of_the_next() -> None:
    bench, plan = Bench(), plan_of([900, TOP_MHZ])
    works = [lasting(100 * MS)] * 2
    bench.steps(6, plan, works)
    bench.step(plan, [pause(30_000 * MS), works[1]])
    bench.step(plan, works)
    end_ns = bench.time_of(bench.turn, 1)
    assert bench.in_force_at(end_ns - 10 * MS) == 900
    assert bench.in_force_at(end_ns) == TOP_MHZ


@pytest.mark.parametrize("rest_ms", [0, 5, 300])
def test_if_the_end_of_a_step_is_marked_in_another_stream_its_last_instructions_get_their_clocks(rest_ms: int) -> None:
    clocks_mhz = [900, 1200, 1005, 1200, 900, 1005]
    bench, plan = Bench(), plan_of(clocks_mhz, [0] * 6)
    *does, (_, end) = step_of([lasting(60 * MS)] * 6)
    place = next(at for at, (_, code) in enumerate(does) if code == 3 << 1 | 1)
    does[place : place + 1] = [(lasting(20 * MS), end), (lasting(40 * MS), 3 << 1 | 1)]
    for _ in range(12):
        bench.launch(plan, does)
        bench.rest(rest_ms * MS)
    bench.run()
    middles_ns = [
        (bench.time_of(turn, position << 1) + bench.time_of(turn, position << 1 | 1)) // 2
        for turn in range(9, 13)
        for position in range(6)
    ]
    assert [bench.in_force_at(at_ns) for at_ns in middles_ns] == 4 * clocks_mhz


def test_a_step_that_begins_in_another_stream_while_the_one_before_still_runs_leaves_its_clocks_alone() -> None:
    follower, plan = Bench().follower, plan_of([1200, 900, 1200])
    for turn in (1, 2, 3):
        start_ns = 500 * MS * turn
        follower.reached(turn, 0, plan, start_ns)
        follower.reached(turn, 2, plan, start_ns + 100 * MS)
        follower.reached(turn, 4, plan, start_ns + 200 * MS)
        assert follower.wanted(start_ns + 200 * MS) == 1200
        follower.reached(turn + 1, START, plan, start_ns + 210 * MS)
        if turn > 1:  # from the first one on, it is known
            assert follower.wanted(start_ns + 220 * MS) == 1200
        follower.reached(turn, 5, plan, start_ns + 300 * MS)
        assert follower.wanted(start_ns + 301 * MS) == 0


def back_to_back(bench: Bench, plan: FollowedPlan, works: Sequence[Work]) -> int:
    """Runs steps that follow each other at once; returns how many requests there were before the last two."""
    requests = []
    for _ in range(6):
        requests.append(len(bench.requests))
        bench.step(plan, works, rest_ns=MS)
    return requests[-2]


@pytest.mark.parametrize("clocks_mhz", [[900] * 3, [900, TOP_MHZ, 900]])
def test_between_steps_that_follow_each_other_at_once_the_clock_stays(clocks_mhz: list[int]) -> None:
    bench, plan = Bench(), plan_of(clocks_mhz)
    before = back_to_back(bench, plan, [lasting(60 * MS)] * 3)
    assert 0 not in [mhz for _, mhz in bench.requests[before:]]
    assert len(bench.requests) - before == 2 * (len(set(clocks_mhz)) - 1) * 2


@pytest.mark.parametrize("strays", [False, True])
def test_a_clock_that_stays_is_the_default_one_again_if_the_next_step_does_not_come_or_strays(strays: bool) -> None:
    bench, plan = Bench(), plan_of([900] * 3)
    back_to_back(bench, plan, [lasting(60 * MS)] * 3)
    assert bench.requested_at(bench.now_ns) == 900
    ended_ns = bench.now_ns
    if strays:
        bench.launch(plan, [(pause(0), IDLE)])  # another turn, of which only the end is marked
    else:
        bench.rest(300 * MS)
    bench.run()
    at_ns, mhz = bench.requests[-1]
    assert mhz == 0
    assert at_ns - ended_ns < 30 * MS


def test_a_clock_does_not_stay_where_it_makes_the_pause_longer() -> None:
    bench, plan = Bench(), plan_of([900] * 3)
    works, before = [lasting(60 * MS)] * 3, 0
    for step in range(18):
        before = len(bench.requests) if step == 16 else before
        bench.step(plan, works, rest_ns=2 * MS if plan.holds_ns(0) else MS)
    assert [mhz for _, mhz in bench.requests[before:]] == [900, 0, 900, 0]


def test_a_clock_stays_in_short_steps_though_pauses_scatter_by_more_than_a_longer_one_may_last() -> None:
    scattered, plan = random.Random(7), plan_of([900])
    for number in range(10_000):
        plan.learn_pause(MS + scattered.randrange(MS // 10), 80 * MS, held=number >= 3)
        assert number < 2 or plan.holds_ns(0)


@pytest.mark.parametrize(("rest_ms", "pause_ms", "stays"), [(20, 0, True), (60, 0, False), (60, 80, True)])
def test_a_clock_stays_in_a_pause_too_short_for_the_default_and_back(rest_ms: int, pause_ms: int, stays: bool) -> None:
    bench, plan = Bench(), plan_of([900] * 3)
    bench.follower = ClockFollower(bench.latencies, pause_ms * MS)
    for _ in range(6):
        bench.step(plan, [lasting(20 * MS)] * 3, rest_ns=rest_ms * MS)
    assert (bench.requested_at(bench.now_ns) == 900) is stays


def test_the_default_clock_after_a_step_is_requested_by_its_most_likely_latency() -> None:
    bench, plan = Bench(known=False), plan_of([900] * 3)
    for _ in range(4):
        turn = bench.launch(plan, step_of([lasting(60 * MS)] * 3))
        bench.rest(300 * MS)
        bench.run()
    at_ns = next(at_ns for at_ns, mhz in reversed(bench.requests) if mhz == 0)
    early_ns = bench.time_of(turn, IDLE) - at_ns
    assert early_ns == pytest.approx(bench.latencies.lead_ns(0), abs=MS)
    assert early_ns < CALL_NS + bench.latencies.latency(0).high_ns - 2 * MS
