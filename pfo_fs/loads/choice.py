"""The clock of each pipeline for one step, from the loads of all; and how much time may be lost by that.

All pipelines wait for the one that ends last. So each runs at the lowest clock at which it is expected to end by then,
less a margin: the larger the margin, the rarer an error of the model makes a step longer. The margin follows the lost
time, which the ranks see after each step: up at once, down slowly.
"""

import math
from collections.abc import Mapping, Sequence

from pfo_fs.arrays import Array, np
from pfo_fs.loads.durations import LoadDurations, StepShape

LOST_TIME = 0.0005
"""Relative: clocks from loads may make steps longer by this share on average."""
_ERRORS, _LEAST_MARGIN, _MOST_MARGIN = 3.0, 0.003, 0.5
"""The first margin is three times the residual; a margin stays between 0.3 % and half of the last pipeline's time."""
_UP, _DOWN = 0.5, 0.005
"""A step that lost more than it may raises the margin by half of its loss. Each other step lowers it by half of what a
step may lose, so that the mean loss settles at this. It falls by at most half a percent of itself, and so halves in 140
steps."""
_MOST_LOST = 2.0
"""While more than twice the allowed time was lost, all ranks are at default clocks."""
CHANGE_S = 0.03
"""How long a change of the clock takes until it acts, where that was not measured: up to 30 ms on real nodes."""
_EXPLAINS = 0.06
"""If the residual is larger, loads explain too little: a margin of three times as much leaves hardly a lower clock."""
_FIRST_STEPS, _EVERY, _OFTEN = 10, 10, 40
"""The model is first fitted after ten steps, then after each up to the 40th, then after every tenth."""


class LoadChoice:
    """Chooses clocks for each step, and learns from each.

    Args:
        offered_mhz: The clocks that a step may use, highest first.
        change_s: Time in s that a change of the clock takes. A pipeline's work ends this much earlier, so that it is
            back at the highest clock when the next step begins.
        lost_time: Relative: steps may take longer by this share on average.

    Attributes:
        least_mhz: The clock at which work takes least energy; no lower one is chosen.
        margin: The present margin, relative to the time of the last pipeline.
    """

    def __init__(
        self, shape: StepShape, offered_mhz: Sequence[int], change_s: float = 0.0, lost_time: float = LOST_TIME
    ) -> None:
        self.durations = LoadDurations(shape)
        self.margin = 0.0
        self.steps = 0
        self.offered_mhz, self.least_mhz, self.change_s = offered_mhz, offered_mhz[-1], change_s
        self._lost_time = lost_time
        self._time_s = self._lost_s = 0.0  # of all steps, and what they lost

    @property
    def explains(self) -> bool:
        """Whether loads explain enough to choose clocks by them."""
        return self.durations.residual < _EXPLAINS

    def forget(self) -> None:
        """Begins to learn anew: loads are of another form now."""
        self.durations.forget()
        self.margin = 0.0

    def begin_from(self, learned: Mapping[str, Sequence[float]], pipelines: int) -> None:
        """Begins from what an earlier start of the job has learned, until a step belies it."""
        self.durations.begin_from(learned, pipelines)
        if self.explains:
            self.margin = max(_LEAST_MARGIN, _ERRORS * self.durations.residual)

    def add_lost(self, lost_s: float) -> None:
        """Adds time, in s, by which clocks have made steps longer beyond what `learn` was told."""
        self._lost_s += lost_s

    @property
    def late(self) -> float:
        """By how much clocks have made steps longer, relative; the model computes it from the ranks' ends."""
        return self._lost_s / self._time_s if self._time_s else 0.0

    @property
    def has_lost_too_much(self) -> bool:
        """Whether more than twice what may be lost was lost: default clocks for all ranks until it has evened out."""
        return self.late > _MOST_LOST * self._lost_time

    def status_text(self, found: str = "") -> str:
        """Returns what is known, for people; `found` is what was measured of energy and time."""
        count = self.durations.count
        if not self.explains and count < _FIRST_STEPS and (count or self.steps < _FIRST_STEPS):
            return f"learning what loads make of durations: {count} of {_FIRST_STEPS} steps"
        if not math.isfinite(self.durations.residual):
            return "no step had loads of all ranks and an end of their work: all ranks are at default clocks"
        if not self.explains:
            return (
                f"loads leave {100 * self.durations.residual:.1f} % of the ranks' times unexplained, more than "
                f"{100 * _EXPLAINS:.0f} %: all ranks are at default clocks"
            )
        if self.has_lost_too_much:
            return (
                f"ranks with lower clocks seem to have held up the others for {100 * self.late:.3f} % of the time, "
                f"more than twice what is allowed: all ranks are at default clocks until it has evened out. {found}"
            )
        return (
            f"loads explain {math.floor(100 * self.durations.explained)} % of what varies; {found}, over {self.steps} "
            f"steps; margin {100 * self.margin:.1f} %"
        )

    def choose(self, loads: Array, late_s: Array | float = 0.0) -> list[int]:
        """Returns the clock of each pipeline, in MHz.

        Args:
            loads: Load of each micro-batch, (micro-batches, pipelines, features).
            late_s: By how much later than the first one each pipeline begins the step, (pipelines,).
        """
        pipelines = loads.shape[1]
        if not self.explains or self.has_lost_too_much or not np.isfinite(loads).all():
            return [self.offered_mhz[0]] * pipelines
        full_s = self.durations.ends_s(loads).max(axis=0) + late_s
        deadline_s = full_s.max() * (1 - self.margin) - self.change_s
        mhz = np.array([clock for clock in self.offered_mhz if clock >= self.least_mhz])
        slower = self._slower(mhz)
        # The lowest clock in time, by bisection: a lower one never ends earlier. The highest is always allowed.
        first: Array = np.zeros(pipelines, int)
        last: Array = np.where(full_s <= deadline_s, len(mhz) - 1, 0)
        while (first < last).any():
            middle = (first + last + 1) // 2
            in_time = self.durations.ends_s(loads, slower[middle]).max(axis=0) + late_s <= deadline_s
            is_open = first < last
            first = np.where(is_open & in_time, middle, first)
            last = np.where(is_open & ~in_time, middle - 1, last)
        return [int(clock) for clock in mhz[first]]

    def _slower(self, mhz: Sequence[float] | Array) -> Array:
        """The highest clock over each of these, less 1."""
        return self.offered_mhz[0] / np.array(mhz, float) - 1

    def learn(self, loads: Array, ends_s: Array, mhz: Sequence[float], lost_s: float) -> None:
        """Learns from a step.

        Args:
            loads: As for `choose`.
            ends_s: When each rank's work has ended, in s from the begin of the step, (ranks, pipelines); NaN where it
                is not known.
            mhz: The clock of each pipeline: its mean while the pipeline worked.
            lost_s: By how much clocks have made training longer in this step, in s.
        """
        slower = self._slower(mhz)
        is_known = bool(np.isfinite(ends_s).all())
        if is_known:
            self._time_s += float(ends_s.max())
        if np.isfinite(loads).all():
            if math.isfinite(self.durations.residual) and self.durations.count < _FIRST_STEPS and is_known:
                off = np.abs(ends_s / self.durations.ends_s(loads, slower) - 1)
                if not np.median(off) < _EXPLAINS:
                    self.forget()  # what an earlier start of the job has learned is not true now
            self.durations.add(loads, ends_s, slower)
        if slower.any() and is_known:
            time_s = float(ends_s.max())
            lost = lost_s / max(time_s - lost_s, time_s / 2)
            self.add_lost(lost_s)
            if lost > self._lost_time:
                self.margin = min(_MOST_MARGIN, self.margin + _UP * lost)
            else:
                self.margin -= min(_UP * self._lost_time, _DOWN * self.margin)
                self.margin = max(_LEAST_MARGIN, self.margin)
        self.steps += 1
        count = self.durations.count
        if count >= _FIRST_STEPS and (count <= _OFTEN or count % _EVERY == 0):
            self.durations.fit()
            if self.explains and not self.margin:
                self.margin = max(_LEAST_MARGIN, _ERRORS * self.durations.residual)

    def at_top_s(self, loads: Array, ends_s: Array, mhz: Sequence[float]) -> Array:
        """Returns when ranks would have ended at the highest clock, in s; arguments as for `learn`.

        Whatever took a rank longer than its loads say counts as work, so this is the most that its clock can have cost.
        """
        slower = self._slower(mhz)
        if not np.isfinite(loads).all() or not self.explains:
            return ends_s / (1 + self.durations.slope * slower)
        return ends_s * self.durations.ends_s(loads) / self.durations.ends_s(loads, slower)


_PRIOR_W = 1000.0
"""Before anything is measured, each coefficient is somewhere within 1,000 W."""


class StepPowers:
    """Learns which clock takes least energy, and how much of a rank's power it needs while it waits.

    Both follow, by least squares, from the energies of all ranks in all steps: power = c0 + c1 + c2 x + c3 x^3 while a
    rank works at x = clock / highest clock, and c0 while it waits.
    """

    def __init__(self, top_mhz: int) -> None:
        self._top_mhz = top_mhz
        self._prior: Array = np.eye(4) / _PRIOR_W**2
        self._products: Array = np.zeros((4, 4))
        self._sums: Array = np.zeros(4)
        self._squares = 0.0
        self._rows = 0

    def add(self, energies_j: Array, step_s: float, work_s: Array, mhz: Array) -> None:
        """Adds a step: of each rank its GPU's energy (NaN: not known), the time of its own work, and its clock."""
        known = np.isfinite(energies_j + work_s + mhz) & (energies_j > 0)
        busy, x = np.minimum(work_s[known] / step_s, 1.0), mhz[known] / self._top_mhz
        shares = np.stack([np.ones_like(busy), busy, busy * x, busy * x**3], axis=1)
        powers_w = energies_j[known] / step_s
        self._products += shares.T @ shares
        self._sums += shares.T @ powers_w
        self._squares += float(powers_w @ powers_w)
        self._rows += len(powers_w)

    def _solve(self) -> list[float]:
        """Returns the coefficients, in W."""
        coefficients: Array = np.zeros(len(self._sums))
        variance = 1.0
        for _ in range(3):  # the prior's weight depends on the scatter, and this on the coefficients
            coefficients = np.linalg.solve(self._products / variance + self._prior, self._sums / variance)
            left = self._squares - 2 * coefficients @ self._sums + coefficients @ self._products @ coefficients
            variance = max(1.0, float(left) / max(1, self._rows))
        return [float(power_w) for power_w in coefficients]

    def expected(self, step_s: float, full_s: Array) -> float:
        """Returns the energy that ranks are expected to take at the highest clock, divided by a working rank's power.

        `step_s` is the expected time of the step, `full_s` that of each rank's work.
        """
        waiting_w, *working_w = self._solve()
        power_w = waiting_w + sum(working_w)
        waits = min(max(waiting_w / power_w, 0.0), 1.0) if power_w > 0 else 0.0
        return float((waits * step_s + (1 - waits) * full_s).sum())

    def least_mhz(self, offered_mhz: Sequence[int], slope: float) -> int:
        """Returns the clock, among these, at which work takes least energy beyond that of waiting.

        `slope` is the share of the work's time that follows the clock.
        """
        _, fixed_w, linear_w, steep_w = self._solve()

        def beyond_j(mhz: int) -> float:
            x = mhz / self._top_mhz
            return (fixed_w + linear_w * x + steep_w * x**3) * (1 + slope * (1 / x - 1))

        return min(offered_mhz, key=beyond_j)
