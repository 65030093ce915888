"""Finds pipelines that are slower than their plan promises (stragglers), by the times of their iterations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from pfo_fs.scheduler.base import IterationTime

_LEAST_SLOWDOWN = 0.02
"""Relative: a pipeline that is slower by less is not a straggler: slowing the others down for it would save nothing."""
_STANDARD_DEVIATIONS = 5.0
"""An iteration whose time differs by less than this many standard deviations counts as noise."""
_LEAST_ITERATIONS, _MOST_ITERATIONS = 2, 32
"""A pipeline is a straggler after this many slow iterations in a row: at least (while none was slow only for a moment),
at most; or after one if a GPU reports throttling."""
_FALSE_ALARMS = 1e-5
"""Stragglers per iteration that are none: at most."""
_MOMENT = 20
"""A pipeline that is slow for at most this many iterations was disturbed; it is not a straggler that others follow."""
_SAME_SLOWDOWN = 0.01
"""Relative: a slowdown that differs by less from the known one changes nothing."""


@dataclass
class Disturbances:
    """How often pipelines of a job are slow for a moment, and for how long.

    A slow iteration begins such a moment with the probability p, and is followed by another one with the probability
    q, so p q^(n-1) is the rate of moments with n slow iterations.
    """

    iterations: int = 0
    moments: int = 0
    slow: int = 0

    def add(self, slow: int) -> None:
        """Adds a moment of `slow` slow iterations; one that was longer is not counted."""
        if 0 < slow <= _MOMENT:
            self.moments, self.slow = self.moments + 1, self.slow + slow

    def iterations_to_confirm(self, pipelines: int) -> int:
        """Returns the number of slow iterations in a row that are not such a moment, in a job of `pipelines`."""
        if not self.moments:
            return _LEAST_ITERATIONS
        begins = (self.moments + 1) / (self.iterations + 1000)
        goes_on = (self.slow - self.moments + 0.1) / (self.slow + 1)
        number = 1 + math.ceil(math.log(_FALSE_ALARMS / pipelines / begins) / math.log(goes_on))
        return max(_LEAST_ITERATIONS, min(_MOST_ITERATIONS, number))


@dataclass
class StragglerDetector:
    """Follows all pipelines of a job under one schedule.

    Attributes:
        noise: Relative standard deviation of an iteration's time.
        reasons: For each straggling pipeline, how that was noticed, as text for the status.
        disturbances: Slow iterations that were not followed by more; the more of them, the later is a straggler found.
    """

    noise: float = 0.002
    reasons: dict[int, str] = field(default_factory=dict)
    disturbances: Disturbances = field(default_factory=Disturbances)
    _number: int = -1
    _step: int = -1
    _last: dict[int, deque[float]] = field(default_factory=dict)
    _slow: dict[int, int] = field(default_factory=dict)  # slow iterations in a row of pipelines that are not followed
    _found_at: dict[int, int] = field(default_factory=dict)  # step before a straggler's first slow iteration

    def slowdowns(
        self, iteration_times: Sequence[IterationTime], expected_s: Mapping[int, float], known: Mapping[int, float]
    ) -> dict[int, float]:
        """Returns the slowdown of each straggler: its iteration time as a multiple of a healthy one at the same clocks.

        A known straggler is dropped after one iteration in which it runs as fast as a healthy pipeline. A new straggler
        needs several slow iterations in a row, and so does one that gets worse: two, or more of them in a job whose
        pipelines often are slow for a moment.

        Args:
            iteration_times: New iterations under the schedule in force.
            expected_s: Expected iteration time of each pipeline under that schedule, its known slowdown included.
            known: The stragglers that the schedule was made for.
        """
        limit = max(_LEAST_SLOWDOWN, _STANDARD_DEVIATIONS * self.noise)
        for one in iteration_times:
            self._note(one, one.span_s / expected_s[one.pipeline], limit, one.pipeline in known)
        throttled = {one.pipeline: one.throttled for one in iteration_times if one.throttled}
        confirm = self.disturbances.iterations_to_confirm(len(expected_s))
        found = dict(known)
        for pipeline, ratios in sorted(self._last.items()):
            before = known.get(pipeline, 1.0)
            needed = 1 if pipeline in throttled else confirm
            recent = list(ratios)[-needed:]
            if len(recent) == needed and min(recent) > 1 + limit:
                now = before * median(recent)
            elif pipeline in known and ratios[-1] < 1 - limit / 2:
                now = max(1.0, before * ratios[-1])
            else:
                continue
            if now <= 1 + limit / 2:
                self._drop(pipeline)
                found.pop(pipeline, None)
            elif abs(now / before - 1) > _SAME_SLOWDOWN:
                found[pipeline] = round(now, 3)
                self.reasons[pipeline] = throttled.get(pipeline, "its iterations take longer")
                self._found_at.setdefault(pipeline, self._step - len(recent))
        return found

    def _note(self, one: IterationTime, ratio: float, limit: float, is_known: bool) -> None:
        """Adds an iteration, as a multiple of its expected time."""
        if one.number != self._number:
            self._number = one.number
            self.forget()
        self._step = one.step
        self._last.setdefault(one.pipeline, deque(maxlen=_MOST_ITERATIONS)).append(ratio)
        self.disturbances.iterations += 1
        if is_known:
            return
        if ratio > 1 + limit:
            self._slow[one.pipeline] = self._slow.get(one.pipeline, 0) + 1
        else:
            self.disturbances.add(self._slow.pop(one.pipeline, 0))

    def _drop(self, pipeline: int) -> None:
        """Notes that a straggler is healthy again."""
        self.reasons.pop(pipeline, None)
        if pipeline in self._found_at:
            self.disturbances.add(self._step - self._found_at.pop(pipeline))

    def forget(self) -> None:
        """Drops all iterations seen so far."""
        self._last.clear()
        self._slow.clear()
