"""What the default policy reports: a line of what it plans for and believes, and its figures. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfo_fs.autotune.judgements import Judgement
from pfo_fs.autotune.plan_schedules import OUTSIDE_THE_JOB, PlanGoal

if TYPE_CHECKING:
    from pfo_fs.autotune.model import JobModel

TIMES_THE_ERROR = 2.0
"""Figures are given with two standard errors: the true one is within that in 95 % of all cases."""


def goal_text(goal: PlanGoal, impossibility: str, reasons: Mapping[int, str]) -> str:
    """Returns the text about the goal of the plans.

    Args:
        goal: Target and stragglers.
        impossibility: Why no plan keeps to the target; empty if one does.
        reasons: For each pipeline that was found to straggle, how that was noticed.
    """
    text = f"target: {goal.target}"
    if impossibility:
        text += f", which is impossible: {impossibility}"
    if goal.slowdowns:
        names = ", ".join(
            "announced"
            if pipeline == OUTSIDE_THE_JOB
            else f"pipeline {pipeline} ({reasons.get(pipeline, 'announced')})"
            for pipeline in sorted(goal.slowdowns)
        )
        text += f"; pace of a straggler, {goal.slowest:.2f} times as slow: {names}"
    return text


def believed_text(found: Judgement, iterations: int) -> str:
    """Returns what is believed of the plan in force, each figure with its error.

    A figure that is smaller than its error is no fact: then only the error is said.

    Args:
        found: What is believed.
        iterations: Number of iterations that it is based on.
    """
    if not found.saved and not found.saved_error:
        return "all at max clocks"
    saved, saved_error = found.saved, TIMES_THE_ERROR * found.saved_error
    slower, slower_error = found.slower, TIMES_THE_ERROR * found.late_error
    if saved > saved_error:
        energy = f"{saved:.1%} less energy (± {100 * saved_error:.1f})"
    else:
        energy = f"energy saved not known yet (within {max(saved_error, abs(saved)):.1%})"
    if slower > slower_error:
        time = f"{slower:.2%} slower (± {100 * slower_error:.2f})"
    elif slower < -slower_error:
        time = f"{-slower:.2%} faster (± {100 * slower_error:.2f})"
    else:
        time = f"no slower within {max(slower_error, 0.0001):.2%}"
    return f"{energy}, {time} than at max clocks, over {iterations:,} iterations"


def figures_of(model: JobModel, found: Judgement) -> dict[str, float]:
    """Returns the figures of a model, by the names in `model.json`, and what is believed of the plan in force."""
    costs = model.problem.switch_costs
    return {
        "blocking_power_w": model.problem.blocking_power_w,
        "delay_s": model.calibration.delay_s if model.calibration else 0.0,
        "overhead_s": model.problem.overhead_s,
        "driver_time_s": costs.driver_time_s,
        "switch_latency_s": costs.latency_s,
        "switch_late_s": costs.timing_error_s,
        "switch_calls": costs.calls,
        "max_calls_per_s": costs.max_calls_per_s if costs.max_calls_per_s < float("inf") else 0.0,
        "ranks_per_host": max((len(host) for host in costs.hosts), default=1),
        "full_time_s": model.full_s,
        "full_energy_j": model.full_j,
        "time_margin": 0.0,
        "gpus_per_rank": model.problem.gpus_per_rank,
        "energy_saved": found.saved,
        "more_time": found.slower,
        "off_target": found.late,
        "energy_saved_error": found.saved_error,
        "more_time_error": found.late_error,
    }
