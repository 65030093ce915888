"""Splits each rank's instructions into runs of one clock, as cheap as possible, near the durations of a relaxation.

Each clock of an instruction has a value: its energy, plus the price of the time that it adds to the mean iteration
while all other instructions keep the relaxation's durations. Dynamic programming finds the clocks of each rank that
cost least, changes included. Each run lasts long enough for the drivers to make the next change.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pfo_fs.arrays import Array, np

if TYPE_CHECKING:
    from pfo_fs.planner.scenario_descent import ScenarioDescent
    from pfo_fs.planner.scenario_model import Scenarios
    from pfo_fs.planner.scenario_relaxation import ScenarioAnswer

_NEVER = float("inf")
_CLOSE = 1e-9
"""A ratio that differs from a corner of the hull by less than this counts as that corner."""
_BEND = 16.0
"""Ratios far from the relaxation's get an extra quadratic cost, this many times the hull's mean bend: the values of
single nodes miss that all nodes move at once. With factors from 4 to 64, plans for real jobs save the same within 0.03
points; where clocks act 10 ms late, within 0.5."""
_MOST_CLOCKS = 64
"""If there are more clocks, every second or third is tried: the search's time grows with the square of their number."""
_EPSILON_S = 1e-12


class RankRuns:
    """Finds the runs of one clock for some scenarios, near the relaxation's durations."""

    def __init__(self, scenarios: Scenarios, descent: ScenarioDescent, answer: ScenarioAnswer) -> None:
        self._scenarios = scenarios
        ratios, price_w = answer
        self._free = scenarios.problem.switch_costs.none
        table = scenarios.table
        offered = np.flatnonzero(table.offered.any(axis=0)).tolist()
        every = -(-len(offered) // _MOST_CLOCKS)
        self._clocks = np.array(sorted({*table.max_clock.tolist(), *offered[::every]}))
        times_s = scenarios.durations_s * ratios[:, scenarios.group_of]
        per_ratio_s, slack_s = descent.blurred(times_s)
        ratio = table.ratio[table.kind][:, self._clocks]
        self._own_s = (scenarios.busy_s / scenarios.members.sum(axis=0))[:, :, None] * ratio[:, None]
        cost_w = np.where(table.offered, table.cost_w, np.inf)
        self._energy_j = scenarios.busy_s[:, :, None] * cost_w[table.kind][:, None, self._clocks]
        self._per_ratio_s, self._price_w = per_ratio_s, price_w
        self._ratios = ratios
        bends = np.array([_bend(*hull) for hull in table.hulls])
        self._bend_j = bends[table.kind][:, None] * scenarios.busy_s
        self._longer = np.where(np.isfinite(ratio), ratio, 0.0)[:, None] - ratios[:, :, None]
        self._alone_s = np.empty(self._energy_j.shape)
        for at in range(len(self._clocks)):
            longer = self._longer[:, :, at]
            self._alone_s[:, :, at] = descent.alone_s(scenarios.durations_s * longer[:, scenarios.group_of], slack_s)

    def _hull_prices(self, price_w: float) -> Array:
        """Per node, a price of time (J/s) that makes its ratio optimal: of several, the nearest to its paths' price."""
        scenarios, ratios = self._scenarios, self._ratios
        prices_w = price_w * self._per_ratio_s / scenarios.busy_s
        for kind, (own, costs_w) in enumerate(scenarios.table.hulls):
            nodes = scenarios.table.kind == kind
            slopes = np.concatenate([[_NEVER], -np.diff(costs_w) / np.diff(own), [0.0]])
            right = np.searchsorted(own, ratios[nodes] + _CLOSE, "right")
            left = np.searchsorted(own, ratios[nodes] - _CLOSE, "left")
            prices_w[nodes] = prices_w[nodes].clip(slopes[right], slopes[left])
        return prices_w

    def at(self, change_price_j: float, price_factor: float = 1.0) -> Array:
        """Returns the clocks that cost least, as positions, (nodes, groups).

        Args:
            change_price_j: Price of a change beyond its energy, in J.
            price_factor: The price of time, as a multiple of the relaxation's.
        """
        scenarios, price_w = self._scenarios, price_factor * self._price_w
        own_w = self._hull_prices(price_w) * scenarios.busy_s
        more_j = own_w[:, :, None] * self._longer
        more_j = np.where(self._longer > 0, np.maximum(more_j, price_w * self._alone_s), more_j)
        values = self._energy_j + more_j
        values += _BEND * self._bend_j[:, :, None] / 2 * self._longer**2
        found = np.empty((scenarios.nodes, scenarios.count), int)
        for group in range(scenarios.count):
            for first, end in pairwise(scenarios.problem.pipeline.first_nodes):
                clocks = self._cheapest(first, end, group, values[first:end, group], change_price_j)
                at_max = scenarios.max_clocks[first:end, group]
                found[first:end, group] = at_max if clocks is None else self._clocks[clocks]
        return found

    def _cheapest(self, first: int, end: int, group: int, values_j: Array, change_price_j: float) -> Array:
        """The cheapest clocks of the nodes from `first` to `end`, as positions in `_clocks`; None if no clocks fit."""
        shortest_s = self._scenarios.run_margin * self._scenarios.shortest_s[:, self._clocks]
        needed = nodes_needed(self._own_s[first:end, group], shortest_s)
        if self._free:
            return cheapest(values_j, needed, np.full((end - first - 1, 1, 1), change_price_j))
        return cheapest(values_j, needed, self._changes_j(first, end, group) + change_price_j)

    def _changes_j(self, first: int, end: int, group: int) -> Array:
        """What changes cost in J before each node but the first, (nodes - 1, clocks before, clocks)."""
        count = len(self._clocks)
        node, left, right = (x.ravel() for x in np.indices((end - first - 1, count, count)))
        energy_j = self._scenarios.change_j(node + first + 1, self._clocks[left], self._clocks[right])
        return (self._scenarios.members[:, group].sum() * energy_j).reshape(-1, count, count)


def _bend(ratios: Array, costs: Array) -> float:
    """The mean second derivative of a hull; without it, all ratios between two corners would cost the same."""
    slopes = np.diff(costs) / np.diff(ratios)
    return float((slopes[-1] - slopes[0]) / (ratios[-1] - ratios[0])) if len(slopes) > 1 else 0.0


def nodes_needed(times_s: Array, shortest_s: Array) -> Array:
    """Returns how many instructions a run needs, for `cheapest`; waiting does not count, as it only makes runs longer.

    Args:
        times_s: Time of each instruction at each clock, in s; infinite where it was not measured (there, the
            instruction's shortest time counts), (instructions, clocks).
        shortest_s: The shortest run at each clock, in s: [0] begun by a change up, [1] by a change down, (2, clocks).
    """
    known_s = np.where(np.isfinite(times_s), times_s, times_s.min(axis=1, keepdims=True))
    total_s = np.vstack([np.zeros((1, known_s.shape[1])), known_s.cumsum(axis=0)])
    first = np.arange(len(times_s))
    found = np.empty((2, *times_s.shape), int)
    for at, own_s in enumerate(total_s.T):
        for down in (0, 1):
            ends = np.searchsorted(own_s, own_s[:-1] + shortest_s[down, at] - _EPSILON_S)
            found[down, :, at] = ends.clip(first + 1, len(first)) - first
    return found


def cheapest(values_j: Array, needed: Array, changes_j: Array) -> Array | None:
    """Returns the clocks of a rank's instructions that cost least together, as positions; None if no clocks fit.

    Args:
        values_j: The cost of each instruction at each clock (rising), in J; infinite where it cannot be used,
            (instructions, clocks).
        needed: The fewest instructions of a run that begins with each instruction at each clock: [0] by a change up,
            [1] by a change down, (2, instructions, clocks).
        changes_j: What a change before each instruction but the first costs, from the clock of the row to that of the
            column, in J, (instructions - 1, clocks, clocks) or what broadcasts to it.
    """
    count, clocks = values_j.shape
    place = np.arange(clocks)
    unknown = ~np.isfinite(values_j)
    # Sums over the instructions before each instruction: the costs, and how many of them cannot use the clock.
    total_j, missing = np.zeros((count + 1, clocks)), np.zeros((count + 1, clocks), int)
    np.cumsum(np.where(unknown, 0.0, values_j), axis=0, out=total_j[1:])
    np.cumsum(unknown, axis=0, out=missing[1:])
    only_up = np.where(place[:, None] < place, 0.0, _NEVER)
    only_down = only_up.T
    # For each instruction and clock: the least cost up to it if a run at that clock may end there; where this run
    # begins, and the clock before this run.
    least = np.full(values_j.shape, _NEVER)
    begins, before = np.zeros(values_j.shape, int), np.zeros(values_j.shape, int)

    def begin(k: int, cost: Array, origin: Array, lengths: Array) -> None:
        last = k + lengths - 1
        cost = cost + total_j[last + 1, place] - total_j[k]
        cost = np.where(missing[last + 1, place] > missing[k], _NEVER, cost)
        better = cost < least[last, place]
        at = last[better], place[better]
        least[at], begins[at], before[at] = cost[better], k, origin[better]

    begin(0, np.zeros(clocks), place, needed[0, 0])
    for k in range(1, count):
        begin(k, least[k - 1], place, np.ones(clocks, int))
        options = least[k - 1][:, None] + changes_j[k - 1]
        for allowed, lengths in zip((only_up, only_down), needed[:, k], strict=True):
            with_change = options + allowed
            begin(k, with_change.min(axis=0), with_change.argmin(axis=0), lengths)
    if not np.isfinite(least[-1]).any():
        return None
    found = np.empty(count, int)
    k, clock = count - 1, int(least[-1].argmin())
    while k >= 0:
        found[begins[k, clock] : k + 1] = clock
        k, clock = int(begins[k, clock]) - 1, int(before[k, clock])
    return found
