"""What a step's energy would have been at the highest clock, from what all ranks' GPUs have drawn at others.

    power while it waits = c0
    power while it works = c0 + c1 + c2 x + c3 x^3              x = clock / highest clock

The coefficients are least squares over all ranks and steps. What was saved is the difference of two sums of this form,
so that its error follows from that of the coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Array = Any
"""An array of numpy, which is not typed here."""

_PRIOR_W = 1000.0
"""Before anything is measured, each coefficient is somewhere within so many W."""
_SURE = 0.5
"""A saving is told once its error is below this share of it, or below one percent of the energy."""
_LEAST_SURE = 0.01


@dataclass(frozen=True)
class Saving:
    """Energy saved, relative to the highest clocks, and its standard error."""

    share: float
    error: float


class StepEnergies:
    """Learns from the energies of steps.

    Args:
        top_mhz: The highest clock.
    """

    def __init__(self, top_mhz: int) -> None:
        import numpy as np

        self._top_mhz = top_mhz
        self._products: Array = np.eye(4) / _PRIOR_W**2
        self._sums: Array = np.zeros(4)
        self._squares = 0.0
        self._rows = 0
        self._less: Array = np.zeros(4)
        self._drawn_j = 0.0

    def add(self, energies_j: Array, step_s: float, work_s: Array, full_s: Array, mhz: Array) -> None:
        """Adds a step.

        Args:
            energies_j: Energy of each rank's GPU in the step, in J, (ranks,); NaN where it is not known.
            step_s: The time of the step, in s.
            work_s: The time of each rank's own work, (ranks,).
            full_s: The same at the highest clock.
            mhz: The clock of each rank.
        """
        import numpy as np

        known = np.isfinite(energies_j + work_s + mhz) & (energies_j > 0)
        if not known.any() or step_s <= 0:
            return
        shares = self._shares(np.minimum(work_s, step_s), mhz, step_s)[known]
        at_top = self._shares(np.minimum(full_s, step_s), np.full(len(mhz), self._top_mhz), step_s)[known]
        powers_w = energies_j[known] / step_s
        self._products += shares.T @ shares / self._variance
        self._sums += shares.T @ powers_w / self._variance
        self._squares += float(((powers_w - shares @ self._coefficients) ** 2).sum())
        self._rows += int(known.sum())
        self._less += (at_top - shares).sum(axis=0) * step_s
        self._drawn_j += float(energies_j[known].sum())

    @property
    def _variance(self) -> float:
        """Of the powers that the formula does not explain, in W^2."""
        return max(1.0, self._squares / self._rows) if self._rows else _PRIOR_W

    @property
    def _coefficients(self) -> Array:
        import numpy as np

        return np.linalg.solve(self._products, self._sums)

    def _shares(self, work_s: Array, mhz: Array, step_s: float) -> Array:
        """By how much of each coefficient the mean power of a step consists, (ranks, 4)."""
        import numpy as np

        busy, x = work_s / step_s, mhz / self._top_mhz
        return np.stack([np.ones_like(busy), busy, busy * x, busy * x**3], axis=1)

    @property
    def saving(self) -> Saving | None:
        """What was saved so far; None while that is not known."""
        import numpy as np

        less_j = float(self._less @ self._coefficients)
        error_j = float(np.sqrt(self._less @ np.linalg.solve(self._products, self._less)))
        full_j = self._drawn_j + less_j
        if full_j <= 0 or error_j > max(_SURE * abs(less_j), _LEAST_SURE * full_j):
            return None
        return Saving(less_j / full_j, error_j / full_j)

    def least_mhz(self, offered_mhz: Sequence[int], slope: float) -> int:
        """Returns the clock, among these, at which work takes least energy beyond that of waiting.

        Args:
            offered_mhz: The clocks.
            slope: By which share of its time work follows the clock.
        """
        _, fixed_w, linear_w, steep_w = map(float, self._coefficients)

        def beyond_j(mhz: int) -> float:
            x = mhz / self._top_mhz
            return (fixed_w + linear_w * x + steep_w * x**3) * (1 + slope * (1 / x - 1))

        return min(offered_mhz, key=beyond_j)
