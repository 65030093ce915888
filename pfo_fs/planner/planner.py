"""The planner: for a deadline, a slowdown or a power it returns a plan with a proven lower bound."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from pfo_fs.arrays import np
from pfo_fs.errors import ConfigError, Impossible
from pfo_fs.planner.baselines import Combinations, equal_clocks, stage_clocks
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxation, Relaxed
from pfo_fs.planner.rounding import Rounder
from pfo_fs.planner.scenario_model import Played
from pfo_fs.planner.scenarios import ScenarioPlanner
from pfo_fs.planner.switch_costs import SwitchCosts, SwitchLoad

_CLOSE = 1e-9
"""Relative: a deadline that is shorter than the fastest plan by at most this counts as the fastest plan's time."""

_BOUNDINGS, _BISECTIONS = 20, 10
"""For a limit on power, the shortest iteration is bracketed by this many answers of the relaxation, and then
by at most this many pairs of plans."""
_WALKS = 500
"""The most walks of a descent: more save less than 0.02 %."""
_CLOSE_ENOUGH = 0.003
"""If changes cost something and a plan exceeds the lower bound by more than this share, the search is thorough."""
_SHORT_ENOUGH = 0.0005
"""Relative: the search ends with a plan this close to the longest time that the relaxation or plans show too short."""

MAX_POINTS = 100_000
_CHUNK_NODES = 50_000
"""A chunk of a frontier's deadlines is planned in one call and has about this many instructions over all its plans."""
_MOST_AT_ONCE = 100


class Planner:
    """Plans one problem.

        planner = Planner(Problem(make_pipeline("1f1b", 8, 96), read_profile("profile.csv"), blocking_power_w=83.64))
        plan = planner.at(slowdown=1.0)

    A planner keeps what it has solved: asking again for a neighbouring deadline is several times faster.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @cached_property
    def _relaxation(self) -> Relaxation:
        return Relaxation(self.problem.alike)

    @cached_property
    def _simple_clocks(self) -> tuple[Combinations, Combinations]:
        # On a rank with several stages, one clock per stage needs changes; one clock for all stages needs none.
        return stage_clocks(self.problem), equal_clocks(self.problem)

    @cached_property
    def _rounder(self) -> Rounder:
        """Makes plans that ignore what clock changes cost."""
        problem = self.problem
        return Rounder(problem if problem.switch_costs.none else replace(problem, switch_costs=SwitchCosts()))

    @cached_property
    def fastest_s(self) -> float:
        """The shortest iteration time of any plan, in s."""
        return self.problem.played(self.problem.fastest_mhz).mean_s

    @cached_property
    def slowest_s(self) -> float:
        """The iteration time in s beyond which nothing is saved."""
        problem = self.problem
        if problem.switch_costs.none:
            return max(self.fastest_s, problem.played(problem.cheapest_mhz).mean_s)
        # A clock that costs more than a higher one can be part of the best plan if it saves a change.
        longest_s = np.where(problem.table.offered, problem.table.time_s, 0.0).max(axis=1)
        return problem.iteration_time_s(longest_s[problem.table.kind])

    @cached_property
    def least_energy_s(self) -> float:
        """The iteration time in s beyond which waiting costs more than slower clocks save (of the relaxation)."""
        free = self._solve(self.slowest_s, self.problem.waiting_power_w)
        return min(self.slowest_s, max(self.fastest_s, free.makespan_s + self.problem.overhead_s))

    def at(
        self,
        *,
        deadline: float | None = None,
        slowdown: float | None = None,
        straggler: float | None = None,
        power: float | None = None,
    ) -> Plan:
        """Returns the plan that takes least energy, or for `power` least time, for one request.

        Args:
            deadline: The longest iteration time, in s.
            slowdown: The same as a multiple of the fastest plan's iteration time, 1.0 or more.
            straggler: Iteration time in s of another pipeline, for which this one waits at the end of every iteration.
                Energies are then over that time, so that slower clocks save energy even where a plan for a deadline
                would end sooner (T' in Perseus, SOSP'24, section 4).
            power: The highest average power of the pipeline, in W, over all its GPUs.

        Raises:
            ConfigError: Not exactly one of them is given, or it is not a finite number above zero.
            Impossible: No plan fulfils the request; the message says what is possible.
        """
        given = {"deadline": deadline, "slowdown": slowdown, "straggler": straggler, "power": power}
        asked = {name: value for name, value in given.items() if value is not None}
        if len(asked) != 1:
            raise ConfigError(f"ask for exactly one of {', '.join(given)}, not for {len(asked)}")
        ((name, value),) = asked.items()
        if not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}; it must be a number above zero")
        if name == "power":
            return self._within_power(value)
        if name == "slowdown" and value < 1.0:
            text = f"a slowdown of {value:g} is faster than the fastest plan ({self.fastest_s:.6g} s)"
            raise Impossible(f"{text}; ask for 1.0 or more", asked=value, best=1.0)
        return self._within(value * self.fastest_s if name == "slowdown" else value, straggler=name == "straggler")

    def fastest(self) -> Plan:
        """Returns the plan with least energy among the fastest: no slowdown at all."""
        return self._within(self.fastest_s)

    # ---- deadlines

    def _solve(self, deadline_s: float, waiting_power_w: float) -> Relaxed:
        return self._relaxation.solve(deadline_s - self.problem.overhead_s, waiting_power_w)

    def _within(self, deadline_s: float, straggler: bool = False) -> Plan:
        """The plan for one deadline; with `straggler`, the pipeline waits until the deadline in any case."""
        return self.at_each([deadline_s], straggler=straggler)[0]

    def at_each(self, deadlines_s: Sequence[float], *, straggler: bool = False) -> list[Plan]:
        """Returns the plans for one or more deadlines (s), as `at(deadline=...)` does for one, several times faster.

        The search for real clocks is a little shorter than for a single plan: energies are higher by some hundredths
        of a percent. The lower bounds are valid for these plans as for single ones.

        Args:
            straggler: Whether the deadlines are iteration times of other pipelines, as in `at(straggler=...)`.

        Raises:
            Impossible: A deadline is shorter than the fastest plan's iteration.
        """
        began = time.perf_counter()
        problem = self.problem
        if (asked_s := min(deadlines_s)) < self.fastest_s * (1 - _CLOSE):
            text = f"no plan has an iteration of {asked_s:.6g} s; the fastest takes {self.fastest_s:.6g} s"
            raise Impossible(text, asked=asked_s, best=self.fastest_s)
        deadlines_s = [max(deadline_s, self.fastest_s) for deadline_s in deadlines_s]
        targets_s = [min(deadline_s, self.slowest_s) for deadline_s in deadlines_s]
        waiting_w = 0.0 if straggler else problem.waiting_power_w
        relaxed = [self._solve(target_s, waiting_w) for target_s in targets_s]
        chosen = self._clocks(relaxed, targets_s, straggler)
        seconds = (time.perf_counter() - began) / len(deadlines_s)
        return [
            Plan(
                problem,
                clocks_mhz,
                "lp",
                deadline_s,
                straggler_s=deadline_s if straggler else None,
                lower_bound_j=answer.lower_bound_j
                + problem.waiting_power_w * (deadline_s if straggler else problem.overhead_s),
                seconds=seconds,
                free=free,
                limited=limited,
            )
            for (clocks_mhz, free, limited), answer, deadline_s in zip(chosen, relaxed, deadlines_s, strict=True)
        ]

    def _clocks(
        self, relaxed: Sequence[Relaxed], targets_s: Sequence[float], straggler: bool
    ) -> Sequence[tuple[tuple[int, ...], SwitchLoad | None, bool]]:
        """For each target, real clocks within it, and `free` and `limited` as for `reason`."""
        problem = self.problem
        waiting_w = 0.0 if straggler else problem.waiting_power_w
        free = self._rounder.clocks_mhz(relaxed, targets_s, waiting_w)
        if problem.switch_costs.none:
            return [(tuple(clocks_mhz), None, False) for clocks_mhz in free]
        planner = ScenarioPlanner(problem.alike, waiting_w=waiting_w, most_walks=_WALKS)
        chosen = []
        for answer, target_s, clocks_mhz in zip(relaxed, targets_s, free, strict=True):
            starts = [problem.alike.numbers([clocks_mhz])]
            known = self._simple(target_s, straggler)
            found = planner.search(answer.answer, target_s, starts, known)
            within_s = found.mean_s - problem.overhead_s  # the bound is without the overhead
            if found.effective_j + waiting_w * within_s > (1 + _CLOSE_ENOUGH) * answer.lower_bound_j:
                found = planner.search(answer.answer, target_s, starts, [*known, found], thorough=True)
            load = problem.played(clocks_mhz).switch_load
            chosen.append((tuple(problem.alike.mhz(found.clocks)[0]), load, planner.limited))
        return chosen

    def _simple(self, target_s: float, straggler: bool = False) -> list[Played]:
        """Simple plans, of which some may be late: the search result is at least as good as the best one in time."""
        problem = self.problem
        straggler_s = target_s if straggler else None
        found = [each.best(target_s, straggler_s) for each in self._simple_clocks]
        simple = [problem.fastest_mhz, problem.cheapest_mhz, *found]
        return [problem.played(clocks_mhz) for clocks_mhz in simple if clocks_mhz is not None]

    # ---- powers

    def _within_power(self, power_w: float) -> Plan:
        slowest = self._own_pace(self.slowest_s)
        if slowest.average_power_w > power_w:
            least = f"{slowest.average_power_w:.6g} W, with {slowest.iteration_time_s:.6g} s for an iteration"
            text = f"no plan found draws {power_w:.6g} W or less on average; the least is {least}"
            raise Impossible(text, asked=power_w, best=slowest.average_power_w)
        return self._shortest(power_w, slowest)

    def _own_pace(self, deadline_s: float) -> Plan:
        """The plan whose instructions take least energy within the deadline, evaluated without a straggler."""
        plan = self._within(deadline_s, straggler=True)
        bound = self._solve(min(plan.iteration_time_s, self.slowest_s), self.problem.waiting_power_w).lower_bound_j
        bound += self.problem.waiting_power_w * self.problem.overhead_s
        return plan.replace(straggler_s=None, deadline_s=plan.iteration_time_s, lower_bound_j=bound)

    def _shortest(self, power_w: float, longest: Plan) -> Plan:
        """The shortest plan found that draws at most `power_w` on average; `longest` is a plan within this limit."""

        def is_within(energy_j: float, length_s: float) -> bool:
            return energy_j <= power_w * length_s

        best = self.fastest()
        if is_within(best.energy_j, best.iteration_time_s):
            return best.replace(deadline_s=best.iteration_time_s)
        best = longest
        # No plan within the limit is shorter than the relaxation, and few are much longer.
        low_s, high_s = self.fastest_s, longest.iteration_time_s
        for _ in range(_BOUNDINGS):
            length_s = (low_s + high_s) / 2
            relaxed = self._solve(min(length_s, self.slowest_s), 0.0)
            bound_j = relaxed.lower_bound_j + self.problem.waiting_power_w * length_s
            low_s, high_s = (low_s, length_s) if is_within(bound_j, length_s) else (length_s, high_s)
        step_s = _SHORT_ENOUGH * low_s
        for _ in range(_BISECTIONS):
            if best.iteration_time_s <= low_s + _SHORT_ENOUGH * low_s:
                break
            length_s = min(low_s + step_s, (low_s + best.iteration_time_s) / 2)
            plans = (self._own_pace(length_s), self._within(length_s))
            within = [plan for plan in plans if is_within(plan.energy_j, plan.iteration_time_s)]
            if within:
                best = min(best, *within, key=lambda plan: plan.iteration_time_s)
            else:
                low_s, step_s = length_s, 4 * step_s
        return best


def even_deadlines(planner: Planner, points: int) -> list[float]:
    """Returns deadlines in s, evenly spaced from the fastest plan's iteration time to that of least energy.

    Raises:
        ConfigError: `points` is below 2 or beyond `MAX_POINTS`.
    """
    if not 2 <= points <= MAX_POINTS:
        raise ConfigError(f"a frontier has 2 to {MAX_POINTS:,} points, not {points}")
    first, last = planner.fastest_s, planner.least_energy_s
    deadlines = [first + (last - first) * number / (points - 1) for number in range(points)]
    return [first, *deadlines[1:-1], last]


def solve_frontier(problem: Problem, deadlines_s: Sequence[float]) -> Iterator[Plan]:
    """Makes plans for many deadlines, and yields one for each different deadline (s), from the shortest to the longest.

    Raises:
        Impossible: A deadline is shorter than the fastest plan's iteration.
    """
    planner = Planner(problem)
    deadlines_s = sorted(set(deadlines_s))
    size = min(_MOST_AT_ONCE, max(4, _CHUNK_NODES // len(problem.pipeline.instructions)))
    for start in range(0, len(deadlines_s), size):
        yield from planner.at_each(deadlines_s[start : start + size])
