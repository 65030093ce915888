"""Simpler plans for the same problem, for comparison: they show how much more one clock per instruction saves."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pfo_fs.errors import Impossible
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.stage_clocks import StageClocks


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
        at, _ = stage_clocks.cheapest(costs, times, deadline_s, straggler_s)
        best, shortest_s = (None if at is None else stage_clocks.same[at]), float(times.min())
    return _plan(problem, "one-frequency", best, shortest_s, deadline_s, straggler_s, began)


def one_per_stage(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock per stage: the best of several ways to choose them, improved one stage at a time.

    The ways: `ZeusPerStage` of the Perseus paper (SOSP'24, section 6.1), where for each forward time that a stage can
    have, every stage runs at the slowest clock that keeps to this time; the same with the time of all instructions of
    a micro-batch; and one clock for all stages.

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
