"""Whether all ranks wait for each other at the end of each step, and the time that steps lost, from what they took.

A rank with less work may run at a lower clock because it would only wait for the last one. That is so if no rank begins
its next step before the last one has ended its work in this step. Where a rank does (gradient accumulation, local SGD,
ranks whose counts of steps have come apart), it did not wait, and time that its clock cost it is carried on: until all
have waited, it would have been earlier by that at the highest clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pfo_fs.arrays import Array, np

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
