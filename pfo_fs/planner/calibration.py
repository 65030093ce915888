"""Fits to measured iterations what the DAG leaves out: communication, and fixed overhead.

The bare DAG (instructions and dependencies without delays) gives an iteration time that is a few percent too short.
Missing are a delay on every dependency between two ranks, and a constant: gradient reduction, optimizer step, launch
gaps. The two can be told apart only by iterations whose critical paths cross between ranks a different number of times.
Without such iterations, a ridge keeps the delay short.
"""

from dataclasses import replace
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.errors import PlanError
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.pipeline import Pipeline
from pfo_fs.planner.problem import Problem

_USUAL_DELAY = 0.02
"""The fit assumes that a delay is at most about this share of the mean instruction's time."""
_MODEL_ERROR = 0.002
"""The fit assumes that a predicted iteration time is wrong by about this share."""


class Calibration(NamedTuple):
    """What has to be added to the DAG, in s: a delay of each dependency between two ranks, a time per iteration."""

    delay_s: float
    overhead_s: float

    def problem(self, problem: Problem) -> Problem:
        """Returns the problem with this delay and this overhead."""
        return replace(problem, pipeline=problem.pipeline.with_delay(self.delay_s), overhead_s=self.overhead_s)


def calibrate(pipeline: Pipeline, times_s: Array, iteration_times_s: Array) -> Calibration:
    """Fits delay and overhead to measured iterations, if possible of different plans, by least squares.

    The fit assumes that delays are short beside instructions. If plans are alike, this assumption decides.

    Args:
        pipeline: The DAG of each of the iterations; its own delays are replaced.
        times_s: Durations of instructions, (nodes, iterations).
        iteration_times_s: Durations of whole iterations, (iterations,).

    Raises:
        PlanError: There are fewer than two iterations.
    """
    if len(iteration_times_s) < 2:
        raise PlanError(f"calibrating needs at least two measured iterations, not {len(iteration_times_s)}")
    usual_s = _USUAL_DELAY * float(times_s.mean())
    without_s = makespans_s(pipeline, times_s, 0.0)
    longer_s, missing_s = makespans_s(pipeline, times_s, usual_s) - without_s, iteration_times_s - without_s
    longer_mean_s, missing_mean_s = float(longer_s.mean()), float(missing_s.mean())
    differences_s = longer_s - longer_mean_s
    ridge = (_MODEL_ERROR * float(iteration_times_s.mean())) ** 2  # decides where all iterations are alike
    slope = float(differences_s @ (missing_s - missing_mean_s)) / (float(differences_s @ differences_s) + ridge)
    most = missing_mean_s / longer_mean_s if longer_mean_s else 0.0  # longer delays alone would exceed missing_s
    delays = float(np.clip(slope, 0.0, max(0.0, most)))
    return Calibration(delays * usual_s, max(0.0, missing_mean_s - delays * longer_mean_s))


def makespans_s(pipeline: Pipeline, times_s: Array, delay_s: float) -> Array:
    """Returns the makespans in s of iterations with a delay between ranks, (iterations,)."""
    delayed = pipeline.with_delay(delay_s)
    return LongestPaths(delayed.topological, delayed.edges).ends(times_s).ends_s.max(axis=0)
