"""Which clock takes least energy, and how much of a rank's power it needs while it waits.

Both follow from the energies of all ranks in all steps, by power = c0 + c1 + c2 x + c3 x^3 while a rank works at x =
clock / highest clock, and c0 while it waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.arrays import Array, np

_PRIOR_W = 1000.0
"""Before anything is measured, each coefficient is somewhere within 1,000 W."""


class StepPowers:
    """Learns from the energies of steps, by least squares."""

    def __init__(self, top_mhz: int) -> None:
        self._top_mhz = top_mhz
        self._prior: Array = np.eye(4) / _PRIOR_W**2
        self._products: Array = np.zeros((4, 4))
        self._sums: Array = np.zeros(4)
        self._squares = 0.0
        self._rows = 0

    def add(self, energies_j: Array, step_s: float, work_s: Array, mhz: Array) -> None:
        """Adds a step.

        Args:
            energies_j: Energy of each rank's GPU in the step, in J, (ranks,); NaN where it is not known.
            work_s: The time of each rank's own work, (ranks,).
        """
        known = np.isfinite(energies_j + work_s + mhz) & (energies_j > 0)
        busy, x = np.minimum(work_s[known] / step_s, 1.0), mhz[known] / self._top_mhz
        shares, powers_w = (
            np.stack([np.ones_like(busy), busy, busy * x, busy * x**3], axis=1),
            energies_j[known] / step_s,
        )
        self._products += shares.T @ shares
        self._sums += shares.T @ powers_w
        self._squares += float(powers_w @ powers_w)
        self._rows += len(powers_w)

    def _solve(self) -> list[float]:
        """Returns the coefficients, in W."""
        coefficients: Array = np.zeros(len(self._sums))
        variance = 1.0
        for _ in range(3):  # the prior weighs as the scatter says, which follows from the coefficients
            coefficients = np.linalg.solve(self._products / variance + self._prior, self._sums / variance)
            left = self._squares - 2 * coefficients @ self._sums + coefficients @ self._products @ coefficients
            variance = max(1.0, float(left) / max(1, self._rows))
        return [float(power_w) for power_w in coefficients]

    def expected(self, step_s: float, full_s: Array) -> float:
        """Returns what ranks are expected to take together at the highest clock, relative to the power of one at work.

        Args:
            step_s: The expected time of the step.
            full_s: That of each rank's work, (ranks,).
        """
        waiting_w, *working_w = self._solve()
        power_w = waiting_w + sum(working_w)
        waits = min(max(waiting_w / power_w, 0.0), 1.0) if power_w > 0 else 0.0
        return float((waits * step_s + (1 - waits) * full_s).sum())

    def least_mhz(self, offered_mhz: Sequence[int], slope: float) -> int:
        """Returns the clock, among these, at which work takes least energy beyond that of waiting.

        By the share `slope` of its time, work follows the clock.
        """
        _, fixed_w, linear_w, steep_w = self._solve()

        def beyond_j(mhz: int) -> float:
            x = mhz / self._top_mhz
            return (fixed_w + linear_w * x + steep_w * x**3) * (1 + slope * (1 / x - 1))

        return min(offered_mhz, key=beyond_j)
