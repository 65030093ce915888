"""Plans for scenarios: least mean energy within a mean iteration time, over recent iterations of all pipelines.

A convex program over all scenarios gives durations and the price of time (`scenario_relaxation`), dynamic programming
the runs of one clock near them that cost least, changes included (`scenario_runs`), and a descent puts them on time and
improves them (`scenario_descent`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pfo_fs.planner.baselines import all_maximum
from pfo_fs.planner.change_price import least_price_j
from pfo_fs.planner.planner import Planner
from pfo_fs.planner.scenario_descent import ScenarioDescent
from pfo_fs.planner.scenario_model import Clocks, Played, Scenarios
from pfo_fs.planner.scenario_relaxation import ScenarioAnswer, ScenarioRelaxation
from pfo_fs.planner.scenario_runs import ScenarioRuns
from pfo_fs.planner.switch_costs import SwitchCosts

__all__ = ["ScenarioPlanner", "Scenarios"]

_CLOSE = 1e-9
"""Relative: a mean time that is over its limit by less is within it."""
_FURTHER = 48
"""Number of scenarios that are added: with them, plans for 16 iterations of real jobs are at most 0.06 points later on
other iterations than on these, in place of 0.1 to 0.16."""
_CELLS = 65_536
"""No scenarios are added beyond this product of instructions, pipelines and iterations, and the relaxation makes fewer
steps."""
_STEPS, _LEAST_STEPS = 100, 50
"""Steps of each stage of the relaxation. With 60 in place of 100, that of 16 pipelines of 8 x 96 saves at most 0.05
points less."""
_FURTHER_STEPS = 40
"""Steps of the last stage from an answer that is nearly right."""
_CHANGE_SHARE = 1e-4
"""A change of every clock may cost this share of the energy, so that there are none without need."""
_SAVES_NOTHING = 0.01
"""Relative: where the descent saves less, and changes cost something, it may have been stuck where it began."""
_PRICE_STEPS = 12
"""Number of prices of a change that are tried where drivers cannot make the changes."""


class ScenarioPlanner:
    """Plans for some scenarios; the same calls give the same plans.

    Args:
        scenarios: The scenarios.
        near: `answer` of a planner for about the same scenarios; it saves most of the time that the first plan takes.

    Attributes:
        answer: What the program over all scenarios found for the latest plan; None: it was not needed.
    """

    def __init__(self, scenarios: Scenarios, near: ScenarioAnswer | None = None) -> None:
        self._scenarios = scenarios
        self.answer = near

    @cached_property
    def _wider(self) -> Scenarios:
        """The scenarios and some that are like them, so that a plan does not only fit these few."""
        scenarios = self._scenarios
        further = min(_FURTHER, _CELLS // (scenarios.nodes * scenarios.pipelines) - scenarios.iterations)
        return scenarios if further < 1 or scenarios.iterations == 1 else scenarios.recombined(further)

    @cached_property
    def _relaxation(self) -> ScenarioRelaxation:
        return ScenarioRelaxation(self._wider, self.answer)

    @cached_property
    def _descent(self) -> ScenarioDescent:
        return ScenarioDescent(self._wider)

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
            near: A plan that may be good already, with clocks in MHz; a plan near it counts, too.
        """
        scenarios = self._scenarios
        starts = [self._near_relaxed(mean_s), *([] if near is None else [self._wider.offered(near)])]
        best = self._best([self._one_clock_per_rank(mean_s), *(self._from(start, mean_s) for start in starts)], mean_s)
        if best.energy_j > (1 - _SAVES_NOTHING) * self._at_max_clocks.energy_j and self._changes_cost:
            best = self._best([best, self._from(self._for_alike_iterations(mean_s), mean_s)], mean_s)
        return scenarios.mhz(best.clocks)

    def _from(self, start: Any, mean_s: float) -> Played | None:
        """The plan that a descent finds from a start, positions of clocks."""
        wider = self._descent.improve(start, mean_s * self._wider_share)
        return None if wider is None else ScenarioDescent(self._scenarios).quickened(wider.clocks, mean_s)

    @property
    def _changes_cost(self) -> bool:
        return self._scenarios.problem.switch_costs != SwitchCosts()

    def _for_alike_iterations(self, mean_s: float) -> Any:
        """The plan for iterations that are all alike, as positions: its search has more places to begin."""
        problem = self._scenarios.problem
        deadline_s = mean_s / self._at_max_clocks.mean_s * all_maximum(problem).iteration_time_s
        planner = Planner(problem)
        plan = planner.at(deadline=max(deadline_s, planner.fastest_s))
        clocks = [mhz for schedule in plan.schedules() for _, mhz in schedule.frequencies]
        return self._wider.offered([clocks] * self._wider.count)

    def one_clock_per_rank(self, mean_s: float) -> list[list[int]]:
        """Returns the same with one clock for all instructions of a rank.

        Args:
            mean_s: As for `at`.
        """
        return self._scenarios.mhz(self._one_clock_per_rank(mean_s).clocks)

    def _best(self, plans: Sequence[Played | None], mean_s: float) -> Played:
        fitting = [plan for plan in plans if plan is not None and plan.mean_s <= mean_s * (1 + _CLOSE)]
        return min([*fitting, self._at_max_clocks], key=lambda plan: (plan.impossible, plan.energy_j))

    # ---- where to begin

    def _near_relaxed(self, mean_s: float) -> Any:
        """Runs of one clock near the relaxation's durations, as positions; they may be a little too slow.

        There are fewer changes, at a higher price, until the drivers can make them.
        """
        scenarios = self._wider
        steps = max(_LEAST_STEPS, round(_STEPS * min(1.0, _CELLS / scenarios.durations_s.size)))
        steps = steps if self.answer is None else _FURTHER_STEPS
        self.answer = self._relaxation.solve(mean_s * self._wider_share, steps)
        runs = ScenarioRuns(scenarios, self._descent, self.answer)
        change_j = _CHANGE_SHARE * self._at_max_clocks.energy_j / (scenarios.nodes * scenarios.pipelines)
        found = {change_j: scenarios.play(runs.at(change_j))}

        def possible(price_j: float) -> bool:
            found[price_j] = scenarios.play(runs.at(price_j))
            return not found[price_j].impossible

        if found[change_j].impossible:
            least_price_j(2 * change_j, possible, _PRICE_STEPS)
        return min(found.items(), key=lambda each: (each[1].impossible, each[0]))[1].clocks

    # ---- one clock per rank

    def _one_clock_per_rank(self, mean_s: float) -> Played:
        descent = ScenarioDescent(self._scenarios, whole_ranks=True)
        return self._best([descent.improve(self._scenarios.max_clocks, mean_s)], mean_s)
