"""The line in which the default policy reports what it is doing. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from pfo_fs.autotune.plan_goal import OUTSIDE_THE_JOB, PlanGoal
from pfo_fs.autotune.window_results import FullSpeed


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


def measured_text(
    goal: PlanGoal, full_speed: FullSpeed, measured_s: float, measured_j: float, power_drift_factor: float
) -> str:
    """Returns the text about what a plan saves and costs; empty if there is nothing to compare with.

    Args:
        goal: The goal of the plan.
        full_speed: An iteration at the highest clocks.
        measured_s: Time until the last instruction of an iteration has ended, in s.
        measured_j: Energy of all GPUs of the job in an iteration, in J.
        power_drift_factor: Present power, as a multiple of that at the time of `full_speed`.
    """
    if not (measured_s and full_speed.span_s and full_speed.energy_j):
        return ""
    saved = 1 - measured_j / full_speed.energy_j / power_drift_factor
    slower = measured_s / full_speed.span_s - 1
    less = f"{saved:.1%} less" if saved >= 0 else f"{-saved:.1%} more"
    time = f"{slower:+.2%}".replace("-0.00%", "+0.00%")
    text = f"measured: {less} energy at {time} time than at the highest clocks"
    if goal.target.power is not None:
        text += f", {measured_j / (measured_s + full_speed.tail_s):,.0f} W"
    return text
