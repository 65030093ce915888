"""Time and energy of levels at the same load, where the steps of their windows have had different ones.

The ranks wait for the one with most work, so a step takes

    time = factor(level) * (1 + error) * w,        w = the largest of b . load over the ranks

b is learned from all steps of all windows together, by least squares of the errors, so that a level's factor cannot be
mistaken for load. A launch may be ahead of the device by a part of a step, so what the training thread sees of a step
is `1 - lag` of its own time and `lag` of that of the step before; the lag is learned with b. A level's time, as the
window has measured it, is then divided by the w of its steps, and multiplied by the mean w of all steps.

Energy follows in part the rank's own work, in part the time that it waits for others:

    energy of a rank = factor(level) * factor(rank) * (1 - own + own * its b . load / w)  * w

`own` is learned from how energies of ranks differ beyond what levels and ranks explain.

`loads/durations.py` is no model for this: it learns from the end of each rank's work, as the clock processes of a
pipeline see it, and a window knows only how often the training thread begins a step, which all ranks wait for.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.loads.step_rows import load_of_step

if TYPE_CHECKING:
    from pfo_fs.power_limit.rank_gpus import WindowReport


_ROUNDS = 8
"""The fit begins anew with the ranks that have most work by the last one; these hardly change after three rounds."""
_LEAST = 0.05
"""Of the mean, no step or rank has less work than this share: a line through few points may say so."""
_FEWEST = 3
"""Steps of a window, without its first, from which something can be learned."""
_SMALL = 1e-6
"""Keeps directions still in which nothing is known, such as a common factor of b."""
_UNKNOWN = 0.5, 0.3
"""A share between 0 and 1, and its standard deviation."""
_KEPT = 8
"""The eight ranks with most of each feature, and of all together, may be the one with most work in a step."""
_DESCENTS, _CLOSE = 100, 1e-3
"""A fit ends when b changes by less than a thousandth of a mean step's work, or after a hundred rounds."""
_STALLED = 0.5
"""A step that is off by more than this (of a logarithm) holds something else than work, such as a checkpoint."""


class StepsReport(NamedTuple):
    """The steps of a window on one rank; small, since ranks exchange it.

    Attributes:
        features: Numbers in the load of a step; 0 if a step has no load that can be used.
        loads: The load of each step (`load_of_step`), one after the other.
        times_s: The time of each step in s, by when the training thread begins it; NaN if something else ran in it.
        given: Whether a step has a load at all.
    """

    features: int = 0
    loads: array[float] = array("d")
    times_s: array[float] = array("d")
    given: bool = False


class WindowSteps:
    """Takes down the steps of one window."""

    def __init__(self) -> None:
        self._loads: list[tuple[float, ...]] = []
        self._times_s = array("d")
        self._began_s = math.nan
        self._given = False

    def begin(self, loads: Iterable[Any] | None) -> None:
        """Notes that a step begins with these loads of its micro-batches."""
        self._given |= loads is not None
        self._loads.append(load_of_step(loads))
        self._began_s = time.monotonic()

    def interrupt(self) -> None:
        """Notes that something else runs within the step, so that its time is not known."""
        self._began_s = math.nan

    def end(self) -> None:
        """Notes that the step ends."""
        self._times_s.append(time.monotonic() - self._began_s)

    def report(self) -> StepsReport:
        """Returns the steps so far, all of which have ended."""
        sizes = {len(load) for load in self._loads}
        if not self._given or len(sizes) != 1 or len(self._times_s) != len(self._loads):
            return StepsReport(given=self._given)
        loads = array("d", (number for load in self._loads for number in load))
        return StepsReport(sizes.pop(), loads, self._times_s, self._given)


class AtSameLoad(NamedTuple):
    """A window as it would be with the mean load of all windows.

    Attributes:
        time: By how many times it would take as long.
        energy: By how many times it would take as much energy.
        time_error, energy_error: Relative standard errors of its time and energy beside those of other levels.
    """

    time: float
    energy: float
    time_error: float
    energy_error: float


class _Window(NamedTuple):
    """What counts of a window.

    Attributes:
        loads: Loads of the ranks that may have most work, (steps, some ranks, features).
        means: The mean load of each rank, (ranks, features).
    """

    loads: Array
    means: Array
    times_s: Array
    energies_j: Array


class SameLoad:
    """The windows of a search."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window | None] = {}
        self._given = False

    def add(self, level: int, ranks: Sequence[WindowReport]) -> None:
        """Adds the window of a level, as all ranks have seen it."""
        self._given |= any(rank.steps.given for rank in ranks)
        self._windows[level] = None
        features, count = ranks[0].steps.features, len(ranks[0].steps.times_s)
        if not features or any((rank.steps.features, len(rank.steps.times_s)) != (features, count) for rank in ranks):
            return
        loads: Array = np.array([rank.steps.loads for rank in ranks]).reshape(len(ranks), count, features)
        loads = loads.swapaxes(0, 1)
        scores = np.concatenate([loads, (loads / _mean_of(loads)).sum(axis=-1, keepdims=True)], axis=-1)
        kept = min(len(ranks), _KEPT)
        most = np.argpartition(scores, len(ranks) - kept, axis=1)[:, -kept:].reshape(count, -1)
        self._windows[level] = _Window(
            np.take_along_axis(loads, most[..., None], axis=1),
            loads.mean(axis=0),
            np.median([rank.steps.times_s for rank in ranks], axis=0),
            np.array([rank.energy_j for rank in ranks]),
        )

    def find(self) -> dict[int, AtSameLoad]:
        """Returns all windows at the same load; nothing if no step has a load, or while there is one window only.

        Raises:
            ValueError: Some steps have no load, or the loads make no sense.
        """
        if len(self._windows) < 2 or not self._given:
            return {}
        windows = [window for window in self._windows.values() if window is not None]
        if len({window.loads.shape for window in windows}) != 1 or len(windows) < len(self._windows):
            raise ValueError("a step of a rank has no load that can be used, or one of another form than others")
        loads, means, times_s, energies_j = (np.array(column) for column in zip(*windows, strict=True))
        scale = _mean_of(loads)
        loads, means = loads / scale, means / scale
        weights, covariance, scatter = _fit(loads, times_s)
        most, leading = _works(loads, weights)
        mean, of_level = most.mean(), most.mean(axis=1)
        off = leading.mean(axis=1) / of_level[:, None] - leading.mean(axis=(0, 1)) / mean
        from_fit, of_steps = np.einsum("lf,fg,lg->l", off, covariance, off), scatter**2 / times_s.shape[1]
        own = np.maximum(means @ weights, _LEAST)
        share, share_error, left = _own_share(energies_j, own)
        beside = own.mean(axis=1) / own.mean() - of_level / mean
        energy_errors = np.sqrt(from_fit + (share_error * beside) ** 2 + left**2)
        at_mean_load = zip(
            mean / of_level,
            1 / (of_level / mean + share * beside),
            np.sqrt(from_fit + of_steps),
            energy_errors,
            strict=True,
        )
        return {
            level: AtSameLoad(*map(float, values)) for level, values in zip(self._windows, at_mean_load, strict=True)
        }


def _mean_of(loads: Array) -> Array:
    """The mean of each feature; 1 where it is 0."""
    means = abs(loads).reshape(-1, loads.shape[-1]).mean(axis=0)
    return means + (means == 0)


def _works(loads: Array, weights: Array) -> tuple[Array, Array]:
    """The largest work of each step, and the load of the rank that has it."""
    works = np.maximum(loads @ weights, _LEAST)
    first = works.argmax(axis=2)[..., None]
    leading = np.take_along_axis(loads, first[..., None], axis=2)[:, :, 0]
    return np.take_along_axis(works, first, axis=2)[..., 0], leading


def _fit(loads: Array, times_s: Array) -> tuple[Array, Array, float]:
    """Returns b, its covariances, and the relative scatter of steps.

    Raises:
        ValueError: That cannot be.
    """
    levels, _, _, features = loads.shape
    with np.errstate(all="ignore"):
        taken = np.log(times_s[:, 1:])  # the first step's time says little: the device had nothing to do before it
    taken[~np.isfinite(taken)] = np.nan
    if (np.isfinite(taken).sum(axis=1) < _FEWEST).any():
        raise ValueError(f"the time of fewer than {_FEWEST} steps of a window is known")
    weights, lag = np.full(features, 1 / features), 0.0
    for _ in range(_ROUNDS):
        weights = weights / (loads @ weights).mean()
        most, leading = _works(loads, weights)
        seen = (1 - lag) * most[:, 1:] + lag * most[:, :-1]
        slopes = ((1 - lag) * leading[:, 1:] + lag * leading[:, :-1]) / seen[..., None]
        later = (most[:, :-1] - most[:, 1:]) / seen
        longer = taken - np.log(seen)
        usual = np.abs(longer - np.nanmedian(longer, axis=1, keepdims=True)) < _STALLED
        rows = np.concatenate([slopes, later[..., None], longer[..., None]], axis=2)
        rows[~usual] = np.nan
        rows -= np.nanmean(rows, axis=1, keepdims=True)  # what all steps of a level have in common is its factor
        design, residual = rows[usual][:, :-1], rows[usual][:, -1]
        products = design.T @ design + _SMALL * np.eye(features + 1)
        before: Array = np.append(weights, lag)
        fitted = _not_negative(products, design.T @ (residual + design @ before) + _SMALL * before, before)
        weights, lag = fitted[:-1], min(1.0, float(fitted[-1]))
        if abs(fitted - before).max() < _CLOSE or not weights.any():
            break
    left = residual - design @ (fitted - before)
    scatter = float(np.sqrt(left @ left / max(1, len(left) - features - levels)))
    scatter /= math.hypot(1 - lag, lag)  # what is seen of two steps together scatters less than each
    free = fitted > 0
    covariance = np.zeros_like(products)
    covariance[np.ix_(free, free)] = scatter**2 * np.linalg.inv(products[np.ix_(free, free)])
    if len(left) <= features + levels + 1 or not (np.isfinite(weights).all() and weights.any()):
        raise ValueError("the times of steps do not follow loads")
    return weights, covariance[:-1, :-1], scatter


def _not_negative(products: Array, sums: Array, begin: Array) -> Array:
    """Returns x, no number of it below 0, with least x . products . x / 2 - x . sums, by descent along each in turn."""
    x = begin.copy()
    for _ in range(_DESCENTS):
        last = x.copy()
        for place in range(len(x)):
            x[place] = max(0.0, x[place] + (sums[place] - products[place] @ x) / products[place, place])
        if abs(x - last).max() < _CLOSE:
            break
    return x


def _own_share(energies_j: Array, works: Array) -> tuple[float, float, float]:
    """Returns by which share energy follows a rank's own work, its error, and the relative scatter of a level's energy.

    Args:
        energies_j: Energies, (levels, ranks).
        works: Works, likewise.
    """
    levels, ranks = works.shape
    degrees = (levels - 1) * (ranks - 1) - 1
    if degrees < 1 or not (energies_j > 0).all():
        return *_UNKNOWN, 0.0
    # What all levels of a rank or all ranks of a level have in common is their factor.
    logs = (np.log(x) for x in (energies_j, works))
    energies, own = (x - x.mean(axis=0) - x.mean(axis=1)[:, None] + x.mean() for x in logs)
    squares = float((own**2).sum())
    if squares == 0:
        return *_UNKNOWN, 0.0
    share = float((energies * own).sum()) / squares
    scatter = float(np.sqrt(((energies - share * own) ** 2).sum() / degrees))
    return float(np.clip(share, 0.0, 1.0)), min(_UNKNOWN[1], scatter / squares**0.5), scatter / ranks**0.5
