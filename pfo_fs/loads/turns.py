"""Steps at the highest clock among those with lower ones, by chance: they tell what clocks save and cost.

In a turn, the even lanes, the odd lanes, or all lanes run at the highest clock, although their loads allow a lower one.
Nothing else differs between the two kinds of steps, so evaluations, checkpoints, warmer GPUs and an error of any model
are in both.
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

        Args:
            model: The one by which all of them are compared: one that was learned between them knows more of some.
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
