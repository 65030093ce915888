"""What is known of an instruction's time and power at each clock, with an error: from a few points and a prior.

With z = log(highest clock / clock), the logarithm of an instruction's time rises with z by a slope between 0 (it waits
for memory, or the board's power limit holds the clock back) and 1 (it follows the clock); the slope changes smoothly.
The logarithm of its power falls likewise. So both are random lines whose slope wanders, a Gaussian process: between
measured points its mean is a cubic spline, and its error grows with the distance from them.

Often time does not change at all down to some clock, because memory or the board's power limit holds instructions
back; at that limit, power does not change, either. So each line may be flat down to one of the measured clocks, or a
little below it. The measurements decide how much that counts, too. Without it, noise at one clock of the plateau would
look like a slope, and power would be expected to stay at the limit at all lower clocks.

Stages of a model are often alike, and so are instructions on one kind of GPU. The measurements decide (by marginal
likelihood) how much of a curve is common to all, and how much is each instruction's own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.samples import Point

_OWN_SHARES = (0.01, 0.05, 0.2, 0.6, 1.0)
"""Shares of the variance that may be an instruction's own; 1.0: instructions tell nothing about each other."""
_ROUGHNESS = (0.3, 1.0, 3.0)
"""The roughness of a job may be one of these multiples of the usual one."""
_OF_EQUAL_NAMES = 0.6
"""Of what instructions have in common, the share that only instructions of the same name have."""
_PLATEAU_ENDS = (0.5, 0.95)
"""Plateaus end between these shares of the highest clock: real GPUs are often fastest a little below it, which a
shorter plateau would hide."""
_LEAST_LIKELY = 0.003
"""Ends of a plateau that are less likely than this are left out."""
_ENDS = (0.0, 0.25, 0.5)
"""Where a plateau may end between the last measured clock on it and the next one; each is as likely as the others."""
_LEVEL_DEVIATION = 1.0
"""Prior standard deviation of the logarithm at the highest clock, around the value that was measured there."""
_MOST_TOGETHER, _COMPANION_POINTS = 100, 12
"""With more than 100 measured points, each instruction has enough points to be fitted alone. A common fit takes time
that grows with the cube of their number: with some hundreds, as 16 kinds of instructions have after a few windows, most
of a window's planning. Beside an instruction that is fitted alone, 12 points of another one show the curve's shape."""


@dataclass(frozen=True)
class Prior:
    """What is known of a curve before anything is measured.

    Attributes:
        slope: Mean slope over z.
        slope_error: Its standard deviation at the highest clock.
        bend: The slope's standard deviation after wandering over z = 1.
        roughness: How far an instruction at a clock usually is from its smooth curve, relative: GPUs do not follow the
            clock exactly, by 0.05 % in time and 0.5 % in power in the published profiles.
        least_error: The least relative error of a measured value.
        plateau: How likely it is that the curve is flat down to some measured clock.
    """

    slope: float
    slope_error: float
    bend: float
    roughness: float
    least_error: float
    plateau: float = 0.0


TIME = Prior(0.7, 0.4, 1.2, 0.0007, 0.0003, plateau=0.1)
POWER = Prior(-1.6, 1.0, 5.0, 0.005, 0.002, plateau=0.1)


@dataclass(frozen=True)
class Estimate:
    """An instruction at one clock: time in s and power in W, with relative standard errors."""

    time_s: float
    power_w: float
    time_error: float
    power_error: float


class Belief(NamedTuple):
    """The logarithm of time or of power at some points, as a normal distribution."""

    mean: Array
    covariance: Array

    @property
    def errors(self) -> Array:
        """The standard deviation at each point."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))


class _Grid:
    """Instructions at clocks, as the rows of arrays: kind, name, and z, the logarithm of highest clock / clock."""

    def __init__(self, where: Sequence[tuple[Kind, int]], top_mhz: Mapping[Kind, int]) -> None:
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(kind for kind, _ in where))}
        names = {name: number for number, name in enumerate(dict.fromkeys(kind[1] for kind in kinds))}
        self.kinds: Array = np.array([kinds[kind] for kind, _ in where], dtype=int)
        self.names: Array = np.array([names[kind[1]] for kind, _ in where], dtype=int)
        self.z: Array = np.array([math.log(top_mhz[kind] / mhz) for kind, mhz in where])


class _Curves:
    """What measurements (NaN: none) say of curves that are flat for z up to `end`."""

    def __init__(self, prior: Prior, grid: _Grid, values: Array, errors: Array, end: float) -> None:
        self._prior, self._grid = prior, grid
        self._z = np.maximum(grid.z - end, 0.0)  # beyond the plateau
        self._known = known = np.flatnonzero(np.isfinite(values))
        self._mean = prior.slope * self._z
        for kind in range(int(grid.kinds.max()) + 1):
            own = known[grid.kinds[known] == kind]
            if len(own):
                first = own[np.argmin(grid.z[own])]  # the highest clock that was measured gives the level
                self._mean[grid.kinds == kind] += values[first] - self._mean[first]
        self._rest = (values - self._mean)[known]
        self._noise = np.diag(np.maximum(errors[known], prior.least_error) ** 2)

    def log_likelihood(self, own_share: float, roughness: float) -> float:
        """Returns the logarithm of how likely the measurements are, up to a constant."""
        lower, whitened = self._whitened(own_share, roughness)
        return -0.5 * float(whitened @ whitened) - float(np.log(np.diag(lower)).sum())

    def belief(self, own_share: float, roughness: float, wanted: int) -> Belief:
        """Returns what is believed, given the measurements, at the first `wanted` rows of the grid."""
        rows = np.arange(wanted)
        lower, whitened = self._whitened(own_share, roughness)
        half = np.linalg.solve(lower, self._covariance(own_share, roughness, self._known, rows))
        covariance = self._covariance(own_share, roughness, rows, rows) - half.T @ half
        return Belief(self._mean[rows] + half.T @ whitened, covariance)

    def _whitened(self, own_share: float, roughness: float) -> tuple[Array, Array]:
        """The root of the covariance of the measurements; and the measurements less their mean, divided by it."""
        lower = np.linalg.cholesky(self._covariance(own_share, roughness, self._known, self._known) + self._noise)
        return lower, np.linalg.solve(lower, self._rest)

    def _covariance(self, own_share: float, roughness: float, rows: Array, columns: Array) -> Array:
        """The covariance of the logarithms at two sets of rows before anything is measured."""
        prior, grid, z = self._prior, self._grid, self._z
        low, high = np.minimum.outer(z[rows], z[columns]), np.maximum.outer(z[rows], z[columns])
        shape = prior.slope_error**2 * low * high + prior.bend**2 * low**2 * (3 * high - low) / 6
        same_kind = np.equal.outer(grid.kinds[rows], grid.kinds[columns])
        same_name = np.equal.outer(grid.names[rows], grid.names[columns])
        common = (1 - own_share) * (1 - _OF_EQUAL_NAMES + _OF_EQUAL_NAMES * same_name)
        rough = roughness**2 * np.equal.outer(rows, columns)
        return shape * (common + own_share * same_kind) + _LEVEL_DEVIATION**2 * same_kind + rough


def _believe(prior: Prior, grid: _Grid, measured: Sequence[tuple[float, float] | None], wanted: int) -> Belief:
    """Returns what is believed at the first `wanted` rows of the grid.

    Args:
        measured: For each row, the logarithm of what was measured, and its relative error; None: nothing was.
    """
    values, errors = np.array([each or (math.nan, 0.0) for each in measured]).T
    sloped = _Curves(prior, grid, values, errors, 0.0)
    choices = [(own_share, times * prior.roughness) for own_share in _OWN_SHARES for times in _ROUGHNESS]
    # The mean of the choices, weighted by how likely each makes the measurements: few measurements exclude no choice.
    likely = _likely([sloped.log_likelihood(*choice) for choice in choices])
    own_share, roughness = np.average(np.array(choices), axis=0, weights=likely).tolist()
    ends = _plateaus(grid.z[np.isfinite(values)].tolist()) if prior.plateau else []
    curves = [[sloped], *([_Curves(prior, grid, values, errors, end) for end in each] for each in ends)]
    before = [1 - prior.plateau, *[prior.plateau / len(ends) for _ in ends]]
    likely = _likely(
        [alike[0].log_likelihood(own_share, roughness) + math.log(p) for alike, p in zip(curves, before, strict=True)]
    )
    beliefs = [
        (curve.belief(own_share, roughness, wanted), share / len(alike))
        for alike, share in zip(curves, likely, strict=True)
        for curve in alike
        if share >= _LEAST_LIKELY
    ]
    total = sum(share for _, share in beliefs)
    mean = sum(share * each.mean for each, share in beliefs) / total
    covariance = sum(
        share * (each.covariance + np.outer(each.mean - mean, each.mean - mean)) for each, share in beliefs
    )
    return Belief(mean, covariance / total)


def _plateaus(measured_z: Sequence[float]) -> list[list[float]]:
    """For each measured z, where a plateau on which it lies may end: there, or on the way to the next z."""
    ordered = sorted({round(z, 6) for z in measured_z})
    return [
        [z + share * (following - z) for share in (_ENDS if following > z else _ENDS[:1])]
        for z, following in zip(ordered, [*ordered[1:], ordered[-1]], strict=True)
        if _PLATEAU_ENDS[0] < math.exp(-z) < _PLATEAU_ENDS[1]
    ]


def _likely(logarithms: Sequence[float]) -> Array:
    likely = np.exp(np.array(logarithms) - max(logarithms))
    return likely / likely.sum()


@dataclass(frozen=True)
class ClockCurves:
    """The curves of instructions that share a fit.

    Attributes:
        where: Kind and clock (MHz) of each row of the beliefs.
        times, powers: Logarithm of the time in s, and of the power in W.
    """

    where: Sequence[tuple[Kind, int]]
    times: Belief
    powers: Belief

    def table(self) -> dict[Kind, dict[int, Estimate]]:
        """Returns the estimates by kind and clock."""
        found: dict[Kind, dict[int, Estimate]] = {}
        errors = zip(self.times.errors, self.powers.errors, strict=True)
        for row, ((kind, mhz), (time_error, power_error)) in enumerate(zip(self.where, errors, strict=True)):
            time_s, power_w = math.exp(self.times.mean[row]), math.exp(self.powers.mean[row])
            found.setdefault(kind, {})[mhz] = Estimate(time_s, power_w, float(time_error), float(power_error))
        return found


def fit_curves(
    points: Mapping[Kind, Mapping[int, Point]], clocks_mhz: Mapping[Kind, Sequence[int]]
) -> list[ClockCurves]:
    """Returns the curves of instructions from what was measured of them, in groups that were fitted together.

    `points` are measured ones, by clock, at least one of each kind. `clocks_mhz` are the clocks for which estimates are
    wanted, highest first.
    """
    groups: dict[int, list[Kind]] = {}  # GPUs with another highest clock are other GPUs
    for kind in points:
        groups.setdefault(max(clocks_mhz[kind]), []).append(kind)
    fitted = []
    for top_mhz, kinds in groups.items():
        if sum(len(points[kind]) for kind in kinds) <= _MOST_TOGETHER:
            fitted.append(_fit(points, clocks_mhz, top_mhz, kinds, {}))
            continue
        fitted += [_fit(points, clocks_mhz, top_mhz, [kind], _companions(points, kinds, kind)) for kind in kinds]
    return fitted


def _companions(
    measured: Mapping[Kind, Mapping[int, Point]], kinds: Sequence[Kind], alone: Kind
) -> dict[Kind, dict[int, Point]]:
    """For the fit of `alone`: of each name, points of the instruction with the largest number of measured clocks."""
    found = {}
    for name in sorted({name for _, name in kinds}):
        others = [kind for kind in kinds if kind[1] == name and kind != alone]
        if others:
            best = max(others, key=lambda kind: (len(measured[kind]), kind))
            clocks = sorted(measured[best], reverse=True)
            some = clocks[:: -(-len(clocks) // _COMPANION_POINTS)]
            found[-1 - best[0], name] = {mhz: measured[best][mhz] for mhz in some}
    return found


def _fit(
    points: Mapping[Kind, Mapping[int, Point]],
    clocks_mhz: Mapping[Kind, Sequence[int]],
    top_mhz: int,
    kinds: Sequence[Kind],
    companions: Mapping[Kind, Mapping[int, Point]],
) -> ClockCurves:
    wanted = [(kind, mhz) for kind in kinds for mhz in sorted({*clocks_mhz[kind], *points[kind]}, reverse=True)]
    others = [(kind, mhz) for kind, curve in companions.items() for mhz in curve]
    grid = _Grid([*wanted, *others], dict.fromkeys([*kinds, *companions], top_mhz))
    known = [points[kind].get(mhz) for kind, mhz in wanted] + [companions[kind][mhz] for kind, mhz in others]
    times = [(math.log(p.time_s), min(p.time_error, 0.1)) if p else None for p in known]
    powers = [(math.log(p.power_w), min(p.power_error, 0.3)) if p and p.power_w > 0 else None for p in known]
    return ClockCurves(wanted, _believe(TIME, grid, times, len(wanted)), _believe(POWER, grid, powers, len(wanted)))
