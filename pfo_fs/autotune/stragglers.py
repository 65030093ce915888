"""Finds pipelines that are slower than their plan promises (stragglers), by the times of their iterations."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from pfo_fs.scheduler.base import IterationTime

_LEAST_SLOWDOWN = 0.02
"""Relative: a pipeline that is slower by less is not a straggler: slowing the others down for it would save nothing."""
_STANDARD_DEVIATIONS = 5.0
"""An iteration whose time differs by less than this many standard deviations counts as noise."""
_ITERATIONS_TO_CONFIRM = 2
"""A pipeline is a straggler after this many slow iterations in a row, or after one if a GPU reports throttling."""
_LEAST_DRIFT = 0.01
"""Relative: iterations that differ from the prediction by less do not cause a re-measurement."""
_ITERATIONS_OF_DRIFT = 8
"""This many iterations in a row that differ from the prediction cause a re-measurement."""
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 4096
"""Number of iterations between two re-measurements of a plan that differs from its prediction: first, longest."""
_SAME_SLOWDOWN = 0.01
"""Relative: a slowdown that differs by less from the known one changes nothing."""


@dataclass
class StragglerDetector:
    """Follows all pipelines of a job under one schedule.

    Attributes:
        noise: Relative standard deviation of an iteration's time.
        reasons: For each straggling pipeline, how that was noticed, as text for the status.
    """

    noise: float = 0.002
    reasons: dict[int, str] = field(default_factory=dict)
    _number: int = -1
    _last: dict[int, deque[float]] = field(default_factory=dict)

    def slowdowns(
        self, iteration_times: Sequence[IterationTime], expected_s: Mapping[int, float], known: Mapping[int, float]
    ) -> dict[int, float]:
        """Returns the slowdown of each straggler: its iteration time as a multiple of a healthy one at the same clocks.

        A known straggler is dropped after one iteration in which it runs as fast as a healthy pipeline; a new straggler
        needs two iterations in a row, and so does one that gets worse.

        Args:
            iteration_times: New iterations under the schedule in force.
            expected_s: Expected iteration time of each pipeline under that schedule, its known slowdown included.
            known: The stragglers that the schedule was made for.
        """
        for one in iteration_times:
            if one.number != self._number:
                self._number = one.number
                self._last.clear()
            self._last.setdefault(one.pipeline, deque(maxlen=_ITERATIONS_OF_DRIFT)).append(
                one.span_s / expected_s[one.pipeline]
            )
        throttled = {one.pipeline: one.throttled for one in iteration_times if one.throttled}
        limit = max(_LEAST_SLOWDOWN, _STANDARD_DEVIATIONS * self.noise)
        found = dict(known)
        for pipeline, ratios in sorted(self._last.items()):
            before = known.get(pipeline, 1.0)
            recent = list(ratios)[-_ITERATIONS_TO_CONFIRM:]
            slower = min(recent) if len(recent) == _ITERATIONS_TO_CONFIRM or pipeline in throttled else 0.0
            if slower > 1 + limit:
                now = before * median(recent)
            elif pipeline in known and ratios[-1] < 1 - limit / 2:
                now = max(1.0, before * ratios[-1])
            else:
                continue
            if now <= 1 + limit / 2:
                found.pop(pipeline, None)
                self.reasons.pop(pipeline, None)
            elif abs(now / before - 1) > _SAME_SLOWDOWN:
                found[pipeline] = round(now, 3)
                self.reasons[pipeline] = throttled.get(pipeline, "its iterations take longer")
        return found

    def drifted(self) -> float:
        """Returns how far all pipelines together differ from the expected time, relative; 0.0 while it may be noise.

        If all pipelines differ by the same, none is a straggler: the figures that the plan was made with are wrong.
        """
        full = [ratios for ratios in self._last.values() if len(ratios) == _ITERATIONS_OF_DRIFT]
        if not full or len(full) < len(self._last):
            return 0.0
        off = [median(ratios) - 1 for ratios in full]
        common = median(off)
        limit = max(_LEAST_DRIFT, _STANDARD_DEVIATIONS * self.noise / _ITERATIONS_OF_DRIFT**0.5)
        same_side = [value for value in off if value * common > 0 and abs(value) > limit]
        return common if len(same_side) > len(off) / 2 else 0.0

    def forget(self) -> None:
        """Drops all iterations seen so far."""
        self._last.clear()


class RemeasureBackoff:
    """Decides when a plan may be measured again, so that a job that drifts all the time is not always measured."""

    def __init__(self) -> None:
        self._step = -1
        self._not_before = -1
        self._pause = _FIRST_PAUSE

    def note(self, iteration_times: Sequence[IterationTime]) -> None:
        """Notes iterations that have ended."""
        self._step = max([self._step, *(one.step for one in iteration_times)])

    def is_over(self) -> bool:
        """Returns whether to measure now; if so, it doubles the next pause, unless the last measurement is long ago."""
        if self._step < self._not_before:
            return False
        calm = self._not_before >= 0 and self._step > self._not_before + 4 * self._pause
        self._pause = _FIRST_PAUSE if calm or self._not_before < 0 else min(2 * self._pause, _LONGEST_PAUSE)
        self._not_before = self._step + self._pause
        return True
