"""Turns the relaxation's durations, which lie between two options, into real clocks within the deadline.

1. *Greedy rounding*: walk the DAG in order. Of the options that end in time for the relaxed schedule, each node gets
   the one that is cheapest at the relaxation's price of time. The time by which it ends early is passed on to the nodes
   behind it.
2. *Anneal*: walk the DAG, forwards and backwards in turn, at a price of time that falls from the relaxation's to
   nothing. Of the options that fit between the nodes before and behind it, each node gets the cheapest one at that
   price, so that free time goes first to the nodes where it saves most.
3. *Local search*: the same without a price, where a node may also trade time with one of its neighbours if that saves
   energy.

Several starts are rounded (both directions, several shares of the price) and the best result is kept. All of it is
deterministic, and done for many deadlines and starts at once: a frontier of 100 plans takes a few times as long as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfo_fs.planner.columns import NEVER, Columns, Level, ends_of, latest_of, starts_of
from pfo_fs.planner.relaxation import Relaxed

PRICE_SHARES = (1.0, 0.5)
"""Shares of the price of time to start from. At the full price, spare time is passed on to the node where it saves
most; at half of it, the next nodes use the time up."""
MANY_SHARES = (1.0,)
"""For many deadlines at once: only the full price, because the second start would gain about 0.01 %."""
FALLING_SHARES = (0.97, 0.9, 0.8, 0.6, 0.4, 0.2)
"""Shares of the price while annealing; used for single plans of pipelines that are not large."""
LARGE = 20_000
"""From this many nodes on a pipeline is large."""
_SWEEPS = 8
_FEW_SWEEPS = 4
_ENOUGH = 1e-6
"""The search ends when two sweeps together save no more than this share of the energy."""
_REACH, _FEW_REACH = 3, 2
"""A trade tries this many options up and down; the second number is for many deadlines at once."""
_EPSILON_S = 1e-12
_NO_NEIGHBOUR = 10**9
_MARGINS = (1e-13, 1e-12, 1e-10, 1e-8)


class Rounder:
    """Finds real clocks for one problem, for many deadlines at once."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._reach = _REACH

    def round(self, relaxed: Sequence[Relaxed], deadlines_s: Sequence[float]) -> Any:
        """Returns an assignment for each deadline, as columns of options, with a makespan within it.

        Args:
            relaxed: The relaxation's answers, one per deadline.
            deadlines_s: The longest makespans in s, without the overhead; the fastest plan's or longer.
        """
        import numpy as np

        columns, many = self._columns, len(deadlines_s)
        deadlines: Any = np.array(deadlines_s)
        prices: Any = np.array([answer.prices_w for answer in relaxed]).T
        targets = self._within(np.array([answer.times_s for answer in relaxed]).T, deadlines)
        thorough = many == 1 and len(targets) <= LARGE
        shares = PRICE_SHARES if many == 1 else MANY_SHARES
        starts = [
            self._greedy_round(view, targets, share * prices, deadlines)
            for share in shares
            for view in (columns.forwards, columns.backwards)
        ]
        options: Any = np.hstack(starts)
        limits: Any = np.tile(deadlines, len(starts))
        self._reach = _REACH if many == 1 else _FEW_REACH
        if thorough:
            self._anneal(options, limits, np.tile(prices, len(starts)))
        self._local_search(options, limits, _SWEEPS if thorough else _FEW_SWEEPS)
        self._repair(options, limits)
        costs = columns.cost(options).reshape(len(starts), many)
        return options[:, costs.argmin(axis=0) * many + np.arange(many)]

    def _within(self, times: Any, deadlines: Any) -> Any:
        """Returns the relaxed durations, shortened where the solver's tolerance has let them exceed the deadline."""
        import numpy as np

        columns = self._columns
        fastest: Any = np.repeat(columns.times[columns.kind, 0][:, None], len(deadlines), axis=1)
        latest = latest_of(columns.forwards, fastest, deadlines)  # behind a node, everything at its fastest
        ends: Any = np.zeros_like(fastest)
        targets: Any = np.zeros_like(fastest)
        for level in columns.forwards:
            nodes = level.nodes
            start = starts_of(level, ends)
            targets[nodes] = np.maximum(fastest[nodes], np.minimum(times[nodes], latest[nodes] - start))
            ends[nodes] = start + targets[nodes]
        return targets

    def _greedy_round(self, view: Sequence[Level], targets: Any, prices: Any, deadlines: Any) -> Any:
        """Returns options that end in time for the targets, one node after another."""
        import numpy as np

        options = np.zeros(targets.shape, int)
        self._walk(view, options, latest_of(view, targets, deadlines), prices)
        return options

    def _anneal(self, options: Any, deadlines: Any, prices: Any) -> None:
        """Sweeps in both directions at falling shares of the price."""
        columns = self._columns
        for number, share in enumerate(FALLING_SHARES):
            view = columns.backwards if number % 2 else columns.forwards
            self._walk(view, options, latest_of(view, columns.time(options), deadlines), share * prices)

    def _walk(self, view: Sequence[Level], options: Any, latest: Any, prices: Any) -> None:
        """Gives each node, of the options that end by `latest`, the cheapest at its price of time."""
        import numpy as np

        columns = self._columns
        ends: Any = np.zeros_like(latest)
        slower: Any = 1e-10 * np.arange(columns.times.shape[1])[None, :, None]  # prefers the slower of equals
        for level in view:
            start = starts_of(level, ends)
            kinds = columns.kind[level.nodes]
            times, costs = columns.times[kinds][..., None], columns.costs[kinds][..., None]
            room = latest[level.nodes] - start + _EPSILON_S
            with np.errstate(invalid="ignore"):
                values = np.where(times <= room[:, None], costs + prices[level.nodes][:, None] * times - slower, NEVER)
            best = values.argmin(axis=1)  # the fastest where nothing fits
            options[level.nodes] = best
            ends[level.nodes] = start + columns.times[kinds[:, None], best]

    def _local_search(self, options: Any, deadlines: Any, sweeps: int) -> None:
        """Sweeps in both directions, trading with each kind of neighbour, until it does not help any more."""
        views = self._columns.forwards, self._columns.backwards
        width = max(level.after.shape[1] for view in views for level in view)
        cost = self._columns.cost(options)
        for number in range(sweeps):
            self._sweep(views[number % 2], options, deadlines, (number // 2) % width)
            last, cost = cost, self._columns.cost(options)
            if number % 2 and number >= 2 * width and (last - cost <= _ENOUGH * abs(cost)).all():
                return

    def _sweep(self, view: Sequence[Level], options: Any, deadlines: Any, neighbour: int) -> None:
        """Walks the DAG once; trades are with the neighbours in one column of `after`."""
        columns = self._columns
        times = columns.time(options)
        latest = latest_of(view, times, deadlines)
        ends = ends_of(view, times)
        for level in view:
            nodes, kinds = level.nodes, columns.kind[level.nodes]
            start = starts_of(level, ends)
            room = latest[nodes] - start + _EPSILON_S
            alone = (columns.times[kinds][..., None] <= room[:, None]).sum(axis=1) - 1
            alone[alone < 0] = 0
            if neighbour < level.after.shape[1]:
                alone = self._trade(level, neighbour, start, alone, options, times, latest, ends)
            options[nodes] = alone
            times[nodes] = columns.times[kinds[:, None], alone]
            ends[nodes] = start + times[nodes]

    def _trade(
        self, level: Level, neighbour: int, start: Any, alone: Any, options: Any, times: Any, latest: Any, ends: Any
    ) -> Any:
        """Returns the level's options, after setting those of its neighbours where both together save more.

        Arrays are (nodes of the level, options around the present one, columns).
        """
        import numpy as np

        columns = self._columns
        reach: Any = np.arange(-self._reach, self._reach + 1)[:, None]
        kinds = columns.kind[level.nodes][:, None, None]
        partners, delay_s = level.after[:, neighbour], level.after_s[:, neighbour, None]
        partner_kinds = columns.kind[partners][:, None, None]
        # Options of the node: they exist, and its other neighbours still fit.
        mine = alone[:, None] + reach
        possible = (mine >= 0) & (mine < columns.counts[kinds])
        mine[~possible] = 0
        end = start[:, None] + columns.times[kinds, mine]
        must = latest[level.after] - times[level.after] - level.after_s[..., None]
        must[:, neighbour] = latest[partners] - columns.times[partner_kinds[:, 0], 0] - delay_s
        possible &= end <= must.min(axis=1)[:, None] + _EPSILON_S
        # For each of them, the partner's option: of those around its present one, the slowest that then fits.
        rivals, rivals_s = level.rivals[neighbour]
        ready = np.maximum((ends[rivals] + rivals_s[..., None]).max(axis=1)[:, None], end + delay_s[..., None])
        room = latest[partners][:, None] - ready + _EPSILON_S
        now = options[partners]
        theirs = now[:, None] + reach
        seconds = columns.times[partner_kinds, theirs.clip(0, columns.times.shape[1] - 1)]
        seconds[theirs >= columns.times.shape[1]] = NEVER
        seconds[theirs < 0] = -NEVER
        fitting = (seconds[:, None] <= room[:, :, None]).sum(axis=2)
        then = now[:, None] - self._reach + fitting - 1
        possible &= (fitting > 0) & (then >= 0)
        then[~possible] = 0
        costs = columns.costs[partner_kinds, then] - columns.costs[partner_kinds[:, 0], now][:, None]
        values = np.where(possible, columns.costs[kinds, mine] + costs, NEVER)
        best = values.argmin(axis=1)[:, None]
        better = np.take_along_axis(values, best, 1)[:, 0] < columns.costs[kinds[:, 0], alone] - 1e-9
        options[partners] = np.where(better, np.take_along_axis(then, best, 1)[:, 0], now)
        times[partners] = columns.times[partner_kinds[:, 0], options[partners]]
        return np.where(better, np.take_along_axis(mine, best, 1)[:, 0], alone)

    def _repair(self, options: Any, deadlines: Any) -> None:
        """Shortens assignments that exceed the deadline by rounding errors of the sweeps."""
        columns = self._columns
        for margin in _MARGINS:
            late = columns.makespan(options) > deadlines
            if not late.any():
                return
            some = options[:, late]
            self._sweep(columns.forwards, some, deadlines[late] * (1 - margin), neighbour=_NO_NEIGHBOUR)
            options[:, late] = some
        options[:, columns.makespan(options) > deadlines] = 0
