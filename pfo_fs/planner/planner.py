"""The planner: asked for a deadline, a slowdown, an energy or a power, it answers with a plan and its certificate."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from pfo_fs.errors import ConfigError, Impossible
from pfo_fs.planner.exact import solve_exactly
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxation, Relaxed
from pfo_fs.planner.rounding import Rounder
from pfo_fs.planner.switches import fewer_changes, plan_with_switch_time

_CLOSE = 1e-9
"""Relative: what is asked for and misses what is possible by no more than this is taken for it."""


class Planner:
    """Plans one problem.

        planner = Planner(Problem(make_pipeline("1f1b", 8, 96), read_profile("profile.csv"), blocking_power_w=83.64))
        plan = planner.at(slowdown=1.0)

    A planner keeps what it has solved: asking again for a neighbouring deadline is several times faster.

    Attributes:
        problem: The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._known: list[tuple[float, tuple[int, ...]]] = []

    @cached_property
    def _relaxation(self) -> Relaxation:
        return Relaxation(self.problem)

    @cached_property
    def _rounder(self) -> Rounder:
        return Rounder(self.problem)

    @cached_property
    def fastest_s(self) -> float:
        """The shortest iteration time of any plan, in s."""
        return self.problem.iteration_time_of(self.problem.fastest)

    @cached_property
    def slowest_s(self) -> float:
        """The iteration time in s with every instruction at the clock where it costs least; longer saves nothing."""
        return max(self.fastest_s, self.problem.iteration_time_of([len(c.times_s) - 1 for c in self.problem.choices]))

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
        energy: float | None = None,
        power: float | None = None,
    ) -> Plan:
        """Returns the plan that takes least energy, or for `energy` and `power` least time, for one request.

        Args:
            deadline: The longest iteration time, in s.
            slowdown: The same as a multiple of the fastest plan's, 1.0 or more.
            straggler: Iteration time of another pipeline in s, for which this one waits at the end of every iteration:
                energies are then over that time, and slower clocks go on paying where a deadline alone would end
                sooner (T' in Perseus, SOSP'24, section 4).
            energy: The most energy of an iteration, in J, over all GPUs of the pipeline.
            power: The highest average power of the pipeline, in W, over all its GPUs.

        Raises:
            ConfigError: Not exactly one of them is given.
            Impossible: No plan fulfils the request; the message says what is possible.
        """
        given = {"deadline": deadline, "slowdown": slowdown, "straggler": straggler, "energy": energy, "power": power}
        asked = {name: value for name, value in given.items() if value is not None}
        if len(asked) != 1:
            raise ConfigError(f"ask for exactly one of {', '.join(given)}, not for {len(asked)}")
        ((name, value),) = asked.items()
        if not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}, which is no {name}")
        if name == "energy":
            return self._within_energy(value)
        if name == "power":
            return self._within_power(value)
        if name == "slowdown" and value < 1.0:
            raise Impossible(
                f"a slowdown of {value:g} is faster than the fastest plan ({self.fastest_s:.6g} s); "
                "ask for 1.0 or more",
                asked=value,
                best=1.0,
            )
        return self._within(value * self.fastest_s if name == "slowdown" else value, straggler=name == "straggler")

    def fastest(self) -> Plan:
        """Returns the plan with least energy among the fastest: no slowdown at all."""
        return self._within(self.fastest_s)

    def least_energy(self) -> Plan:
        """Returns the plan with least energy, however long its iteration."""
        return self._within(self.slowest_s)

    # ---- deadlines

    def _solve(self, deadline_s: float, waiting_power_w: float) -> Relaxed:
        return self._relaxation.solve(deadline_s - self.problem.overhead_s, waiting_power_w)

    def _within(self, deadline_s: float, straggler: bool = False) -> Plan:
        """The plan for one deadline; with `straggler`, the pipeline waits until the deadline in any case."""
        began = time.perf_counter()
        problem = self.problem
        if deadline_s < self.fastest_s * (1 - _CLOSE):
            raise Impossible(
                f"no plan has an iteration of {deadline_s:.6g} s; the fastest takes {self.fastest_s:.6g} s",
                asked=deadline_s,
                best=self.fastest_s,
            )
        target_s = min(max(deadline_s, self.fastest_s), self.slowest_s)
        relaxed = self._solve(target_s, 0.0 if straggler else problem.waiting_power_w)
        waiting_s = max(deadline_s, self.fastest_s) if straggler else problem.overhead_s
        bound_j = relaxed.lower_bound_j + problem.waiting_power_w * waiting_s
        length_s = target_s if straggler else min(target_s, (relaxed.makespan_s + problem.overhead_s) * (1 + _CLOSE))
        if problem.switch_time_s:
            assignment = plan_with_switch_time(problem, relaxed, target_s)
        else:
            waiting_w = 0.0 if straggler else problem.waiting_power_w
            exact = solve_exactly(problem, target_s - problem.overhead_s, waiting_w)
            length_s = target_s if exact else max(length_s, self.fastest_s)
            assignment = exact or self._rounded(relaxed, length_s)
            assignment = fewer_changes(problem, assignment, length_s, waiting_w)
        return Plan(
            problem,
            tuple(problem.frequencies_of(assignment)),
            "lp",
            deadline_s=max(deadline_s, self.fastest_s),
            straggler_s=max(deadline_s, self.fastest_s) if straggler else None,
            lower_bound_j=bound_j,
            seconds=time.perf_counter() - began,
        )

    def _rounded(self, relaxed: Relaxed, length_s: float) -> list[int]:
        """Real clocks for a relaxed answer; what an earlier, shorter answer found is a start too."""
        shorter = max((known for known in self._known if known[0] <= length_s), default=None)
        known = [shorter[1]] if shorter else []
        assignment = self._rounder.round(relaxed, length_s - self.problem.overhead_s, known)
        if self.problem.iteration_time_of(assignment) > length_s:
            assignment = list(self.problem.fastest)
        self._known.append((length_s, tuple(assignment)))
        return assignment

    # ---- energies and powers

    def _within_energy(self, energy_j: float) -> Plan:
        least = self.least_energy()
        if least.energy_j > energy_j:
            raise Impossible(
                f"no plan found takes {energy_j:.6g} J or less for an iteration; the least is {least.energy_j:.6g} J, "
                f"in {least.iteration_time_s:.6g} s (none can take less than {least.lower_bound_j:.6g} J)",
                asked=energy_j,
                best=least.energy_j,
            )
        return self._shortest(lambda energy, _seconds: energy / energy_j - 1.0, least)

    def _within_power(self, power_w: float) -> Plan:
        slowest = self._within(self.slowest_s, straggler=True)
        slowest = slowest.replace(straggler_s=None, deadline_s=slowest.iteration_time_s, lower_bound_j=None)
        if slowest.average_power_w > power_w:
            raise Impossible(
                f"no plan found draws {power_w:.6g} W or less on average; the least is "
                f"{slowest.average_power_w:.6g} W, with {slowest.iteration_time_s:.6g} s for an iteration",
                asked=power_w,
                best=slowest.average_power_w,
            )
        return self._shortest(lambda energy, seconds: energy / seconds / power_w - 1.0, slowest)

    def _shortest(self, excess: Callable[[float, float], float], longest: Plan) -> Plan:
        """The shortest plan without excess, between the fastest one and `longest`, which has none.

        The relaxation says where to look; as real clocks take a little more energy than it, the search is repeated with
        what they took more than allowed set aside.

        Args:
            excess: By what share an iteration of so many joules and seconds is above the limit.
            longest: A plan that is within the limit.
        """
        best = self.fastest()
        if excess(best.energy_j, best.iteration_time_s) <= 0:
            return best
        best, margin = longest, 0.0
        for _ in range(6):
            low, high = self.fastest_s, longest.iteration_time_s
            while high - low > 1e-5 * low:
                middle = (low + high) / 2
                energy_j = self._bound(middle) * (1 + margin)
                low, high = (middle, high) if excess(energy_j, middle) > 0 else (low, middle)
            found = self._within(high)
            over = excess(found.energy_j, found.iteration_time_s)
            if over <= 0:
                best = min(best, found, key=lambda plan: plan.iteration_time_s)
                break
            margin += 1.1 * over
        bound_j = self._bound(best.iteration_time_s)
        return best.replace(deadline_s=best.iteration_time_s, straggler_s=None, lower_bound_j=bound_j)

    def _bound(self, deadline_s: float) -> float:
        """No plan within the deadline takes less energy than this, in J."""
        relaxed = self._solve(min(max(deadline_s, self.fastest_s), self.slowest_s), self.problem.waiting_power_w)
        return relaxed.lower_bound_j + self.problem.waiting_power_w * self.problem.overhead_s
