"""Fits to measured iterations what the DAG leaves out: communication, data loading, fixed overhead.

The bare DAG (instructions and dependencies without delays) gives an iteration time that is a few percent too short.
Missing are a delay on every dependency between two ranks, and a constant: gradient reduction, optimizer step, launch
gaps. Only iterations whose critical paths cross between ranks a different number of times tell the two apart: a ridge
keeps the delay short where they do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pfo_fs.arrays import Array, np
from pfo_fs.errors import PlanError
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.pipeline import Dependency, Instruction, Pipeline
from pfo_fs.planner.problem import Problem

_USUAL_DELAY = 0.02
"""Relative to the mean instruction: known beforehand of a delay is that it is about this long or shorter."""
_MODEL_ERROR = 0.002
"""Relative: known beforehand of the error of a predicted iteration time."""


@dataclass(frozen=True)
class MeasuredIteration:
    """One iteration, or the medians over several that ran the same plan.

    Attributes:
        times_s: Duration of each instruction, in s.
        iteration_time_s: Duration of the whole iteration, in s.
        load_s: For a stage, the time that each of its forwards waits for data before it begins, in s.
    """

    times_s: Mapping[Instruction, float]
    iteration_time_s: float
    load_s: Mapping[int, float]


@dataclass(frozen=True)
class Calibration:
    """What has to be added to the DAG.

    Attributes:
        delay_s: Delay of every dependency between two ranks, in s.
        overhead_s: Fixed time per iteration, in s.
        load_s: For a stage, the time that loading data takes before each of its forwards, in s.
    """

    delay_s: float
    overhead_s: float
    load_s: Mapping[int, float]

    def pipeline(self, pipeline: Pipeline) -> Pipeline:
        """Returns the pipeline with the delays and the data loading."""
        return _with_loads(pipeline.with_delay(self.delay_s), self.load_s)

    def problem(self, problem: Problem) -> Problem:
        """Returns the problem with the delays, the data loading and the overhead."""
        return replace(problem, pipeline=self.pipeline(problem.pipeline), overhead_s=self.overhead_s)

    def predict(self, pipeline: Pipeline, iteration: MeasuredIteration) -> float:
        """Returns the iteration time in s that follows from the instruction times of an iteration."""
        return float(_makespans_s(pipeline, _own_s(pipeline, [iteration]), self.delay_s)[0]) + self.overhead_s


def calibrate(pipeline: Pipeline, iterations: Sequence[MeasuredIteration]) -> Calibration:
    """Fits delay and overhead to measured iterations, by least squares.

    Delays are known to be short beside instructions; this counts in the fit, and decides it where plans are alike.

    Args:
        pipeline: The DAG of each of the iterations; delays that it has are replaced.
        iterations: At least two measured iterations, if possible of different plans.

    Raises:
        PlanError: There are fewer than two, or one lacks an instruction of the pipeline.
    """
    if len(iterations) < 2:
        raise PlanError(f"calibrating needs at least two measured iterations, not {len(iterations)}")
    for number, iteration in enumerate(iterations):
        if missing := [i for i in pipeline.instructions if i not in iteration.times_s]:
            raise PlanError(f"measured iteration {number} has no time for {missing[0]}")
    real_s: Array = np.array([iteration.iteration_time_s for iteration in iterations])
    own_s = _own_s(pipeline, iterations)
    usual_s = _USUAL_DELAY * float(own_s.mean())
    without_s = _makespans_s(pipeline, own_s, 0.0)
    longer_s, missing_s = _makespans_s(pipeline, own_s, usual_s) - without_s, real_s - without_s
    delays, overhead_s = _fit(longer_s, missing_s, _MODEL_ERROR * float(real_s.mean()))
    stages = range(pipeline.num_stages)
    load_s = {stage: sum(i.load_s.get(stage, 0.0) for i in iterations) / len(iterations) for stage in stages}
    return Calibration(delays * usual_s, overhead_s, load_s)


def _fit(longer_s: Array, missing_s: Array, error_s: float) -> tuple[float, float]:
    """Returns how many usual delays, and which constant in s, make iterations take the time that is missing.

    Args:
        longer_s: How much longer each iteration is with a usual delay, in s.
        missing_s: The time of each iteration that its instructions do not explain, in s.
        error_s: Error of a predicted iteration time, in s; it decides where all iterations are alike.
    """
    longer_mean_s, missing_mean_s = float(longer_s.mean()), float(missing_s.mean())
    differences_s = longer_s - longer_mean_s
    slope = float(differences_s @ (missing_s - missing_mean_s)) / (float(differences_s @ differences_s) + error_s**2)
    most = missing_mean_s / longer_mean_s if longer_mean_s else 0.0  # more would alone exceed the missing time
    delays = float(np.clip(slope, 0.0, max(0.0, most)))
    return delays, max(0.0, missing_mean_s - delays * longer_mean_s)


def _makespans_s(pipeline: Pipeline, own_s: Array, delay_s: float) -> Array:
    """The makespan in s of each iteration with a delay between ranks."""
    delayed = pipeline.with_delay(delay_s)
    return LongestPaths(delayed.topological, delayed.edges).ends(own_s).ends_s.max(axis=0)


def _own_s(pipeline: Pipeline, iterations: Sequence[MeasuredIteration]) -> Array:
    """Time of each instruction (rows) in each iteration (columns) in s, with the loading of its data before it."""
    return np.array(
        [
            [
                iteration.times_s[instruction]
                + (iteration.load_s.get(instruction.stage, 0.0) if instruction.name == "forward" else 0.0)
                for iteration in iterations
            ]
            for instruction in pipeline.instructions
        ]
    )


def _with_loads(pipeline: Pipeline, load_s: Mapping[int, float]) -> Pipeline:
    """Puts a stage's loading time between each of its forwards and the instruction that the rank runs before it."""
    loads = [
        Dependency(earlier, later, load_s[later.stage])
        for order in pipeline.orders
        for earlier, later in pairwise(order)
        if later.name == "forward" and load_s.get(later.stage, 0.0) > 0
    ]
    return Pipeline(pipeline.orders, (*pipeline.dependencies, *loads), pipeline.name)
