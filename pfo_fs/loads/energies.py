"""What steps would have taken at the highest clock, in J, from what ranks draw there; and which clock takes least.

    power at the highest clock = c0 while a rank waits, c0 + c1 while it works

In each step the ranks with most work run at the highest clock, and in the first steps all do: from these alone the two
powers are learned, by least squares, whatever lower clocks do. What was saved is what that says of the whole job, less
what was measured. Which clock takes least energy follows from all ranks and clocks, by c0 + c1 + c2 x + c3 x^3 while a
rank works at x = clock / highest clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Array = Any
"""An array of numpy, which is not typed here."""

_PRIOR_W = 1000.0
"""Before anything is measured, each coefficient is somewhere within 1,000 W."""
_SURE = 0.5
"""A saving is told once its error is below this share of it, or below one percent of the energy."""
_LEAST_SURE = 0.01


@dataclass(frozen=True)
class Saving:
    """Energy saved, relative to max clocks, and its standard error."""

    share: float
    error: float


class _Powers:
    """Coefficients of powers in W, by least squares over the rows so far.

    Args:
        size: How many there are.
    """

    def __init__(self, size: int) -> None:
        import numpy as np

        self._prior: Array = np.eye(size) / _PRIOR_W**2
        self._products: Array = np.zeros((size, size))
        self._sums: Array = np.zeros(size)
        self._squares = 0.0
        self._rows = 0

    def add(self, shares: Array, powers_w: Array) -> None:
        """Adds rows: by how much of each coefficient a power consists, (rows, size), and the powers, (rows,)."""
        self._products += shares.T @ shares
        self._sums += shares.T @ powers_w
        self._squares += float(powers_w @ powers_w)
        self._rows += len(powers_w)

    def solve(self) -> tuple[Array, Array]:
        """Returns the coefficients, and their covariances."""
        import numpy as np

        variance = _PRIOR_W**2
        for _ in range(2):  # the prior hardly counts, once there are rows
            precision = self._products / variance + self._prior
            found = np.linalg.solve(precision, self._sums / variance)
            left = self._squares - 2 * found @ self._sums + found @ self._products @ found
            variance = max(1.0, float(left) / max(1, self._rows))
        return found, np.linalg.inv(self._products / variance + self._prior)


class StepEnergies:
    """Learns from the energies of steps.

    Args:
        top_mhz: The highest clock.
    """

    def __init__(self, top_mhz: int) -> None:
        import numpy as np

        self._top_mhz = top_mhz
        self._highest, self._all = _Powers(2), _Powers(4)
        self._times_s: Array = np.zeros(2)  # of all ranks together: their steps, their work at the highest clock
        self._unsure_s = 0.0
        self._drawn_j = self._same_j = 0.0

    def add(self, energies_j: Array, step_s: float, work_s: Array, full_s: Array, mhz: Array, unsure: float) -> None:
        """Adds a step.

        Args:
            energies_j: Energy of each rank's GPU in the step, in J, (ranks,); NaN where it is not known.
            step_s: The time of the step, in s.
            work_s: The time of each rank's own work, (ranks,).
            full_s: The same at the highest clock.
            mhz: The clock of each rank.
            unsure: Relative: by how much `full_s` of all ranks with lower clocks may be wrong in the same way.
        """
        import numpy as np

        known = np.isfinite(energies_j + work_s + mhz) & (energies_j > 0)
        if not known.any() or step_s <= 0:
            return
        powers_w, x = energies_j[known] / step_s, mhz[known] / self._top_mhz
        busy, full = (np.minimum(each[known], step_s) / step_s for each in (work_s, full_s))
        ones, highest = np.ones_like(busy), x == 1
        self._all.add(np.stack([ones, busy, busy * x, busy * x**3], axis=1), powers_w)
        self._highest.add(np.stack([ones, busy], axis=1)[highest], powers_w[highest])
        self._times_s += np.array([len(busy), full.sum()]) * step_s
        self._unsure_s += unsure * float(full[~highest].sum()) * step_s
        self._drawn_j += float(energies_j[known].sum())

    def add_at_top(self, energies_j: Array) -> None:
        """Adds a step at max clocks whose work is not known: it saves nothing, and teaches nothing.

        Args:
            energies_j: As for `add`.
        """
        import numpy as np

        self._same_j += float(np.nansum(energies_j))

    @property
    def saving(self) -> Saving | None:
        """What was saved so far; None while that is not known."""
        powers_w, covariances = self._highest.solve()
        full_j = float(self._times_s @ powers_w) + self._same_j
        if not self._times_s.any() or full_j <= 0:
            return None
        variance = float(self._times_s @ covariances @ self._times_s) + (self._unsure_s * float(powers_w[1])) ** 2
        drawn_j = self._drawn_j + self._same_j
        share, error = 1 - drawn_j / full_j, variance**0.5 * drawn_j / full_j**2
        return Saving(share, error) if error <= max(_SURE * abs(share), _LEAST_SURE) else None

    def least_mhz(self, offered_mhz: Sequence[int], slope: float) -> int:
        """Returns the clock, among these, at which work takes least energy beyond that of waiting.

        Args:
            offered_mhz: The clocks.
            slope: By which share of its time work follows the clock.
        """
        _, fixed_w, linear_w, steep_w = map(float, self._all.solve()[0])

        def beyond_j(mhz: int) -> float:
            x = mhz / self._top_mhz
            return (fixed_w + linear_w * x + steep_w * x**3) * (1 + slope * (1 / x - 1))

        return min(offered_mhz, key=beyond_j)
