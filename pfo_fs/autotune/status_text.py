"""The line in which the default policy reports what it is doing. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Compared:
    """What a plan saves and costs against the highest clocks, relative, by what was measured.

    Attributes:
        energy_saved: Energy saved.
        more_time: Time lost.
        off_target: By how much its time, or its power if that is the target, is above the target.
    """

    energy_saved: float
    more_time: float
    off_target: float


def compared(
    full_speed: FullSpeed, measured_s: float, measured_j: float, power_drift_factor: float, off_target: float
) -> Compared | None:
    """Returns what a plan saves and costs; None if there is nothing to compare with.

    Args:
        full_speed: An iteration at the highest clocks.
        measured_s: Time until the last instruction of an iteration has ended, in s.
        measured_j: Energy of all GPUs of the job in an iteration, in J.
        power_drift_factor: Present power, as a multiple of that at the time of `full_speed`.
        off_target: By how much the plan misses its target, relative.
    """
    if not (measured_s and full_speed.span_s and full_speed.energy_j):
        return None
    saved = 1 - measured_j / full_speed.energy_j / power_drift_factor
    return Compared(saved, measured_s / full_speed.span_s - 1, off_target)


def measured_text(found: Compared | None, power_w: float | None = None) -> str:
    """Returns the text about what a plan saves and costs; empty if that is not known.

    Args:
        found: What it saves and costs.
        power_w: Mean power of all GPUs under the plan, in W, for plans whose target is a power; else None.
    """
    if found is None:
        return ""
    saved = found.energy_saved
    less = f"{max(0.0, saved):.1%} less" if saved > -0.0005 else f"{-saved:.1%} more"
    time = f"{found.more_time:+.2%}".replace("-0.00%", "+0.00%")
    text = f"measured: {less} energy at {time} time than at the highest clocks"
    return text if power_w is None else f"{text}, {power_w:,.0f} W"
