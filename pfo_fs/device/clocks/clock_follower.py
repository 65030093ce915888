"""Decides which clock to request when, so that it acts at the moment at which the device needs it.

A change of the clock acts some milliseconds after it was requested (`switch_latency.py`). The order of a step's
instructions is known and the same step runs again and again, so the follower learns how long each instruction takes
and requests a change before the boundary at which it is needed:

- Early up: a higher clock is requested so early that it acts at the boundary at the latest; a clock that comes late
  would cost time.
- Late down: a lower clock is requested so that it acts at the boundary at the earliest; one that comes early would
  slow down the instruction that still runs. Where durations vary by more than a change takes, it is requested when the
  instruction has ended.
- The boundary is the end of the instruction before: while the device then waits for its neighbour, both are free.
- The default clock after a step is requested so that it most likely acts at the end: nothing of the step runs after it.
- Between steps that follow each other at once, the clock is that of the next step's first instruction: the default
  clock would be in force too late, and then the next step's clock.
- Where training marks the begin and the end of a step in another CUDA stream than instructions, these marks come while
  the step before, or this one, still runs. From then on, steps begin and end with their instructions.

The module does arithmetic only: the caller says what the device has reached and when, and asks for the clock. The clock
process and the simulator use the same code.
"""

from __future__ import annotations

from typing import NamedTuple

from pfo_fs.device.clocks.followed_plan import CHUNK, FollowedPlan
from pfo_fs.device.clocks.leads import Leads
from pfo_fs.device.clocks.switch_latency import Ran

NEVER = 1 << 62
_FINE_NS = 100_000
"""The shortest time between two looks at the device's progress."""
_COARSE_NS = 2_000_000
"""The longest, while something is expected."""
_SLOW_NS = 20_000_000
"""The longest, while nothing is expected soon, and when the device hangs."""
_UNKNOWN_NS = 1_000_000_000
"""A point of which it is not known when it comes counts as late after this time."""
_UNSURE = 0.02
"""Of an instruction whose end was not seen, the duration may be wrong by this share."""
_DRIFT = 0.01
"""Over several instructions a prediction is wrong by up to this share."""
_MANY_REQUESTS = 16
_MOST_WAITED = 32
"""A clock whose latency is to be learned waits for the one before until it was requested so often."""


class _Request(NamedTuple):
    """A request for a clock.

    Attributes:
        at_ns: When it was made.
        from_mhz: The clock in force before; None if it is not known, or if the clock has not changed.
        call: The number of the call that it leads to.
    """

    at_ns: int
    from_mhz: int | None
    call: int = 0


class ClockFollower:
    """Follows the device through its steps.

    Args:
        leads: The GPU's learned times.

    Attributes:
        due_ns: When `wanted` may return another clock without new progress.
    """

    def __init__(self, leads: Leads) -> None:
        self._leads = leads
        self._plan: FollowedPlan | None = None
        self._turn = -1
        self._at = 0
        self._at_ns = 0
        self._began_ns = 0
        self._hold_until_ns = 0  # the clock stays between two steps until then
        self._requested_ns = self._requested_call = 0  # when the clock in force was requested, and by which call
        self._looked_ns = 0
        self._unsure_ns = 0  # the point at `_at` was reached up to this long before `_at_ns`
        self._requested = 0
        self._goes_up = False  # whether the last request was for a higher clock
        self._acts_ns = 0
        self._settled_ns = 0
        self._requests: dict[int, _Request] = {}  # for each change of this step whose clock was requested
        self._waited: dict[int, int] = {}  # for each clock, its requests while its latency was to be learned
        self._shown: set[int] = set()  # those after which an instruction has ended
        self._turn_before = -1
        self._other_stream = False  # whether the begin and the end of steps are marked in another stream
        self.due_ns = NEVER

    def look(self, now_ns: int) -> None:
        """Notes that the device had not come further by now."""
        self._looked_ns = now_ns

    def reached(self, turn: int, code: int, plan: FollowedPlan, now_ns: int) -> None:
        """Notes that the device has reached a point, at some time since the last look.

        A point that lies before the last one of the same step, as marks of two streams can come, is ignored, unless the
        step seemed to have ended.

        Args:
            turn: Another number for each step.
            code: The point, one of `plan.codes`.
            plan: The plan of this step.
            now_ns: The time of this look.
        """
        last = len(plan.codes) - 1
        at = plan.place.get(code, last)
        at_ns = now_ns
        follows = plan is self._plan and turn == self._turn
        if self._came_early(turn, follows and at < self._at == last):
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
            self._note_length(plan, at, at_ns, now_ns)
        else:
            self._begin(plan, at, now_ns)
        if at == last:  # if the step runs as scheduled
            self._hold_until_ns = now_ns + self._holds_ns(plan) if follows and plan.clock_from[at] else 0
        if turn != self._turn:
            self._turn_before = self._turn
        self._plan, self._turn, self._at, self._at_ns = plan, turn, at, at_ns
        if len(self._requests) > _MANY_REQUESTS:  # those of clocks that are no longer in force are not needed any more
            since = plan.since[at]
            self._requests = {place: request for place, request in self._requests.items() if place >= since}
        self._unsure_ns, self._looked_ns = now_ns - self._looked_ns, now_ns

    def _came_early(self, turn: int, goes_on: bool) -> bool:
        """Returns whether the step before goes on though the next one has begun, or this one though it has ended."""
        return goes_on or (self._at == 0 and turn == self._turn_before != self._turn)

    def _begin(self, plan: FollowedPlan, at: int, now_ns: int) -> None:
        """Takes up the next step; its first clock may be in force already."""
        follows = plan is self._plan and self._turn >= 0
        held = follows and now_ns < self._hold_until_ns
        stays = held and self._requested == plan.clock_from[0]
        self._requests.clear()
        self._shown.clear()
        if stays:
            self._requests[0] = _Request(self._requested_ns, None, self._requested_call)
            self._shown.add(0)
        last = len(plan.codes) - 1
        if follows and at <= 1 and self._at >= last - 2:
            if self._other_stream and self._at == last - 2:  # the end was not seen: there was no pause
                plan.learn(self._at, last, now_ns - self._at_ns)
            # Of points that the device passes at once, only the last one is seen.
            known_ns = max(0, plan.expected_ns(self._at, last)) + max(0, plan.expected_ns(0, at))
            plan.learn_pause(now_ns - self._at_ns - known_ns, self._at_ns - self._began_ns, held=held)
        plan.hold(self._holds_ns(plan) > 0 and not self._leads.explores(plan.clock_from[0]))
        self._hold_until_ns, self._began_ns = 0, now_ns

    def _holds_ns(self, plan: FollowedPlan) -> int:
        """Returns how long after a step the clock of the next one's first instruction stays; 0: it does not."""
        leads = self._leads
        changes_ns = leads.lead_ns(0, up=True) + leads.lead_ns(plan.clock_from[0], up=True)
        return plan.holds_ns(changes_ns + 2 * leads.queue_ns)

    def _note_length(self, plan: FollowedPlan, at: int, at_ns: int, now_ns: int) -> None:
        """Passes the length of an instruction that has just ended to what learns the latencies.

        Where the next one begins at once, its begin is seen and not the end of the one before.
        """
        began = self._at
        if began == 0 or plan.codes[began] & 1:
            return  # the GPU has waited
        if at == began + 2:
            if now_ns - self._looked_ns > max(2 * _FINE_NS, _UNSURE * (at_ns - self._at_ns)):
                return
        elif at != began + 1:
            return
        own = plan.since[began]
        position = plan.codes[began] >> 1
        ran = Ran(plan.kinds[position], plan.clock_from[began], at_ns - self._at_ns, *self._next(plan, own, at_ns))
        request = self._requests.get(own)
        is_first = request is not None and own not in self._shown
        if is_first:
            self._shown.add(own)
            self._leads.tried(ran.mhz)
        if request is None or self._disturbed(plan, own):
            self._leads.disturbed()
            return
        lead_ns = self._at_ns - request.at_ns
        if not is_first:
            self._leads.ran_on(ran, lead_ns)
        elif request.from_mhz is not None and self._unsure_ns <= 3 * _FINE_NS:
            self._leads.ran_first(ran, request.from_mhz, lead_ns, request.call)
        else:
            self._leads.disturbed()
        if lead_ns <= self._leads.settled_ns(ran.mhz, request.call):
            return
        later = [place for place in self._requests if place > own]
        if not later:
            self._leads.ran_steadily(ran)
        elif len(later) == 1 and (asked := self._requests[later[0]]).from_mhz == ran.mhz:
            before = Ran(ran.kind, plan.clock_from[later[0]], ran.took_ns)
            self._leads.ran_before(before, ran.mhz, self._at_ns - asked.at_ns, asked.call)

    def _next(self, plan: FollowedPlan, own: int, end_ns: int) -> tuple[int, float, float]:
        """Returns the clock that was requested next, and how long before `end_ns` it acts, with its error."""
        place = min((place for place in self._requests if place > own), default=0)
        if not place:
            return 0, 0.0, 0.0
        mhz, asked_ns = plan.clock_from[place], self._requests[place].at_ns
        soonest_ns, latest_ns = self._leads.lead_ns(mhz), self._leads.lead_ns(mhz, up=True)
        early_ns = end_ns - asked_ns - (soonest_ns + latest_ns) / 2
        return mhz, max(0.0, early_ns), max(1.0, (latest_ns - soonest_ns) / 2)

    def _disturbed(self, plan: FollowedPlan, own: int) -> bool:
        """Returns whether another clock may have acted before the end; one whose latency is known acts at the end."""
        return any(place > own and not self._leads.knows(plan.clock_from[place]) for place in self._requests)

    def wanted(self, now_ns: int) -> int:
        """Returns the clock to request now, in MHz; 0 for the default clock. Sets `due_ns`."""
        plan = self._plan
        self.due_ns = NEVER
        if plan is None:
            return 0
        mhz, place = plan.clock_from[self._at], plan.since[self._at]
        if self._at == len(plan.codes) - 1 and mhz:
            if now_ns >= self._hold_until_ns:
                mhz = 0  # the next step is late, or this one does not run as scheduled
            else:
                self.due_ns = self._hold_until_ns
        if self._at == 0 and self._leads.explores(mhz):
            self._request(0, None, now_ns)
            return 0  # requested when the first instruction has begun, its latency shows
        if _above(self._requested, mhz) and not (self._leads.allows_down(now_ns) and self._would_show(mhz, now_ns)):
            mhz = self._requested
        change = plan.next_change[self._at]
        while change < len(plan.codes):
            if change in self._requests:  # it is on its way; to take it back would take as long again
                mhz, place = plan.clock_from[change], change
                change = plan.next_change[change]
                continue
            expected_ns = plan.expected_soon_ns(self._at, change)
            if expected_ns < 0:
                break
            to_mhz = plan.clock_from[change]
            boundary_ns = self._at_ns + expected_ns
            if self._leads.explores(to_mhz):
                break  # requested when the device gets there, it shows its latency
            if _above(to_mhz, mhz):
                at_end = change == len(plan.codes) - 1
                when_ns = boundary_ns - (self._leads.usual_lead_ns(to_mhz) if at_end else self._early_ns(plan, to_mhz))
                if not _above(to_mhz, self._requested):
                    when_ns -= self._leads.lead_ns(mhz)  # not worth going down and up again
                elif self._goes_up:
                    when_ns = max(when_ns, self._acts_ns)  # earlier, it would replace a change that is needed sooner
            elif change > self._at + 1:
                break  # the instruction before has not begun yet: it could still be waiting then
            elif plan.error_ns >= self._leads.lead_ns(to_mhz):
                break  # its end is known no better than by waiting for it
            else:
                # A request that comes before the last one has acted would replace it.
                when_ns = max(boundary_ns - self._leads.lead_ns(to_mhz) + plan.error_ns, self._acts_ns)
                if when_ns <= now_ns and (
                    self._up_is_due(change, boundary_ns, now_ns) or not self._leads.allows_down(now_ns)
                ):
                    change = plan.next_change[change]
                    continue
            if when_ns > now_ns:
                self.due_ns = when_ns
                break
            mhz, place = to_mhz, change
            change = plan.next_change[change]
        # While calls are not affordable, the clock is another one than the plan's.
        self._request(mhz, place if mhz == plan.clock_from[place] else None, now_ns)
        return mhz

    def _request(self, mhz: int, place: int | None, now_ns: int) -> None:
        """Notes what is requested now, and for which change of the plan."""
        from_mhz = None
        if mhz != self._requested:
            if now_ns >= self._settled_ns:
                from_mhz = self._requested
            self._goes_up = _above(mhz, self._requested)
            self._requested, self._requested_ns = mhz, now_ns
            self._requested_call = self._leads.calls_made + 1
            lead_ns = self._leads.lead_ns(mhz)
            self._acts_ns = now_ns + lead_ns + self._leads.queue_ns
            known = self._leads.knows(mhz)
            self._settled_ns = now_ns + (lead_ns if known else 2 * self._leads.lead_ns(mhz, up=True))
        if place is not None and place not in self._requests:
            self._requests[place] = _Request(now_ns, from_mhz, self._leads.calls_made + 1)
            if self._leads.explores(mhz):
                self._waited[mhz] = self._waited.get(mhz, 0) + 1

    def _would_show(self, mhz: int, now_ns: int) -> bool:
        """Returns whether a lower clock that is requested now would show its latency, if that is to be learned.

        Until the clock before has surely acted, it would not. Where clocks change all the time, none ever would.
        """
        if now_ns >= self._settled_ns or not self._leads.explores(mhz):
            return True
        return self._waited.get(mhz, 0) >= _MOST_WAITED

    def _up_is_due(self, change: int, boundary_ns: int, now_ns: int) -> bool:
        """Returns whether the clock would have to go up again before a change down at `change` was made."""
        plan = self._plan
        assert plan is not None
        later = plan.next_change[change]
        if later >= len(plan.codes) or not _above(plan.clock_from[later], plan.clock_from[change]):
            return False
        expected_ns = plan.expected_soon_ns(change, later)
        lead_ns = self._early_ns(plan, plan.clock_from[later])
        acts_ns = now_ns + self._leads.lead_ns(plan.clock_from[change])
        return expected_ns >= 0 and boundary_ns + expected_ns - lead_ns <= acts_ns

    def _early_ns(self, plan: FollowedPlan, mhz: int) -> int:
        """Returns how long before a boundary a higher clock is requested."""
        leads = self._leads
        return leads.lead_ns(mhz, up=True) + leads.queue_ns + leads.call_ns // 8 + plan.error_ns

    def next_look_ns(self, now_ns: int) -> int:
        """Returns when to look at the device's progress again."""
        plan = self._plan
        if plan is None:
            return now_ns + _COARSE_NS
        if self._at == len(plan.codes) - 1:
            since_ns = now_ns - self._at_ns
            exact = not self._leads.knows(plan.clock_from[0])  # the next step may show its latency
            return now_ns + _pause_ns(since_ns - _UNKNOWN_NS if exact else since_ns // 8)
        change = min(plan.next_change[self._at], len(plan.codes) - 1)
        near = change == self._at + 1 or not self._leads.knows(plan.clock_from[self._at])
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
