"""One monitor of the job: a sequential test per pipeline, and a test of what all pipelines have in common.

Each iteration's time is compared with what the model expects of it under the plan in force. A pipeline that is slower
than the others by surely more than its scatter is a straggler; where all change together, what the plan was made with
has changed: the data, the hardware, or the clocks. The tests are cumulative sums (Page, 1954): a sum grows by how much
an iteration is off beyond an allowance k, the least change that matters or half of the scatter; above a limit h it is
an alarm. For independent normal noise, a sum passes h by chance with the probability exp(-2 k h / variance) per
iteration.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median, median_high, median_low

from pfo_fs.scheduler.base import IterationTime

FALSE_ALARMS = 1e-9
"""Probability of a false alarm per iteration and test: one in 100,000 iterations of 1,000 pipelines in ten jobs."""
LEAST_CHANGE = 0.01
"""Relative: changes of less than this are left to the next regular measurement, which costs nothing."""
_LEAST_SCATTER = 0.002
"""Relative: iterations are not taken to repeat more exactly than this."""
_CLIP = 4.0
"""If an alarm takes several iterations, each counts for four standard deviations at most, or for 4 % if that is more:
the operating system pauses some iterations."""
_LEAST_ITERATIONS = 2
"""An alarm needs this many iterations in a row; one if a GPU reports a low clock, or a straggler becomes faster."""
_SAME = 0.01
"""A slowdown that differs by less than this share from the known one changes nothing."""
_KEPT = 8
"""The latest 8 values of a sum tell how large the change is; the latest 8 incomplete steps wait for more pipelines."""


class _Test:
    """A test for a change in either direction: a cumulative sum for each, and the values since it was zero.

    Args:
        scatter: Relative standard deviation of what is tested.
    """

    def __init__(self, scatter: float) -> None:
        self._scatter = max(_LEAST_SCATTER, scatter)
        self.forget()

    def forget(self) -> None:
        """Begins anew."""
        self._sums: dict[int, tuple[float, list[float]]] = {1: (0.0, []), -1: (0.0, [])}

    def add(self, value: float, least_iterations: int) -> float:
        """Adds the log of an iteration's time over its expected time; returns the change, 0.0 while there is none."""
        allowance = max(LEAST_CHANGE, self._scatter / 2)
        clip = max(_CLIP * self._scatter, 4 * LEAST_CHANGE) if least_iterations > 1 else math.inf
        limit = -math.log(FALSE_ALARMS) * self._scatter**2 / (2 * allowance)
        for sign, (total, values) in self._sums.items():
            total = max(0.0, total + max(-clip, min(clip, sign * value)) - allowance)
            values = [*values[1 - _KEPT :], sign * value] if total else []
            self._sums[sign] = total, values
            if total > limit and len(values) >= least_iterations:
                change = median_low(values)
                if change > allowance:  # a single pause takes the sum over the limit, but is no change
                    return sign * change
        return 0.0


class Monitor:
    """Follows the iterations of one job.

    Attributes:
        reasons: How each straggler was noticed, as text for the status.
    """

    def __init__(self, pipelines: int) -> None:
        self._pipelines = pipelines
        self._expected_s: Mapping[tuple[int, int], float] = {}
        self._tests: dict[int, _Test] = {}
        self._common = _Test(0.0)
        self._number = self._given_up = -1  # of the schedule; of the last step judged without all pipelines
        self._step: dict[int, dict[int, IterationTime]] = {}
        self.reasons: dict[int, str] = {}

    def expect(self, expected_s: Mapping[tuple[int, int], float], scatter: float) -> None:
        """Begins anew with another plan.

        Args:
            expected_s: The mean time of an iteration by turn and pipeline; other pipelines take as long as the median.
            scatter: Relative standard deviation of that time.
        """
        self._expected_s = dict(expected_s)
        # What pipelines have in common scatters at most as much as one pipeline; a pipeline beside that, sqrt(2) times.
        self._tests = {pipeline: _Test(math.sqrt(2) * scatter) for pipeline in range(self._pipelines)}
        self._common = _Test(scatter)
        self._step.clear()

    def add(
        self,
        iteration_times: Sequence[IterationTime],
        known: Mapping[int, float],
        announced: Collection[int] = (),
    ) -> Mapping[int, float] | None:
        """Adds iterations of all pipelines under the schedule in force; returns None if nothing has changed.

        Otherwise it returns the slowdown of each pipeline that is slower than the others; if these are the known
        slowdowns, all pipelines have changed together.

        Args:
            known: The stragglers that the plan was made for.
            announced: Pipelines that a person has announced to be slow; they are not compared with the others.
        """
        stragglers: Mapping[int, float] | None = None
        for time in iteration_times:
            if time.number != self._number:
                self._number, self._given_up = time.number, -1
                self._step.clear()
                self._forget()
            pipeline = time.pipeline
            is_valid = 0 <= pipeline < self._pipelines and 0 < time.span_s < math.inf
            if not is_valid or pipeline in announced or time.step <= self._given_up:
                continue
            of_step = self._step.setdefault(time.step, {})
            of_step[pipeline] = time
            complete = [time.step] if len(of_step) == self._pipelines - len(announced) else []
            given_up = sorted(self._step.keys() - complete)[:-_KEPT]  # a pipeline has not reported
            self._given_up = max([self._given_up, *given_up])
            for step in [*complete, *given_up]:
                now = self._add_step(list(self._step.pop(step).values()), known)
                stragglers = stragglers if now is None else now
        return stragglers

    def _forget(self) -> None:
        for test in [*self._tests.values(), self._common]:
            test.forget()

    def _add_step(self, step: Sequence[IterationTime], known: Mapping[int, float]) -> Mapping[int, float] | None:
        turn = step[0].turn
        expected_s = {pipeline: mean_s for (of_turn, pipeline), mean_s in self._expected_s.items() if of_turn == turn}
        if not expected_s:
            return None
        usual_s = median(expected_s.values())
        logs = {one.pipeline: math.log(one.span_s / expected_s.get(one.pipeline, usual_s)) for one in step}
        # All are slower only if the faster of the two in the middle is slower; all are faster only if the slower is.
        common = max(0.0, median_low(logs.values())) + min(0.0, median_high(logs.values()))
        slow = dict(known)
        if self._pipelines > 1:
            for one in step:
                beside = logs[one.pipeline] - common
                # A straggler that has recovered is let go at once: all others still run at its pace.
                at_once = one.throttled or (one.pipeline in known and beside < 0)
                change = self._tests[one.pipeline].add(beside, 1 if at_once else _LEAST_ITERATIONS)
                if change:
                    self._take(slow, one, change)
        all_changed = bool(self._common.add(common, _LEAST_ITERATIONS))
        if len(slow) > self._pipelines / 2:  # if most are slower, none of them is a straggler
            slow, all_changed = {}, all_changed or bool(common)
        if slow == dict(known) and not all_changed:
            return None
        self._forget()
        return slow

    def _take(self, slow: dict[int, float], one: IterationTime, change: float) -> None:
        """Notes that a pipeline's time, relative to the others, is not the known one any more."""
        now = slow.get(one.pipeline, 1.0) * math.exp(change)
        if now <= 1 + LEAST_CHANGE:
            slow.pop(one.pipeline, None)
            self.reasons.pop(one.pipeline, None)
            if now < 1 - 2 * LEAST_CHANGE:
                slow[one.pipeline] = round(now, 3)
        elif abs(now / slow.get(one.pipeline, 1.0) - 1) > _SAME:
            slow[one.pipeline] = round(now, 3)
            self.reasons[one.pipeline] = one.throttled or "its iterations take longer"
