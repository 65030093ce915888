"""Decides which clock to request when, so that it acts at the moment at which the device needs it.

A change of the clock acts some milliseconds after it was requested (`switch_latency.py`). The order of a step's
instructions is known and the same step runs again and again, so the follower learns how long each instruction takes
and requests a change before the boundary at which it is needed:

- Early up: a higher clock is requested so early that it acts at the boundary at the latest; a clock that comes late
  would cost time.
- Late down: a lower clock is requested so that it acts at the boundary at the earliest; one that comes early would
  slow down the instruction that still runs.
- The boundary is the end of the instruction before: while the device then waits for its neighbour, both are free.

The module does arithmetic only: the caller says what the device has reached and when, and asks for the clock. The clock
process and the simulator use the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pfo_fs.device.shared_page import IDLE, POINT_MASK
from pfo_fs.device.switch_latency import SETTLED_NS, Ran

NEVER = 1 << 62
START = POINT_MASK - 1
"""The point at which a step begins, before its first instruction."""
_FINE_NS = 100_000
"""The shortest time between two looks at the device's progress."""
_COARSE_NS = 2_000_000
"""The longest, while something is expected."""
_LEAST_MARGIN_NS = 200_000
_UNSURE = 0.02
"""Of an instruction whose end was not seen, the duration may be wrong by this share."""
_DRIFT = 0.01
"""Over several instructions a prediction is wrong by up to this share."""
_MEMORY = 8
"""A learned time is about the mean over this many steps."""


class Leads(Protocol):
    """How long before it acts a change must be requested."""

    @property
    def call_ns(self) -> int:
        """How long one call of the driver takes."""

    @property
    def queue_ns(self) -> int:
        """How long a call may have to wait for those of other GPUs of the node."""

    def allows_down(self, now_ns: int) -> bool:
        """Returns whether there is room for a call now and another one later."""

    def lead_ns(self, mhz: int, *, up: bool = False) -> int:
        """Returns the time from the request of this clock, in MHz, until it acts; 0 MHz is the default clock.

        Where it is unknown, that of a slow clock if the change is `up`, which then comes early.
        """

    def explores(self, mhz: int) -> bool:
        """Returns whether this clock is to be requested late, so that its latency shows."""

    def knows(self, mhz: int) -> bool:
        """Returns whether the latency of this clock is known."""

    def ran_steadily(self, ran: Ran) -> None:
        """Notes an instruction that ran at its clock from its begin to its end."""

    def ran_first(self, ran: Ran, from_mhz: int, lead_ns: int) -> None:
        """Notes the first instruction after a change of the clock."""

    def ran_on(self, ran: Ran, lead_ns: int) -> None:
        """Notes a further instruction at the same clock."""

    def tried(self, mhz: int) -> None:
        """Notes that an instruction has run after a change to this clock."""

    def disturbed(self) -> None:
        """Notes that the clock may have changed again in the instruction after `ran_first`."""


class FollowedPlan:
    """The points of one step, in order, and how long the device takes from each to the next.

    Args:
        clocks_mhz: The clock of each instruction; 0 is the default clock.
        kinds: For each instruction, a number that is the same for the same work.

    Attributes:
        kinds: The same.
        codes: The points as the device writes them: the begin and the end of each instruction.
        clock_from: The clock that is needed from each point on.
        next_change: For each point, the next one at which another clock is needed.
        since: For each point, the one from which on its clock is needed.
        place: The place of each code in `codes`.
        gap_ns: The learned time from the point before to each point; -1 if unknown.
        error_ns: Mean error of the predicted end of an instruction.
    """

    def __init__(self, clocks_mhz: Sequence[int], kinds: Sequence[int]) -> None:
        self.kinds = kinds
        self.codes = [START]
        self.clock_from = [clocks_mhz[0] if clocks_mhz else 0]
        for position, mhz in enumerate(clocks_mhz):
            self._append(position << 1, mhz)
            # The work between the last instruction and the end of the step runs at the last clock.
            self._append(position << 1 | 1, clocks_mhz[position + 1] if position + 1 < len(clocks_mhz) else mhz)
        self._append(IDLE, 0)
        size = len(self.codes)
        self.next_change = [size] * size
        for at in range(size - 2, -1, -1):
            same = self.clock_from[at + 1] == self.clock_from[at]
            self.next_change[at] = self.next_change[at + 1] if same else at + 1
        self.since = [0] * size
        for at in range(1, size):
            self.since[at] = self.since[at - 1] if self.clock_from[at] == self.clock_from[at - 1] else at
        self.place = {code: at for at, code in enumerate(self.codes)}
        self.gap_ns = [-1] * size
        self.error_ns = _LEAST_MARGIN_NS
        self._seen = [0] * size

    def _append(self, code: int, mhz: int) -> None:
        self.codes.append(code)
        self.clock_from.append(mhz)

    def expected_ns(self, first: int, last: int) -> int:
        """Returns the learned time from one place to another; -1 if unknown."""
        gaps = self.gap_ns[first + 1 : last + 1]
        return -1 if -1 in gaps else sum(gaps)

    def learn(self, first: int, last: int, took_ns: int) -> None:
        """Learns that the device took this long from one place to another."""
        expected_ns = self.expected_ns(first, last)
        span = range(first + 1, last + 1)
        if expected_ns < 0:
            # Points between were reached between two looks, at most a look apart.
            self.gap_ns[first + 1 : last + 1] = [took_ns, *[0] * (last - first - 1)]
            return
        for at in span:
            self._seen[at] += 1
        weight = max(1 / _MEMORY, 1 / (1 + self._seen[last]))
        error_ns = took_ns - expected_ns
        if last == first + 1:
            self.gap_ns[last] += round(weight * error_ns)
        elif expected_ns:
            share = weight * error_ns / expected_ns
            for at in span:
                self.gap_ns[at] += round(share * self.gap_ns[at])
        if self.codes[last] & 1 and last == first + 1 and last < len(self.codes) - 1:
            self.error_ns += round((abs(error_ns) - self.error_ns) / _MEMORY)


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
        self._looked_ns = 0
        self._requested = 0
        self._acts_ns = 0
        self._requested_ns: dict[int, int] = {}  # for each change of this step, when its clock was requested
        self.due_ns = NEVER

    @property
    def plan(self) -> FollowedPlan | None:
        """The plan of the step that the device runs; None before the first one."""
        return self._plan

    def look(self, now_ns: int) -> None:
        """Notes that the device had not come further by now."""
        self._looked_ns = now_ns

    def reached(self, turn: int, code: int, plan: FollowedPlan, now_ns: int) -> int:
        """Notes that the device has reached a point, at some time since the last look; returns that time.

        Args:
            turn: Another number for each step.
            code: The point, one of `plan.codes`.
            plan: The plan of this step.
            now_ns: The time of this look.
        """
        at = plan.place.get(code, len(plan.codes) - 1)
        at_ns = now_ns
        if plan is self._plan and turn == self._turn and at > self._at:
            expected_ns = plan.expected_ns(self._at, at)
            if expected_ns >= 0:
                at_ns = min(max(self._at_ns + expected_ns, self._looked_ns), now_ns)
            plan.learn(self._at, at, at_ns - self._at_ns)
            self._note_length(plan, at, at_ns, now_ns)
        else:
            self._requested_ns.clear()
        self._plan, self._turn, self._at, self._at_ns = plan, turn, at, at_ns
        self._looked_ns = now_ns
        return at_ns

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
        ran = Ran(plan.kinds[position], plan.clock_from[began], at_ns - self._at_ns)
        requested_ns = self._requested_ns.get(own)
        if own == began - 1:
            self._leads.tried(ran.mhz)
        if requested_ns is None or self._disturbed(plan, own):
            self._leads.disturbed()
            return
        lead_ns = self._at_ns - requested_ns
        if own < began - 1:
            self._leads.ran_on(ran, lead_ns)
        elif self._was_settled(plan, own, requested_ns):
            self._leads.ran_first(ran, plan.clock_from[own - 1] if own else 0, lead_ns)
        if lead_ns > SETTLED_NS and max(self._requested_ns) == own:
            self._leads.ran_steadily(ran)

    def _disturbed(self, plan: FollowedPlan, own: int) -> bool:
        """Returns whether another clock may have acted before the end; one whose latency is known acts at the end."""
        return any(place > own and not self._leads.knows(plan.clock_from[place]) for place in self._requested_ns)

    def _was_settled(self, plan: FollowedPlan, change: int, requested_ns: int) -> bool:
        """Returns whether the clock before a change had acted when the change was requested."""
        if change == 0:
            return True
        before_ns = self._requested_ns.get(plan.since[change - 1])
        before_mhz = plan.clock_from[change - 1]
        settled_ns = self._leads.lead_ns(before_mhz) * (1 if self._leads.knows(before_mhz) else 2)
        return before_ns is not None and requested_ns - before_ns > settled_ns

    def wanted(self, now_ns: int) -> int:
        """Returns the clock to request now, in MHz; 0 for the default clock. Sets `due_ns`."""
        plan = self._plan
        self.due_ns = NEVER
        if plan is None:
            return 0
        mhz, place = plan.clock_from[self._at], plan.since[self._at]
        if self._at == 0 and self._leads.explores(mhz):
            return 0  # requested when the first instruction has begun, its latency shows
        if _above(self._requested, mhz) and not self._leads.allows_down(now_ns):
            mhz = self._requested
        change = plan.next_change[self._at]
        while change < len(plan.codes):
            expected_ns = plan.expected_ns(self._at, change)
            if expected_ns < 0:
                break
            to_mhz = plan.clock_from[change]
            boundary_ns = self._at_ns + expected_ns
            if self._leads.explores(to_mhz):
                break  # requested when the device gets there, it shows its latency
            if _above(to_mhz, mhz):
                when_ns = boundary_ns - self._early_ns(plan, to_mhz)
                if not _above(to_mhz, self._requested):
                    when_ns -= self._leads.lead_ns(mhz)  # not worth going down and up again
            elif change > self._at + 1:
                break  # the instruction before has not begun yet: it could still be waiting then
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
        self._requested_ns.setdefault(place, now_ns)
        if mhz != self._requested:
            self._requested = mhz
            self._acts_ns = now_ns + self._leads.lead_ns(mhz) + self._leads.queue_ns
        return mhz

    def _up_is_due(self, change: int, boundary_ns: int, now_ns: int) -> bool:
        """Returns whether the clock would have to go up again before a change down at `change` was made."""
        plan = self._plan
        assert plan is not None
        later = plan.next_change[change]
        if later >= len(plan.codes) or not _above(plan.clock_from[later], plan.clock_from[change]):
            return False
        expected_ns = plan.expected_ns(change, later)
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
        if plan is None or self._at == len(plan.codes) - 1:
            return now_ns + _COARSE_NS
        change = min(plan.next_change[self._at], len(plan.codes) - 1)
        near = change == self._at + 1 or not self._leads.knows(plan.clock_from[self._at])
        awaited = self._at + 1 if near else change - 1
        expected_ns = plan.expected_ns(self._at, awaited)
        if expected_ns < 0:
            return now_ns + _FINE_NS
        guard_ns = 2 * plan.error_ns + round(_DRIFT * expected_ns)
        look_ns = self._at_ns + expected_ns - guard_ns
        if look_ns > now_ns:
            return look_ns
        late_ns = now_ns - self._at_ns - expected_ns
        return now_ns + min(max(late_ns // 8, _FINE_NS), _COARSE_NS)


def _above(mhz: int, other_mhz: int) -> bool:
    """Returns whether the first clock is higher; the default clock, 0, is above all others."""
    return mhz != other_mhz and (mhz == 0 or (other_mhz != 0 and mhz > other_mhz))
