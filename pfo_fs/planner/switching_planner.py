"""Plans where clock changes cost something: as many changes as are worth it and as a host's driver can make.

The relaxation's duals are the price of a second at each node. Dynamic programming finds each rank's cheapest runs of
one clock at these prices, changes included (`rank_runs.py`). Each run becomes a group that shares a clock, and a second
linear program gives the time that each group may take. The best of what comes out, of the plan that ignores changes,
and of simple plans are then improved rank by rank (`rank_sweeps.py`).

Where GPUs stand still at changes, or clocks act late, rank after rank also takes its best clocks at prices of time that
fall to nothing (`RankSweeps.settle`); the prices are those of the relaxation, or where clocks act late, of a program
that counts that nearly.

If there are more changes than a host's driver can make, each change of its ranks gets a price, which rises until they
fit.

How long a search takes is a count, never a time: the same problem has the same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Literal, NamedTuple, TypeAlias

from pfo_fs.errors import PlannerError
from pfo_fs.planner.group_rounding import groups_of, rounded, slowed_down
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_runs import RankRuns, Window
from pfo_fs.planner.rank_sweeps import RankSweeps, Value
from pfo_fs.planner.relaxation import Relaxation, Relaxed
from pfo_fs.planner.stage_clocks import StageClocks
from pfo_fs.planner.switch_costs import MOST_BUSY, queue_s

_WEIGHTS = (1.0, 0.6, 2.0)
_TIME_WEIGHT = 10.0
"""The energy of a change is multiplied by each of these in turn: the relaxation that sets the prices does not count
changes. The first weight usually gives the best plan. Where GPUs stand still and the plan is made quickly, energy and
time of a change are multiplied by the second number instead."""
_PRICE_SHARES = (0.5, 1.0, 2.0)
"""Ranks take their clocks at these shares of the prices of time at first: which one is best depends on how much time a
change takes against an instruction."""
_TIMES_LATE = (1.0, 0.5, 1.5)
"""The program of clocks that act late knows only nearly what that costs, so it is also solved as if they acted so many
times as late."""
_SETTLINGS = {"quick": 2, "short": 4, "thorough": 9}
"""For each search, how often all ranks take their clocks at falling prices, each time from other prices."""
_SETTLED_CLOCKS = {"quick": 80_000, "short": 80_000, "thorough": 300_000}
"""For each search, the most clocks of instructions that are tried by this, so that large pipelines do not take minutes:
20,000 of them (8 x 96 instructions with 13 useful clocks each) take about a second."""
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

short: Some seconds at most, unless there are thousands of instructions.
thorough: Several times as long.
quick: As short, but where GPUs stand still, groups of instructions keep their slack: plans save less, and keep a job on
    time whose clocks act later than the problem says.
"""


class Switched(NamedTuple):
    """A plan for a problem with costs of changes.

    Attributes:
        clocks_mhz: Clock of each node, in MHz.
        limited: Whether more changes were worth it than the driver of a host can make.
    """

    clocks_mhz: list[int]
    limited: bool


class SwitchingPlanner:
    """Plans a problem in which clock changes cost something.

    Args:
        problem: A problem with costs of changes.
        search: How long to search.
    """

    def __init__(self, problem: Problem, search: Search) -> None:
        self._problem, self._search = problem, search
        self._thorough, self._quick = search == "thorough", search == "quick"
        self._spans = list(pairwise(problem.pipeline.first_nodes))
        self._stage_clocks = StageClocks(problem)
        self._hosts = problem.switch_costs.hosts_of(len(self._spans))

    @cached_property
    def _sweeps(self) -> RankSweeps:
        return RankSweeps(self._problem, self._wrong_s)

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
        self, relaxed: Relaxed, length_s: float, straggler: bool, ignoring: Sequence[list[int]], lengths: int = 1
    ) -> Switched:
        """Returns the best plan found within the length.

        The simple plans (one clock per stage, every instruction at its highest clock, at its fastest, or at its
        cheapest) are among those that are compared, so the result never takes more energy than the best of them.

        Args:
            relaxed: The answer of the relaxation without changes, whose duals are the first prices.
            length_s: The longest iteration time in s; that of `problem.fastest` or longer.
            straggler: The iteration lasts until `length_s` in any case, so that ending earlier saves no waiting.
            ignoring: Clocks of the nodes, in MHz, of plans that ignore what changes cost, if there are any.
            lengths: Number of lengths that are planned together; each gets a part of the search.
        """
        waiting_w = 0.0 if straggler else self._problem.waiting_power_w
        none = [0.0] * len(self._spans)
        settlings = max(1, self._settlings // lengths)
        candidates = [*self._simple(length_s, straggler), *ignoring]
        candidates += self._found_at(relaxed, length_s, waiting_w, none, settlings)
        best, value = self._improved(candidates, relaxed, length_s, waiting_w, none)
        prices_j = self._host_prices(relaxed, length_s)
        if not any(prices_j):
            return Switched(best, False)
        candidates += self._found_at(relaxed, length_s, waiting_w, prices_j, settlings)
        limited, limited_value = self._improved(candidates, relaxed, length_s, waiting_w, prices_j)
        return Switched(limited if limited_value < value else best, True)

    def priced(self, relaxed: Relaxed, length_s: float, price_j: float, known: Sequence[Sequence[int]]) -> list[int]:
        """Returns the clocks (MHz) of the plan found that takes least energy if each clock change costs energy.

        Args:
            relaxed: As in `plan`.
            length_s: The longest iteration time, in s.
            price_j: The price of a change, in J.
            known: Clocks (MHz) of plans that are known.
        """
        waiting_w, sweeps = self._problem.waiting_power_w, self._sweeps
        prices_j = [price_j] * len(self._spans)

        def valued(clocks_mhz: list[int]) -> Value:
            return sweeps.with_prices(sweeps.value(clocks_mhz, length_s, waiting_w), clocks_mhz, prices_j)

        candidates = self._found_at(relaxed, length_s, waiting_w, prices_j, self._settlings)
        found = sorted(candidates, key=valued)[:_IMPROVED]
        found.append(min([*self._simple(length_s, straggler=False), *map(list, known)], key=valued))
        found += [sweeps.improve(each, length_s, waiting_w, prices_j, self._most_sweeps, priced=True) for each in found]
        return min(found, key=valued)

    def _found_at(
        self, relaxed: Relaxed, length_s: float, waiting_w: float, prices_j: Sequence[float], settlings: int
    ) -> list[list[int]]:
        """Clocks (MHz) that are found at prices of time and of changes; some may be late."""
        costs = self._problem.switch_costs
        found: list[list[int]] = []
        if costs.acts_late_s or (costs.stands_still_s and not self._quick) or (any(prices_j) and not self._quick):
            found += islice(self._settled(relaxed, length_s, waiting_w, prices_j), settlings)
        return [*found, *self._suggested(relaxed, length_s, waiting_w, prices_j)]

    @cached_property
    def _settlings(self) -> int:
        """How often ranks settle for one plan."""
        at_once = sum(len(runs.kind) * len(runs.clocks_mhz) for runs in self._runs)
        return max(1, min(_SETTLINGS[self._search], _SETTLED_CLOCKS[self._search] // at_once))

    def _settled(
        self, relaxed: Relaxed, length_s: float, waiting_w: float, prices_j: Sequence[float]
    ) -> Iterator[list[int]]:
        """Yields clocks (MHz) that rank after rank takes at falling prices of time, at each of some first prices."""
        import numpy as np

        late = bool(self._problem.switch_costs.acts_late_s)
        makespan_s, answers = length_s - self._problem.overhead_s, 0
        for relaxation in self._late_relaxations if late else ():
            with suppress(PlannerError):  # of a short deadline, which fewer plans keep if clocks act otherwise
                answer = relaxation.solve(makespan_s, waiting_w)
                answers += 1
                for share in _PRICE_SHARES:
                    yield self._sweeps.settle(answer.times_s, share * np.array(answer.prices_w), length_s, prices_j)
        for share in () if answers else _PRICE_SHARES:
            yield self._sweeps.settle(relaxed.times_s, share * np.array(relaxed.prices_w), length_s, prices_j)

    @cached_property
    def _late_relaxations(self) -> list[Relaxation]:
        """The programs in which clocks act late: as late as they do, and then sooner and later."""
        problem, costs = self._problem, self._problem.switch_costs
        return [
            Relaxation(
                replace(problem, switch_costs=replace(costs, acts_late_s=times * costs.acts_late_s)), acts_late=True
            )
            for times in (_TIMES_LATE[:1] if self._quick else _TIMES_LATE)
        ]

    @property
    def _still(self) -> bool:
        return self._problem.switch_costs.stands_still_s > 0

    def _simple(self, length_s: float, straggler: bool) -> list[list[int]]:
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
        if self._quick and self._still:
            return 0
        return _MORE_SWEEPS if self._thorough else _SWEEPS

    def _iteration_time_s(self, clocks_mhz: Sequence[int]) -> float:
        # A clock that is of no use by itself may be part of a plan, for want of changes: it is among those measured.
        problem = self._problem
        changes = problem.changes(clocks_mhz) if problem.switch_costs.stands_still_s else ()
        return problem.timing(problem.times_at(clocks_mhz), changes).iteration_time_s

    def _suggested(
        self, relaxed: Relaxed, length_s: float, waiting_w: float, prices_j: Sequence[float]
    ) -> Iterator[list[int]]:
        """Yields what the linear programs suggest: clocks of groups."""
        problem = self._problem
        tried = set()
        weights = (_TIME_WEIGHT,) if self._still and self._quick else _WEIGHTS
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
