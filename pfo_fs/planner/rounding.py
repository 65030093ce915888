"""Turns the relaxation's durations, which lie between two options, into real clocks within the deadline.

First the nodes are walked in the order of the DAG. Of the options that end in time for the relaxed schedule, a node
gets the cheapest at the relaxation's price of time. The time that it leaves goes to the nodes behind it. Then the
DAG is walked forwards and backwards in turn at a price of time that falls to nothing. Of the options that fit between
the nodes before and behind it, each node gets the cheapest one at that price, so that free time goes first to the nodes
where it saves most.

The walks begin once in each direction, and the better result is kept. All of it is deterministic, and done for many
deadlines at once: a frontier of 100 plans takes a few times as long as one.

Where instructions are few, a single option makes a large step, and the walks leave some time unused. So small pipelines
are then improved by exchanges: one or two instructions get another option, and walks choose those of all others anew.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb

from pfo_fs.arrays import Array, np
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxed

FALLING_SHARES = (0.97, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0)
"""Shares of the relaxation's price of time."""
_EXCHANGE_SHARES = FALLING_SHARES[1::2]
"""The same for exchanges, which begin with real options."""
_MOST_TOGETHER = 2
"""An exchange gives at most this many instructions another option."""
_MOST_EXCHANGED = 3_000_000
"""Exchanges walk through at most this many options for all targets together, which takes some 0.1 s. That allows all
exchanges of 24 instructions with 3 options, and none of 96 instructions with 29 options; without exchanges, plans of
the latter are within 0.02 % of the least energy."""
_SAVES = 1e-9
"""Relative: an exchange that saves less does not help."""
_CLOSE = 1e-9
"""A plan may exceed the relaxation's makespan by this share."""
_EPSILON_S = 1e-12
_SHORTENINGS = (1e-13, 1e-12, 1e-10, 1e-8)
"""If an assignment exceeds the deadline by rounding errors, deadlines that are shorter by these shares are tried in
turn."""


class Rounder:
    """Finds real clocks for a problem as if clock changes cost nothing, for many deadlines at once.

    Args:
        problem: A problem in which clock changes cost nothing.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        pipeline = problem.pipeline
        self._backwards = LongestPaths(
            pipeline.topological[::-1], [(then, first, delay_s) for first, then, delay_s in pipeline.edges]
        )
        # For each kind of instruction its options' times in s and effective energies in J, padded with infinity.
        table = problem.table
        self._kind = table.kind
        row, offered = np.arange(len(table.options))[:, None], table.options >= 0
        self._times_s = np.where(offered, table.time_s[row, table.options], np.inf)
        self._costs_j = np.where(offered, table.cost_j[row, table.options], np.inf)
        self._fastest_s = problem.played(problem.fastest_mhz).mean_s

    def clocks_mhz(self, relaxed: Sequence[Relaxed], targets_s: Sequence[float], waiting_w: float) -> list[list[int]]:
        """Returns the clocks in MHz of each node, for each of several targets.

        Args:
            targets_s: The longest iteration times in s, those of the fastest plan or longer.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the target in any case.
        """
        overhead_s = self._problem.overhead_s
        # Without a straggler the relaxation may end before the deadline: waiting longer costs more than it saves.
        useful_s = [
            target_s if waiting_w == 0 else min(target_s, answer.makespan_s * (1 + _CLOSE) + overhead_s)
            for answer, target_s in zip(relaxed, targets_s, strict=True)
        ]
        options = self.round(relaxed, [max(length_s, self._fastest_s) - overhead_s for length_s in useful_s])
        room = _MOST_EXCHANGED // (2 * len(targets_s))
        if self._exchange_size() <= room:
            for number, (answer, target_s) in enumerate(zip(relaxed, targets_s, strict=True)):
                starts = options[:, number], np.zeros_like(options[:, number])
                found = [self._exchanged(each, answer.prices_w, target_s, waiting_w, room) for each in starts]
                options[:, number] = min(found, key=lambda each: each[0])[1]
        scenarios, table = self._problem.alike, self._problem.table
        clocks_mhz = scenarios.mhz(table.options[self._kind[:, None], options])
        return [
            clocks if self._problem.played(clocks).mean_s <= target_s else self._problem.fastest_mhz
            for clocks, target_s in zip(clocks_mhz, targets_s, strict=True)
        ]

    def round(self, relaxed: Sequence[Relaxed], deadlines_s: Sequence[float]) -> Array:
        """Returns for each deadline an assignment with a makespan within it, as a column of options.

        Args:
            deadlines_s: The longest makespans in s, without the overhead; the fastest plan's or longer.
        """
        forwards, backwards = self._problem.paths, self._backwards
        deadlines = np.array(deadlines_s)
        prices = np.hstack([answer.prices_w for answer in relaxed])
        targets = self._within(np.hstack([answer.times_s for answer in relaxed]), deadlines)
        starts = [self._walk(view, view.latest(targets, deadlines), prices) for view in (forwards, backwards)]
        options = np.hstack(starts)
        limits, prices = np.tile(deadlines, len(starts)), np.tile(prices, len(starts))
        for number, share in enumerate(FALLING_SHARES):
            view = backwards if number % 2 else forwards
            options = self._walk(view, view.latest(self._durations_s(options), limits), share * prices)
        self._repair(options, limits)
        costs = self._costs_j[self._kind[:, None], options].sum(axis=0).reshape(len(starts), -1)
        return options[:, costs.argmin(axis=0) * len(deadlines_s) + np.arange(len(deadlines_s))]

    def _exchange_size(self, together: int = 1) -> int:
        """How many options all exchanges of `together` instructions walk through."""
        nodes, most = len(self._kind), self._times_s.shape[1]
        others = int((self._problem.table.options[self._kind] >= 0).sum()) - nodes
        return comb(others, together) * nodes * int(most)

    def _exchanged(
        self, options: Array, prices_w: Array, target_s: float, waiting_w: float, room: int
    ) -> tuple[float, Array]:
        """Returns an energy in J and its assignment, which no exchange that fits into the room improves.

        Args:
            room: The most options that may be walked through.
        """
        offered = self._problem.table.options[self._kind] >= 0
        least, together = self._values_j(options[:, None], target_s, waiting_w)[0], 1
        while together <= _MOST_TOGETHER:
            room -= self._exchange_size(together)
            node, other = (offered & (np.arange(offered.shape[1]) != options[:, None])).nonzero()
            if room < 0 or len(node) < together:
                break
            moves = np.array(list(combinations(range(len(node)), together)))
            pinned = np.full((len(options), len(moves)), -1)
            for each in moves.T:
                pinned[node[each], np.arange(len(moves))] = other[each]
            tried = [np.where(pinned < 0, options[:, None], pinned)]
            for number, share in enumerate(_EXCHANGE_SHARES):
                view = self._backwards if number % 2 else self._problem.paths
                limits_s = np.full(len(moves), target_s - self._problem.overhead_s)
                latest = view.latest(self._durations_s(tried[-1]), limits_s)
                tried.append(self._walk(view, latest, np.broadcast_to(share * prices_w, latest.shape), pinned))
            every = np.hstack(tried)
            values = self._values_j(every, target_s, waiting_w)
            best = int(values.argmin())
            together += 1
            if least - values[best] > _SAVES * abs(values[best]):
                options, least, together = every[:, best], values[best], 1
        return float(least), options

    def _values_j(self, options: Array, target_s: float, waiting_w: float) -> Array:
        """The effective energy of assignments plus that of waiting, in J; infinite if an iteration is too long."""
        lengths_s = self._makespans_s(options) + self._problem.overhead_s
        costs_j = self._costs_j[self._kind[:, None], options].sum(axis=0)
        return np.where(lengths_s <= target_s, costs_j + waiting_w * lengths_s, np.inf)

    def _durations_s(self, options: Array) -> Array:
        return self._times_s[self._kind[:, None], options]

    def _makespans_s(self, options: Array) -> Array:
        return self._problem.paths.ends(self._durations_s(options)).ends_s.max(axis=0)

    def _within(self, times: Array, deadlines: Array) -> Array:
        """Returns the relaxed durations, shortened where the solver's tolerance has let them exceed the deadline."""
        fastest = np.repeat(self._times_s[self._kind, 0][:, None], len(deadlines), axis=1)
        latest = self._problem.paths.latest(fastest, deadlines)  # behind a node, everything at its fastest
        targets = np.empty_like(fastest)

        def shortened(nodes: Array, start: Array) -> Array:
            targets[nodes] = np.maximum(fastest[nodes], np.minimum(times[nodes], latest[nodes] - start))
            return targets[nodes]

        self._problem.paths.walk(shortened, *fastest.shape)
        return targets

    def _walk(self, view: LongestPaths, latest: Array, prices: Array, pinned: Array | None = None) -> Array:
        """Returns an option for each node: of those that end by `latest`, the cheapest at the node's price of time.

        If `pinned` is given, a node whose entry is not negative gets the option of that number.
        """
        options = np.empty(latest.shape, int)
        slower = 1e-10 * np.arange(self._times_s.shape[1])[None, :, None]  # of equal options, the slower one

        def cheapest(nodes: Array, start: Array) -> Array:
            kinds = self._kind[nodes]
            times, costs = self._times_s[kinds][..., None], self._costs_j[kinds][..., None]
            room = latest[nodes] - start + _EPSILON_S
            with np.errstate(invalid="ignore"):
                values = np.where(times <= room[:, None], costs + prices[nodes][:, None] * times - slower, np.inf)
            chosen = values.argmin(axis=1)  # the fastest where nothing fits
            options[nodes] = chosen if pinned is None else np.where(pinned[nodes] < 0, chosen, pinned[nodes])
            return self._times_s[kinds[:, None], options[nodes]]

        view.walk(cheapest, *latest.shape)
        return options

    def _repair(self, options: Array, deadlines: Array) -> None:
        """Shortens assignments that exceed the deadline by rounding errors of the walks."""
        paths = self._problem.paths
        for shortening in _SHORTENINGS:
            late = self._makespans_s(options) > deadlines
            if not late.any():
                return
            latest = paths.latest(self._durations_s(options[:, late]), deadlines[late] * (1 - shortening))
            options[:, late] = self._walk(paths, latest, np.zeros_like(latest))
        options[:, self._makespans_s(options) > deadlines] = 0
