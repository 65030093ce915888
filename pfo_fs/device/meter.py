"""From marks and readings of an energy counter to time and energy of steps and instructions. Pure: no clock, no GPU.

GPU counters tick every 20 to 100 ms, and reading one takes time, so instructions are shorter than the distance of two
readings. Energies are interpolated linearly between readings: the energy of a stretch is split by time where nothing
better is known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from pfo_fs.device import page

_MAX_READINGS = 4096
_BREATH = 32
"""Marks or instructions between two yields of `StepMeter.take`, some 50 us."""
_MAX_INSTRUCTIONS_OF_A_STEP = 65_535


class Step(NamedTuple):
    """One complete step; seconds and joules."""

    step: int
    number: int
    time_s: float
    energy_j: float
    times: dict[str, list[float]]
    energies: dict[str, list[float]]


class Measured(NamedTuple):
    """What was measured while schedule `number` was in force."""

    number: int
    first_step: int
    steps: list[Step]

    def result(self, rank: int) -> dict[str, Any]:
        """Returns Zeus's shape: `time_breakdown["forward"][i]` lists the forwards of iteration i."""
        names = sorted({name for step in self.steps for name in step.times})
        return {
            "rank": rank,
            "iter_time": [_short(step.time_s) for step in self.steps],
            "iter_energy": [_short(step.energy_j) for step in self.steps],
            "time_breakdown": {name: [_shorts(step.times.get(name, [])) for step in self.steps] for name in names},
            "energy_breakdown": {name: [_shorts(step.energies.get(name, [])) for step in self.steps] for name in names},
        }


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _shorts(values: list[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


class EnergyCurve:
    """Readings of a cumulative counter, with linear interpolation between them.

    Holds at most 4,096 readings: when it is full, every second one of the older half goes.
    """

    def __init__(self) -> None:
        self._times_ns: list[int] = []
        self._energies_j: list[float] = []

    def add(self, t_ns: int, energy_j: float) -> None:
        """Adds a reading; times and energies do not go back."""
        if self._times_ns and t_ns <= self._times_ns[-1]:
            return
        self._times_ns.append(t_ns)
        self._energies_j.append(energy_j)
        if len(self._times_ns) > _MAX_READINGS:
            half = len(self._times_ns) // 2
            del self._times_ns[1:half:2]
            del self._energies_j[1:half:2]

    def at(self, t_ns: int) -> float:
        """Returns the counter at `t_ns` in joules; before the first reading and after the last, the nearest line."""
        times, energies = self._times_ns, self._energies_j
        if len(times) < 2:
            return energies[0] if energies else 0.0
        right = min(max(bisect_right(times, t_ns), 1), len(times) - 1)
        t0, t1 = times[right - 1], times[right]
        e0, e1 = energies[right - 1], energies[right]
        return e0 + (e1 - e0) * (t_ns - t0) / (t1 - t0)

    def forget_before(self, t_ns: int) -> None:
        """Drops the readings that are not needed for `t_ns` and later."""
        keep_from = bisect_right(self._times_ns, t_ns) - 1
        if keep_from > 0:
            del self._times_ns[:keep_from]
            del self._energies_j[:keep_from]

    def last_ns(self) -> int:
        """Returns the time of the last reading, 0 if there is none."""
        return self._times_ns[-1] if self._times_ns else 0


class StepMeter:
    """Follows steps through the marks, and collects `profile_steps` of them for each schedule number.

    The first complete step after a change of the schedule is left out: caches are cold and clocks on their way.

    Args:
        profile_steps: How many steps make a result.
        names: Gives the name of an instruction from its place in the page's name table.
    """

    def __init__(self, profile_steps: int, names: page.SharedPage) -> None:
        self.curve = EnergyCurve()
        self.last_step: Step | None = None
        self.done_number = page.NO_NUMBER
        self._profile_steps = profile_steps
        self._names = names
        self._number = page.NO_NUMBER
        self._skipped_first = False
        self._collected: list[Step] = []
        self._step = -1
        self._begin_ns = -1  # -1: between steps
        self._open: list[tuple[int, int]] = []
        self._instructions: list[tuple[int, int, int]] = []  # name's place, begin, end

    def take(self, marks: list[tuple[int, int]]) -> Iterator[Measured | None]:
        """Follows marks; the curve must hold a reading later than the last of them.

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
                self._step, self._begin_ns = value, first
                self._open.clear()
                self._instructions.clear()
            elif kind == page.NUMBER:
                if first != self._number:
                    self._number, self._skipped_first = first, False
                    self._collected.clear()
            elif kind == page.STEP_END and self._begin_ns >= 0:
                yield from self._finish(first, usable=value == 0)

    def lost(self) -> None:
        """Marks were lost: the step that is being followed cannot be complete."""
        self._begin_ns = -1
        self._open.clear()
        self._instructions.clear()

    def _end(self, place: int, t_ns: int) -> None:
        """An instruction's end belongs to the last open begin of the same name."""
        for position in range(len(self._open) - 1, -1, -1):
            if self._open[position][0] == place:
                _, begin_ns = self._open.pop(position)
                if len(self._instructions) < _MAX_INSTRUCTIONS_OF_A_STEP:
                    self._instructions.append((place, begin_ns, t_ns))
                return

    def _finish(self, end_ns: int, *, usable: bool) -> Iterator[Measured | None]:
        begin_ns, self._begin_ns = self._begin_ns, -1
        wanted = self._number != self.done_number and usable
        times: dict[str, list[float]] = {}
        energies: dict[str, list[float]] = {}
        self._instructions.sort(key=lambda instruction: instruction[1])
        for position, (place, t0, t1) in enumerate(self._instructions):
            if position % _BREATH == 0:
                yield None
            name = self._names.name(place)
            times.setdefault(name, []).append((t1 - t0) / 1e9)
            energies.setdefault(name, []).append(self.curve.at(t1) - self.curve.at(t0))
        energy_j = self.curve.at(end_ns) - self.curve.at(begin_ns)
        step = Step(self._step, self._number, (end_ns - begin_ns) / 1e9, energy_j, times, energies)
        self.last_step = step
        self.curve.forget_before(end_ns)
        if wanted and self._skipped_first:
            self._collected.append(step)
        self._skipped_first |= wanted
        if len(self._collected) == self._profile_steps:
            yield Measured(self._number, self._collected[0].step, list(self._collected))
            self._collected.clear()
            self.done_number = self._number
