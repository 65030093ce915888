"""Whether instructions still take the time that the profile has, and by how much time and power have moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from pfo_fs.autotune.samples import Kind, Point, Samples
from pfo_fs.planner import MeasuredIteration, Plan

LEAST_DRIFT = 0.02
"""Relative: instructions that are off the profile by less are not measured again."""
_STANDARD_ERRORS = 5.0
"""Instructions are off the profile if they are by more than so many standard errors."""

Shift = tuple[float, float]
"""How many times as long an instruction takes now, and how many times the power."""


def has_drifted(plan: Plan, measured: MeasuredIteration, error_of: Callable[[Kind], float]) -> bool:
    """Returns whether instructions of some kind take another time than in the profile at the same clocks.

    Those just after a change of the clock do not count: they may have run at the old one.

    Args:
        plan: What was in force.
        measured: What it took.
        error_of: How well the times of a kind are known, relative.
    """
    dag = plan.problem.pipeline
    changed = {0, *dag.first_nodes, *plan.problem.changes(plan.frequencies_mhz)}
    ratios: dict[Kind, list[float]] = {}
    for node, (instruction, planned_s) in enumerate(zip(dag.instructions, plan.times_s, strict=True)):
        if node not in changed:
            ratio = measured.times_s[instruction] / planned_s
            ratios.setdefault((instruction.stage, instruction.name), []).append(ratio)
    return any(_is_off(values, error_of(kind)) for kind, values in ratios.items() if len(values) > 2)


def _is_off(ratios: Sequence[float], profile_error: float) -> bool:
    """Returns whether the median of ratios is off 1 by more than their scatter and the profile's errors explain."""
    middle = float(median(ratios))
    scatter = 1.4826 * median(abs(ratio - middle) for ratio in ratios)
    noise = (1.25 * scatter / len(ratios) ** 0.5) + profile_error
    return bool(abs(middle - 1) > max(LEAST_DRIFT, _STANDARD_ERRORS * noise))


def shifts_at_highest_clocks(before: Mapping[Kind, Mapping[int, Point]], samples: Samples) -> dict[Kind, Shift]:
    """Returns how time and power at the highest clock have moved since `before`, for each kind of instruction.

    Args:
        before: The curves of then.
        samples: What has been measured since; a kind that was not measured has not moved.
    """
    shifts = {}
    for kind, curve in before.items():
        highest_mhz = max(curve)
        old = curve[highest_mhz]
        new = samples.curve(kind).get(highest_mhz, old)
        shifts[kind] = new.time_s / old.time_s, new.power_w / old.power_w
    return shifts


def take_shifted(before: Mapping[Kind, Mapping[int, Point]], shifts: Mapping[Kind, Shift], samples: Samples) -> None:
    """Takes the curves of before for measured, moved by as much at all clocks, where nothing was measured since."""
    for kind, curve in before.items():
        for mhz, point in curve.items():
            point.scale(*shifts[kind])
            samples.points.setdefault(kind, {}).setdefault(mhz, point)


def restore_missing(before: Mapping[Kind, Mapping[int, Point]], samples: Samples) -> None:
    """Takes the curve of before for measured, for each kind of instruction that was not measured since."""
    for kind, curve in before.items():
        if not samples.curve(kind):
            samples.points[kind] = dict(curve)
