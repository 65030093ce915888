"""Which clocks a stage measures next, and how they share an iteration. Pure functions of what has been measured.

An iteration of many micro-batches runs an instruction more often than is needed to measure it at one clock. So a sweep
runs several clocks in one iteration, one after another from high to low, each for a stretch that is much longer than
the ticks of the energy counter and the change of a clock. All stages sweep at the same time: the clock of one stage
changes when instructions of the others begin, but not how long they take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.samples import Point, interpolated

RISES = 5
"""A sweep ends when energy has risen this many times in a row, as in Zeus's profiler; on a coarse grid fewer times."""
_LEAST_RELATIVE_RISE = 0.003
"""A smaller difference from one clock to the next is not a rise: a power limit makes high clocks alike."""
_FAR_ABOVE_MINIMUM = 0.03
"""Relative: once energy is this far above its minimum, it does not fall below it again, so one step down is noise."""
_LEAST_SAMPLES = 3
"""Samples that each instruction needs in each stretch, without those just after the change of the clock."""


Curves = Mapping[Kind, Mapping[int, Point]]
"""For each kind that a stage runs, the points measured so far."""


def grid_of(offered_mhz: Sequence[int], about: int) -> list[int]:
    """Returns about `about` of the clocks on offer, evenly spread, highest first."""
    clocks = sorted(offered_mhz, reverse=True)
    return clocks[:: max(1, round(len(clocks) / about))]


def coarse_clocks(offered_mhz: Sequence[int], grid: Sequence[int], curves: Curves) -> list[int]:
    """Returns the clocks of the grid that are still to be measured, highest first; empty when the sweep may end.

    The sweep goes down from the highest clock until the energy of every instruction has risen from its minimum.
    """
    lowest = lowest_useful(grid, curves, _rises(offered_mhz, grid))
    measured = _measured(grid, curves)
    return [mhz for mhz in grid if mhz not in measured and (lowest is None or mhz >= lowest)]


def fine_clocks(offered_mhz: Sequence[int], grid: Sequence[int], curves: Curves, tolerance: float) -> list[int]:
    """Returns the clocks worth measuring after the coarse ones, highest first; empty when all is known well enough.

    First the middle of each gap. Then the middles of the halves of a gap, if its middle was not on the straight line
    between its ends. Then, once more, the clocks that are not known well enough.

    Args:
        offered_mhz: Clocks that all GPUs of the stage offer.
        grid: The coarse clocks.
        curves: What was measured.
        tolerance: Relative error of time and power that is good enough.
    """
    clocks = sorted(offered_mhz, reverse=True)
    lowest = lowest_useful(grid, curves, _rises(offered_mhz, grid))
    useful = [mhz for mhz in _measured(clocks, curves) if lowest is None or mhz >= lowest]
    gaps = [
        between[len(between) // 2]
        for above, below in pairwise(useful)
        if (between := [mhz for mhz in clocks if below < mhz < above])
        and not _straight_around(useful, above, below, grid, curves, tolerance)
    ]
    return gaps or [
        mhz
        for mhz in useful
        if any(curve[mhz].time_error > tolerance or curve[mhz].power_error > 2 * tolerance for curve in curves.values())
    ]


def _measured(clocks: Sequence[int], curves: Curves) -> list[int]:
    return [mhz for mhz in clocks if all(mhz in curve for curve in curves.values())]


def _rises(offered_mhz: Sequence[int], grid: Sequence[int]) -> int:
    """Five on a grid of every second clock (30 MHz on most GPUs); on a coarse one, two cover the same distance."""
    stride = max(1, round(len(offered_mhz) / max(1, len(grid))))
    return min(RISES, max(2, round(RISES * 2 / stride)))


def lowest_useful(grid: Sequence[int], curves: Curves, rises: int) -> int | None:
    """Returns the clock of the grid by which every energy has risen `rises` times; None if one has not yet."""
    ends = []
    for curve in curves.values():
        end = None
        in_a_row, since, least_j, before_j = 0, 0, float("inf"), float("inf")
        for mhz in grid:
            if mhz not in curve:
                break
            energy_j = curve[mhz].energy_j
            in_a_row = in_a_row + 1 if energy_j > before_j * (1 + _LEAST_RELATIVE_RISE) else 0
            since, least_j = (0, energy_j) if energy_j < least_j else (since + 1, least_j)
            before_j = energy_j
            if in_a_row == rises or (since >= rises and energy_j > least_j * (1 + _FAR_ABOVE_MINIMUM)):
                end = mhz
                break
        if end is None:
            return None
        ends.append(end)
    return min(ends, default=None)


def _straight_around(
    useful: Sequence[int],
    above: int,
    below: int,
    grid: Sequence[int],
    curves: Curves,
    tolerance: float,
) -> bool:
    """Returns whether a gap needs no measurement: the point that split it was on a straight line."""
    middles = [mhz for mhz in (above, below) if mhz not in grid]
    if not middles:
        return False  # a gap of the coarse grid
    for middle in middles:
        at = useful.index(middle)
        around = [*useful[max(0, at - 1) : at], *useful[at + 1 : at + 2]]
        if len(around) < 2:
            return False
        for curve in curves.values():
            guess = interpolated({mhz: curve[mhz] for mhz in around}, middle)
            point = curve[middle]
            unsure = 2 * max(one.time_error + one.power_error for one in (point, *(curve[mhz] for mhz in around)))
            if abs(guess.time_s / point.time_s - 1) > tolerance + unsure:
                return False
            if abs(guess.energy_j / point.energy_j - 1) > 2 * tolerance + unsure:
                return False
    return True


def share_out(kinds: Sequence[Kind], clocks_mhz: Sequence[int], most: int) -> list[int]:
    """Returns a clock for each instruction of a rank's iteration, so that as many of `clocks_mhz` as possible run.

    Each clock gets a stretch of the iteration with enough samples of every kind; the first clocks come first.

    Args:
        kinds: The rank's instructions in order.
        clocks_mhz: At least one.
        most: No more clocks than this.
    """
    total = {kind: kinds.count(kind) for kind in set(kinds)}
    for count in range(min(most, len(clocks_mhz)), 1, -1):
        seen: dict[Kind, int] = {}
        by_occurrence = []
        for kind in kinds:
            by_occurrence.append(seen.get(kind, 0) * count // total[kind])
            seen[kind] = seen.get(kind, 0) + 1
        by_position = [position * count // len(kinds) for position in range(len(kinds))]
        for parts in (by_position, by_occurrence):
            if _enough(kinds, parts, total, count):
                return [clocks_mhz[part] for part in parts]
    return [clocks_mhz[0]] * len(kinds)


def _enough(kinds: Sequence[Kind], parts: Sequence[int], total: Mapping[Kind, int], count: int) -> bool:
    """Returns whether every kind has enough samples in every part, without those just after a change of the clock."""
    clean: dict[tuple[Kind, int], int] = {}
    before = -1
    for kind, part in zip(kinds, parts, strict=True):
        if part == before:
            clean[kind, part] = clean.get((kind, part), 0) + 1
        before = part
    return all(clean.get((kind, part), 0) >= _LEAST_SAMPLES for kind in total for part in range(count))
