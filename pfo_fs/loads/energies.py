"""What was saved, against the steps of ranks that a turn had run at the highest clock (`turns.py`); and which clock
takes least energy.

    energy of a rank in a step at the highest clock = c0 * time of the step + c1 * time that its loads make of its work

is fitted to the turns of ranks whose loads allowed a lower clock, and to nothing else; so it says what the other steps
of the same ranks would have taken. A turn counts by the inverse of its probability, so that the fit's sum is that of
all such steps whatever happens in them (Lin, "Agnostic notes on regression adjustments to experimental data", 2013). A
step with a pause in it (an evaluation, a checkpoint) is left out, since few turns have one: without its pause, it has
saved as much as all others. Which clock takes least energy follows from all ranks and clocks, by power = c0 + c1 + c2 x
+ c3 x^3 while a rank works at x = clock / highest clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.arrays import Array, np

_PRIOR_W = 1000.0
"""Before anything is measured, each coefficient is somewhere within 1,000 W."""
_SURE = 0.5
"""A saving is told once its error is below this share of it, or below one percent of the energy."""
_LEAST_SURE = 0.01
_LEAST_TURNS = 4
"""The scatter of fewer turns is no error."""
_PAUSED = 1.1
"""A step that lasts more than a tenth longer than expected has a pause in it."""
_PAUSED_ERROR = 0.2
"""What such steps save is taken from others, and so known to a fifth: they may be lighter or heavier ones."""
_KEPT_TURNS = 1024
"""The error follows from the scatter of the last 1,024 turns."""


@dataclass(frozen=True)
class Saving:
    """Energy saved, relative to the highest clocks, its standard error, and the number of turns that it is measured
    against."""

    share: float
    error: float
    turns: int = 0


class _Powers:
    """Coefficients of powers in W, by least squares over the rows so far."""

    def __init__(self, size: int) -> None:
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

    def solve(self) -> Array:
        """Returns the coefficients."""
        coefficients: Array = np.zeros(len(self._sums))
        variance = 1.0
        for _ in range(3):  # the prior weighs as the scatter says, which follows from the coefficients
            coefficients = np.linalg.solve(self._products / variance + self._prior, self._sums / variance)
            left = self._squares - 2 * coefficients @ self._sums + coefficients @ self._products @ coefficients
            variance = max(1.0, float(left) / max(1, self._rows))
        return coefficients


class StepEnergies:
    """Learns from the energies of steps."""

    def __init__(self, top_mhz: int) -> None:
        self._top_mhz = top_mhz
        self._all = _Powers(4)
        self._products: Array = np.zeros((2, 2))
        self._sums: Array = np.zeros(2)
        self._turns: deque[tuple[Array, Array, float]] = deque(maxlen=_KEPT_TURNS)
        self._num_turns = 0
        self._lowered: Array = np.zeros(2)  # time of steps, and of work by loads, of all ranks with lower clocks
        self._paused: Array = np.zeros(2)  # the same of steps with a pause, without that
        self._lowered_j = self._other_j = self._ranks_squared = 0.0

    def add_clocks(self, energies_j: Array, step_s: float, work_s: Array, mhz: Array) -> None:
        """Adds a step to what tells the clock of least energy.

        Args:
            energies_j: Energy of each rank's GPU in the step, in J, (ranks,); NaN where it is not known.
            work_s: The time of each rank's own work, (ranks,).
        """
        known = np.isfinite(energies_j + work_s + mhz) & (energies_j > 0)
        busy, x = np.minimum(work_s[known] / step_s, 1.0), mhz[known] / self._top_mhz
        self._all.add(np.stack([np.ones_like(busy), busy, busy * x, busy * x**3], axis=1), energies_j[known] / step_s)

    def add(
        self, energies_j: Array, step_s: float, relative: float, full_s: Array, lowered: Array, weights: Array
    ) -> None:
        """Adds a step.

        Args:
            energies_j, step_s: As for `add_clocks`.
            relative: The time of the step relative to what was expected.
            full_s: The time that its loads make of each rank's work at the highest clock, (ranks,).
            weights: For ranks that a turn has kept at the highest clock, the inverse of how likely that was; else 0.
        """
        known = np.isfinite(energies_j + full_s) & (energies_j > 0)
        low, out = known & lowered, known & (weights > 0)
        rows: Array = np.stack([np.full(len(full_s), step_s), full_s], axis=1)
        if relative > _PAUSED:
            self._paused += (rows[low] / np.array([relative, 1.0])).sum(axis=0)
            self.add_others(energies_j)
            return
        self._lowered += rows[low].sum(axis=0)
        self._ranks_squared += float(low.sum()) ** 2
        self._lowered_j += float(energies_j[low].sum())
        self._other_j += float(energies_j[np.isfinite(energies_j) & ~low].sum())
        if out.any():
            weighed = rows[out] * (weights[out] / step_s)[:, None]
            products, sums = weighed.T @ rows[out], weighed.T @ energies_j[out]
            self._products += products
            self._sums += sums
            self._turns.append((products, sums, float(weights[out].sum())))
            self._num_turns += 1

    def add_others(self, energies_j: Array) -> None:
        """Adds a step at the highest clocks whose work is not known: it saves nothing, and teaches nothing."""
        self._other_j += float(np.nansum(energies_j))

    @property
    def drawn_j(self) -> float:
        """Energy of all steps so far, in J."""
        return self._lowered_j + self._other_j

    @property
    def saving(self) -> Saving | None:
        """What was saved so far; None while that is not known."""
        if self._num_turns < _LEAST_TURNS or not self._lowered.any():
            return None
        try:
            inverse: Array = np.linalg.inv(self._products)
        except np.linalg.LinAlgError:
            return None
        coefficients = inverse @ self._sums
        full_j = float(self._lowered @ coefficients)
        paused_j = float(self._paused @ coefficients) * (1 - self._lowered_j / full_j)  # saved in steps with a pause
        at_top_j = full_j + self._other_j + paused_j
        if not np.isfinite(full_j) or full_j <= 0:
            return None
        # The scatter of turns, in each of which all ranks may be off in the same way.
        off: Array = np.array([sums - products @ coefficients for products, sums, _ in self._turns])
        weights: Array = np.array([weight for _, _, weight in self._turns])
        free = max(1, len(off) - len(coefficients))
        scatter = off.T @ off * self._num_turns / free
        direction = inverse @ self._lowered
        of_step = float(((off[:, 0] / weights) ** 2).sum()) / free
        variance = float(direction @ scatter @ direction) + of_step * self._ranks_squared
        variance += (_PAUSED_ERROR * paused_j) ** 2
        share, error = 1 - self.drawn_j / at_top_j, variance**0.5 * self.drawn_j / at_top_j**2
        known = error <= max(_SURE * abs(share), _LEAST_SURE)
        return Saving(share, error, self._num_turns) if known else None

    def least_mhz(self, offered_mhz: Sequence[int], slope: float) -> int:
        """Returns the clock, among these, at which work takes least energy beyond that of waiting.

        By the share `slope` of its time, work follows the clock.
        """
        _, fixed_w, linear_w, steep_w = map(float, self._all.solve())

        def beyond_j(mhz: int) -> float:
            x = mhz / self._top_mhz
            return (fixed_w + linear_w * x + steep_w * x**3) * (1 + slope * (1 / x - 1))

        return min(offered_mhz, key=beyond_j)
