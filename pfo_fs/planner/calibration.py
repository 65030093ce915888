"""Fits to measured iterations what the DAG leaves out: communication, data loading, fixed overhead.

The bare DAG (instructions and dependencies without delays) gives an iteration time that is a few percent too short.
Missing are a delay on every dependency between two ranks, and a constant: gradient reduction, optimizer step, launch
gaps. Only iterations whose critical paths cross between ranks a different number of times tell the two apart: a ridge
keeps the delay short where they do not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pfo_fs.arrays import Array, np
from pfo_fs.errors import PlanError
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.pipeline import Dependency, Instruction, Pipeline
from pfo_fs.planner.problem import Problem
from pfo_fs.user_files import read_user_file

MAX_FILE_BYTES = 64 * 2**20
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
    """What has to be added to the DAG, and how well the DAG then predicts iteration times.

    Attributes:
        delay_s: Delay of every dependency between two ranks, in s.
        overhead_s: Fixed time per iteration, in s.
        load_s: For a stage, the time that loading data takes before each of its forwards, in s.
        bare_error: Largest relative error of the bare DAG.
        error: Largest relative error for an iteration after a fit to all the other iterations.
        iterations: Number of iterations in the fit.
    """

    delay_s: float
    overhead_s: float
    load_s: Mapping[int, float]
    bare_error: float
    error: float
    iterations: int

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
    errors = []
    for number in range(len(iterations)):
        others = np.arange(len(iterations)) != number
        found, constant_s = _fit(longer_s[others], missing_s[others], _MODEL_ERROR * float(real_s[others].mean()))
        errors.append(abs(found * longer_s[number] + constant_s - missing_s[number]) / real_s[number])
    bare_s = _makespans_s(pipeline, _own_s(pipeline, [replace(it, load_s={}) for it in iterations]), 0.0)
    stages = range(pipeline.num_stages)
    load_s = {stage: sum(i.load_s.get(stage, 0.0) for i in iterations) / len(iterations) for stage in stages}
    bare_error = float((abs(bare_s - real_s) / real_s).max())
    return Calibration(delays * usual_s, overhead_s, load_s, bare_error, float(max(errors)), len(iterations))


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


def read_iterations(path: str | os.PathLike[str], pipeline: Pipeline) -> list[MeasuredIteration]:
    """Reads measured iterations from JSON.

    The file is an object with `plans`, a list of objects with `forward_s` and `backward_s` (a list per stage of seconds
    per micro-batch; other instructions as `NAME_s`), `iteration_time_s`, and optionally `load_s` in the same form.

    Raises:
        PlanError: The file cannot be read, or lacks an instruction; the message names plan, key, stage.
    """
    try:
        document = json.loads(read_user_file(path, MAX_FILE_BYTES, "measured iterations"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"{path}: cannot be read as measured iterations, which are JSON: {error}") from None
    plans = document.get("plans") if isinstance(document, dict) else None
    if not isinstance(plans, list) or not plans:
        raise PlanError(f"{path}: has no list of plans")
    for key, expected in (("pp", len(pipeline.orders)), ("num_microbatches", pipeline.num_microbatches)):
        if document.get(key, expected) != expected:
            raise PlanError(f"{path}: {key} is {document[key]}, and the pipeline's is {expected}; measure the same job")
    if pipeline.name != "custom" and document.get("schedule", pipeline.name) != pipeline.name:
        raise PlanError(f"{path}: was measured with the schedule {document['schedule']!r}, not with {pipeline.name}")
    return [_iteration(body, pipeline, f"{path}: plan {number}") for number, body in enumerate(plans)]


def _iteration(body: Any, pipeline: Pipeline, where: str) -> MeasuredIteration:
    if not isinstance(body, dict):
        raise PlanError(f"{where}: is not an object")
    for key, rows in body.items():
        if key.endswith("_s") and isinstance(rows, list):
            shape = [len(row) if isinstance(row, list) else 0 for row in rows]
            if shape != [pipeline.num_microbatches] * pipeline.num_stages:
                raise PlanError(
                    f"{where}: {key} holds {len(rows)} stages of {sorted(set(shape))} micro-batches, and the pipeline "
                    f"has {pipeline.num_stages} of {pipeline.num_microbatches}; measure the same job"
                )
    times = {
        instruction: _seconds(body, f"{instruction.name}_s", instruction.stage, instruction.microbatch, where)
        for instruction in pipeline.instructions
    }
    loads: dict[int, float] = {}
    if "load_s" in body:
        microbatches = range(pipeline.num_microbatches)
        for stage in range(pipeline.num_stages):
            loads[stage] = sum(_seconds(body, "load_s", stage, m, where) for m in microbatches) / len(microbatches)
    try:
        iteration_time_s = float(body["iteration_time_s"])
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{where}: has no iteration_time_s") from error
    return MeasuredIteration(times, iteration_time_s, loads)


def _seconds(body: Any, key: str, stage: int, microbatch: int, where: str) -> float:
    try:
        value = float(body[key][stage][microbatch])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PlanError(f"{where}: {key} has no number for micro-batch {microbatch} of stage {stage}") from error
    if not 0 <= value < float("inf"):
        raise PlanError(f"{where}: {key} of micro-batch {microbatch} on stage {stage} is {value}")
    return value
