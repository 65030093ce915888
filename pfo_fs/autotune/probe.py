"""The first low clocks: measured where ranks wait, so that iterations do not become longer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.curves import CAUTIOUS
from pfo_fs.autotune.decision import TOLERANCE
from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.judgements import ClockPlan
from pfo_fs.autotune.model import JobModel

_STEPS = (1.0, 0.95, 0.87, 0.75, 0.62, 0.5, 0.4)
"""Clocks that are measured, as shares of the highest one: a few, so that the ticks of an energy counter tell the power
of each. The curves tell of those in between."""
_FIRST_STEPS = 2
"""Each kind of instruction runs at least once at each of so many steps, if only in one micro-batch: if time follows
the clock from the highest one on decides about instructions that have no slack. The first of these steps is below the
clocks that are known to be as fast as the highest: where a GPU runs into its power limit, many are."""
_AS_FAST = 0.003
"""Relative: an instruction that takes this much longer than at the highest clock is slower."""


def probe_plan(model: JobModel, beliefs: Beliefs) -> ClockPlan:
    """Returns a plan that makes no iteration longer even if instructions follow the clock as closely as they can.

    Instructions that have no slack at all are lowered twice per iteration, so that something is known of them, too.
    """
    cautious = model.plan(1 + TOLERANCE / 2, CAUTIOUS)
    offered = beliefs.layout.clocks_mhz
    ladder = {stage: _ladder(clocks) for stage, clocks in offered.items()}
    instructions = model.problem.pipeline.instructions
    rows = []
    for group, clocks in enumerate(cautious.clocks_mhz):
        row = []
        for instruction, mhz in zip(instructions, clocks, strict=True):
            row.append(min(step for step in ladder[instruction.stage] if step >= mhz))
        places: dict[Kind, list[int]] = {}
        for node, instruction in enumerate(instructions):
            places.setdefault((instruction.stage, instruction.name), []).append(node)
        for (stage, name), nodes in places.items():
            first = fast_until(beliefs, (stage, name), ladder[stage]) + 1
            for number, mhz in enumerate(ladder[stage][first : first + _FIRST_STEPS]):
                if all(row[node] != mhz for node in nodes):
                    chosen = nodes[(len(nodes) // 2 + group + number) % len(nodes)]
                    for node in _stretch(model, chosen):
                        row[node] = mhz
        rows.append(tuple(row))
    return ClockPlan(tuple(rows), cautious.group_of)


def wants_more(beliefs: Beliefs) -> bool:
    """Returns whether some kind of instruction was as fast as at the highest clock wherever it was measured."""
    for stage, clocks in beliefs.layout.clocks_mhz.items():
        ladder = _ladder(clocks)
        for kind in (each for each in beliefs.layout.kinds if each[0] == stage):
            fast = fast_until(beliefs, kind, ladder)
            if fast and min(beliefs.samples.timed(kind)) >= ladder[fast] and fast < len(ladder) - 1:
                return True
    return False


def fast_until(beliefs: Beliefs, kind: Kind, ladder: Sequence[int]) -> int:
    """Returns the number of the lowest step of a ladder at which a kind was as fast as at the highest."""
    known = beliefs.samples.timed(kind)
    found = 0
    for number, mhz in enumerate(ladder):
        point = known.get(mhz)
        if number and point is not None and point.time_s <= known[ladder[0]].time_s * (1 + _AS_FAST):
            found = number
    return found


def _stretch(model: JobModel, chosen: int) -> list[int]:
    """The nodes of the stretch that a node belongs to."""
    firsts = model.problem.pipeline.first_nodes
    first, last = next((a, b) for a, b in pairwise(firsts) if a <= chosen < b)
    return [node for node in range(first, last) if model.stretches[node] == model.stretches[chosen]]


def _ladder(clocks_mhz: Sequence[int]) -> list[int]:
    """The clocks that are measured, highest first: those nearest to the steps, each lower than the one before."""
    found = [max(clocks_mhz)]
    for share in _STEPS[1:]:
        lower = [mhz for mhz in clocks_mhz if mhz < found[-1]]
        if lower:
            found.append(min(lower, key=lambda mhz: abs(mhz - share * found[0])))
    return found
