"""The clocks of each instruction of a problem: those that were measured, and those that plans may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfo_fs.arrays import Array, np

if TYPE_CHECKING:
    from pfo_fs.planner.problem import Problem


class ClockTable:
    """All clocks of a problem's profile; in arrays, clocks are positions in `mhz`.

    Costs are *effective* energies: the energy of an instruction beyond what a waiting GPU would take in the same time,
    at the blocking power (Perseus, SOSP'24, section 3.2). Where clock changes cost no time, plans do not use a clock
    that is slower than another one and costs as much or more, so that costs fall as times rise. Where they cost time,
    such a clock can save a change, so plans may use all.

    Attributes:
        kinds: (stage, instruction) of each row, sorted.
        mhz: The clocks, rising.
        kind: For each node, the number of its kind, (nodes,).
        time_s: Time at each clock in s, (kinds, clocks); infinite where it was not measured.
        cost_j: Effective energy in J at each clock, over all GPUs of a rank; infinite where it was not measured.
        full_s: Time of each kind at its max clock, in s, (kinds,).
        ratio, cost_w: `time_s` and `cost_j` per second that the instruction takes at its max clock.
        offered: Whether plans may use each clock, (kinds, clocks).
        options: For each kind, the clocks that plans may use, by rising time, filled up with -1, (kinds, most clocks).
        useful: For each kind, the clocks that cost less than all faster ones, by rising time.
        nearest: The measured clock that is nearest to each clock, (kinds, clocks).
        below: The highest measured clock that is not above each clock; if there is none, the lowest measured one.
        max_clock: The max clock of each kind, (kinds,).
        hulls: For each kind, the ratios and costs on the lower convex hull, from the fastest point on to the one that
            costs least; the linear program interpolates between them.
    """

    def __init__(self, problem: Problem) -> None:
        instructions, measured = problem.pipeline.instructions, (problem.wider or problem.profile).measurements
        self.kinds = sorted({(i.stage, i.name) for i in instructions})
        row_of = {kind: row for row, kind in enumerate(self.kinds)}
        self.mhz = sorted({m.frequency_mhz for kind in self.kinds for m in measured[kind]})
        self.number = {mhz: number for number, mhz in enumerate(self.mhz)}
        self.kind = np.array([row_of[i.stage, i.name] for i in instructions])
        shape = len(self.kinds), len(self.mhz)
        self.time_s, self.cost_j = np.full(shape, np.inf), np.full(shape, np.inf)
        self.nearest: Array = np.zeros(shape, int)
        self.below: Array = np.zeros(shape, int)
        all_mhz = np.array(self.mhz)
        for row, kind in enumerate(self.kinds):
            for m in measured[kind]:
                at = row, self.number[m.frequency_mhz]
                self.time_s[at] = m.time_s
                self.cost_j[at] = (m.energy_j - problem.blocking_power_w * m.time_s) * problem.gpus_per_rank
            known = np.flatnonzero(np.isfinite(self.time_s[row]))
            self.nearest[row] = known[np.abs(all_mhz[:, None] - all_mhz[known]).argmin(axis=1)]
            self.below[row] = known[np.maximum(np.searchsorted(known, np.arange(len(self.mhz)), "right") - 1, 0)]
        self.max_clock: Array = self.below[:, -1]
        self.full_s = self.time_s[np.arange(len(self.kinds)), self.max_clock]
        self.ratio, self.cost_w = self.time_s / self.full_s[:, None], self.cost_j / self.full_s[:, None]
        by_time: list[list[Point]] = []
        for row, kind in enumerate(self.kinds):
            own = [self.number[m.frequency_mhz] for m in problem.profile.measurements[kind]]
            by_time.append(sorted((float(self.time_s[row, at]), float(self.cost_j[row, at]), at) for at in own))
        useful = [_useful(points) for points in by_time]
        self.useful = [[at for _, _, at in points] for points in useful]
        options = self.useful if problem.switch_costs.none else [[at for _, _, at in points] for points in by_time]
        self.options = np.full((shape[0], max(map(len, options))), -1)
        self.offered: Array = np.zeros(shape, bool)
        for row, clocks in enumerate(options):
            self.offered[row, clocks], self.options[row, : len(clocks)] = True, clocks
        self.hulls: list[tuple[Array, Array]] = []
        for full_s, points in zip(self.full_s, useful, strict=True):
            times_s, costs_j, _ = np.array(_hull(points)).T
            self.hulls.append((times_s / full_s, costs_j / full_s))

    def wrong(self, kind: Array, low: Array, high: Array) -> tuple[Array, Array]:
        """Returns the time in s of instructions at a higher clock than planned, and the energy in J that this adds.

        Args:
            low: The planned clocks; the nearest measured clock counts where one was not measured.
            high: The higher clocks; the highest measured clock below counts where one was not measured.
        """
        low, high = self.nearest[kind, low], self.below[kind, high]
        return self.time_s[kind, high], np.maximum(0.0, self.cost_j[kind, high] - self.cost_j[kind, low])


Point = tuple[float, float, int]
"""Time in s, effective energy in J, and clock."""


def _useful(points: list[Point]) -> list[Point]:
    """The points, by rising time, that cost less than all faster ones."""
    found: list[Point] = []
    for point in points:
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def _hull(points: list[Point]) -> list[Point]:
    """The points on the lower convex hull."""
    hull: list[Point] = []
    for point in points:
        while len(hull) >= 2 and _is_above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _is_above(left: Point, middle: Point, right: Point) -> bool:
    """Whether `middle` lies on or above the line from `left` to `right`."""
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])
