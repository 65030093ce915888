"""What simpler means achieve on the same problem, so that a user sees what a clock per instruction buys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from pfo_fs.errors import Impossible
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem


def all_maximum(problem: Problem) -> Plan:
    """Every instruction at the highest clock that was measured for it: training without any of this."""
    top = {kind: max(m.frequency_mhz for m in ms) for kind, ms in problem.profile.measurements.items()}
    frequencies = tuple(top[i.stage, i.name] for i in problem.pipeline.instructions)
    plan = Plan(problem, frequencies, "all-maximum", deadline_s=0.0)
    return plan.replace(deadline_s=plan.iteration_time_s)


def one_frequency(problem: Problem, deadline_s: float) -> Plan:
    """One clock for all stages: the one that takes least energy within the deadline.

    Raises:
        Impossible: None is fast enough; or no clock was measured for all instructions.
    """

    def candidates() -> Iterator[dict[int, int]]:
        kinds = {(i.stage, i.name) for i in problem.pipeline.instructions}
        tables = [{m.frequency_mhz for m in problem.profile.measurements[kind]} for kind in kinds]
        for mhz in sorted(set.intersection(*tables), reverse=True):
            yield dict.fromkeys(range(problem.pipeline.num_stages), mhz)

    return _best(problem, deadline_s, candidates(), "one-frequency")


def one_per_stage(problem: Problem, deadline_s: float) -> Plan:
    """One clock per stage, chosen so that all stages' forwards take about equally long.

    This is `ZeusPerStage` of the Perseus paper (SOSP'24, section 6.1): for each forward time that a stage can have,
    every stage runs at its slowest clock that is no slower; of all of these, the one that takes least energy within
    the deadline.

    Raises:
        Impossible: None is fast enough; or a stage lacks a clock that its instructions share.
    """
    stages = range(problem.pipeline.num_stages)
    forward: dict[int, dict[int, float]] = {}
    for stage in stages:
        names = {i.name for i in problem.pipeline.instructions if i.stage == stage}
        tables = {n: {m.frequency_mhz: m.time_s for m in problem.profile.measurements[stage, n]} for n in names}
        common = set.intersection(*(set(table) for table in tables.values()))
        reference = tables.get("forward") or next(iter(tables.values()))
        forward[stage] = {mhz: reference[mhz] for mhz in common}

    def candidates() -> Iterator[dict[int, int]]:
        if not all(forward.values()):
            return
        for limit_s in sorted({seconds for table in forward.values() for seconds in table.values()}):
            yield {
                stage: min(
                    (mhz for mhz, seconds in table.items() if seconds <= limit_s),
                    key=lambda mhz: -table[mhz],
                    default=max(table),
                )
                for stage, table in forward.items()
            }

    return _best(problem, deadline_s, candidates(), "one-per-stage")


def _best(problem: Problem, deadline_s: float, candidates: Iterable[dict[int, int]], solver: str) -> Plan:
    began = time.perf_counter()
    best: Plan | None = None
    shortest_s = float("inf")
    seen = set()
    for mhz_of in candidates:
        key = tuple(mhz_of.values())
        if key in seen:
            continue
        seen.add(key)
        frequencies = tuple(mhz_of[i.stage] for i in problem.pipeline.instructions)
        plan = Plan(problem, frequencies, solver, deadline_s)
        shortest_s = min(shortest_s, plan.iteration_time_s)
        if plan.iteration_time_s <= deadline_s and (best is None or plan.energy_j < best.energy_j):
            best = plan
    if best is None:
        raise Impossible(
            f"{solver}: no choice has an iteration of {deadline_s:.6g} s; the fastest takes {shortest_s:.6g} s",
            asked=deadline_s,
            best=shortest_s,
        )
    return best.replace(seconds=time.perf_counter() - began)
