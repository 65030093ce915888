"""How long a change of the clock takes on this GPU: the driver's call, and then the time until the clock acts.

The duration of a call is measured at each call. When the clock acts cannot be read from the driver; it is learned from
what instructions take. If the clock changes from b to c only d seconds after an instruction has begun, the instruction
has done d / t_b of its work by then and takes

    y = d + (1 - d / t_b) * t_c,    so    d = (t_c - y) / (t_c / t_b - 1)

where t_b and t_c are its durations at the two clocks. These are known from instructions that ran at one clock from
begin to end. The latency is learned for each clock, because it depends on the clock that is requested far more than on
the one before (arXiv:2502.20075). The profiling of a job shows all of them, at the first instructions of its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pfo_fs.device.call_budget import CallBudget

SETTLED_NS = 200_000_000
"""After this time a clock acts in any case."""
_CALLS = 15
FIRST_CALL_NS = 5_000_000
"""Assumed duration of a call before one was made; published medians are 4.1 and 5.2 ms."""
_FIRST_SETTLE_NS = 5_000_000
_WAITS = 64
_SAMPLES = 9
_TRIES = 6
"""An unknown clock is requested late this often."""
_ENOUGH = 4
"""From this many samples on, a latency counts as known."""
_SENSITIVITY = 0.7
"""Assumed share of a duration that follows the clock, where an instruction was never seen at this clock."""
_WHOLE = 0.9
"""An instruction that ran at the old clock for more than this share ran at it to its end."""
_LATE_NS = 1_000_000
_NEAR = 0.03
"""Clocks within this share of each other: the duration at one follows from that at the other."""
_LEAST_DIFFERENCE = 0.02
"""Durations at two clocks that differ by less show no latency."""


class Ran(NamedTuple):
    """An instruction as it ran.

    Attributes:
        kind: The same number for the same instruction.
        mhz: The clock that the plan gives it; 0 is the default clock.
        took_ns: Its duration.
    """

    kind: int
    mhz: int
    took_ns: int


class _Steady:
    """The duration of an instruction at one clock: the median, since one that was seen late says nothing."""

    def __init__(self, samples_ns: deque[int]) -> None:
        self.samples_ns = samples_ns
        self.took_ns = 0.0


class _Pending(NamedTuple):
    """A change whose clock has not acted yet.

    Attributes:
        from_mhz: The clock before.
        acted_ns: Time from the request for which the clock is known not to have acted.
    """

    from_mhz: int
    acted_ns: float


class SwitchLatency:
    """The learned times of one GPU.

    Args:
        settle_ns: Known times from the return of a call until a clock (MHz) acts, as from `pfo-fs doctor --switching`.
        call_ns: The known duration of a call.
        top_mhz: The default clock; 0 if unknown.
        calls_per_s: Most calls per second of all GPUs of the node; None: by what their calls take.

    Attributes:
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
    ) -> None:
        self.gpus = 1
        self._budget = CallBudget(calls_per_s)
        self._waits: deque[int] = deque(maxlen=_WAITS)
        self._top_mhz = top_mhz
        self._settle_ns = dict(settle_ns or {})
        self.calls_made = 0
        self._calls: deque[int] = deque([call_ns], maxlen=_CALLS)
        self._samples_ns: dict[int, deque[int]] = {}
        self._steady: dict[int, dict[int, _Steady]] = {}  # kind -> MHz
        self._pending: _Pending | None = None
        self._tries: dict[int, int] = {}
        self.call_ns = call_ns
        self._last_call_ns = call_ns
        self.queue_ns = 0

    @property
    def learned_s(self) -> dict[int, float]:
        """For each clock in MHz whose latency is known, the time from the return of a call until it acts, in s."""
        return {mhz: round(settle_ns / 1e9, 6) for mhz, settle_ns in self._settle_ns.items() if mhz}

    @property
    def longest_settle_s(self) -> float | None:
        """The 90th percentile over the clocks of the time from a call's return until they act, in s; None: unknown."""
        if not self._settle_ns:
            return None
        ordered = sorted(self._settle_ns.values())
        return round(ordered[len(ordered) * 9 // 10] / 1e9, 6)

    def called(self, took_ns: int, waited_ns: int = 0) -> None:
        """Notes a call: its duration, and how long it waited before for calls of other GPUs."""
        if not self.calls_made:
            self._calls.clear()  # the assumed one
        self.calls_made += 1
        self._calls.append(took_ns)
        self.call_ns = round(_median(self._calls))
        self._last_call_ns = took_ns + waited_ns
        self._waits.append(waited_ns)
        self.queue_ns = sorted(self._waits)[len(self._waits) * 9 // 10]
        self._budget.called()

    def allows_down(self, now_ns: int) -> bool:
        """Returns whether there is room for a call now and another one later."""
        return self._budget.allows_down(now_ns, self.call_ns, self.gpus)

    def knows(self, mhz: int) -> bool:
        """Returns whether the latency of this clock is known."""
        return (mhz or self._top_mhz) in self._settle_ns

    def explores(self, mhz: int) -> bool:
        """Returns whether a clock is to be requested late, so that its latency shows; a few times for each clock.

        No instruction runs after the change to the default clock, which would show it: it is taken to be the highest.
        """
        return mhz != 0 and mhz not in self._settle_ns and self._tries.get(mhz, 0) < _TRIES

    def tried(self, mhz: int) -> None:
        """Notes that an instruction has run after a change to this clock."""
        self._tries[mhz] = self._tries.get(mhz, 0) + 1

    def lead_ns(self, mhz: int, *, up: bool = False) -> int:
        """Returns the time from the request of a clock until it acts.

        An unknown clock is taken to be one of the slowest if the change is `up`, otherwise to act at once: a higher
        clock that comes early costs no time, nor does a lower one that comes late.
        """
        settle_ns = self._settle_ns.get(mhz or self._top_mhz)
        if settle_ns is None:
            settle_ns = 0
            if up:
                ordered = sorted(self._settle_ns.values()) or [_FIRST_SETTLE_NS]
                settle_ns = ordered[len(ordered) * 9 // 10]
        return self.call_ns + settle_ns

    def ran_steadily(self, ran: Ran) -> None:
        """Notes an instruction that ran at its clock from its begin to its end."""
        steady = self._steady.setdefault(ran.kind, {}).setdefault(ran.mhz, _Steady(deque(maxlen=_SAMPLES)))
        steady.samples_ns.append(ran.took_ns)
        steady.took_ns = _median(steady.samples_ns)

    def ran_first(self, ran: Ran, from_mhz: int, lead_ns: int) -> None:
        """Notes the first instruction after a change of the clock.

        Args:
            ran: The instruction.
            from_mhz: The clock before the change, which had acted.
            lead_ns: The time from the request to the begin of the instruction; negative if it was requested later.
        """
        self._pending = None
        if lead_ns <= self.call_ns + _LATE_NS:  # requested so late that it shows when the clock acts
            self._pending = _Pending(from_mhz, lead_ns)
            self.ran_on(ran, lead_ns)

    def ran_on(self, ran: Ran, lead_ns: int) -> None:
        """Notes a further instruction at the same clock: the clock may have changed only now.

        Args:
            ran: The instruction.
            lead_ns: The time from the request to its begin.
        """
        pending = self._pending
        if pending is None:
            return
        self._pending = None
        late_ns = self._at_other_clock_ns(ran, pending.from_mhz)
        if late_ns is None:
            return
        acted_ns = lead_ns + late_ns if late_ns > (1 - _WHOLE) * ran.took_ns else pending.acted_ns
        if lead_ns <= self.call_ns + _LATE_NS:
            acted_ns = lead_ns + late_ns
        if late_ns > _WHOLE * ran.took_ns:
            self._pending = pending._replace(acted_ns=acted_ns)
            return
        samples = self._samples_ns.setdefault(ran.mhz, deque(maxlen=_SAMPLES))
        samples.append(round(min(max(acted_ns - self._last_call_ns, 0), SETTLED_NS)))
        if len(samples) >= _ENOUGH:
            self._settle_ns[ran.mhz] = round(_median(samples))

    def disturbed(self) -> None:
        """Notes that the clock may have changed again."""
        self._pending = None

    def _at_other_clock_ns(self, ran: Ran, other_mhz: int) -> float | None:
        """Returns how long an instruction ran at another clock than its own; None if its durations are not known.

        An error of the duration at its own clock counts several times in the result, so a guess will not do there.
        """
        own_ns = self._steady_ns(ran.kind, ran.mhz, _NEAR)
        other_ns = self._steady_ns(ran.kind, other_mhz)
        if own_ns is None or other_ns is None or abs(own_ns / other_ns - 1) < _LEAST_DIFFERENCE:
            return None
        return (own_ns - ran.took_ns) / (own_ns / other_ns - 1)

    def _steady_ns(self, kind: int, mhz: int, within: float = 1.0) -> float | None:
        """Returns the duration at a clock, if need be from the nearest clock within this share."""
        table = self._steady.get(kind)
        if not table:
            return None
        if mhz in table:
            return table[mhz].took_ns
        mhz = mhz or self._top_mhz
        known = [other for other in table if other]
        if not mhz or not known:
            return None
        nearest = min(known, key=lambda other: abs(other - mhz))
        if abs(nearest / mhz - 1) > within:
            return None
        return table[nearest].took_ns * (_SENSITIVITY * nearest / mhz + 1 - _SENSITIVITY)


def _median(values: Iterable[int]) -> int:
    """Returns the upper median. The module `statistics` would make the clock process start later."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
