"""Plans where a clock change costs something: as many changes as are worth it and as a host's driver can make.

The candidates are simple plans, the plan that ignores what changes cost, and what ranks take one after another at
prices of time that begin at the relaxation's duals and fall to nothing (`RankSweeps.round_plan`). The best candidates
are then improved by the descent that scenarios have, too (`ScenarioDescent`).

If there are more changes than a host's driver can make, or than the user allows, each change gets a price, which
bisection finds (`change_price`).

How long a search takes is a count, never a time: the same problem has the same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from pfo_fs.planner.baselines import StageClocks
from pfo_fs.planner.change_price import first_price_j, least_price_j
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_sweeps import RankSweeps
from pfo_fs.planner.relaxation import Relaxed
from pfo_fs.planner.scenario_descent import ScenarioDescent
from pfo_fs.planner.switch_costs import MOST_BUSY, queue_s

_ROUNDINGS = ((1.0, 0.0), (2.0, 0.0), (0.5, 0.0), (1.0, 2.0))
"""Ranks take their clocks at these shares of the prices of time at first, and at these multiples of the first price of
a change (`first_price_j`): which is best depends on what changes cost against instructions."""
_ROUNDED_PAIRS = 800_000
"""The most pairs of clocks in a row that are tried by this for one plan, once at least: 260,000 of them (8 x 96
instructions with 13 useful clocks each) take about a second."""
_IMPROVED = 2
"""Number of candidates, those with least energy, that are then improved."""
_CLOSE = 0.01
"""Relative: candidates with more energy than the best and this are not improved."""
_WALKS = 200
"""The most walks in which a candidate is improved: more save less than 0.02 %."""
_PRICE_STEPS = 12
"""Number of prices that are tried until the changes of a host fit."""


class Switched(NamedTuple):
    """A plan for a problem with costs of changes.

    Attributes:
        clocks_mhz: Clock of each node, in MHz.
        limited: Whether more changes were worth it than the driver of a host can make.
    """

    clocks_mhz: list[int]
    limited: bool


class Request(NamedTuple):
    """What a plan is made for.

    Attributes:
        relaxed: The answer of the relaxation without changes, whose duals are the first prices of time.
        length_s: The longest iteration time in s; that of the fastest plan or longer.
        straggler: The iteration lasts until `length_s` in any case, so that ending earlier saves no waiting.
    """

    relaxed: Relaxed
    length_s: float
    straggler: bool = False


class SwitchingPlanner:
    """Plans a problem in which clock changes cost something.

    Args:
        problem: A problem with costs of changes.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._spans = list(pairwise(problem.pipeline.first_nodes))
        self._stage_clocks = StageClocks(problem)
        self._hosts = problem.switch_costs.hosts_of(len(self._spans))

    @cached_property
    def _sweeps(self) -> RankSweeps:
        """The search; a change waits for other ranks as on a host whose driver is half as busy as it may be."""
        costs = self._problem.switch_costs
        busy = MOST_BUSY / 2
        share = {rank: 1 - 1 / len(host) for host in self._hosts for rank in host}
        wrong_s = [costs.wrong_clock_s + queue_s(costs, busy * share[rank], busy) for rank in range(len(self._spans))]
        return RankSweeps(self._problem, wrong_s)

    def plan(self, request: Request, ignoring: Sequence[list[int]], lengths: int = 1) -> Switched:
        """Returns the best plan found within the length.

        The simple plans (one clock per stage, every instruction at its max clock, at its fastest, or at its
        cheapest) are among those that are compared, so the result never takes more energy than the best of them.

        Args:
            request: What the plan is made for.
            ignoring: Clocks of the nodes, in MHz, of plans that ignore what changes cost, if there are any.
            lengths: Number of lengths that are planned together; each gets a part of the search.
        """
        candidates = [*self._simple(request), *ignoring, *self._rounded(request, 0.0, lengths)]
        best, value = self._improved(candidates, request, 0.0)
        price_j = self._host_price_j(request)
        if not price_j:
            return Switched(best, False)
        candidates += self._rounded(request, price_j, lengths)
        limited, limited_value = self._improved(candidates, request, price_j)
        return Switched(limited if limited_value < value else best, True)

    def priced(self, request: Request, price_j: float, known: Sequence[Sequence[int]]) -> list[int]:
        """Returns the clocks (MHz) of the plan found that takes least energy if each clock change costs energy.

        Args:
            request: What the plan is made for.
            price_j: The price of a change, in J.
            known: Clocks (MHz) of plans that are known.
        """
        candidates = [*self._simple(request), *map(list, known), *self._rounded(request, price_j)]
        return self._improved(candidates, request, price_j, counted=True)[0]

    def _rounded(self, request: Request, price_j: float, lengths: int = 1) -> list[list[int]]:
        """Clocks (MHz) that rank after rank takes at falling prices of time, at each of some first prices."""
        relaxed = request.relaxed
        first_j = first_price_j(self._problem)
        count = max(1, min(len(_ROUNDINGS), _ROUNDED_PAIRS // self._sweeps.clock_pairs) // lengths)
        return [
            self._sweeps.round_plan(relaxed, share, request.length_s, price_j + times * first_j)
            for share, times in _ROUNDINGS[:count]
        ]

    def _waiting_w(self, request: Request) -> float:
        """Power of waiting, in W; 0 where the iteration lasts until the end of the length in any case."""
        return 0.0 if request.straggler else self._problem.waiting_power_w

    def _simple(self, request: Request) -> list[list[int]]:
        """The clocks (MHz) of simple plans, some of which may be late."""
        problem = self._problem
        simple = [
            problem.fastest_mhz,
            [max(choices.frequencies_mhz) for choices in problem.choices],
            problem.cheapest_mhz,
        ]
        straggler_s = request.length_s if request.straggler else None
        # Of a rank with several stages, one clock per stage makes changes, and one clock for all makes none.
        for by_stage in (self._stage_clocks.best, self._stage_clocks.best_same):
            clocks_mhz = by_stage(request.length_s, straggler_s)
            if clocks_mhz is not None:
                simple.append([clocks_mhz[i.stage] for i in problem.pipeline.instructions])
        return simple

    def _improved(
        self, candidates: Sequence[list[int]], request: Request, price_j: float, *, counted: bool = False
    ) -> tuple[list[int], tuple[int, float]]:
        """The best plan after the best candidates have been improved, and how good it is (`ScenarioDescent.value`).

        Args:
            candidates: Clocks (MHz) of plans, at least one of them within the length.
            request: What the plan is made for.
            price_j: The price of a change in J.
            counted: Whether this price counts as energy; otherwise it only says which plans are tried.
        """
        alike, length_s, waiting_w = self._problem.alike, request.length_s, self._waiting_w(request)
        search = ScenarioDescent(alike, waiting_w=waiting_w, change_price_j=price_j, most_walks=_WALKS)
        judge = search if counted or not price_j else ScenarioDescent(alike, waiting_w=waiting_w)
        played = [alike.play(alike.numbers([clocks_mhz])) for clocks_mhz in candidates]
        within = sorted((plan for plan in played if plan.mean_s <= length_s), key=lambda plan: judge.value(plan)[1])
        least_j = judge.value(within[0])[1]
        # Those with least energy are improved even if the drivers cannot make all changes: fewer changes cost less.
        close = [plan for plan in within[:_IMPROVED] if judge.value(plan)[1] <= least_j + _CLOSE * abs(least_j)]
        improved = [search.improve(plan.clocks, length_s) for plan in close]
        best = min([*within, *(plan for plan in improved if plan is not None)], key=judge.value)
        return alike.mhz(best.clocks)[0], judge.value(best)

    def _host_price_j(self, request: Request) -> float:
        """The price of a change in J at which the changes of each host fit; 0 where they fit in any case."""
        spans, most = self._spans, self._problem.switch_costs.most_changes(request.length_s)
        if most >= max(sum(spans[rank][1] - spans[rank][0] for rank in host) for host in self._hosts):
            return 0.0

        def fit(price_j: float) -> bool:
            changes = self._problem.changes(self._sweeps.cheapest(request.relaxed.prices_w[:, 0], price_j))
            return all(
                len(host) + sum(spans[rank][0] <= node < spans[rank][1] for rank in host for node in changes) <= most
                for host in self._hosts
            )

        return 0.0 if fit(0.0) else least_price_j(first_price_j(self._problem), fit, _PRICE_STEPS)
