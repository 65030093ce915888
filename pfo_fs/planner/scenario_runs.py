"""Runs of one clock near the durations of the relaxation, where clock changes cost something: rank by rank, exactly.

Each clock of an instruction has a value: its energy, and the price of time for what it adds to the mean iteration time
if all others keep to the relaxation's durations. Dynamic programming finds the clocks of each rank that cost least,
changes included, in which each run lasts until the drivers can make the next change.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pfo_fs.arrays import np
from pfo_fs.planner.rank_runs import Rank, cheapest, nodes_needed

if TYPE_CHECKING:
    from pfo_fs.planner.scenario_descent import ScenarioDescent
    from pfo_fs.planner.scenario_model import Scenarios
    from pfo_fs.planner.scenario_relaxation import ScenarioAnswer

_NEVER = float("inf")
_CLOSE = 1e-9
"""A ratio that differs by less from a corner of the hull is there."""
_BEND = 16.0
"""Ratios far from those of the relaxation cost as if hulls were bent by this multiple of what they are: all nodes move
at once, which the values of single ones do not know. From 4 to 64, plans for real jobs save alike within 0.03 points;
where clocks act 10 ms late, within 0.5."""
_MOST_CLOCKS = 64
"""Of more clocks, every second or third one is tried: this takes a time that grows with the square of their number."""


class ScenarioRuns:
    """Finds runs of one clock for some scenarios, near durations.

    Args:
        scenarios: The scenarios.
        descent: Tells what a change costs.
        answer: The relaxation's durations and price of time.
    """

    def __init__(self, scenarios: Scenarios, descent: ScenarioDescent, answer: ScenarioAnswer) -> None:
        self._scenarios = scenarios
        ratios, price_w = answer
        self._free = scenarios.problem.switch_costs.none
        table = scenarios.table
        offered = sorted(
            {table.number[mhz] for c in scenarios.problem.choices_by_kind.values() for mhz in c.frequencies_mhz}
        )
        every = -(-len(offered) // _MOST_CLOCKS)
        self._clocks: Any = np.array(sorted({*table.max_clock.tolist(), *offered[::every]}))
        times_s = scenarios.durations_s * ratios[:, scenarios.group_of]
        per_ratio_s, self._per_s, slack_s = descent.blurred(times_s, None)
        ratio = table.ratio[table.kind][:, self._clocks]
        self._own_s = (scenarios.busy_s / scenarios.members.sum(axis=0))[:, :, None] * ratio[:, None]
        cost_w = np.where(table.offered, table.cost_w, np.inf)
        self._energy_j: Any = scenarios.busy_s[:, :, None] * cost_w[table.kind][:, None, self._clocks]
        self._per_ratio_s, self._price_w = per_ratio_s, price_w
        self._own_w = self._hull_prices(ratios) * scenarios.busy_s
        bends: Any = np.array([_bend(*hull) for hull in table.hulls])
        self._bend_j = bends[table.kind][:, None] * scenarios.busy_s
        self._longer: Any = np.where(np.isfinite(ratio), ratio, 0.0)[:, None] - ratios[:, :, None]
        self._alone_s: Any = np.empty(self._energy_j.shape)
        for at in range(len(self._clocks)):
            longer = self._longer[:, :, at]
            self._alone_s[:, :, at] = descent.alone_s(scenarios.durations_s * longer[:, scenarios.group_of], slack_s)
        costs = scenarios.problem.switch_costs
        self._longest_s = costs.stands_still_s + costs.onset_delay_s
        self._change_s: Any = descent.alone_s(np.full(slack_s.shape, self._longest_s), slack_s)

    def _hull_prices(self, ratios: Any) -> Any:
        """The prices of time in J/s at which nodes take these ratios, the nearest to those of the longest paths."""
        scenarios = self._scenarios
        prices_w = self._price_w * self._per_ratio_s / scenarios.busy_s
        for kind, (own, costs_w) in enumerate(scenarios.table.hulls):
            nodes = scenarios.table.kind == kind
            slopes: Any = np.concatenate([[_NEVER], -np.diff(costs_w) / np.diff(own), [0.0]])
            right = np.searchsorted(own, ratios[nodes] + _CLOSE, "right")
            left = np.searchsorted(own, ratios[nodes] - _CLOSE, "left")
            prices_w[nodes] = prices_w[nodes].clip(slopes[right], slopes[left])
        return prices_w

    def at(self, change_price_j: float) -> Any:
        """Returns the clocks that cost least, as positions, (nodes, groups).

        Args:
            change_price_j: Price of a change beyond its energy and time, in J.
        """
        scenarios, price_w = self._scenarios, self._price_w
        more_j = self._own_w[:, :, None] * self._longer
        more_j = np.where(self._longer > 0, np.maximum(more_j, price_w * self._alone_s), more_j)
        values = self._energy_j + more_j
        values += _BEND * self._bend_j[:, :, None] / 2 * self._longer**2
        found: Any = np.empty((scenarios.nodes, scenarios.count), int)
        for group in range(scenarios.count):
            for first, end in pairwise(scenarios.problem.pipeline.first_nodes):
                rank = self._rank(first, end, group, values[first:end, group], price_w, change_price_j)
                found[first:end, group] = self._clocks[cheapest(rank)]
        return found

    def _rank(self, first: int, end: int, group: int, values_j: Any, price_w: float, change_price_j: float) -> Rank:
        """What the clocks of the nodes from `first` to `end` cost."""
        if self._free:
            changes_j: Any = np.full((end - first, 1, 1), change_price_j)
        else:
            changes_j = self._changes_j(first, end, group, price_w) + change_price_j
        shortest_s = self._scenarios.run_margin * self._scenarios.shortest_s[:, self._clocks]
        needed = nodes_needed(self._own_s[first:end, group], shortest_s)
        return Rank(values_j, needed, lambda k, _: (changes_j[k - 1][..., None], None))

    def _changes_j(self, first: int, end: int, group: int, price_w: float) -> Any:
        """What changes cost in J before each node but the first, (nodes - 1, clocks before, clocks)."""
        count = len(self._clocks)
        node, left, right = (x.ravel() for x in np.indices((end - first - 1, count, count)))
        seconds, energy_j = self._scenarios.change(node + first + 1, self._clocks[left], self._clocks[right])
        node += first + 1
        more_s = self._per_s[node, group] * seconds
        if self._longest_s:
            more_s = np.maximum(more_s, self._change_s[node, group] * seconds.clip(0.0) / self._longest_s)
        members = self._scenarios.members[:, group].sum()
        return (price_w * more_s + members * energy_j).reshape(-1, count, count)


def _bend(ratios: Any, costs: Any) -> float:
    """The mean second derivative of a hull; between its corners it has none, and all ratios would cost the same."""
    slopes = np.diff(costs) / np.diff(ratios)
    return float((slopes[-1] - slopes[0]) / (ratios[-1] - ratios[0])) if len(slopes) > 1 else 0.0
