"""Whether instructions still take the time that the profile gives, and how much time and power have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from pfo_fs.autotune.samples import Kind, Point, Samples
from pfo_fs.planner import MeasuredIteration, Plan

LEAST_DRIFT = 0.02
"""Relative: instructions that differ from the profile by less are not measured again."""
_STANDARD_ERRORS = 5.0
"""Instructions are off the profile if they differ from it by more than this many standard errors."""

Shift = tuple[float, float]
"""Time and power of an instruction now, as multiples of the earlier ones."""


def has_drifted(plan: Plan, measured: MeasuredIteration, error_of: Callable[[Kind], float]) -> bool:
    """Returns whether instructions of some kind take another time than in the profile at the same clocks.

    Instructions just after a change of the clock do not count: they may have run at the old clock.

    Args:
        plan: The plan in force.
        measured: The iteration that was measured under it.
        error_of: Returns the relative error of the profile's times of a kind.
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
    """Returns whether the median of ratios differs from 1 by more than scatter and the profile's error explain."""
    middle = float(median(ratios))
    scatter = 1.4826 * median(abs(ratio - middle) for ratio in ratios)
    noise = (1.25 * scatter / len(ratios) ** 0.5) + profile_error
    return bool(abs(middle - 1) > max(LEAST_DRIFT, _STANDARD_ERRORS * noise))


def shifts_at_highest_clocks(before: Mapping[Kind, Mapping[int, Point]], samples: Samples) -> dict[Kind, Shift]:
    """Returns how time and power at the highest clock have changed since `before`, for each kind of instruction.

    Args:
        before: The earlier curves.
        samples: What has been measured since; a kind without measurements counts as unchanged.
    """
    shifts = {}
    for kind, curve in before.items():
        highest_mhz = max(curve)
        old = curve[highest_mhz]
        new = samples.curve(kind).get(highest_mhz, old)
        shifts[kind] = new.time_s / old.time_s, new.power_w / old.power_w
    return shifts


def add_shifted(before: Mapping[Kind, Mapping[int, Point]], shifts: Mapping[Kind, Shift], samples: Samples) -> None:
    """Adds the earlier points, scaled by the shift of their kind, to the samples where nothing was measured since."""
    for kind, curve in before.items():
        for mhz, point in curve.items():
            point.scale(*shifts[kind])
            samples.points.setdefault(kind, {}).setdefault(mhz, point)


def restore_missing(before: Mapping[Kind, Mapping[int, Point]], samples: Samples) -> None:
    """Adds the earlier curve to the samples for each kind of instruction that was not measured since."""
    for kind, curve in before.items():
        if not samples.curve(kind):
            samples.points[kind] = dict(curve)
