"""From marks and readings of an energy counter to time and energy of steps and instructions. Pure: no clock, no GPU.

GPU counters tick every 20 to 100 ms, and reading one takes time, so instructions are shorter than the distance of two
readings. Energies of instructions are interpolated linearly between readings: within a tick, energy is split by time.
What that blurs, the fit of powers over many ticks tells apart (`power.py`), and says how sure it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from pfo_fs.device import page
from pfo_fs.device.power import Power, PowerFit

_MAX_READINGS = 4096
_BREATH = 32
"""Marks or instructions between two yields of `StepMeter.take`, some 50 us."""
_MAX_INSTRUCTIONS_OF_A_STEP = 65_535
_TICK_NS = 300_000_000
"""A counter that has not ticked for so long after the end of a step is not waited for."""
_MAX_PACE = 64
_EARLY_NS, _OFTEN_NS, _RARELY_NS = 3_000_000, 2_000_000, 20_000_000
_PERIODS = 9


class Names(Protocol):
    """The name table of the page (`page.SharedPage`)."""

    def name(self, index: int) -> str:
        """Returns the name at a place of the table."""


class Step(NamedTuple):
    """One complete step; seconds and joules.

    Attributes:
        step: The step.
        number: Of the schedule that was in force.
        time_s: From its begin to its end.
        energy_j: Over that time.
        span_s: From its begin to the end of its last instruction: without what comes after the pipeline has run dry.
        times: Duration of each instruction, by name, in the order of their begins.
        energies: The same in joules.
    """

    step: int
    number: int
    time_s: float
    energy_j: float
    span_s: float
    times: dict[str, list[float]]
    energies: dict[str, list[float]]


class Measured(NamedTuple):
    """What was measured while schedule `number` was in force."""

    number: int
    first_step: int
    steps: list[Step]
    powers: list[Power]

    def result(self, rank: int) -> dict[str, Any]:
        """Returns Zeus's shape: `time_breakdown["forward"][i]` lists the forwards of iteration i."""
        names = sorted({name for step in self.steps for name in step.times})
        return {
            "rank": rank,
            "iter_time": [_short(step.time_s) for step in self.steps],
            "iter_energy": [_short(step.energy_j) for step in self.steps],
            "iter_span": [_short(step.span_s) for step in self.steps],
            "time_breakdown": {name: [_shorts(step.times.get(name, [])) for step in self.steps] for name in names},
            "energy_breakdown": {name: [_shorts(step.energies.get(name, [])) for step in self.steps] for name in names},
            "powers": [power._asdict() for power in self.powers],
        }


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _shorts(values: list[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


class EnergyCurve:
    """Readings of a cumulative counter, with linear interpolation between them.

    A counter that stands still between two readings ticks: it has moved somewhere between the last reading that showed
    the old value and the first that shows the new one, so the middle of the two is taken for the time of the new value.
    A reading that shows what the one before showed is no point of the curve. Ticks come at a steady rate, so `pause_ns`
    can say when to read next, for the two to lie close together without reading often.

    Holds at most 4,096 points: when it is full, every second one of the older half goes.
    """

    def __init__(self) -> None:
        self._times_ns: list[int] = []
        self._energies_j: list[float] = []
        self._read_ns = 0
        self._stood_ns = 0
        self._over = False

    def add(self, t_ns: int, energy_j: float) -> None:
        """Adds a reading; times and energies do not go back."""
        if self._times_ns and t_ns <= self._read_ns:
            return
        self._read_ns = t_ns
        if self._times_ns and energy_j == self._energies_j[-1]:
            self._stood_ns = t_ns
            return
        if self._times_ns and self._stood_ns > self._times_ns[-1]:
            t_ns = (self._stood_ns + t_ns) // 2
        self._times_ns.append(t_ns)
        self._energies_j.append(energy_j)
        if len(self._times_ns) > _MAX_READINGS:
            half = len(self._times_ns) // 2
            del self._times_ns[1:half:2]
            del self._energies_j[1:half:2]

    def pause_ns(self) -> int:
        """Returns how long after the last reading the next one is due."""
        if not self._stood_ns or len(self._times_ns) < 3 or self._read_ns - self._stood_ns > _TICK_NS:
            return _RARELY_NS  # it has not been seen to stand still: every reading is a point
        last = self._times_ns[-_PERIODS:]
        gaps = sorted(later - earlier for earlier, later in pairwise(last))
        due_ns = last[-1] + gaps[len(gaps) // 2] - _EARLY_NS
        if self._read_ns < due_ns:
            return max(_OFTEN_NS, min(due_ns - self._read_ns, 5 * _RARELY_NS))
        return _OFTEN_NS if self._read_ns < due_ns + 4 * _EARLY_NS else _RARELY_NS

    def at(self, t_ns: int) -> float:
        """Returns the counter at `t_ns` in joules; before the first point and after the last, the nearest line."""
        times, energies = self._times_ns, self._energies_j
        if len(times) < 2:
            return energies[0] if energies else 0.0
        right = min(max(bisect_right(times, t_ns), 1), len(times) - 1)
        t0, t1 = times[right - 1], times[right]
        e0, e1 = energies[right - 1], energies[right]
        return e0 + (e1 - e0) * (t_ns - t0) / (t1 - t0)

    def within(self, begin_ns: int, end_ns: int) -> list[tuple[int, float]]:
        """Returns the points (ns, J) from `begin_ns` to `end_ns`."""
        first, last = bisect_right(self._times_ns, begin_ns - 1), bisect_right(self._times_ns, end_ns)
        return list(zip(self._times_ns[first:last], self._energies_j[first:last], strict=True))

    def forget_before(self, t_ns: int) -> None:
        """Drops the points that are not needed for `t_ns` and later."""
        keep_from = bisect_right(self._times_ns, t_ns) - 1
        if keep_from > 0:
            del self._times_ns[:keep_from]
            del self._energies_j[:keep_from]

    def no_more(self) -> None:
        """Notes that there will be no more readings."""
        self._over = True

    def covers(self, t_ns: int) -> bool:
        """Whether nothing better will be known of `t_ns`: a point lies behind it, or the counter stands still."""
        waits = self._times_ns and self._times_ns[-1] < t_ns and self._read_ns < t_ns + _TICK_NS
        return self._over or not waits

    def last_ns(self) -> int:
        """Returns the time of the last reading, 0 if there is none."""
        return self._read_ns


class _Ended(NamedTuple):
    """A step whose marks are complete, and whose energy may not be known yet."""

    step: int
    number: int
    begin_ns: int
    end_ns: int
    last_end_ns: int
    usable: bool
    instructions: list[tuple[int, int, int]]  # name's place, begin, end


class StepMeter:
    """Follows steps through the marks, and collects `profile_steps` of them for each schedule number.

    The first complete step after a change of the schedule is left out: caches are cold and clocks on their way.

    Args:
        profile_steps: How many steps make a result.
        names: Gives the name of an instruction from its place in the page's name table.

    Attributes:
        iteration_times: (step, number, span in s) of the last complete steps; the reader takes them out.
    """

    def __init__(self, profile_steps: int, names: Names) -> None:
        self.curve = EnergyCurve()
        self.last_step: Step | None = None
        self.done_number = page.NO_NUMBER
        self.pace: deque[tuple[int, int, float]] = deque(maxlen=_MAX_PACE)
        self._profile_steps = profile_steps
        self._names = names
        self._powers = PowerFit()
        self._number = page.NO_NUMBER
        self._collecting = page.NO_NUMBER
        self._skipped_first = False
        self._collected: list[Step] = []
        self._step = -1
        self._begin_ns = -1  # -1: between steps
        self._last_end_ns = 0
        self._open: list[tuple[int, int]] = []
        self._instructions: list[tuple[int, int, int]] = []
        self._ended: deque[_Ended] = deque()

    def clock_set(self, t_ns: int, mhz: int) -> None:
        """Notes that the clock was set to `mhz` (0: the default) at `t_ns`."""
        self._powers.clock_set(t_ns, mhz)

    def take(self, marks: list[tuple[int, int]], *, everything: bool = False) -> Iterator[Measured | None]:
        """Follows marks; a step is settled once the energy curve covers its end.

        Args:
            marks: The next marks.
            everything: Settle all steps: no more readings will come.

        Yields:
            Finished results, and None every so often: the caller has more urgent things to do than arithmetic.
        """
        for position, (first, code) in enumerate(marks):
            if position % _BREATH == 0:
                yield None
            kind, value = code & 0xFF, code >> 8
            if kind == page.BEGIN:
                if len(self._open) < _MAX_INSTRUCTIONS_OF_A_STEP:
                    self._open.append((value, first))
            elif kind == page.END:
                self._end(value, first)
            elif kind == page.STEP_BEGIN:
                self._step, self._begin_ns, self._last_end_ns = value, first, 0
                self._open.clear()
                self._instructions = []
            elif kind == page.NUMBER:
                self._number = first
            elif kind == page.LAST_END:
                self._last_end_ns = first
            elif kind == page.STEP_END and self._begin_ns >= 0:
                self._ended.append(
                    _Ended(
                        self._step,
                        self._number,
                        self._begin_ns,
                        first,
                        self._last_end_ns or first,
                        value == 0,
                        self._instructions,
                    )
                )
                self._begin_ns = -1
        while self._ended and (everything or self.curve.covers(self._ended[0].end_ns)):
            yield from self._settle(self._ended.popleft())

    def lost(self) -> None:
        """Marks were lost: the step that is being followed cannot be complete."""
        self._begin_ns = -1
        self._open.clear()
        self._instructions = []

    def _end(self, place: int, t_ns: int) -> None:
        """An instruction's end belongs to the last open begin of the same name."""
        for position in range(len(self._open) - 1, -1, -1):
            if self._open[position][0] == place:
                _, begin_ns = self._open.pop(position)
                if len(self._instructions) < _MAX_INSTRUCTIONS_OF_A_STEP:
                    self._instructions.append((place, begin_ns, t_ns))
                return

    def _settle(self, ended: _Ended) -> Iterator[Measured | None]:
        if ended.number != self._collecting:
            self._collecting, self._skipped_first = ended.number, False
            self._collected.clear()
            self._powers.clear()
        wanted = ended.number != self.done_number and ended.usable
        collected = wanted and self._skipped_first
        times: dict[str, list[float]] = {}
        energies: dict[str, list[float]] = {}
        curve = self.curve
        ended.instructions.sort(key=lambda instruction: instruction[1])
        named = [(self._names.name(place), t0, t1) for place, t0, t1 in ended.instructions]
        for position, (name, t0, t1) in enumerate(named):
            if position % _BREATH == 0:
                yield None
            times.setdefault(name, []).append((t1 - t0) / 1e9)
            energies.setdefault(name, []).append(curve.at(t1) - curve.at(t0))
        energy_j = curve.at(ended.end_ns) - curve.at(ended.begin_ns)
        time_s, span_s = (ended.end_ns - ended.begin_ns) / 1e9, (ended.last_end_ns - ended.begin_ns) / 1e9
        step = Step(ended.step, ended.number, time_s, energy_j, span_s, times, energies)
        self.last_step = step
        self.pace.append((step.step, step.number, span_s))
        if collected:
            self._collected.append(step)
            yield from self._powers.add(named, curve.within(ended.begin_ns, ended.end_ns))
        self._powers.forget_before(ended.end_ns)
        curve.forget_before(ended.end_ns)
        self._skipped_first |= wanted
        if len(self._collected) == self._profile_steps:
            yield Measured(ended.number, self._collected[0].step, list(self._collected), self._powers.solve())
            self._collected.clear()
            self._powers.clear()
            self.done_number = ended.number
