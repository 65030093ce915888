"""Simpler plans for the same problem, for comparison: they show how much more one clock per instruction saves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from pfo_fs.arrays import np
from pfo_fs.errors import Impossible
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem

_BATCH = 4_000_000
"""Instructions times combinations that are evaluated at once: about 100 MB."""


def all_maximum(problem: Problem, straggler_s: float | None = None) -> Plan:
    """Every instruction at the highest clock that was measured for it: training without this library.

    Args:
        straggler_s: Iteration time of another pipeline that this one waits for, in s; energies are over this time.
    """
    top = {kind: max(m.frequency_mhz for m in ms) for kind, ms in problem.profile.measurements.items()}
    frequencies = tuple(top[i.stage, i.name] for i in problem.pipeline.instructions)
    plan = Plan(problem, frequencies, "all-maximum", deadline_s=0.0, straggler_s=straggler_s)
    return plan.replace(deadline_s=plan.iteration_time_s)


def one_frequency(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock for all stages: the one that takes least energy within the deadline.

    Args:
        straggler_s: Iteration time of another pipeline that this one waits for, in s; energies are over this time.

    Raises:
        Impossible: No clock is fast enough; or no clock was measured for all instructions.
    """
    began = time.perf_counter()
    return _plan(problem, "one-frequency", StageClocks(problem).same, deadline_s, straggler_s, began)


def one_per_stage(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock per stage: the best of two ways to choose them.

    The ways: `ZeusPerStage` of the Perseus paper (SOSP'24, section 6.1), where for each forward time that a stage can
    have, every stage runs at the slowest clock that keeps to this time; and one clock for all stages.

    Raises:
        Impossible: No combination is fast enough; or a stage lacks a clock that its instructions share.
    """
    began = time.perf_counter()
    return _plan(problem, "one-per-stage", StageClocks(problem).by_stage, deadline_s, straggler_s, began)


def _plan(
    problem: Problem, solver: str, tried: Combinations, deadline_s: float, straggler_s: float | None, began: float
) -> Plan:
    clocks_mhz = tried.best(deadline_s, straggler_s)
    if clocks_mhz is None:
        shortest_s = float(min(tried.times_s, default=float("inf")))
        raise Impossible(
            f"{solver}: no choice of clocks ends an iteration in {deadline_s:.6g} s; the fastest takes "
            f"{shortest_s:.6g} s",
            asked=deadline_s,
            best=shortest_s,
        )
    return Plan(problem, clocks_mhz, solver, deadline_s, straggler_s, seconds=time.perf_counter() - began)


class Combinations:
    """Combinations of one clock per stage, evaluated; clock changes within a rank of several stages count.

    Args:
        clocks_mhz: The clock of each stage in each combination.

    Attributes:
        times_s: The iteration time of each combination, in s.
    """

    def __init__(self, problem: Problem, clocks_mhz: Sequence[Sequence[int]]) -> None:
        self._problem, self._clocks_mhz = problem, clocks_mhz
        table = problem.table
        stages = np.array([instruction.stage for instruction in problem.pipeline.instructions])
        kind, size = table.kind[:, None], max(1, _BATCH // len(stages))
        costs_j, times_s = [np.zeros(0)], [np.zeros(0)]
        for start in range(0, len(clocks_mhz), size):
            chosen = clocks_mhz[start : start + size]
            numbers = np.array([[table.number[mhz] for mhz in row] for row in chosen]).T[stages]
            costs_j.append(table.cost_j[kind, numbers].sum(axis=0))
            ends_s = problem.paths.ends(table.time_s[kind, numbers]).ends_s
            times_s.append(ends_s.max(axis=0) + problem.overhead_s)
        self._costs_j, self.times_s = np.concatenate(costs_j), np.concatenate(times_s)

    def best(self, deadline_s: float, straggler_s: float | None = None) -> tuple[int, ...] | None:
        """Returns each node's clock in the combination of least energy within the deadline; None if all are slower."""
        energies_j = self._costs_j + self._problem.waiting_power_w * np.maximum(self.times_s, straggler_s or 0.0)
        energies_j = np.where(self.times_s <= deadline_s, energies_j, np.inf)
        if not np.isfinite(energies_j).any():
            return None
        chosen = self._clocks_mhz[int(energies_j.argmin())]
        return tuple(chosen[instruction.stage] for instruction in self._problem.pipeline.instructions)


class StageClocks:
    """The combinations of one clock per stage that are tried for a problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        # The times of each stage in s, by name and clock.
        self._of_stage: list[dict[str, dict[int, float]]] = [{} for _ in range(problem.pipeline.num_stages)]
        for (stage, name), choices in problem.measured_by_kind.items():
            self._of_stage[stage][name] = dict(zip(choices.frequencies_mhz, choices.times_s, strict=True))
        # The clocks at which all instructions of a stage were measured.
        self._clocks_mhz = [sorted(set.intersection(*(set(t) for t in of.values()))) for of in self._of_stage]

    @cached_property
    def _equal(self) -> list[tuple[int, ...]]:
        common = set.intersection(*map(set, self._clocks_mhz))
        return [(mhz,) * len(self._clocks_mhz) for mhz in sorted(common, reverse=True)]

    @cached_property
    def same(self) -> Combinations:
        """Those in which all stages have the same clock."""
        return Combinations(self._problem, self._equal)

    @cached_property
    def by_stage(self) -> Combinations:
        """For every time that a forward can take, each stage at its slowest clock within that time; and `same`."""
        return Combinations(self._problem, list(dict.fromkeys([*self._balanced(), *self._equal])))

    def _balanced(self) -> Iterator[tuple[int, ...]]:
        if not all(self._clocks_mhz):
            return
        forwards = [of.get("forward") or next(iter(of.values())) for of in self._of_stage]
        times_s = [{mhz: own[mhz] for mhz in clocks} for own, clocks in zip(forwards, self._clocks_mhz, strict=True)]
        for limit_s in sorted({seconds for own in times_s for seconds in own.values()}):
            yield tuple(_slowest_within(own, limit_s) for own in times_s)


def _slowest_within(times_s: dict[int, float], limit_s: float) -> int:
    """The clock with the longest time within the limit, or the highest one."""
    within = [mhz for mhz, seconds in times_s.items() if seconds <= limit_s]
    return max(within, key=lambda mhz: times_s[mhz]) if within else max(times_s)
