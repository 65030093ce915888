"""Measured time and power of each instruction at each clock, and estimates for the clocks in between."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from pfo_fs.models import ProfilingResult
from pfo_fs.planner import Measurement

Kind = tuple[int, str]
"""(stage, instruction)."""
RunInstruction = tuple[str, int, int]
"""(instruction, stage, MHz) of one instruction of an iteration; 0 MHz: the driver's default."""

_Run = tuple[float, float]
"""Time (s) and energy (J) of one run of an instruction."""

_CLOCK_SETTLES_WITHIN_S = 0.03
"""Instructions that begin within this time after a change of the clock may still have run at the old clock."""
_LEAST_SETTLED_RUNS = 3
"""If fewer runs than this are settled, all runs count."""
_UNSETTLED_ERROR_S = 0.003
"""Standard error of the duration of such an instruction: for 10 ms it ran a third faster or slower."""
_OUTLIER_DEVIATIONS = 6.0
"""Runs that are further from the median than this many median deviations are left out: the operating system paused
them."""
_LEAST_POWER_ERROR = 0.002
"""Relative: every power has at least this error, even if a fit gives a smaller one."""
_MEAN_POWER_ERROR = 0.05
"""Relative: the error of the power of an instruction if only that of all instructions at its clock is known."""
_USABLE_WAITING_POWER_ERROR = 0.2
_WAITING_SHARE = 0.2
"""Power of a waiting GPU as a share of that of a busy one, while no waiting GPU was measured."""


@dataclass
class Point:
    """One kind of instruction at one clock.

    Attributes:
        count: Number of measured durations.
        time_s: Mean duration.
        squares: Sum of squared deviations from the mean, in s2.
        weight: Sum of 1 / error2 of the powers, in 1/W2.
        power_w: Weighted mean of the powers; 0 while none is known.
    """

    count: int = 0
    time_s: float = 0.0
    squares: float = 0.0
    weight: float = 0.0
    power_w: float = 0.0

    def add_times(self, count: int, mean_s: float, squares: float) -> None:
        """Adds a batch of durations, by its count, mean and sum of squared deviations."""
        total = self.count + count
        apart = mean_s - self.time_s
        self.squares += squares + apart * apart * self.count * count / total
        self.time_s += apart * count / total
        self.count = total

    def add_power(self, power_w: float, error_w: float) -> None:
        """Adds a power with its standard error."""
        weight = 1.0 / max(error_w, _LEAST_POWER_ERROR * abs(power_w), 1e-9) ** 2
        self.weight += weight
        self.power_w += (power_w - self.power_w) * weight / self.weight

    def scale(self, times: float, powers: float) -> None:
        """Multiplies the point's times by `times` and its powers by `powers`."""
        self.time_s *= times
        self.squares *= times * times
        self.power_w *= powers
        self.weight /= powers * powers

    @property
    def time_error(self) -> float:
        """Standard error of the duration, relative."""
        if self.count < 2 or self.time_s <= 0:
            return math.inf
        return math.sqrt(self.squares / (self.count - 1) / self.count) / self.time_s

    @property
    def power_error(self) -> float:
        """Standard error of the power, relative."""
        return 1.0 / math.sqrt(self.weight) / self.power_w if self.weight and self.power_w > 0 else math.inf

    @property
    def energy_j(self) -> float:
        """Energy of one run, in J."""
        return self.power_w * self.time_s


@dataclass
class Samples:
    """Everything measured so far.

    Attributes:
        points: The points by kind and clock (MHz).
        waiting: Power of a waiting GPU, as a point without times.
    """

    points: dict[Kind, dict[int, Point]] = field(default_factory=dict)
    waiting: Point = field(default_factory=Point)

    def add(self, result: ProfilingResult, ran: Sequence[RunInstruction], power_drift_factor: float = 1.0) -> None:
        """Adds what one rank measured while it ran `ran`; iterations that ran something else are left out.

        Args:
            result: What was measured.
            ran: The rank's instructions, in order, with their clocks.
            power_drift_factor: Present power, as a multiple of that of the first measurements at the same clocks.
        """
        everything: dict[tuple[Kind, int], list[_Run]] = {}
        settled: dict[tuple[Kind, int], list[_Run]] = {}
        for iteration in iterations_of(result, ran):
            since_s, before_mhz = 0.0, 0
            for (name, stage, mhz), run in zip(ran, iteration, strict=True):
                if mhz != before_mhz:
                    since_s, before_mhz = 0.0, mhz
                everything.setdefault(((stage, name), mhz), []).append(run)
                if mhz == 0 or since_s >= _CLOCK_SETTLES_WITHIN_S:
                    settled.setdefault(((stage, name), mhz), []).append(run)
                since_s += run[0]
        runs = {
            key: settled[key] if len(settled.get(key, ())) >= _LEAST_SETTLED_RUNS else all_
            for key, all_ in everything.items()
        }
        for (kind, mhz), pairs in runs.items():
            kept = _without_outliers([time_s for time_s, _ in pairs])
            mean_s = fmean(kept)
            count, squares = len(kept), sum((value - mean_s) ** 2 for value in kept)
            if pairs is not settled.get((kind, mhz)):
                # The mean is wrong by an unknown part of a change, however many runs there are.
                count, squares = 2, 2 * _UNSETTLED_ERROR_S**2
            self._point(kind, mhz).add_times(count, mean_s, squares)
        self._add_powers(result, ran, runs, power_drift_factor)

    def _add_powers(
        self,
        result: ProfilingResult,
        ran: Sequence[RunInstruction],
        runs: Mapping[tuple[Kind, int], Sequence[_Run]],
        power_drift_factor: float,
    ) -> None:
        stages: dict[str, set[int]] = {}
        for name, stage, _ in ran:
            stages.setdefault(name, set()).add(stage)
        fitted = set()
        for power in result.powers:
            if not power.instruction:
                self.waiting.add_power(power.power, power.error)
            for stage in sorted(stages.get(power.instruction, ())):
                key = (stage, power.instruction), power.frequency
                if key in runs and power.power > 0:
                    fitted.add(key)
                    self._point(*key).add_power(power.power / power_drift_factor, power.error / power_drift_factor)
        if len({mhz for _, _, mhz in ran}) > 1:
            return  # between two ticks the GPU may have run at several clocks, so their powers cannot be told apart
        power_w = self._mean_power_w(result) / power_drift_factor
        for key in runs:
            if key not in fitted and power_w > 0:
                self._point(*key).add_power(power_w, _MEAN_POWER_ERROR * power_w)

    def _mean_power_w(self, result: ProfilingResult) -> float:
        """Returns the power of a rank while it does not wait, from the energy of whole iterations; 0 if unknown."""
        total_s, energy_j = sum(result.iter_time), sum(result.iter_energy)
        busy_s = sum(sum(row) for rows in result.time_breakdown.values() for row in rows)
        if not 0 < busy_s <= total_s or energy_j <= 0:
            return 0.0
        waiting_w = self.waiting.power_w if self.waiting.power_error < _USABLE_WAITING_POWER_ERROR else 0.0
        if not waiting_w:
            waiting_w = _WAITING_SHARE * energy_j / busy_s
        return max(0.0, energy_j - waiting_w * (total_s - busy_s)) / busy_s

    def _point(self, kind: Kind, mhz: int) -> Point:
        return self.points.setdefault(kind, {}).setdefault(mhz, Point())

    @property
    def scatter(self) -> float:
        """Standard deviation of the duration of one instruction, relative: the median over everything measured."""
        found = [
            math.sqrt(point.squares / (point.count - 1)) / point.time_s
            for curve in self.points.values()
            for point in curve.values()
            if point.count >= _LEAST_SETTLED_RUNS and point.time_s > 0
        ]
        return median(found) if found else 0.0

    def curve(self, kind: Kind) -> dict[int, Point]:
        """Returns the points of a kind whose time and power are known, from the highest clock to the lowest."""
        return {mhz: point for mhz, point in self.timed(kind).items() if point.weight}

    def timed(self, kind: Kind) -> dict[int, Point]:
        """Returns the points of a kind whose time is known, from the highest clock to the lowest."""
        found = self.points.get(kind, {})
        return {mhz: found[mhz] for mhz in sorted(found, reverse=True) if mhz and found[mhz].time_s > 0}

    def rows(self) -> Iterator[tuple[int, str, int, float, float, float, float, int]]:
        """Yields (stage, instruction, MHz, s, J, error of the s and of the power, count) of each measured point."""
        for kind in sorted(self.points):
            for mhz, point in self.curve(kind).items():
                yield (*kind, mhz, point.time_s, point.energy_j, point.time_error, point.power_error, point.count)


def interpolated(curve: Mapping[int, Point], mhz: int) -> Measurement:
    """Returns the measurement at a clock within those of a curve, interpolated between its neighbours if need be."""
    # Times are straight lines over 1 / clock as far as they depend on the clock; powers bend slowly.
    point = curve.get(mhz)
    if point is not None:
        spread_s = point.time_error * point.time_s
        return Measurement(mhz, point.time_s, point.energy_j, spread_s, point.power_error * point.energy_j, point.count)
    above, below = min(at for at in curve if at > mhz), max(at for at in curve if at < mhz)
    share = (1 / mhz - 1 / above) / (1 / below - 1 / above)
    time_s = curve[above].time_s + share * (curve[below].time_s - curve[above].time_s)
    share = (above - mhz) / (above - below)
    power_w = curve[above].power_w + share * (curve[below].power_w - curve[above].power_w)
    return Measurement(mhz, time_s, power_w * time_s)


def iterations_of(result: ProfilingResult, ran: Sequence[RunInstruction]) -> Iterator[list[_Run]]:
    """Yields, for each iteration that ran `ran`, the time (s) and energy (J) of each instruction in order."""
    counts: dict[str, int] = {}
    place = []
    for name, _, _ in ran:
        place.append((name, counts.get(name, 0)))
        counts[name] = counts.get(name, 0) + 1
    for number in range(len(result.iter_time)):
        lists = {name: (rows[number] if number < len(rows) else []) for name, rows in result.time_breakdown.items()}
        if {name: len(values) for name, values in lists.items() if values} != counts:
            continue
        energies = {name: result.energy_breakdown.get(name, []) for name in counts}
        complete = all(number < len(rows) and len(rows[number]) == counts[name] for name, rows in energies.items())
        yield [(lists[name][n], energies[name][number][n] if complete else 0.0) for name, n in place]


def _without_outliers(values: Sequence[float]) -> Sequence[float]:
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    if not deviation:
        return values
    return [value for value in values if abs(value - middle) <= _OUTLIER_DEVIATIONS * 1.4826 * deviation]
