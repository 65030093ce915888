"""Whether instructions still take what the profile says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from pfo_fs.autotune.samples import Kind
from pfo_fs.planner import MeasuredIteration, Plan

WORTH_MEASURING = 0.02
"""Relative: instructions that are off the profile by less are not worth measuring anew."""
_CLEARLY = 5.0
"""Standard errors."""


def has_drifted(plan: Plan, measured: MeasuredIteration, error_of: Callable[[Kind], float]) -> bool:
    """Returns whether instructions of some kind take another time than the profile says at the same clocks.

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
    """Whether the median of ratios is off 1 by more than their scatter, the profile's errors, and what is worth it."""
    middle = float(median(ratios))
    scatter = 1.4826 * median(abs(ratio - middle) for ratio in ratios)
    noise = (1.25 * scatter / len(ratios) ** 0.5) + profile_error
    return bool(abs(middle - 1) > max(WORTH_MEASURING, _CLEARLY * noise))
