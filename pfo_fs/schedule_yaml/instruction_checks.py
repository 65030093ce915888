"""Checks a clock against a GPU, and a list of instructions against what a rank runs; returns text for messages."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence

from pfo_fs.models import InstructionOrder


def nearest_clocks(mhz: int, available: Collection[int]) -> list[int]:
    """Returns the two offered clocks nearest to `mhz` (fewer if fewer are offered), ascending."""
    clocks = sorted(set(available))
    at = bisect.bisect_left(clocks, mhz)
    return sorted(sorted(clocks[max(0, at - 2) : at + 2], key=lambda clock: abs(clock - mhz))[:2])


def clock_problem(mhz: int, available: Collection[int], who: str) -> str:
    """Returns what is wrong with setting `mhz` on a GPU; empty if nothing is.

    0 MHz (leave alone) is always right. If `available` is empty, every clock is right: the clocks cannot be set at all,
    which is not a problem of the schedule.
    """
    if mhz == 0 or not available or mhz in available:
        return ""
    nearest = " and ".join(str(clock) for clock in nearest_clocks(mhz, available))
    return f"the GPU of {who} does not offer {mhz} MHz; nearest: {nearest}"


def describe(name: str, stage: int | None) -> str:
    """Returns `forward`, or `forward@3` if the stage is known."""
    return name if stage is None else f"{name}@{stage}"


def order_problem(
    names: Sequence[str], stages: Sequence[int | None] | None, order: InstructionOrder, who: str
) -> tuple[int, str] | None:
    """Compares the instructions of a schedule with those that a rank runs.

    Stages are compared where both sides give them.

    Returns:
        The 0-based position of the first difference and what differs, or None if the two agree.
    """
    position = next(
        (
            i
            for i, (name, (expected, stage)) in enumerate(zip(names, order, strict=False))
            if name != expected or _differ(stages[i] if stages else None, stage)
        ),
        min(len(names), len(order)),
    )
    if position == len(names) == len(order):
        return None
    counts = f"; {len(order)} instructions expected, got {len(names)}" if len(order) != len(names) else ""
    expected = f"expected {describe(*order[position])}" if position < len(order) else "expected the end"
    got = "the list ends"
    if position < len(names):
        got = f"got {describe(names[position], stages[position] if stages else None)}"
    return position, f"at position {position} (counted from 0) of {who}: {expected}, {got}{counts}"


def _differ(ours: int | None, theirs: int | None) -> bool:
    return ours is not None and theirs is not None and ours != theirs
