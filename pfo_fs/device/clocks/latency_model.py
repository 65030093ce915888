"""When each clock acts on this GPU, learned from durations of instructions around changes of the clock.

The driver does not say when a clock acts. This model keeps the last calls that set one, each with the time at which it
returned: the timeline. An instruction within which a clock may have acted tells how likely each latency of that clock
is (`pfo_fs/clock_latency.py`); an instruction within which none can have acted tells its duration at that clock
(`Durations`). The latency is learned for each clock, because it depends on the clock that is requested far more than on
the one before (arXiv:2502.20075). For a clock that was hardly observed, the latencies of the other clocks count.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import hypot, sqrt
from typing import NamedTuple

from pfo_fs.clock_latency import (
    GRID_NS,
    LEAST_DIFFERENCE,
    Latency,
    Row,
    costs,
    latency_of,
    prior,
    probabilities,
    took,
)
from pfo_fs.device.clocks.driver_calls import DriverCalls
from pfo_fs.ipc.messages import SwitchingReport

_PRIOR = prior(5e6)
"""Assumed before any observation: most clocks act within a few ms, some late."""
_LIKE_CLOCKS = 2.0
"""This assumption counts as much as observations of two other clocks."""
_REMEMBERED = 64
"""About the last 64 changes to a clock count, so that what a throttled GPU has shown is forgotten."""
_MOST_CHANGES = 64
"""At most this many changes are kept: more than a driver makes within an instruction."""
SETTLED_NS = GRID_NS[-1]
"""After this time a clock acts in any case."""
_SURELY = 2.0
"""A clock has surely acted this many standard errors after its likely latency, and surely not this many before it."""
_KNOWN_NS = 4_000_000
"""A latency counts as known if its standard error is smaller."""
_KNOWN = 0.05
"""A latency is also reported if its error is below this share of an instruction: plans can then count with it."""
_PRECISE_NS = 300_000
"""If a latency is known better than this, an instruction that takes the expected time tells nothing new of it."""
_GIVEN = 20.0
"""A latency measured beforehand is used as it is until its clock is observed, and then counts like a few changes."""
_SEEN_NS, _SEEN_LATE_NS = 200_000, 300_000
"""Begin and end of an instruction are seen with the first error. If its begin was seen late by more than the second,
the instruction shows no latency: it would seem shorter than it is."""
_NEAR = 0.03
"""The duration at a new clock is derived only from that at a clock within this share of it: how much of a duration
follows the clock is not known. Under a power limit nothing does, and a slower clock would seem never to act."""
_USUAL_ERROR = 0.003
"""Relative error of usual durations, since not all their instructions ran at the clock that they count for."""
_FIRST_USUAL_NS = 200_000_000.0
"""Assumed duration of an instruction before any was seen."""
_SAMPLES = 64
"""At most this many durations of an instruction at one clock are kept, the latest ones."""
_SENSITIVITY, _SENSITIVITY_ERROR = 0.7, 0.3
"""Assumed share of a duration that follows the clock, and its error, if an instruction was never seen at this clock."""
_FIRST_SCATTER = 0.005
"""Assumed relative deviation of durations until it is measured."""
_FIRST_DEVIATIONS, _SCATTER_MEMORY = 4, 64
"""The assumed deviation counts like four measured ones; the measured ones count in a mean over about the last 64."""
_MIDDLE_ERROR = 1.1
"""The standard error of the mean of the middle half, as a multiple of that of the mean of all."""


class Duration(NamedTuple):
    took_ns: float
    error_ns: float


class _Steady:
    """The duration of an instruction at one clock: the mean of the middle half of the samples."""

    def __init__(self) -> None:
        self.samples_ns: deque[int] = deque(maxlen=_SAMPLES)
        self.took_ns = 0.0


class Durations:
    """The durations of one GPU's instructions.

    Attributes:
        scatter: Relative standard deviation of a duration.
    """

    def __init__(self) -> None:
        self.scatter = _FIRST_SCATTER
        self.usual_ns = _FIRST_USUAL_NS
        self._deviations = _FIRST_DEVIATIONS
        self._steady: dict[int, dict[int, _Steady]] = {}  # kind -> MHz

    def add(self, kind: int, mhz: int, took_ns: int) -> None:
        """Adds the duration of an instruction that ran at one clock from its begin to its end."""
        self.usual_ns += (took_ns - self.usual_ns) / (_SCATTER_MEMORY if self._steady else 1)
        steady = self._steady.setdefault(kind, {}).setdefault(mhz, _Steady())
        if len(steady.samples_ns) > 1:
            deviation = min(abs(took_ns / steady.took_ns - 1), 0.1) if steady.took_ns else 0.0
            self._deviations = min(self._deviations + 1, _SCATTER_MEMORY)
            self.scatter += (1.25 * deviation - self.scatter) / self._deviations
        steady.samples_ns.append(took_ns)
        steady.took_ns = _middle_mean(steady.samples_ns)

    def of(self, kind: int, mhz: int, within: float = 1.0) -> Duration | None:
        """Returns the duration of an instruction at a clock; None if too little is known.

        Args:
            mhz: The clock; 0 if it is not known.
            within: The duration is also derived from that at the nearest clock, if this clock is within this share.
        """
        table = self._steady.get(kind, {})
        if mhz in table:
            return Duration(table[mhz].took_ns, self._scatter_ns(table[mhz]))
        known = [other for other in table if other]
        if not mhz or not known:
            return None
        nearest = min(known, key=lambda other: abs(other - mhz))
        steady, ratio = table[nearest], nearest / mhz
        if abs(ratio - 1) > within:
            return None
        guessed_ns = steady.took_ns * (_SENSITIVITY * ratio + 1 - _SENSITIVITY)
        error_ns = hypot(self._scatter_ns(steady), _SENSITIVITY_ERROR * (ratio - 1) * steady.took_ns)
        return Duration(guessed_ns, error_ns)

    def _scatter_ns(self, steady: _Steady) -> float:
        return _MIDDLE_ERROR * self.scatter * steady.took_ns / sqrt(len(steady.samples_ns))


def _middle_mean(values: Iterable[int]) -> float:
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle)


class _Change(NamedTuple):
    """A change of the clock: the number of its call, the clock, and when the call had returned."""

    number: int
    mhz: int
    since_ns: int


class LatencyModel:
    """The latencies of one GPU's clocks.

    Args:
        known_ns: Known times from the return of a call until a clock (MHz) acts: in simulations and dry runs.
        top_mhz: The highest clock, like which the default clock acts, in MHz; 0 if unknown.
        tp_degree: Number of GPUs that run the same instructions together. The slowest of them counts: after a change
            down, the GPU whose call came first; after a change up, the GPU whose call came last.
    """

    def __init__(
        self,
        calls: DriverCalls | None = None,
        known_ns: Mapping[int, int] | None = None,
        top_mhz: int = 0,
        tp_degree: int = 1,
    ) -> None:
        self.calls = calls or DriverCalls()
        self.durations = Durations()
        self._top_mhz = top_mhz
        self._tp_degree = tp_degree
        self._timeline = [_Change(0, top_mhz, -SETTLED_NS)]  # the first one has surely acted
        self._last_shown = 0  # the number of the change that an instruction has shown last
        self._given = {mhz: Latency(ns, ns, ns) for mhz, ns in (known_ns or {}).items()}
        self._logs: dict[int, Row] = {}  # for each clock, the logarithms of the likelihoods
        self._changes: dict[int, int] = {}  # for each clock, how many changes to it were observed
        self._alone: dict[int, Row] = {}  # for each clock, the probabilities by what was observed of it alone
        self._found: dict[int, Latency] = {}
        for mhz, ns in (known_ns or {}).items():
            self._learned(mhz, [-min(_GIVEN, 0.5 * ((at_ns - ns) / _PRECISE_NS) ** 2) for at_ns in GRID_NS])

    # ---- what is known

    def latency(self, mhz: int) -> Latency:
        """Returns the time from the return of a call until this clock acts; 0 MHz is the default clock."""
        mhz = mhz or self._top_mhz
        if mhz in self._given:
            return self._given[mhz]
        if mhz not in self._found:
            others = [_LIKE_CLOCKS * one for one in _PRIOR]
            for other, alone in self._alone.items():
                if other != mhz:
                    others = [one + its for one, its in zip(others, alone, strict=True)]
            logs = self._logs.get(mhz)
            self._found[mhz] = latency_of(others if logs is None else probabilities(others, logs))
        return self._found[mhz]

    def knows(self, mhz: int) -> bool:
        return self.latency(mhz).error_ns <= _KNOWN_NS

    def lead_ns(self, mhz: int) -> int:
        """Returns the most likely time from the request of a clock until it acts."""
        return self.calls.call_ns + self.latency(mhz).middle_ns

    @property
    def learned_s(self) -> dict[int, float]:
        """For each clock in MHz whose latency is known, the time from the return of a call until it acts, in s.

        Only observations of the clock itself make its latency known. The time is the longest likely one: a plan that
        counts with less would be late.
        """
        most_ns = max(_KNOWN_NS, _KNOWN * self.durations.usual_ns)
        latencies = {mhz: self._given.get(mhz) or latency_of(alone) for mhz, alone in self._alone.items()}
        return {mhz: round(one.high_ns / 1e9, 6) for mhz, one in latencies.items() if one.error_ns <= most_ns}

    def switching(self, mode: str, ahead_s: float | None = None, *, each_clock: bool = True) -> SwitchingReport:
        """Returns the report of how clocks are switched, and what that costs here.

        Args:
            ahead_s: How far training runs ahead of the device, in s; None: unknown.
        """
        calls, learned_s = self.calls, self.learned_s
        ordered = sorted(learned_s.values())
        return {
            "mode": mode,
            "ahead_s": ahead_s,
            "call_s": round(calls.call_ns / 1e9, 6) if calls.made else None,
            "wait_s": round(calls.queue_ns / 1e9, 6) if calls.made else None,
            "latency_s": ordered[len(ordered) * 9 // 10] if ordered else None,  # nine of ten known clocks act no later
            "gpus": calls.gpus,
            "max_calls_per_s": calls.calls_per_s,
            "latencies_s": learned_s if each_clock else {},
        }

    # ---- what happens

    def clock_was_set(self, returned_ns: int, mhz: int, waited_ns: int = 0) -> None:
        """Notes that a call that sets this clock has returned."""
        mhz, last = mhz or self._top_mhz, self._timeline[-1]
        others_ns = (min(self._tp_degree, max(1, self.calls.gpus)) - 1) * self.calls.call_ns
        waited_ns = min(others_ns, waited_ns)
        goes_up = mhz == 0 or (last.mhz != 0 and mhz > last.mhz)
        since_ns = returned_ns + (others_ns - waited_ns if goes_up else -waited_ns)
        self._timeline.append(_Change(last.number + 1, mhz, since_ns))
        del self._timeline[:-_MOST_CHANGES]

    def ran(self, kind: int, began_ns: int, ended_ns: int, unsure_ns: int = 0) -> None:
        """Learns from an instruction.

        Args:
            kind: The same number for the same instruction.
            unsure_ns: By how many ns before `began_ns` it may have begun.
        """
        if ended_ns <= began_ns:
            return
        self._forget(began_ns)
        first, *later = self._timeline
        changes = [first, *(change for change in later if self._soonest_ns(change) < ended_ns)]
        last = max(at for at, change in enumerate(changes) if at == 0 or self._surely_ns(change) <= began_ns)
        if last == len(changes) - 1:
            self.durations.add(kind, changes[last].mhz, ended_ns - began_ns)
            # Even a latency that seems sure is checked: the instruction may have taken as long as at the clock before.
            last = max(0, last - 1)
        if last < len(changes) - 1 and unsure_ns <= _SEEN_LATE_NS:
            self._learn(kind, began_ns, ended_ns - began_ns, changes[last].mhz, changes[last + 1 :])

    def _learn(self, kind: int, began_ns: int, took_ns: int, from_mhz: int, changes: Sequence[_Change]) -> None:
        """Learns from an instruction that began at a clock, and within which other clocks may have acted."""
        takes = [self.durations.of(kind, from_mhz), *(self.durations.of(kind, one.mhz, _NEAR) for one in changes)]
        known = [one for one in takes if one is not None]
        latencies = [self.latency(change.mhz) for change in changes]
        place = max(range(len(changes)), key=lambda at: latencies[at].error_ns)
        others = [at for at in range(len(changes)) if at != place]
        if len(known) < len(takes) or any(latencies[at].error_ns > _KNOWN_NS for at in others):
            return  # it shows nothing, or several clocks at once
        old, own, target = known[place], known[place + 1], changes[place]
        if abs(own.took_ns / old.took_ns - 1) < LEAST_DIFFERENCE:
            return
        after_ns = [change.since_ns - began_ns for change in changes]

        def expected_ns(latency_ns: int) -> float:
            acts_ns = [since + one.middle_ns for since, one in zip(after_ns, latencies, strict=True)]
            acts_ns[place] = after_ns[place] + latency_ns
            # A call that returns before the previous clock has acted replaces that clock.
            acts = [at <= next_ns for at, next_ns in zip(acts_ns, [*after_ns[1:], acts_ns[-1]], strict=True)]
            steps = zip(acts_ns, known[1:], acts, strict=True)
            return took(known[0].took_ns, [(at_ns, one.took_ns) for at_ns, one, does in steps if does])

        # The errors of usual durations are the same each time: they must not become smaller by observing often.
        same = old.error_ns**2 + own.error_ns**2 + (_USUAL_ERROR * own.took_ns) ** 2
        variance = (self.durations.scatter * took_ns) ** 2 + _SEEN_NS**2
        variance += min(_REMEMBERED, 1 + self._changes.get(target.mhz, 0)) * same
        for at in others:
            variance += (latencies[at].error_ns * (1 - known[at + 1].took_ns / known[at].took_ns)) ** 2
        off_ns = expected_ns(latencies[place].middle_ns) - took_ns
        if latencies[place].error_ns < _PRECISE_NS and off_ns * off_ns < _SURELY**2 * variance:
            return
        found = costs(lambda latency_ns: (expected_ns(latency_ns), variance), took_ns)
        if after_ns[place] > 0 and (took_ns - expected_ns(0)) * (own.took_ns - old.took_ns) > 0:
            found[0] = min(found)  # it acted before the call returned
        self._add(target, found)

    def _forget(self, began_ns: int) -> None:
        """Leaves out the changes before the last one that has acted in any case."""
        while len(self._timeline) > 1 and self._timeline[1].since_ns + SETTLED_NS <= began_ns:
            del self._timeline[0]

    def _soonest_ns(self, change: _Change) -> int:
        latency = self.latency(change.mhz)
        return change.since_ns + max(0, latency.middle_ns - round(_SURELY * (latency.middle_ns - latency.low_ns)))

    def _surely_ns(self, change: _Change) -> int:
        latency = self.latency(change.mhz)
        after_ns = latency.middle_ns + round(_SURELY * (latency.high_ns - latency.middle_ns))
        return change.since_ns + min(SETTLED_NS, after_ns)

    def _add(self, change: _Change, unlikely: Row) -> None:
        is_first = change.number > self._last_shown
        self._last_shown = max(self._last_shown, change.number)
        self._changes[change.mhz] = self._changes.get(change.mhz, 0) + is_first
        kept = 1 - 1 / _REMEMBERED if is_first else 1.0
        before = self._logs.get(change.mhz, [0.0] * len(GRID_NS))
        self._given.pop(change.mhz, None)
        self._learned(change.mhz, [kept * log - cost for log, cost in zip(before, unlikely, strict=True)])

    def _learned(self, mhz: int, logs: Row) -> None:
        highest = max(logs)
        self._logs[mhz] = [max(log - highest, -700.0) for log in logs]
        self._alone[mhz] = probabilities(_PRIOR, self._logs[mhz])
        self._found.clear()
