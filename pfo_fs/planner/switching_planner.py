"""Plans where clock changes cost something: as many changes as are worth it and as a host's driver can make.

The relaxation's duals are the price of a second at each node. Dynamic programming finds each rank's cheapest runs of
one clock at these prices, changes included (`rank_runs.py`). Each run becomes a group that shares a clock, and a second
linear program gives the time that each group may take. The best of what comes out, of the plan that ignores changes,
and of simple plans are then improved rank by rank (`rank_sweeps.py`).

Where clocks act late, a program that counts that nearly (`Relaxation`) gives times and prices, and rank after
rank takes its best clocks at these prices. At the same prices, each rank's cheapest clocks give a lower bound.

If there are more changes than a host's driver can make, each change of its ranks gets a price, which rises until they
fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from pfo_fs.errors import PlannerError
from pfo_fs.planner.change_relaxation import ChangeRelaxation
from pfo_fs.planner.clock_tables import ClockTables
from pfo_fs.planner.group_rounding import groups_of, rounded, slowed_down
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_runs import RankRuns, Window
from pfo_fs.planner.rank_sweeps import RankSweeps, Value
from pfo_fs.planner.relaxation import Relaxation, Relaxed
from pfo_fs.planner.stage_clocks import StageClocks
from pfo_fs.planner.switch_costs import MOST_BUSY, queue_s
from pfo_fs.planner.timed_changes import TimedChanges

_WEIGHTS = (1.0, 0.6, 2.0)
_TIME_WEIGHT = 10.0
"""The energy of a change is multiplied by each of these in turn: the relaxation that sets the prices does not count
changes. The first weight usually gives the best plan. Where GPUs stand still and the plan is made quickly, energy and
time of a change are multiplied by the second number instead."""
_PRICE_SHARES = (0.5, 1.0)
"""Where clocks act late, ranks take their clocks at these shares of the prices of time at first."""
_TIMES_LATE, _LATE_SHARE = (1.0, 0.5, 1.5), 0.5
"""The program of clocks that act late knows only nearly what that costs, so it is solved as if they acted so many times
as late, too, unless this share of the time is over."""
_SHORTER = 4
"""The groups' program does not know what clocks cost that act late: it is solved so often, for less and less time."""
_MOST_GROUPS = 600
"""With more groups than this, the plan that ignores changes is nearly as good and takes less time."""
_IMPROVED, _MORE_IMPROVED = 2, 3
"""Number of plans, those with least energy, that are then improved; the second number is for a thorough search."""
_CLOSE = 0.01
"""Relative: those with more energy than the best and this are not improved."""
_SWEEPS, _MORE_SWEEPS = 3, 9
_PRICE_STEPS = 12
"""Number of prices that are tried until the changes of a host fit."""
_INFINITE = float("inf")


Search: TypeAlias = Literal["quick", "short", "thorough"]
"""How long to search for a plan in which clock changes cost something.

short: Where GPUs stand still at changes, some seconds.
thorough: Several times as long.
quick: As short, but where GPUs stand still, without the programs that count changes: plans take a second or less and
    save less, since groups of instructions keep their slack. That keeps a job on time whose clocks act later than the
    problem says.
"""


class Switched(NamedTuple):
    """A plan for a problem with costs of changes.

    Attributes:
        clocks_mhz: Clock of each node, in MHz.
        limited: Whether more changes were worth it than the driver of a host can make.
        lower_bound_j: No plan within the length takes less effective energy (plus that of waiting, if it counts), in J.
    """

    clocks_mhz: list[int]
    limited: bool
    lower_bound_j: float


class SwitchingPlanner:
    """Plans a problem in which clock changes cost something.

    Args:
        problem: A problem with costs of changes.
        search: How long to search.
    """

    def __init__(self, problem: Problem, search: Search) -> None:
        self._problem = problem
        self._thorough, self._quick = search == "thorough", search == "quick"
        self._spans = list(pairwise(problem.pipeline.first_nodes))
        self._stage_clocks = StageClocks(problem)
        self._hosts = problem.switch_costs.hosts_of(len(self._spans))

    @cached_property
    def _sweeps(self) -> RankSweeps:
        return RankSweeps(self._problem, self._wrong_s)

    @cached_property
    def timed(self) -> TimedChanges:
        """The search for plans in which changes have a price, in time or for their number."""
        return TimedChanges(self._problem, self._sweeps)

    @cached_property
    def _runs(self) -> list[RankRuns]:
        return [RankRuns(self._problem, rank, wrong_s) for rank, wrong_s in enumerate(self._wrong_s)]

    @cached_property
    def _wrong_s(self) -> list[float]:
        """For each rank, how long a change makes a GPU run at the higher clock without need, in s.

        The wait for other ranks of the host is that of a host whose driver is half as busy as it may be.
        """
        costs = self._problem.switch_costs
        busy = MOST_BUSY / 2
        share = {rank: 1 - 1 / len(host) for host in self._hosts for rank in host}
        return [costs.wrong_clock_s + queue_s(costs, busy * share[rank], busy) for rank in range(len(self._spans))]

    def plan(
        self, relaxed: Relaxed, length_s: float, straggler: bool, ignoring: Sequence[list[int]], seconds: float
    ) -> Switched:
        """Returns the best plan found within the length.

        The simple plans (one clock per stage, every instruction at its highest clock, at its fastest, or at its
        cheapest) are among those that are compared, so the result never takes more energy than the best of them.

        Args:
            relaxed: The answer of the relaxation without changes, whose duals are the first prices.
            length_s: The longest iteration time in s; that of `problem.fastest` or longer.
            straggler: The iteration lasts until `length_s` in any case, so that ending earlier saves no waiting.
            ignoring: Clocks of the nodes, in MHz, of plans that ignore what changes cost, if there are any.
            seconds: Where GPUs stand still, the search ends about this long after it began.
        """
        waiting_w = 0.0 if straggler else self._problem.waiting_power_w
        none = [0.0] * len(self._spans)
        candidates = [*self.simple(length_s, straggler), *ignoring]
        bound_j = relaxed.lower_bound_j
        if self._problem.switch_costs.acts_late_s:
            settled, late_bound_j = self._settled(relaxed, length_s, waiting_w, seconds)
            candidates, bound_j = candidates + settled, max(bound_j, late_bound_j)
        if self._searches_long:
            best, bound_j = self.timed.plan(candidates, relaxed, length_s, waiting_w, none, seconds)
            value = self._sweeps.value(best, length_s, waiting_w)
        else:
            candidates += self._suggested(relaxed, length_s, waiting_w, none)
            best, value = self._improved(candidates, relaxed, length_s, waiting_w, none)
        prices_j = self._host_prices(relaxed, length_s)
        if not any(prices_j):
            return Switched(best, False, bound_j)
        if self._searches_long:
            limited, _ = self.timed.plan([*candidates, best], relaxed, length_s, waiting_w, prices_j, seconds)
            limited_value = self._sweeps.value(limited, length_s, waiting_w)
        else:
            candidates += self._suggested(relaxed, length_s, waiting_w, prices_j)
            limited, limited_value = self._improved(candidates, relaxed, length_s, waiting_w, prices_j)
        return Switched(limited if limited_value < value else best, True, bound_j)

    def _settled(
        self, relaxed: Relaxed, length_s: float, waiting_w: float, seconds: float
    ) -> tuple[list[list[int]], float]:
        """Clocks (MHz) that rank after rank takes at falling prices of time, if clocks act late; and a bound in J."""
        import numpy as np

        none, makespan_s, bound_j = [0.0] * len(self._spans), length_s - self._problem.overhead_s, -_INFINITE
        found: list[list[int]] = []
        now = time.perf_counter()
        until, begin_until = now + seconds, now + _LATE_SHARE * seconds

        def settle(answer: Relaxed, price_share: float) -> None:
            prices_w = price_share * np.array(answer.prices_w)
            found.append(self._sweeps.settle(answer.times_s, prices_w, {}, length_s, none, until))

        for relaxation in self._late_relaxations:
            if found and time.perf_counter() > begin_until:
                break
            with suppress(PlannerError):  # of a short deadline, which fewer plans keep if clocks act otherwise
                answer = relaxation.solve(makespan_s, waiting_w)
                if not self._quick:
                    arcs_w, sinks_w = relaxation.edge_prices_w()
                    bound = self._change_relaxation.bound(arcs_w, sinks_w, waiting_w, np.array(0.0))
                    bound_j = max(bound_j, bound.at(makespan_s))
                for share in _PRICE_SHARES:
                    settle(answer, share)
        if not found:
            settle(relaxed, 1.0)
        return found, bound_j

    @cached_property
    def _late_relaxations(self) -> list[Relaxation]:
        """The programs in which clocks act late: as late as they do, and if there is time, also sooner and later."""
        problem, costs = self._problem, self._problem.switch_costs
        return [
            Relaxation(
                replace(problem, switch_costs=replace(costs, acts_late_s=times * costs.acts_late_s)), acts_late=True
            )
            for times in (_TIMES_LATE[:1] if self._quick else _TIMES_LATE)
        ]

    @cached_property
    def _change_relaxation(self) -> ChangeRelaxation:
        return ChangeRelaxation(self._problem, ClockTables(self._problem))

    @property
    def _still(self) -> bool:
        return self._problem.switch_costs.stands_still_s > 0

    @property
    def _searches_long(self) -> bool:
        """Whether GPUs stand still and there is time for the programs that count changes; their plans use all slack."""
        return self._still and not self._quick

    def simple(self, length_s: float, straggler: bool) -> list[list[int]]:
        """The clocks (MHz) of simple plans, some of which may be late."""
        problem = self._problem
        simple = [
            problem.frequencies_of(problem.fastest),
            [max(choices.frequencies_mhz) for choices in problem.choices],
            problem.frequencies_of([choices.hull[-1] for choices in problem.choices]),
        ]
        straggler_s = length_s if straggler else None
        # Of a rank with several stages, one clock per stage makes changes, and one clock for all makes none.
        for by_stage in (self._stage_clocks.best, self._stage_clocks.best_same):
            clocks_mhz = by_stage(length_s, straggler_s)
            if clocks_mhz is not None:
                simple.append([clocks_mhz[i.stage] for i in problem.pipeline.instructions])
        return simple

    def _improved(
        self,
        candidates: Sequence[list[int]],
        relaxed: Relaxed,
        length_s: float,
        waiting_w: float,
        prices_j: Sequence[float],
    ) -> tuple[list[int], Value]:
        """The best plan after the best candidates have been improved, and how good it is."""
        sweeps, problem = self._sweeps, self._problem
        valued = [(sweeps.value(clocks_mhz, length_s, waiting_w), clocks_mhz) for clocks_mhz in candidates]
        best = [min(valued)]
        most = _MORE_IMPROVED if self._thorough else _IMPROVED
        least_j = min(value.energy_j for value, _ in valued)
        # Those with least energy are improved even if the drivers cannot make all changes, as sweeps repair that.
        for value, clocks_mhz in sorted(valued, key=lambda each: each[0].energy_j)[:most]:
            if value.energy_j > least_j + _CLOSE * abs(least_j):
                continue
            # Where waiting costs energy, slower clocks save energy up to the relaxation's end at most.
            end_s = max(self._iteration_time_s(clocks_mhz), relaxed.makespan_s + problem.overhead_s)
            limit_s = min(length_s, end_s) if waiting_w else length_s
            found = sweeps.improve(clocks_mhz, limit_s, waiting_w, prices_j, self._most_sweeps)
            best.append((sweeps.value(found, length_s, waiting_w), found))
        value, clocks = min(best)
        return clocks, value

    @property
    def _most_sweeps(self) -> int:
        """Sweeps use up the slack that groups leave. Where GPUs stand still, a plan made quickly keeps this slack: it
        is what keeps a job on time whose clocks act later than the model says."""
        if self._thorough:
            return _MORE_SWEEPS
        return 0 if self._still else _SWEEPS

    def _iteration_time_s(self, clocks_mhz: Sequence[int]) -> float:
        problem = self._problem
        return problem.iteration_time_of(
            [choices.option_at[mhz] for choices, mhz in zip(problem.choices, clocks_mhz, strict=True)]
        )

    def _suggested(
        self, relaxed: Relaxed, length_s: float, waiting_w: float, prices_j: Sequence[float]
    ) -> Iterator[list[int]]:
        """Yields what the linear programs suggest: clocks of groups."""
        problem = self._problem
        tried = set()
        weights = (_TIME_WEIGHT,) if self._still else _WEIGHTS
        for weight in weights if self._thorough else weights[:1]:
            prices = relaxed.prices_w
            # The second time with the prices of the groups' program, which counts the time that ranks stand still.
            for _ in range(2 if self._still or self._thorough else 1):
                groups = groups_of(problem, self._cheapest(prices, prices_j, weight))
                key = tuple(map(len, groups))
                if key in tried or len(groups) > _MOST_GROUPS:
                    break
                tried.add(key)
                relaxation, within_s = Relaxation(problem, groups), length_s
                for _ in range(_SHORTER if problem.switch_costs.acts_late_s else 1):
                    try:
                        answer = relaxation.solve(within_s - problem.overhead_s, waiting_w)
                    except PlannerError:
                        break
                    prices = answer.prices_w
                    found = rounded(problem, groups, answer)
                    late_s = problem.iteration_time_of(found) - length_s
                    if late_s <= 0:
                        found = slowed_down(problem, groups, found, length_s)
                        yield problem.frequencies_of(found)
                        break
                    within_s -= late_s

    def _cheapest(self, time_prices_w: Sequence[float], prices_j: Sequence[float], weight: float) -> list[int]:
        """Each rank's cheapest clocks (MHz) at these prices of time, wherever other ranks are."""
        import numpy as np

        clocks: list[int] = []
        for rank, (first, end) in enumerate(self._spans):
            anywhere = Window(np.zeros(end - first), np.full(end - first, 1e9), np.array(time_prices_w[first:end]))
            found = self._runs[rank].best(anywhere, prices_j[rank], weight)
            clocks += found or [max(self._problem.choices[node].frequencies_mhz) for node in range(first, end)]
        return clocks

    def _host_prices(self, relaxed: Relaxed, length_s: float) -> list[float]:
        """For each rank, the price of a change in J at which the changes of its host fit; 0 where all fit."""
        most = self._problem.switch_costs.most_changes(length_s)
        prices_j = [0.0] * len(self._spans)
        if most >= max(sum(self._spans[rank][1] - self._spans[rank][0] for rank in host) for host in self._hosts):
            return prices_j
        low_j = [0.0] * len(self._hosts)
        high_j = [_INFINITE] * len(self._hosts)
        mean_j = sum(abs(choices.costs_j[0]) for choices in self._problem.choices) / len(self._problem.choices)
        for _ in range(_PRICE_STEPS):
            clocks = self._cheapest(relaxed.prices_w, prices_j, 1.0)
            changes = self._problem.changes(clocks)
            for number, host in enumerate(self._hosts):
                count = sum(self._spans[r][0] <= node < self._spans[r][1] for r in host for node in changes)
                price_j = prices_j[host[0]]
                if count + len(host) <= most:
                    high_j[number] = price_j
                else:
                    low_j[number] = price_j
                if high_j[number] == _INFINITE:
                    price_j = 4 * price_j or mean_j / 64
                elif high_j[number]:
                    price_j = (low_j[number] + high_j[number]) / 2
                for rank in host:
                    prices_j[rank] = price_j
        for number, host in enumerate(self._hosts):
            for rank in host:
                prices_j[rank] = high_j[number] if high_j[number] < _INFINITE else prices_j[rank]
        return prices_j
