"""The search for plans: least mean energy within a mean iteration time, over recent iterations of all pipelines.

1. A convex program over all scenarios gives durations and the price of time (`scenario_relaxation`; `relaxation` where
   there is one scenario).
2. Dynamic programming gives the cheapest runs of one clock near these durations, clock changes included (`rank_runs`).
3. A descent brings the plan within the time and improves it (`scenario_descent`).

The search keeps a limit on the number of clock changes by a price of each change: a higher price means fewer changes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial

from pfo_fs.arrays import Array, np
from pfo_fs.planner.rank_runs import RankRuns
from pfo_fs.planner.scenario_descent import MOST_WALKS, ScenarioDescent
from pfo_fs.planner.scenario_model import Clocks, Played, Scenarios
from pfo_fs.planner.scenario_relaxation import ScenarioAnswer, ScenarioRelaxation

__all__ = ["ScenarioPlanner", "Scenarios"]

_FURTHER = 48
"""Number of scenarios that are added. In iterations that it was not made for, a plan for 16 iterations of real jobs is
late by at most 0.06 percentage points with them, and by 0.1 to 0.16 without."""
_CELLS = 65_536
"""Scenarios are added only up to this product of instructions, pipelines and iterations; above it, the relaxation makes
fewer steps."""
_STEPS, _LEAST_STEPS = 100, 50
"""Steps of each stage of the relaxation. With 60 steps, not 100, a plan of 16 pipelines of 8 stages x 96 micro-batches
saves at most 0.05 points less."""
_FURTHER_STEPS = 40
"""Steps of the last stage where the relaxation begins from an earlier answer."""
_CHANGE_SHARE = 1e-4
"""The lowest price of a change: if every instruction changed the clock, all prices would add up to this share of the
energy. So a change that saves almost nothing is left out."""
_PRICE_STEPS = 12
"""If drivers cannot make all changes of a plan, this many prices of a change are tried."""
_MORE = (0.0, 300.0, 1200.0)
"""A thorough search tries several prices of a change: the price found, plus these multiples of the lowest price."""
_FACTORS = 6
"""To find runs that are just in time, this many prices of time are tried."""
_MOST_OF = 0.8
"""If a plan saves less than this share of what could be saved if clock changes cost nothing, the search is thorough."""
_FACTOR = 4.0
"""Until a price is high enough, each further price is this multiple of the price before."""


class ScenarioPlanner:
    """Plans for some scenarios; the same calls give the same plans.

    Args:
        near: `answer` of a planner for about the same scenarios; it saves most of the time that the first plan takes.
        waiting_w, most_walks: As for `ScenarioDescent`.

    Attributes:
        answer: The relaxation's answer for the latest plan; None if no plan has needed it.
        limited: Whether the latest plan would have had more clock changes if the drivers of hosts could make more.
    """

    def __init__(
        self,
        scenarios: Scenarios,
        near: ScenarioAnswer | None = None,
        *,
        waiting_w: float | None = None,
        most_walks: int = MOST_WALKS,
    ) -> None:
        self._scenarios = scenarios
        self._descending = partial(ScenarioDescent, waiting_w=waiting_w, most_walks=most_walks)
        self._free = scenarios.problem.switch_costs.none
        self.answer = near
        self.limited = False
        self._runs: tuple[ScenarioAnswer, RankRuns] | None = None

    @cached_property
    def _wider(self) -> Scenarios:
        """The scenarios and recombined ones, so that a plan fits more iterations than these few."""
        scenarios = self._scenarios
        further = min(_FURTHER, _CELLS // (scenarios.nodes * scenarios.pipelines) - scenarios.iterations)
        return scenarios if further < 1 or scenarios.iterations == 1 else scenarios.recombined(further)

    @cached_property
    def _relaxation(self) -> ScenarioRelaxation:
        return ScenarioRelaxation(self._wider, self.answer)

    @cached_property
    def _descent(self) -> ScenarioDescent:
        return self._descending(self._scenarios)

    @cached_property
    def _wider_descent(self) -> ScenarioDescent:
        return self._descent if self._wider is self._scenarios else self._descending(self._wider)

    @cached_property
    def _at_max_clocks(self) -> Played:
        return self._scenarios.play(self._scenarios.max_clocks)

    @cached_property
    def _wider_share(self) -> float:
        """The mean time of the wider scenarios as a share of that of the scenarios, at max clocks."""
        return self._wider.play(self._wider.max_clocks).mean_s / self._at_max_clocks.mean_s

    def at(self, mean_s: float, near: Clocks | None = None) -> list[list[int]]:
        """Returns for each group the clock of each node, in MHz: least mean energy within a mean iteration time.

        Args:
            mean_s: The longest mean iteration time, in s. Where no plan is found within it, all clocks are the highest.
            near: A plan that may be good already, with clocks in MHz; the search also tries plans near it.
        """
        answer = self._relaxed(mean_s)
        starts = [] if near is None else [self._wider.offered(near)]
        best = self.search(answer, mean_s, starts, [self._one_clock_per_rank(answer, mean_s)])
        saved = 1 - best.energy_j / self._at_max_clocks.energy_j
        if not self._free and saved < _MOST_OF * self._relaxation.saved(answer):
            best = self.search(answer, mean_s, starts, [best], thorough=True)
        return self._scenarios.mhz(best.clocks)

    def _relaxed(self, mean_s: float) -> ScenarioAnswer:
        size = self._wider.durations_s.size
        steps = max(_LEAST_STEPS, round(_STEPS * min(1.0, _CELLS / size))) if self.answer is None else _FURTHER_STEPS
        self.answer = self._relaxation.solve(mean_s * self._wider_share, steps)
        return self.answer

    def _runs_near(self, answer: ScenarioAnswer) -> RankRuns:
        if self._runs is None or self._runs[0] is not answer:
            self._runs = answer, RankRuns(self._wider, self._wider_descent, answer)
        return self._runs[1]

    def search(
        self,
        answer: ScenarioAnswer,
        mean_s: float,
        starts: Iterable[Array] = (),
        known: Iterable[Played] = (),
        *,
        thorough: bool = False,
    ) -> Played:
        """Returns the best plan: near a relaxation's answer or one of `starts`, one of `known`, or max clocks.

        Args:
            mean_s: As for `at`.
            starts: Clocks near which there may be good plans, as positions.
            known: Plans that compete as they are, without a descent.
            thorough: Whether the search begins in several places near the answer, if clock changes cost something.
        """
        near = self._near(answer, mean_s * self._wider_share, thorough and not self._free)
        improved = [self._improved(start, mean_s) for start in (*near, *starts)]
        fitting = [one for one in (*improved, *known, self._at_max_clocks) if one is not None and one.mean_s <= mean_s]
        return min(fitting or [self._at_max_clocks], key=self._descent.value)

    def _improved(self, start: Array, mean_s: float) -> Played | None:
        """The plan that a descent finds from `start`, clocks as positions."""
        found = self._wider_descent.improve(start, mean_s * self._wider_share)
        if found is None or self._wider is self._scenarios:
            return found
        return self._descent.quickened(found.clocks, mean_s)

    def one_clock_per_rank(self, mean_s: float) -> list[list[int]]:
        """Returns clocks as `at` does, but with one clock for all instructions of a rank."""
        return self._scenarios.mhz(self._one_clock_per_rank(self._relaxed(mean_s), mean_s).clocks)

    def _one_clock_per_rank(self, answer: ScenarioAnswer, mean_s: float) -> Played:
        """The best plan near the relaxation's clock of each rank, the lowest clock of all ranks in time, or max clocks.

        A descent from max clocks alone may find nothing: where equal ranks wait for each other, no rank saves by a
        lower clock of its own.
        """
        scenarios, descent = self._scenarios, ScenarioDescent(self._scenarios, whole_ranks=True)
        per_rank = self._runs_near(answer).at(float("inf"))  # no change of the clock is worth this price
        common = np.flatnonzero(scenarios.table.offered.all(axis=0)).tolist()
        alike = partial(np.full, per_rank.shape)
        fast = common[bisect_left(common, True, key=lambda number: scenarios.play(alike(number)).mean_s <= mean_s) :]
        found = [descent.improve(start, mean_s) for start in (per_rank, *map(alike, fast[:1]))]
        plans = [plan for plan in (*found, self._at_max_clocks) if plan is not None]
        return min(plans, key=lambda plan: (plan.violations, plan.energy_j))

    def _near(self, answer: ScenarioAnswer, mean_s: float, thorough: bool) -> Iterator[Array]:
        """Yields runs of one clock near the relaxation's durations, as positions; they may be a little too slow.

        The price of a change rises until drivers can make all changes. If `thorough`, there are also plans with fewer
        changes, and plans at a price of time that makes them just in time.
        """
        scenarios = self._wider
        runs = self._runs_near(answer)

        def played(price_j: float, factor: float = 1.0) -> Played:
            return scenarios.play(runs.at(price_j, factor))

        def in_time(price_j: float, factor: float) -> bool:
            return played(price_j, factor).mean_s <= mean_s

        first_j = _CHANGE_SHARE * self._at_max_clocks.energy_j / (scenarios.nodes * scenarios.pipelines)
        price_j = first_j
        found = played(price_j)
        self.limited = bool(found.switch_load.overloaded)
        if found.violations:
            price_j = _least_price_j(2 * price_j, lambda each_j: not played(each_j).violations, _PRICE_STEPS)
            found = played(price_j)
        yield found.clocks
        for more in _MORE if thorough else ():
            each_j = price_j + more * first_j
            found = played(each_j)
            if more:
                yield found.clocks
            if found.mean_s > mean_s:
                yield played(each_j, _least_price_j(2.0, partial(in_time, each_j), _FACTORS)).clocks


def _least_price_j(first_j: float, is_enough: Callable[[float], bool], steps: int) -> float:
    """Returns the least price found that `is_enough` accepts; if there is none, a very high one."""
    too_low_j, enough_j, price_j = 0.0, float("inf"), first_j
    for _ in range(steps):
        if is_enough(price_j):
            enough_j = price_j
        else:
            too_low_j = price_j
        if enough_j == float("inf"):
            price_j *= _FACTOR
        else:
            price_j = (too_low_j * enough_j) ** 0.5 if too_low_j else enough_j / _FACTOR
    return price_j if enough_j == float("inf") else enough_j
