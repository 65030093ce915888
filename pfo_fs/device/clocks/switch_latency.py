"""How long a change of the clock takes on this GPU: the driver's call, and then the time until the clock acts.

The duration of a call is measured at each call. When the clock acts cannot be read from the driver; it is learned from
what instructions take. If the clock changes from b to c only d seconds after an instruction has begun, the instruction
has done d / t_b of its work by then and takes

    y = d + (1 - d / t_b) * t_c

where t_b and t_c are its durations at the two clocks. These are known from instructions that ran at one clock from
begin to end. So each instruction after a change tells how likely each latency is (`latency_estimate.py`), and so does
the one before, in which the clock was requested: it is shorter or longer if the clock acted before its end. The latency
is learned for each clock, because it depends on the clock that is requested far more than on the one before
(arXiv:2502.20075).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import log
from typing import NamedTuple

from pfo_fs.device.clocks.call_budget import CallBudget
from pfo_fs.device.clocks.latency_estimate import GRID_NS, REMEMBERED, LatencyEstimates
from pfo_fs.device.clocks.steady_durations import Duration, SteadyDurations

SETTLED_NS = 200_000_000
"""After this time a clock acts in any case."""
_CALLS = 15
FIRST_CALL_NS = 5_000_000
"""Assumed duration of a call before one was made; published medians are 4.1 and 5.2 ms."""
_WAITS = 64
_CALLS_KEPT = 64
"""Of so many calls, the duration of each is kept: that of the call for a request counts, not of one that came later."""
_TRIES = 6
"""An unknown clock is requested late this often."""
_KNOWN_NS = 4_000_000
"""A latency counts as known if its standard error is smaller."""
_ROUGHLY, _ROUGHLY_AFTER = 0.25, 5
"""After so many changes a latency is known roughly if its error is this share of it, or if it is surely shorter than
this share of a usual instruction."""
_LEAST_CHANGES = 2
"""So many changes to a clock are observed before those to other clocks can tell enough of it."""
_SKIPPED = 8
"""Of changes to clocks that are known precisely, one in so many is looked at: that takes 0.2 ms."""
_PRECISE_NS, _PRECISE = 300_000, 0.04
"""Until its standard error is smaller than this time, or this share of an instruction, a latency is learned."""
_SEEN_NS = 200_000
"""The begin and the end of an instruction are seen with this error."""
_USUAL_ERROR = 0.003
"""Relative: usual durations are wrong by this much, since their instructions did not all run at their clocks."""
_SETTLED, _SURE = 2.0, 4.0
"""So many standard errors after its expected latency a clock has acted, nearly always and surely."""
_FREEDOM = 7.0
"""Degrees of freedom of Student's distribution of durations: some have another cause than the clock."""
_NEAR = 0.03
"""Clocks within this share of each other: the duration at one follows from that at the other."""
_LEAST_DIFFERENCE = 0.01
"""Durations at two clocks that differ by less show no latency."""


class Ran(NamedTuple):
    """An instruction as it ran.

    Attributes:
        kind: The same number for the same instruction.
        mhz: The clock that the plan gives it; 0 is the default clock.
        took_ns: Its duration.
        next_mhz: The clock after it, if that may have acted before its end.
        early_ns: How long before its end the next clock has acted, as far as that is known.
        early_error_ns: The standard error of this time.
    """

    kind: int
    mhz: int
    took_ns: int
    next_mhz: int = 0
    early_ns: float = 0.0
    early_error_ns: float = 0.0


class _Pending(NamedTuple):
    """A change whose clock may not have acted yet.

    Attributes:
        mhz: The clock.
        from_mhz: The clock before.
        calls_ns: Time from the request to the return of the call after which instructions run at the clock.
    """

    mhz: int
    from_mhz: int
    calls_ns: float


class SwitchLatency:
    """The learned times of one GPU.

    Args:
        settle_ns: Known times from the return of a call until a clock (MHz) acts, as from `pfo-fs doctor --switching`.
        call_ns: The known duration of a call.
        top_mhz: The default clock; 0 if unknown.
        calls_per_s: Most calls per second of all GPUs of the node; None: by what their calls take.
        tp_degree: Number of GPUs that run the same instructions together. The slowest of them counts: after a change
            down the one that is called first, after a change up the one that is called last.

    Attributes:
        durations: What instructions take at their clocks.
        call_ns: Median duration of a call.
        queue_ns: How long a call may have to wait for those of other GPUs of the node.
        calls_made: Number of calls so far.
        gpus: Number of GPUs of the node whose clocks are set.
    """

    def __init__(
        self,
        settle_ns: Mapping[int, int] | None = None,
        call_ns: int = FIRST_CALL_NS,
        top_mhz: int = 0,
        calls_per_s: float | None = None,
        tp_degree: int = 1,
    ) -> None:
        self.gpus = 1
        self._tp_degree = tp_degree
        self._budget = CallBudget(calls_per_s)
        self._waits: deque[int] = deque(maxlen=_WAITS)
        self._top_mhz = top_mhz
        self._estimates = LatencyEstimates(settle_ns or {})
        self.durations = SteadyDurations(top_mhz)
        self.calls_made = 0
        self._calls: deque[int] = deque([call_ns], maxlen=_CALLS)
        self._pending: _Pending | None = None
        self._skipped = 0
        self._tries: dict[int, int] = {}
        self.call_ns = call_ns
        self._last_call_ns = call_ns
        self._each_call_ns: deque[int] = deque(maxlen=_CALLS_KEPT)  # the last ones, waits included
        self.queue_ns = 0

    @property
    def learned_s(self) -> dict[int, float]:
        """For each clock in MHz whose latency is known, the time from the return of a call until it acts, in s.

        Where durations scatter by 2 %, no latency may ever be known precisely. Then one that is known roughly counts,
        too, and the time is the longest likely one.
        """
        known_ns = {mhz: self._known_ns(mhz) for mhz in self._estimates.clocks() if mhz}
        return {mhz: round(latency_ns / 1e9, 6) for mhz, latency_ns in known_ns.items() if latency_ns is not None}

    def _known_ns(self, mhz: int) -> int | None:
        """The latency of a clock, if only roughly; None if it is not known."""
        latency = self._estimates.of(mhz)
        if self.knows(mhz):
            return latency.middle_ns
        roughly = (
            latency.error_ns <= _ROUGHLY * latency.middle_ns or latency.high_ns <= _ROUGHLY * self.durations.usual_ns
        )
        return latency.high_ns if roughly and self._estimates.changes(mhz) >= _ROUGHLY_AFTER else None

    @property
    def longest_settle_s(self) -> float | None:
        """The 90th percentile over the clocks of the time from a call's return until they act, in s; None: unknown."""
        ordered = sorted(self.learned_s.values())
        return ordered[len(ordered) * 9 // 10] if ordered else None

    def called(self, took_ns: int, waited_ns: int = 0) -> None:
        """Notes a call: its duration, and how long it waited before for calls of other GPUs."""
        if not self.calls_made:
            self._calls.clear()  # the assumed one
        self.calls_made += 1
        self._calls.append(took_ns)
        self.call_ns = round(_median(self._calls))
        self._last_call_ns = took_ns + waited_ns
        self._each_call_ns.append(self._last_call_ns)
        self._waits.append(waited_ns)
        self.queue_ns = sorted(self._waits)[len(self._waits) * 9 // 10]
        self._budget.called()

    def allows_down(self, now_ns: int) -> bool:
        """Returns whether there is room for a call now and another one later."""
        return self._budget.allows_down(now_ns, self.call_ns, self.gpus)

    def knows(self, mhz: int) -> bool:
        """Returns whether the latency of this clock is known."""
        return self._estimates.of(mhz or self._top_mhz).error_ns <= _KNOWN_NS

    def explores(self, mhz: int) -> bool:
        """Returns whether a clock is to be requested late, so that its latency shows; a few times for each clock.

        No instruction runs after the change to the default clock, which would show it: it is taken to be the highest.
        """
        if mhz == 0 or self._tries.get(mhz, 0) >= _TRIES:
            return False
        if self._estimates.changes(mhz) < _LEAST_CHANGES and not self._estimates.are_alike:
            return not self._estimates.is_given(mhz)
        return self._estimates.of(mhz).error_ns > min(_KNOWN_NS, max(_PRECISE_NS, _PRECISE * self.durations.usual_ns))

    def settle_ns(self, mhz: int) -> int:
        """Returns the most likely time from the return of a call until the clock acts."""
        return self._estimates.of(mhz or self._top_mhz).middle_ns

    def settled_ns(self, mhz: int, call: int = 0) -> int:
        """Returns the time from the request of a clock after which it has nearly always acted.

        Args:
            mhz: The clock.
            call: The number of the call that the request led to; 0: the last call.
        """
        if call > self.calls_made:
            return SETTLED_NS  # the call has not returned yet
        took_ns = self._call_took_ns(call)
        return max(took_ns, min(SETTLED_NS, took_ns + self._estimates.of(mhz or self._top_mhz).after_ns(_SETTLED)))

    def tried(self, mhz: int) -> None:
        """Notes that an instruction has run after a change to this clock."""
        self._tries[mhz] = self._tries.get(mhz, 0) + 1

    def usual_lead_ns(self, mhz: int) -> int:
        """Returns the most likely time from the request of a clock until it acts."""
        return self.call_ns + self.settle_ns(mhz)

    def lead_ns(self, mhz: int, *, up: bool = False) -> int:
        """Returns the time from the request of a clock until it acts.

        It is a standard error longer if the change is `up`, otherwise shorter: a higher clock that comes early costs no
        time, nor does a lower one that comes late.
        """
        latency = self._estimates.of(mhz or self._top_mhz)
        return self.call_ns + (latency.high_ns if up else latency.low_ns)

    def ran_steadily(self, ran: Ran) -> None:
        """Notes an instruction that ran at its clock from its begin to its end."""
        self.durations.add(ran.kind, ran.mhz, ran.took_ns)

    def ran_first(self, ran: Ran, from_mhz: int, lead_ns: int, call: int = 0) -> None:
        """Notes the first instruction after a change of the clock.

        Args:
            ran: The instruction.
            from_mhz: The clock before the change, which had acted.
            lead_ns: The time from the request to the begin of the instruction; negative if it was requested later.
            call: The number of the call that the request led to, the first one being 1; 0: the last call.
        """
        self._pending = None
        estimates = self._estimates
        self._skipped = (self._skipped + 1) % _SKIPPED
        if self._skipped and estimates.changes(ran.mhz) >= REMEMBERED and estimates.of(ran.mhz).error_ns < _PRECISE_NS:
            return
        if call > self.calls_made:
            return  # the call has not returned yet
        self._pending = _Pending(ran.mhz, from_mhz, self._calls_ns(ran.mhz, from_mhz, self._call_took_ns(call)))
        self._observe(ran, lead_ns, is_first=True)

    def ran_before(self, ran: Ran, from_mhz: int, lead_ns: int, call: int) -> None:
        """Notes an instruction in which a clock was requested that is needed after it: it may have acted too early.

        Args:
            ran: The instruction, with the requested clock.
            from_mhz: The clock at which it began.
            lead_ns: The time from the request to its begin, which is negative.
            call: The number of the call that the request led to.
        """
        if call > self.calls_made:
            return
        kept = self._pending
        self._pending = _Pending(ran.mhz, from_mhz, self._calls_ns(ran.mhz, from_mhz, self._call_took_ns(call)))
        self._observe(ran, lead_ns, is_first=True)
        self._pending = kept

    def ran_on(self, ran: Ran, lead_ns: int) -> None:
        """Notes a further instruction at the same clock: the clock may have changed only now.

        Args:
            ran: The instruction.
            lead_ns: The time from the request to its begin.
        """
        self._observe(ran, lead_ns, is_first=False)

    def _observe(self, ran: Ran, lead_ns: int, *, is_first: bool) -> None:
        """Learns from the duration of an instruction, unless the clock had surely acted before it began."""
        pending = self._pending
        if pending is None or pending.mhz != ran.mhz:  # where a clock stays between steps, it may follow another change
            return
        since_ns = lead_ns - pending.calls_ns  # from the return of the call to the begin
        own = self.durations.of(ran.kind, ran.mhz, _NEAR)
        other = self.durations.of(ran.kind, pending.from_mhz)
        if own is None or other is None:
            self._pending = None
            return
        took_ns, early_error_ns = float(ran.took_ns), 0.0
        if ran.early_error_ns:
            then = self.durations.of(ran.kind, ran.next_mhz)
            if then is None:
                return
            faster = own.took_ns / then.took_ns - 1
            took_ns, early_error_ns = took_ns + ran.early_ns * faster, ran.early_error_ns * faster
        # An instruction that took as long as at the clock before contradicts a latency that seems to be known surely.
        as_expected = abs(took_ns - own.took_ns) <= abs(took_ns - other.took_ns)
        if since_ns > self._estimates.of(ran.mhz).after_ns(_SURE) and as_expected:
            self._pending = None
            return
        if abs(own.took_ns / other.took_ns - 1) < _LEAST_DIFFERENCE:
            return
        # The errors of usual durations are the same each time: they must not become smaller by observing often.
        same = own.error_ns**2 + other.error_ns**2 + (_USUAL_ERROR * own.took_ns) ** 2
        variance = (self.durations.scatter * took_ns) ** 2 + _SEEN_NS**2 + early_error_ns**2
        variance += min(REMEMBERED, 1 + self._estimates.changes(ran.mhz)) * same
        self._estimates.add(ran.mhz, _unlikely(took_ns, since_ns, own, other, variance), is_first=is_first)

    def _call_took_ns(self, call: int) -> int:
        """Returns how long a call took, with its wait, by its number; the median if that is not kept any more."""
        back = self.calls_made - call
        if not call or not self._each_call_ns:
            return self._last_call_ns
        return self._each_call_ns[-1 - back] if back < len(self._each_call_ns) else self.call_ns

    def _calls_ns(self, mhz: int, from_mhz: int, call_ns: int) -> float:
        """Returns the time from a request, whose call took `call_ns`, until the call after which the clock counts."""
        others_ns = (min(self._tp_degree, max(1, self.gpus)) - 1) * self.call_ns
        if mhz != 0 and (from_mhz == 0 or mhz < from_mhz):
            return max(min(self.call_ns, call_ns), call_ns - others_ns)
        return max(call_ns, self.call_ns + others_ns)

    def disturbed(self) -> None:
        """Notes that the clock may have changed again."""
        self._pending = None


def _unlikely(took_ns: float, since_ns: float, own: Duration, other: Duration, variance: float) -> list[float]:
    """Returns how unlikely each latency of `GRID_NS` makes what an instruction took.

    Args:
        took_ns: Its duration.
        since_ns: When it began, from the return of the call.
        own, other: What it takes at its clock, and at the one before.
        variance: The variance of the difference from the expected duration, in ns2.
    """
    slower, longer_ns = 1 - own.took_ns / other.took_ns, took_ns - own.took_ns
    found = []
    for latency_ns in GRID_NS:
        off_ns = min(max(0.0, latency_ns - since_ns), other.took_ns) * slower - longer_ns
        found.append((_FREEDOM + 1) / 2 * log(1 + off_ns * off_ns / (_FREEDOM * variance)))
    if since_ns < 0 and longer_ns / slower < -since_ns:
        found[0] = 0.0  # it acted before the call returned
    return found


def _median(values: Iterable[int]) -> int:
    """Returns the upper median. The module `statistics` would make the clock process start later."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
