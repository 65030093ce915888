"""What lower clocks save and cost, against control steps; and whether ranks wait for each other.

In a control step, drawn by chance, all lanes run at the highest clock, although their loads allow lower ones. Nothing
else differs between the two kinds of steps, so evaluations, checkpoints, warmer GPUs and an error of any model are in
both.

A rank with less work may run at a lower clock because it would only wait for the last one. That is so if no rank begins
its next step before the last one has ended its work in this step. Where a rank does (gradient accumulation, local SGD,
ranks whose counts of steps have come apart), it did not wait, and the time that its clock cost it is carried on: until
all ranks wait, it is later by this time than it would be at the highest clock.
"""

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from random import Random
from statistics import median
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.loads.durations import LoadDurations

_FIRST, _RAREST = 6, 48
"""After n periods, the next has 6 + n blocks, one of them of control steps, so that these become fewer as they tell
more; but at most 48, which costs 2 % of the saving, so that a change of the job shows in tens of steps."""
_BLOCK_S, MOST_BLOCK_S = 0.02, 10.0
"""A block of the n-th period lasts for 0.02 n^2 s, up to 10 s: energy counters tick every 100 ms, and what a tick
counts across the begin of a block is shared by time."""
_TICKS_S = 0.05
"""Because of ticks, a saving may be off by 50 ms / length of a block, as a share: simulated counters told the saving of
20 to 60 ms in a block too little."""


_HELD, _HELD_S = 32, 30.0
"""Where clocks act late, they fall every 30 s at most, to the highest that 32 steps allow, and rise at once."""


class HeldClocks:
    """Clocks that are set rarely, for power limits, which act half a second late."""

    def __init__(self) -> None:
        self._recent: deque[list[int]] = deque(maxlen=_HELD)
        self._mhz: list[int] = []
        self._left_s = 0.0

    def take(self, allowed: list[int], top_mhz: int, step_s: float) -> list[int]:
        """Returns the clock of each lane in a step of this length whose loads allow the clocks `allowed`."""
        self._recent.append(allowed)
        self._left_s -= step_s
        self._mhz = self._mhz or [top_mhz] * len(allowed)
        if len(self._recent) < _HELD:
            return self._mhz
        highest = [max(of_lane) for of_lane in zip(*self._recent, strict=True)]
        if self._left_s <= 0 and highest != self._mhz:
            self._mhz, self._left_s = highest, _HELD_S
        self._mhz = list(map(max, self._mhz, highest))
        return self._mhz


class ControlSteps:
    """Draws control steps, the same ones in each run of a program.

    Args:
        least_block_s: The least length of a block of control steps, in s.
    """

    def __init__(self, least_block_s: float = 0.0) -> None:
        self._drawn = Random(0)
        self._least_block_s = least_block_s
        self._period = self._at = self._left = self._block = 0  # steps of the period that are left, its control block

    def take(self, mhz: Sequence[int], top_mhz: int, step_s: float = 1.0) -> tuple[list[int], int]:
        """Returns the clocks of a step of this length, and its period; each period has one block of control steps.

        `mhz` is the clock of each lane that its loads allow; if all are the highest, the step is in no period, 0.
        """
        if min(mhz) == top_mhz:
            return list(mhz), 0
        if not self._left:
            blocks = min(_FIRST + self._period, _RAREST)
            self._period, self._at = self._period + 1, self._drawn.randrange(blocks)
            block_s = max(self._least_block_s, min(_BLOCK_S * self._period**2, MOST_BLOCK_S))
            self._block = max(1, math.ceil(block_s / step_s))
            self._left = blocks * self._block
        self._left -= 1
        return [top_mhz] * len(mhz) if self._left // self._block == self._at else list(mhz), self._period


class Figure(NamedTuple):
    """By how much more all steps took than at the highest clocks, relative, and its standard error."""

    more: float
    error: float


_LEAST_PERIODS = 3.5
"""With fewer periods, their scatter gives no error: the variance of Student's distribution is (n - 1) / (n - 3) for n
of equal size. Unequal periods count as the equal ones that say as much."""
_SURE, _LEAST_SURE = 0.5, 0.02
"""A figure is told once its error is below half of it, or below 2 %."""
_PAUSED_ERROR = 0.2
"""What is saved in steps with a pause is estimated from other steps, and so known to a fifth."""


class Compared:
    """Compares what steps with lower clocks took, in s or J, with the control steps of the same period.

    What each step's loads make expected (at any clock) is subtracted on both sides, so that the steps' data cancels.
    What drifts over tens of steps cancels, too. The error follows from the scatter of these differences. It is at least
    as if control steps scattered like the many others, since none of the few may hold a rare event.

    Attributes:
        controls: Number of control steps of periods that are over.
    """

    def __init__(self) -> None:
        self._period = self._periods = self.controls = 0
        self._low, self._control = np.zeros(6), np.zeros(6)  # of this period: see `add`
        self._totals, self._products = np.zeros(4), np.zeros((3, 3))  # of periods that are over: see `_end`
        self._scatter: Array = np.zeros(3)
        self._paused = 0.0

    def add(self, value: float, expected: float, period: int, is_control: bool) -> None:
        """Adds a step; a period that is over does not come back. If there was a pause in the step, its value is NaN."""
        if not expected > 0 or not period:
            return
        if math.isnan(value):
            self._paused += 0.0 if is_control else expected
            return
        if period != self._period and self._low[0] and self._control[0]:
            self._end()  # else both go into the next period
        self._period = period
        of = self._control if is_control else self._low
        of += 1.0, value, expected, value**2, value * expected, expected**2

    def _end(self) -> None:
        at_top, at_top_expected = self._control[1:3] * self._low[0] / self._control[0]  # of as many steps
        value, expected = self._low[1:3]
        self._totals += value, expected, at_top, at_top_expected
        differences = np.array([value - at_top, expected - at_top_expected, expected])
        self._products += np.outer(differences, differences)
        self._scatter += self._scatter_of_steps(int(self._control[0]))
        self._periods, self.controls = self._periods + 1, self.controls + int(self._control[0])
        self._low, self._control = np.zeros(6), np.zeros(6)

    def _scatter_of_steps(self, controls: int) -> Array:
        """The squared differences of this period's steps with lower clocks from what is expected, and their number.

        The third number is how often that variance is in the difference to this number of control steps.
        """
        count, value, expected, squares, product, expected_squares = self._low
        ratio = value / expected if count else 0.0
        off = squares - 2 * ratio * product + ratio**2 * expected_squares
        return np.array([max(0.0, off), max(0.0, count - 1), count**2 / controls + count])

    def figure(self, total: float, step_s: float = math.inf) -> Figure | None:
        """Returns by how much more was taken; None while that is not known.

        Args:
            total: What all steps have taken, whether they were compared or not.
            step_s: The mean time of a step, if the values are those of a counter that ticks.
        """
        value, expected, at_top, at_top_expected = map(float, self._totals)
        periods = expected**2 / float(self._products[2, 2]) if expected else 0.0
        if periods < _LEAST_PERIODS:
            return None
        ratio = at_top / at_top_expected
        mean = value / expected - ratio
        weights: Array = np.array([1.0, -ratio, -mean])
        variance = float(weights @ self._products @ weights) * periods / (periods - 3)
        # The steps of the present period are compared with all control steps.
        off, known, often = map(float, self._scatter + self._scatter_of_steps(self.controls))
        if known:
            variance = max(variance, often * off / known)
        open_value, open_expected = map(float, self._low[1:3])
        more = mean * (expected + self._paused) + open_value - open_expected * ratio
        error = math.sqrt(max(0.0, variance)) * (expected + open_expected + self._paused) / expected
        error = math.hypot(error, _PAUSED_ERROR * mean * self._paused)
        if not total > more:
            return None
        share, error = more / (total - more), error * total / (total - more) ** 2
        error = math.hypot(error, share * _TICKS_S * self._periods / (step_s * self.controls))
        return Figure(share, error) if error <= max(_SURE * abs(share), _LEAST_SURE) else None


RECENT = 8
"""Eight steps with lower clocks are compared with the last eight without: within twenty steps it is known whether
clocks have made a job slower."""
_SLOWER = 0.02
"""Relative: steps with lower clocks count as slower if they are longer by more than this and `_ERRORS` errors."""
_ERRORS = 3.0
_NORMAL = 1.4826
"""The standard deviation of a normal distribution as a multiple of its median absolute deviation."""


class Took(NamedTuple):
    """How long a step took, its loads, and how long steps usually take beside the ranks' work (`rest_s`)."""

    time_s: float
    rest_s: float
    loads: Array

    def due_s(self, model: LoadDurations) -> float:
        """Returns the time that its loads make expected at the highest clocks."""
        return float(model.ends_s(self.loads).max()) + self.rest_s


class Pace:
    """Notices steps that have become longer with lower clocks, within tens of steps: then eight steps at the highest
    clock follow. If these are as long, something else is the cause; else clocks are.
    """

    def __init__(self) -> None:
        self._low: deque[Took] = deque(maxlen=RECENT)
        self._top: deque[Took] = deque(maxlen=RECENT)
        self._to_check = 0
        self._model: LoadDurations | None = None  # what was expected when the check began

    @property
    def checks(self) -> bool:
        """Whether the next step must be at the highest clock, to compare."""
        return self._to_check > 0

    def add(self, step: Took, model: LoadDurations | None, lowered: bool) -> float:
        """Adds a step; returns by how much clocks made the last eight steps with lower clocks longer, relative.

        That is nearly always 0. `model` is what is expected of the step's work, None before that is known; `lowered`:
        whether a lane had a lower clock.
        """
        (self._low if lowered else self._top).append(step)
        if model is None:
            return 0.0
        if lowered and not self._to_check and self._slower(model):
            self._to_check, self._model = RECENT, copy(model)
        elif self._to_check and not lowered:
            self._to_check -= 1
            if not self._to_check and self._model is not None:
                slower = self._slower(self._model)
                self._low.clear()
                return slower
        return 0.0

    def _slower(self, model: LoadDurations) -> float:
        """By how much longer the last steps with lower clocks were than the last ones without; 0 if that may be chance.

        One model compares all steps: a model that was learned in between would know more of some of them.
        """
        if len(self._low) < RECENT or len(self._top) < RECENT:
            return 0.0
        ratios = [[step.time_s / step.due_s(model) for step in of] for of in (self._low, self._top)]
        low, top = map(median, ratios)
        scatter = _NORMAL * max(median(abs(each / median(of) - 1) for each in of) for of in ratios)
        error = scatter * math.sqrt(math.pi / RECENT)  # of the difference of two medians
        return low / top - 1 if low > top * (1 + max(_SLOWER, _ERRORS * error)) else 0.0


_RECENT_STEPS, _APART = 16, 2
"""Ranks count as apart while a rank did not wait in two of the last 16 steps that can tell: ranks that wait after every
second step show it in half of these, and a single step may be an error of measured times."""
_EXACT_S, _EXACT = 0.005, 0.01
"""Begins and ends on several hosts are known to 5 ms and 1 % of the longest work: less is taken for waiting."""


class Waits:
    """Follows the begins and ends of all ranks; ranks of one stage wait for each other.

    Attributes:
        seen: Which rank did not wait when ranks last began to count as apart, as text; empty if they never did.
    """

    def __init__(self, lanes: Sequence[int], stages: Sequence[int]) -> None:
        self._lanes, self._stages = np.array(lanes), np.array(stages)
        self._waited: deque[bool] = deque(maxlen=_RECENT_STEPS)
        self._earlier_s: Array = np.zeros(max(lanes) + 1)
        self._pending_s = 0.0
        self.seen = ""

    @property
    def apart(self) -> bool:
        """Whether ranks go on to the next step without waiting for all others."""
        return self._waited.count(False) >= _APART

    def add(self, step: int, begins_s: Array, next_s: Array, work_s: Array, cost_s: Array) -> float:
        """Adds a step; returns by how much clocks have made training longer since the step before, in s.

        Args:
            begins_s, next_s: When each rank has begun this step and the next one; NaN where that is not known.
            work_s: How long each rank worked.
            cost_s: By how much longer each lane's work was than it would have been at the highest clock.
        """
        if not np.isfinite(begins_s).all():
            begins_s = np.zeros(len(begins_s))
        ends_s = begins_s + work_s
        has_waited = not self.apart
        if np.isfinite(next_s).all() and begins_s.any():
            exact_s = _EXACT_S + _EXACT * float(work_s.max())
            last_s: Array = np.full(self._stages.max() + 1, -np.inf)
            np.maximum.at(last_s, self._stages, ends_s)
            if ((last_s[self._stages] - ends_s) > exact_s).any():
                early_s = last_s[self._stages] - next_s
                has_waited = bool(early_s.max() <= exact_s)
                was_apart = self.apart
                self._waited.append(has_waited)
                if self.apart and not was_apart:
                    rank = int(early_s.argmax())
                    last = int(np.where(self._stages == self._stages[rank], ends_s, -np.inf).argmax())
                    self.seen = f"rank {rank} began step {step + 1} while rank {last} was at work in step {step}"
        lane_ends_s: Array = np.full(len(cost_s), -np.inf)
        np.maximum.at(lane_ends_s, self._lanes, ends_s)
        self._earlier_s = self._earlier_s + cost_s
        lost_s = float(lane_ends_s.max() - (lane_ends_s - self._earlier_s).max())
        more_s, self._pending_s = max(0.0, lost_s - self._pending_s), lost_s
        if has_waited:
            self._earlier_s, self._pending_s = np.zeros(len(cost_s)), 0.0
        return more_s
