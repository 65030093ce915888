"""What lower clocks cost: turns, which are steps at the highest clock by chance, and whether ranks wait for each other.

In a turn, the even lanes, the odd lanes, or all lanes run at the highest clock, although their loads allow a lower one.
Nothing else differs between the two kinds of steps, so evaluations, checkpoints, warmer GPUs and an error of any model
are in both.

A rank with less work may run at a lower clock because it would only wait for the last one. That is so if no rank begins
its next step before the last one has ended its work in this step. Where a rank does (gradient accumulation, local SGD,
ranks whose counts of steps have come apart), it did not wait, and time that its clock cost it is carried on: until all
have waited, it would have been earlier by that at the highest clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

from pfo_fs.arrays import Array, np
from pfo_fs.loads.durations import LoadDurations

_FIRST, _RAREST = 6, 32
"""There is a turn, at a step drawn by chance, in each 6 + n steps with lower clocks, n turns so far, so that turns
become fewer as they tell more; but in 32 at most, which costs 2 % of the saving: a change of the job shows in tens of
steps."""
_OUT = 2 / 3
"""Of the turns of a lane, two of three kinds have it at the highest clock."""


class Turns:
    """Draws turns, the same ones in each run of a program."""

    def __init__(self) -> None:
        self._drawn = Random(0)
        self._kinds: list[int] = []
        self._turns = self._of = self._left = self._at = 0  # there is a turn in `_of` steps: as `_at` are left of them

    def take(self, mhz: Sequence[int], top_mhz: int) -> tuple[list[int], float]:
        """Returns the clocks of a step, and how likely each lane with a lower clock was to get the highest one.

        Args:
            mhz: The clock of each lane that its loads allow.
        """
        if min(mhz) == top_mhz:
            return list(mhz), 0.0
        if not self._left:
            self._left = self._of = min(_FIRST + self._turns, _RAREST)
            self._at = self._drawn.randrange(self._of)
        self._left -= 1
        if self._left != self._at:
            return list(mhz), _OUT / self._of
        self._turns += 1
        self._kinds = self._kinds or self._drawn.sample(range(3), 3)
        kind = self._kinds.pop()
        return [top_mhz if kind in (lane % 2, 2) else each for lane, each in enumerate(mhz)], _OUT / self._of


RECENT = 8
"""Eight steps with lower clocks are compared with the last eight without: within twenty steps it is known whether a job
that has become slower owes it to its clocks."""
_SLOWER = 0.02
"""Steps that are 2 % longer than expected have become slower, if that is beyond their scatter."""
_ERRORS = 3.0
_MOST = 2.0
"""A pause, such as an evaluation, counts as a step of twice its time at most."""
_NORMAL = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""


@dataclass(frozen=True)
class Took:
    """How long a step took, and what it is compared with.

    Attributes:
        rest_s: How much of that is not the ranks' work in usual steps.
        loads: Load of each micro-batch, (micro-batches, lanes, features).
        slower: Highest clock over that of each lane, less 1.
    """

    time_s: float
    rest_s: float
    loads: Any
    slower: Any

    def relative(self, model: LoadDurations) -> float:
        """Returns the time relative to what was expected at these clocks."""
        return self.time_s / (float(model.ends_s(self.loads, self.slower).max()) + self.rest_s)


class _Mean:
    """A running mean and its standard error."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self._squares += off * (value - self.mean)

    @property
    def error(self) -> float:
        return math.sqrt(self._squares / (self.count - 1) / self.count)


class Pace:
    """Compares the time that steps took, relative to what was expected, with and without lower clocks.

    Steps with lower clocks that have become longer are followed by eight at the highest clock. If these are as long,
    something else is the cause; else clocks are.
    """

    def __init__(self) -> None:
        self._all = _Mean(), _Mean()  # of steps without and with lower clocks, since there are both
        self._low: deque[Took] = deque(maxlen=RECENT)
        self._top: deque[Took] = deque(maxlen=RECENT)
        self._to_check = 0
        self._model: LoadDurations | None = None  # what was expected when the check began

    @property
    def checks(self) -> bool:
        """Whether the next step must be at the highest clock, to compare."""
        return self._to_check > 0

    @property
    def late(self) -> tuple[float, float, int] | None:
        """By how much longer steps were than those at the highest clock that a turn drew: relative, its standard error,
        and the number of these steps; None before that is known.
        """
        top, low = self._all
        if top.count < RECENT or low.count < RECENT:
            return None
        error = math.hypot(top.error / top.mean, low.error / low.mean)
        return low.mean / top.mean - 1, error, top.count

    def add(self, step: Took, model: LoadDurations | None, lowered: bool, in_turn: bool) -> float:
        """Adds a step; returns by how much longer the last eight steps with lower clocks were for these, relative, once
        that is known: nearly always 0.

        Args:
            model: What is expected of its work; None before that is known.
            lowered: Whether a lane had a lower clock.
            in_turn: Whether none had for a turn alone.
        """
        (self._low if lowered else self._top).append(step)
        if model is None:
            return 0.0
        if lowered or in_turn:
            self._all[lowered].add(min(step.relative(model), _MOST))
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

        One model compares all of them: one that was learned between them knows more of some.
        """
        if len(self._low) < RECENT or len(self._top) < RECENT:
            return 0.0
        ratios = [[step.relative(model) for step in of] for of in (self._low, self._top)]
        low, top = map(median, ratios)
        scatter = _NORMAL * max(
            median(abs(each / at - 1) for each in of) for of, at in zip(ratios, (low, top), strict=True)
        )
        error = scatter * math.sqrt(math.pi / RECENT)  # of the difference of two medians
        return low / top - 1 if low > top * (1 + max(_SLOWER, _ERRORS * error)) else 0.0


_TELLING, _APART = 16, 2
"""Ranks count as apart while in two of the last 16 steps that can tell a rank did not wait: ranks that wait after every
second step show it in half of them, and one alone may be an error of measured times."""
_EXACT_S, _EXACT = 0.005, 0.01
"""Begins and ends on several hosts are known to 5 ms and one percent of the step: less is taken for waiting."""


class Waits:
    """Follows the begins and ends of all ranks.

    Args:
        lanes, stages: The lane and the stage of each rank: ranks of a stage wait for each other.

    Attributes:
        seen: The rank by which ranks counted as apart last, as text; empty if they never have.
    """

    def __init__(self, lanes: Sequence[int], stages: Sequence[int]) -> None:
        self._lanes: Array = np.array(lanes)
        self._stages: Array = np.array(stages)
        self._waited: deque[bool] = deque(maxlen=_TELLING)
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
            begins_s: When each rank has begun it, in s, (ranks,); NaN where that is not known.
            next_s: When it has begun the next one.
            work_s: How long each rank worked.
            cost_s: By how much longer each lane's work was than it would have been at the highest clock, (lanes,).
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
