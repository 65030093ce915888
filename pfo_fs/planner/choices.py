"""The options of an instruction: all measured clocks, or only those that no other clock beats; and their arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfo_fs.arrays import Array, np
from pfo_fs.planner.profile import Measurement

if TYPE_CHECKING:
    from pfo_fs.planner.problem import Problem

MIN_OPTIONS = 3
"""If at least this many clocks were measured and fewer remain as options, the profile shows noise, not a trade-off."""


@dataclass(frozen=True)
class Choices:
    """The options of one kind of instruction, by rising time.

    Costs are *effective* energies: the energy of an instruction beyond what a waiting GPU would take in the same time,
    at the blocking power (Perseus, SOSP'24, section 3.2). Where clock changes cost no time, an option that is slower
    and costs no less than another one is left out, so that costs fall as times rise. Where they cost time, such an
    option can save a change, so all options are kept.

    Attributes:
        times_s: Duration of each, rising.
        costs_j: Effective energy of each.
        hull: Positions of the options on the lower convex hull, from the fastest option to the one that costs least;
            the linear program interpolates between them.
    """

    frequencies_mhz: tuple[int, ...]
    times_s: tuple[float, ...]
    costs_j: tuple[float, ...]
    hull: tuple[int, ...]


def choices_of(
    measurements: Sequence[Measurement], blocking_power_w: float, scale: float = 1.0, every_clock: bool = False
) -> Choices:
    """Returns the options of one kind of instruction.

    Args:
        scale: Number of GPUs that run the instruction together; costs are sums over them.
        every_clock: Keep options that another option beats in both time and cost.
    """
    points = sorted(
        (m.time_s, (m.energy_j - blocking_power_w * m.time_s) * scale, m.frequency_mhz) for m in measurements
    )
    least_j = float("inf")
    kept: list[tuple[float, float, int]] = []
    hull: list[int] = []
    for point in points:
        beaten = point[1] >= least_j
        if beaten and not every_clock:
            continue
        kept.append(point)
        if beaten:
            continue
        least_j = point[1]
        while len(hull) >= 2 and _above(kept[hull[-2]], kept[hull[-1]], point):
            hull.pop()
        hull.append(len(kept) - 1)
    return Choices(
        tuple(mhz for _, _, mhz in kept),
        tuple(time_s for time_s, _, _ in kept),
        tuple(cost_j for _, cost_j, _ in kept),
        tuple(hull),
    )


def _above(left: Sequence[float], middle: Sequence[float], right: Sequence[float]) -> bool:
    """Whether `middle` lies on or above the line from `left` to `right`."""
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])


class ClockTable:
    """All clocks of a problem's profile; in arrays, clocks are positions in `mhz`.

    Attributes:
        mhz: The clocks, rising.
        kind: For each node, the number of its kind, (nodes,).
        time_s: Time at each clock in s, (kinds, clocks); infinite where it was not measured.
        cost_j: Effective energy in J at each clock, over all GPUs of a rank; infinite where it was not measured.
        full_s: Time of each kind at its max clock, in s, (kinds,).
        ratio, cost_w: `time_s` and `cost_j` per second that the instruction takes at its max clock.
        offered: Whether plans may use each clock, (kinds, clocks).
        options: For each kind, the clocks that plans may use by rising time, and then -1, (kinds, most of them).
        nearest: The measured clock that is nearest to each clock, (kinds, clocks).
        below: The highest measured clock that is not above each clock; the lowest one where there is none.
        max_clock: The max clock of each kind, (kinds,).
        hulls: For each kind, the ratios and costs on the lower convex hull, from the fastest point on.
    """

    def __init__(self, problem: Problem) -> None:
        tables = problem.measured_by_kind
        number_of = {kind: number for number, kind in enumerate(tables)}
        self.mhz = sorted({mhz for each in tables.values() for mhz in each.frequencies_mhz})
        self.number = {mhz: number for number, mhz in enumerate(self.mhz)}
        self.kind = np.array([number_of[i.stage, i.name] for i in problem.pipeline.instructions])
        shape = len(tables), len(self.mhz)
        self.time_s = np.full(shape, np.inf)
        self.cost_j = np.full(shape, np.inf)
        self.offered: Array = np.zeros(shape, bool)
        self.nearest: Array = np.zeros(shape, int)
        self.below: Array = np.zeros(shape, int)
        self.max_clock: Array = np.zeros(len(tables), int)
        self.options = np.full((len(tables), max(len(c.times_s) for c in problem.choices_by_kind.values())), -1)
        all_mhz = np.array(self.mhz)
        for row, (kind, choices) in enumerate(tables.items()):
            own = [self.number[mhz] for mhz in choices.frequencies_mhz]
            self.max_clock[row] = max(own)
            options = [self.number[mhz] for mhz in problem.choices_by_kind[kind].frequencies_mhz]
            self.offered[row, options], self.options[row, : len(options)] = True, options
            self.time_s[row, own], self.cost_j[row, own] = choices.times_s, choices.costs_j
            known = np.array(sorted(own))
            self.nearest[row] = known[np.abs(all_mhz[:, None] - all_mhz[known]).argmin(axis=1)]
            self.below[row] = known[np.maximum(np.searchsorted(known, np.arange(len(self.mhz)), "right") - 1, 0)]
        self.full_s = self.time_s[np.arange(len(tables)), self.max_clock]
        self.ratio = self.time_s / self.full_s[:, None]
        self.cost_w = self.cost_j / self.full_s[:, None]
        self.hulls: list[tuple[Array, Array]] = []
        for full_s, kind in zip(self.full_s, tables, strict=True):
            on_hull = problem.choices_by_kind[kind]
            times_s, costs_j = (np.array(x)[list(on_hull.hull)] for x in (on_hull.times_s, on_hull.costs_j))
            self.hulls.append((times_s / full_s, costs_j / full_s))

    def wrong(self, kind: Array, low: Array, high: Array) -> tuple[Array, Array]:
        """Returns the time in s of instructions at a higher clock than theirs, and the energy in J in addition.

        Args:
            low: The clocks of the instructions; the nearest one counts where it was not measured.
            high: The higher clocks; the highest measured one below counts where it was not measured.
        """
        low, high = self.nearest[kind, low], self.below[kind, high]
        return self.time_s[kind, high], np.maximum(0.0, self.cost_j[kind, high] - self.cost_j[kind, low])
