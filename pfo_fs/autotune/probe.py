"""The first low clocks: measured where ranks wait, so that iterations do not become longer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.curves import CAUTIOUS
from pfo_fs.autotune.decision import MOST_LATE_TRIAL, PARTS, TOLERANCE, may_be_tried
from pfo_fs.autotune.job_layout import ClockPlan, Kind
from pfo_fs.autotune.model import JobModel

_STEPS = (1.0, 0.95, 0.87, 0.75, 0.62, 0.5, 0.4)
"""Clocks that are measured, as shares of the highest one: a few, so that the ticks of an energy counter tell the power
of each. The curves tell of those in between."""
_FIRST_STEPS = (2, 1)
"""Each kind of instruction is lowered in one micro-batch at least: by two steps, or by one if two would be too late."""


def probe_plan(model: JobModel, beliefs: Beliefs) -> ClockPlan:
    """Returns a plan that makes no iteration longer even if instructions follow the clock as closely as they can.

    Kinds of instructions that have no slack at all are lowered once per iteration, those that take most of the time
    first, unless that is expected to be later than a probe may be.
    """
    cautious = _in_time(model, model.plan(1 + TOLERANCE / 2, CAUTIOUS, steady=model.one_stretch))
    ladder = _ladders(model)
    instructions = model.problem.pipeline.instructions
    places: dict[Kind, list[int]] = {}
    for node, instruction in enumerate(instructions):
        places.setdefault((instruction.stage, instruction.name), []).append(node)
    rows = [
        [min(step for step in ladder[one.stage] if step >= mhz) for one, mhz in zip(instructions, clocks, strict=True)]
        for clocks in cautious.clocks_mhz
    ]
    for group, row in enumerate(rows):
        for kind in sorted(places, key=lambda kind: (-_busy_s(beliefs, kind, len(places[kind])), kind)):
            nodes, steps = places[kind], ladder[kind[0]]
            if any(row[node] < steps[0] for node in nodes):
                continue
            before, stretch = list(row), _stretch(model, nodes[(len(nodes) // 2 + group) % len(nodes)])
            for number in _FIRST_STEPS:
                for node in stretch:
                    row[node] = min(before[node], steps[min(number, len(steps) - 1)])
                if model.judge(ClockPlan(tuple(map(tuple, rows)), cautious.group_of)).late <= MOST_LATE_TRIAL:
                    break
                row[:] = before
    return ClockPlan(tuple(map(tuple, rows)), cautious.group_of)


def _in_time(model: JobModel, plan: ClockPlan) -> ClockPlan:
    """A plan whose clocks are so far on the way from the highest ones to those of a plan that it may be tried.

    Iterations differ: where ranks have waited in the few measured ones, they may not wait in those that come.
    """
    nearer = (model.nearer(model.max_clocks, plan, part) for part in PARTS)
    return next((each for each in nearer if may_be_tried(model.judge(each))), model.max_clocks)


def _busy_s(beliefs: Beliefs, kind: Kind, count: int) -> float:
    """Time of all instructions of a kind in an iteration, in s."""
    known = beliefs.samples.timed(kind)
    return count * known[max(known)].time_s


def _stretch(model: JobModel, chosen: int) -> list[int]:
    """The nodes of the stretch that a node belongs to."""
    firsts = model.problem.pipeline.first_nodes
    first, last = next((a, b) for a, b in pairwise(firsts) if a <= chosen < b)
    return [node for node in range(first, last) if model.stretches[node] == model.stretches[chosen]]


def _ladders(model: JobModel) -> dict[int, list[int]]:
    """For each stage, the clocks that are measured: some of those that the model knows, as many GPUs offer more."""
    known: dict[int, set[int]] = {}
    for (stage, _), rows in model.everything.profile.measurements.items():
        known[stage] = known.get(stage, {row.frequency_mhz for row in rows}) & {row.frequency_mhz for row in rows}
    return {stage: _ladder(sorted(clocks)) for stage, clocks in known.items()}


def _ladder(clocks_mhz: Sequence[int]) -> list[int]:
    """The clocks that are measured, highest first: those nearest to the steps, each lower than the one before."""
    found = [max(clocks_mhz)]
    for share in _STEPS[1:]:
        lower = [mhz for mhz in clocks_mhz if mhz < found[-1]]
        if lower:
            found.append(min(lower, key=lambda mhz: abs(mhz - share * found[0])))
    return found
