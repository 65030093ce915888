"""Decides which clock to request when, so that it acts when the device needs it.

A change of the clock acts some milliseconds after it was requested (`latency_model.py`). The order of a step's
instructions is known and the same step runs again and again, so the follower learns how long each instruction takes
and requests a change before the boundary at which it is needed:

- Early up, late down: a clock is asked for at the time at which the expected costs of being late and of being early are
  together the least. A higher clock that comes late costs time, and so does a lower clock that comes early. The
  opposite costs only energy (`_ask_ns`). Where durations vary by more than a change takes, a lower clock is requested
  when the instruction before has ended.
- The boundary is the end of the instruction before. If the device then waits for its neighbour, being late or early
  costs nothing.
- The default clock after a step is requested so that it most likely acts at the step's end: no instruction follows.
- Between steps that follow each other at once, the clock is that of the next step's first instruction: the default
  clock would come too late, and so would the next step's clock.
- If training marks begin and end of steps in another CUDA stream than instructions, these marks can come while
  instructions before them still run. Once such a mark is seen, steps begin and end with their instructions.

The module does arithmetic only: the caller says what the device has reached and when, and asks for the clock. The clock
process and the simulator use the same code.
"""

from math import hypot

from pfo_fs.device.clocks.followed_plan import CHUNK, FollowedPlan
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.gpu.driver_errors import NEVER

_FINE_NS = 100_000
"""The shortest time between two looks at the device's progress."""
_COARSE_NS = 2_000_000
"""The longest time between two looks while something is expected."""
_SLOW_NS = 20_000_000
"""The longest time between two looks while nothing is expected soon, and while the device hangs."""
_UNKNOWN_NS = 1_000_000_000
"""A point whose time is not known counts as late after this time."""
_UNSURE = 0.02
"""The duration of an instruction whose end was not seen may be wrong by this share."""
_DRIFT = 0.01
"""Over several instructions a prediction is wrong by up to this share."""
_CALL_SPREAD = 8
"""Durations of calls scatter by their median divided by this, apart from calls that take much longer."""


class ClockFollower:
    """Follows the device through its steps.

    Args:
        pause_ns: Pauses between steps up to this are short (`FollowedPlan.holds_ns`); 0: up to a change down and up.

    Attributes:
        plan: The plan of the step that the device has reached last; None before the first one.
        due_ns: When `wanted` may return another clock without new progress.
    """

    def __init__(self, latencies: LatencyModel, pause_ns: int = 0) -> None:
        self._latencies, self._pause_ns = latencies, pause_ns
        self.plan: FollowedPlan | None = None
        self._step = -1
        self._at = 0
        self._at_ns = 0
        self._began_ns = 0
        self._hold_until_ns = 0  # the clock stays between two steps until then
        self._looked_ns = 0
        self._unsure_ns = 0  # the point at `_at` was reached up to this long before `_at_ns`
        self._requested = 0
        self._goes_up = False  # whether the last request was for a higher clock
        self._acts_ns = 0
        self._asked: set[int] = set()  # the changes of this step whose clocks were requested
        self._step_before = -1
        self._other_stream = False  # whether the begin and the end of steps are marked in another stream
        self.due_ns = NEVER

    def look(self, now_ns: int) -> None:
        """Notes that the device had not come further by now."""
        self._looked_ns = now_ns

    def reached(self, step: int, code: int, plan: FollowedPlan, now_ns: int) -> None:
        """Notes that the device has reached a point, at some time since the last look.

        A point that lies before the last one of the same step is ignored, unless the step seemed to have ended: marks
        of two streams can come in this order.

        Args:
            step: A number of the step; the next step has another number.
            code: The point, as the device writes it.
        """
        last, at = plan.last, plan.place_of(code)
        at_ns = now_ns
        follows = plan is self.plan and step == self._step
        if self._came_early(step, follows and at < self._at == last):
            self._other_stream, follows = True, False
        if self._other_stream:
            if at == 0 or (at == last and follows):
                return
            at = last if at == last - 1 else at
        if follows:
            if at <= self._at:
                return
            expected_ns = plan.expected_ns(self._at, at)
            if expected_ns >= 0:
                at_ns = min(max(self._at_ns + expected_ns, self._looked_ns), now_ns)
            plan.learn(self._at, at, at_ns - self._at_ns)
            self._note_run(plan, at, at_ns, now_ns)
        else:
            self._begin(plan, at, now_ns)
        if at == last:  # the end, if the step runs as scheduled
            self._hold_until_ns = now_ns + self._holds_ns(plan) if follows and plan.clock_from[at] else 0
        if step != self._step:
            self._step_before = self._step
        self.plan, self._step, self._at, self._at_ns = plan, step, at, at_ns
        self._asked = {place for place in self._asked if place >= plan.since[at]}
        self._unsure_ns, self._looked_ns = now_ns - self._looked_ns, now_ns

    def _came_early(self, step: int, goes_on: bool) -> bool:
        """Returns whether the step before goes on though this one has begun, or this one though its end was marked."""
        return goes_on or (self._at == 0 and step == self._step_before != self._step)

    def _begin(self, plan: FollowedPlan, at: int, now_ns: int) -> None:
        """Takes up the next step; its first clock may be in force already."""
        follows = plan is self.plan and self._step >= 0
        held = follows and now_ns < self._hold_until_ns
        self._asked.clear()
        last = plan.last
        if follows and at <= 1 and self._at >= last - 2:
            if self._other_stream and self._at == last - 2:  # the end was not seen: there was no pause
                plan.learn(self._at, last, now_ns - self._at_ns)
            # Of points that the device passes at once, only the last one is seen.
            known_ns = max(0, plan.expected_ns(self._at, last)) + max(0, plan.expected_ns(0, at))
            plan.learn_pause(now_ns - self._at_ns - known_ns, self._at_ns - self._began_ns, held=held)
        plan.hold(self._holds_ns(plan) > 0)
        self._hold_until_ns, self._began_ns = 0, now_ns

    def _holds_ns(self, plan: FollowedPlan) -> int:
        """Returns how long after a step the clock of the next one's first instruction stays; 0: it does not."""
        latencies = self._latencies
        changes_ns = latencies.lead_ns(0) + latencies.lead_ns(plan.clock_from[0])
        return plan.holds_ns(self._pause_ns or changes_ns + 2 * latencies.calls.queue_ns)

    def _note_run(self, plan: FollowedPlan, at: int, at_ns: int, now_ns: int) -> None:
        """Tells the latency model of an instruction that has just ended.

        If the next instruction begins at once, its begin is seen, and the end of this one is not.
        """
        began = self._at
        if not began & 1:
            return  # the GPU has waited
        took_ns = at_ns - self._at_ns
        sure = now_ns - self._looked_ns <= max(2 * _FINE_NS, _UNSURE * took_ns)
        if at == began + 1 or (at == began + 2 and sure):
            self._latencies.ran(plan.kinds[began >> 1], self._at_ns, at_ns, self._unsure_ns)

    def wanted(self, now_ns: int) -> int:
        """Returns the clock to request now, in MHz; 0 for the default clock. Sets `due_ns`."""
        plan = self.plan
        self.due_ns = NEVER
        if plan is None:
            return 0
        mhz, place = plan.clock_from[self._at], plan.since[self._at]
        if self._at == plan.last and mhz:
            if now_ns >= self._hold_until_ns:
                mhz = 0  # the next step is late, or this one does not run as scheduled
            else:
                self.due_ns = self._hold_until_ns
        if _above(self._requested, mhz) and not self._latencies.calls.allows_down(now_ns):
            mhz = self._requested
        change = plan.next_change[self._at]
        while change <= plan.last:
            to_mhz = plan.clock_from[change]
            if change not in self._asked:  # otherwise it is on its way; to take it back would take as long again
                when_ns = self._ask_ns(plan, change, mhz)
                if when_ns > now_ns:
                    self.due_ns = min(self.due_ns, when_ns)
                    break
                if _above(mhz, to_mhz) and not self._latencies.calls.allows_down(now_ns):
                    change = plan.next_change[change]
                    continue
            mhz, place = to_mhz, change
            change = plan.next_change[change]
        # While calls are not affordable, the clock is another one than the plan's.
        self._request(mhz, place if mhz == plan.clock_from[place] else None, now_ns)
        return mhz

    def _ask_ns(self, plan: FollowedPlan, change: int, mhz: int) -> int:
        """Returns when to ask for the clock of a change, if `mhz` is in force by then; `NEVER`: not now.

        Time that is lost costs about five times as much as the same time at a higher clock than needed. So a clock is
        asked for when the costly case, late up or early down, has the probability 1/6: a standard error away from the
        time at which it would most likely act at the boundary. After the last instruction, a late rise costs no time.
        """
        expected_ns, to_mhz = plan.expected_soon_ns(self._at, change), plan.clock_from[change]
        if expected_ns < 0:
            return NEVER
        calls, latency, up = self._latencies.calls, self._latencies.latency(to_mhz), _above(to_mhz, mhz)
        lead_ns = self._latencies.lead_ns(to_mhz)
        when_ns = self._at_ns + expected_ns - lead_ns
        if up and change < plan.last:
            error_ns = hypot(latency.high_ns - latency.middle_ns, plan.error_ns, calls.call_ns / _CALL_SPREAD)
            when_ns -= round(error_ns) + calls.queue_ns
        elif not up:
            # Not before the instruction has begun, since its end may be far away; nor if its end is poorly predicted.
            if change > self._at + 1 or plan.error_ns >= lead_ns:
                return NEVER
            when_ns += round(hypot(latency.middle_ns - latency.low_ns, plan.error_ns))
        if up and not _above(to_mhz, self._requested):
            return when_ns - self._latencies.lead_ns(mhz)  # not worth going down and up again
        # A request replaces the last one if that has not acted yet; only a change down is replaced so, by a change up.
        return max(when_ns, self._acts_ns) if self._goes_up or not up else when_ns

    def _request(self, mhz: int, place: int | None, now_ns: int) -> None:
        """Notes what is requested now, and for which change of the plan."""
        if mhz != self._requested:
            self._goes_up = _above(mhz, self._requested)
            self._requested = mhz
            self._acts_ns = now_ns + self._latencies.lead_ns(mhz) + self._latencies.calls.queue_ns
        if place is not None:
            self._asked.add(place)

    def next_look_ns(self, now_ns: int) -> int:
        """Returns when to look at the device's progress again."""
        plan = self.plan
        if plan is None:
            return now_ns + _COARSE_NS
        if self._at == plan.last:
            since_ns = now_ns - self._at_ns
            exact = not self._latencies.knows(plan.clock_from[0])  # the next step may show its latency
            return now_ns + _pause_ns(since_ns - _UNKNOWN_NS if exact else since_ns // 8)
        change = min(plan.next_change[self._at], plan.last)
        near = change == self._at + 1 or not self._latencies.knows(plan.clock_from[self._at])
        awaited = self._at + 1 if near else min(change - 1, self._at + CHUNK)
        expected_ns = plan.expected_ns(self._at, awaited)
        if expected_ns < 0:
            return now_ns + _pause_ns(now_ns - self._at_ns - _UNKNOWN_NS)
        guard_ns = 2 * plan.error_ns + round(_DRIFT * expected_ns)
        look_ns = self._at_ns + expected_ns - guard_ns
        if look_ns > now_ns:
            return min(look_ns, now_ns + _SLOW_NS)  # the device may be faster than usual
        return now_ns + _pause_ns(max(now_ns - self._at_ns - expected_ns, guard_ns // 4))


def _pause_ns(late_ns: int) -> int:
    """Returns the time until the next look, while a point is late."""
    return min(max(late_ns // 8, _FINE_NS), max(_COARSE_NS, min(late_ns // 1000, _SLOW_NS)))


def _above(mhz: int, other_mhz: int) -> bool:
    """Returns whether the first clock is higher; the default clock, 0, is above all others."""
    return mhz != other_mhz and (mhz == 0 or (other_mhz != 0 and mhz > other_mhz))
