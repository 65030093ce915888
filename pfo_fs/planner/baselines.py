"""Simpler plans for the same problem, for comparison: they show how much more one clock per instruction saves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from pfo_fs.arrays import Array, np
from pfo_fs.errors import Impossible
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem

_BATCH = 4_000_000
"""Instructions times combinations that are evaluated at once: about 100 MB."""


def all_maximum(problem: Problem, straggler_s: float | None = None) -> Plan:
    """Every instruction at the highest clock that was measured for it: training without this library.

    Args:
        problem: The problem.
        straggler_s: Iteration time of another pipeline that this one waits for, in s; energies are over this time.
    """
    top = {kind: max(m.frequency_mhz for m in ms) for kind, ms in problem.profile.measurements.items()}
    frequencies = tuple(top[i.stage, i.name] for i in problem.pipeline.instructions)
    plan = Plan(problem, frequencies, "all-maximum", deadline_s=0.0, straggler_s=straggler_s)
    return plan.replace(deadline_s=plan.iteration_time_s)


def one_frequency(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock for all stages: the one that takes least energy within the deadline.

    Args:
        problem: The problem.
        deadline_s: The longest iteration time, in s.
        straggler_s: Iteration time of another pipeline that this one waits for, in s; energies are over this time.

    Raises:
        Impossible: No clock is fast enough; or no clock was measured for all instructions.
    """
    began = time.perf_counter()
    stage_clocks = StageClocks(problem)
    best, shortest_s = None, float("inf")
    if stage_clocks.same:
        costs, times = stage_clocks.evaluate(stage_clocks.same)
        at = stage_clocks.cheapest(costs, times, deadline_s, straggler_s)
        best, shortest_s = (None if at is None else stage_clocks.same[at]), float(times.min())
    return _plan(problem, "one-frequency", best, shortest_s, deadline_s, straggler_s, began)


def one_per_stage(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock per stage: the best of two ways to choose them.

    The ways: `ZeusPerStage` of the Perseus paper (SOSP'24, section 6.1), where for each forward time that a stage can
    have, every stage runs at the slowest clock that keeps to this time; and one clock for all stages.

    Args:
        problem: The problem.
        deadline_s: The longest iteration time, in s.
        straggler_s: Iteration time of another pipeline that this one waits for, in s; energies are over this time.

    Raises:
        Impossible: No combination is fast enough; or a stage lacks a clock that its instructions share.
    """
    began = time.perf_counter()
    stage_clocks = StageClocks(problem)
    best = stage_clocks.best(deadline_s, straggler_s)
    return _plan(problem, "one-per-stage", best, stage_clocks.shortest_s, deadline_s, straggler_s, began)


def _plan(
    problem: Problem,
    solver: str,
    clocks_mhz: Sequence[int] | None,
    shortest_s: float,
    deadline_s: float,
    straggler_s: float | None,
    began: float,
) -> Plan:
    if clocks_mhz is None:
        raise Impossible(
            f"{solver}: no choice of clocks ends an iteration in {deadline_s:.6g} s; the fastest takes "
            f"{shortest_s:.6g} s",
            asked=deadline_s,
            best=shortest_s,
        )
    frequencies = tuple(clocks_mhz[i.stage] for i in problem.pipeline.instructions)
    return Plan(problem, frequencies, solver, deadline_s, straggler_s, seconds=time.perf_counter() - began)


class StageClocks:
    """Finds the best clock for each stage of a problem; clock changes within a rank that holds several stages count.

    Attributes:
        clocks_mhz: For each stage, the clocks at which all of its instructions were measured, rising.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._stages = np.array([instruction.stage for instruction in problem.pipeline.instructions])
        # The times of each stage in s, by name and clock.
        self._of_stage: list[dict[str, dict[int, float]]] = [{} for _ in range(problem.pipeline.num_stages)]
        for (stage, name), choices in problem.measured_by_kind.items():
            self._of_stage[stage][name] = dict(zip(choices.frequencies_mhz, choices.times_s, strict=True))
        self.clocks_mhz = [sorted(set.intersection(*(set(t) for t in of.values()))) for of in self._of_stage]

    def evaluate(self, clocks_mhz: Sequence[Sequence[int]]) -> tuple[Array, Array]:
        """Returns the effective energy in J and the iteration time in s of each combination."""
        problem, table = self._problem, self._problem.table
        size = max(1, _BATCH // len(self._stages))
        costs, times = [np.zeros(0)], [np.zeros(0)]
        kind = table.kind[:, None]
        for start in range(0, len(clocks_mhz), size):
            chosen = clocks_mhz[start : start + size]
            numbers = np.array([[table.number[mhz] for mhz in row] for row in chosen]).T[self._stages]
            ends_s = problem.paths.ends(table.time_s[kind, numbers]).ends_s
            costs.append(table.cost_j[kind, numbers].sum(axis=0))
            times.append(ends_s.max(axis=0) + problem.overhead_s)
        return np.concatenate(costs), np.concatenate(times)

    @cached_property
    def same(self) -> list[tuple[int, ...]]:
        """The combinations in which all stages have the same clock, by falling clock."""
        common = set.intersection(*(set(clocks) for clocks in self.clocks_mhz))
        return [(mhz,) * len(self.clocks_mhz) for mhz in sorted(common, reverse=True)]

    def best_same(self, deadline_s: float, straggler_s: float | None = None) -> tuple[int, ...] | None:
        """Returns the combination of `same` that takes least energy within the deadline, or None if all are slower.

        Args:
            deadline_s: The longest iteration time, in s.
            straggler_s: Iteration time of another pipeline that this one waits for, in s.
        """
        if not self.same:
            return None
        at = self.cheapest(*self.evaluate(self.same), deadline_s, straggler_s)
        return None if at is None else self.same[at]

    @cached_property
    def _candidates(self) -> list[tuple[int, ...]]:
        """For every time that a forward can take, each stage at its slowest clock within that time; and `same`."""
        return list(dict.fromkeys([*self._balanced(), *self.same]))

    def _balanced(self) -> Iterator[tuple[int, ...]]:
        if not all(self.clocks_mhz):
            return
        forwards = [of.get("forward") or next(iter(of.values())) for of in self._of_stage]
        times_s = [{mhz: own[mhz] for mhz in clocks} for own, clocks in zip(forwards, self.clocks_mhz, strict=True)]
        for limit_s in sorted({seconds for own in times_s for seconds in own.values()}):
            yield tuple(_slowest_within(own, limit_s) for own in times_s)

    @cached_property
    def _evaluated(self) -> tuple[Array, Array]:
        return self.evaluate(self._candidates)

    @cached_property
    def shortest_s(self) -> float:
        """The shortest iteration time of the combinations that are tried, in s; infinite if there are none."""
        return float(self._evaluated[1].min()) if self._candidates else float("inf")

    def best(self, deadline_s: float, straggler_s: float | None = None) -> tuple[int, ...] | None:
        """Returns the combination found that takes least energy within the deadline, or None if all are slower.

        Args:
            deadline_s: The longest iteration time, in s.
            straggler_s: Iteration time of another pipeline that this one waits for, in s.
        """
        if not self._candidates:
            return None
        at = self.cheapest(*self._evaluated, deadline_s, straggler_s)
        return None if at is None else self._candidates[at]

    def cheapest(self, costs_j: Array, times_s: Array, deadline_s: float, straggler_s: float | None) -> int | None:
        """Returns the position of the combination with least energy within the deadline; None if all are slower."""
        energies = costs_j + self._problem.waiting_power_w * np.maximum(times_s, straggler_s or 0.0)
        energies = np.where(times_s <= deadline_s, energies, np.inf)
        at = int(energies.argmin())
        return at if np.isfinite(energies[at]) else None


def _slowest_within(times_s: dict[int, float], limit_s: float) -> int:
    """The clock with the longest time within the limit, or the highest one."""
    within = [mhz for mhz, seconds in times_s.items() if seconds <= limit_s]
    return max(within, key=lambda mhz: times_s[mhz]) if within else max(times_s)
