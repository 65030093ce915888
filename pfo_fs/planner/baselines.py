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


def one_frequency(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock for all stages: the one that takes least energy within the deadline.

    Args:
        problem: The problem.
        deadline_s: The longest iteration time, in s.
        straggler_s: Iteration time of another pipeline that is waited for, in s; energies are over it.

    Raises:
        Impossible: None is fast enough; or no clock was measured for all instructions.
    """

    def candidates() -> Iterator[dict[int, int]]:
        kinds = {(i.stage, i.name) for i in problem.pipeline.instructions}
        tables = [{m.frequency_mhz for m in problem.profile.measurements[kind]} for kind in kinds]
        for mhz in sorted(set.intersection(*tables), reverse=True):
            yield dict.fromkeys(range(problem.pipeline.num_stages), mhz)

    return _best(problem, deadline_s, straggler_s, candidates(), "one-frequency")


def one_per_stage(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock per stage: the best of several ways to choose them, improved a stage and a step at a time.

    The ways: `ZeusPerStage` of the Perseus paper (SOSP'24, section 6.1), where for each forward time that a stage can
    have, every stage runs at its slowest clock that is no slower; the same for all instructions of a micro-batch
    together; and one clock for all stages.

    Args:
        problem: The problem.
        deadline_s: The longest iteration time, in s.
        straggler_s: Iteration time of another pipeline that is waited for, in s; energies are over it.

    Raises:
        Impossible: None is fast enough; or a stage lacks a clock that its instructions share.
    """
    tables: list[dict[int, dict[int, float]]] = [{}, {}]
    for stage in range(problem.pipeline.num_stages):
        names = {i.name for i in problem.pipeline.instructions if i.stage == stage}
        times = {n: {m.frequency_mhz: m.time_s for m in problem.profile.measurements[stage, n]} for n in names}
        common = set.intersection(*(set(table) for table in times.values()))
        reference = times.get("forward") or next(iter(times.values()))
        tables[0][stage] = {mhz: reference[mhz] for mhz in common}
        tables[1][stage] = {mhz: sum(table[mhz] for table in times.values()) for mhz in common}

    def candidates() -> Iterator[dict[int, int]]:
        for table in tables:
            if all(table.values()):
                for limit_s in sorted({seconds for row in table.values() for seconds in row.values()}):
                    yield {stage: _slowest_within(row, limit_s) for stage, row in table.items()}
        for mhz in sorted(set.intersection(*(set(row) for row in tables[0].values())), reverse=True):
            yield dict.fromkeys(tables[0], mhz)

    began = time.perf_counter()
    best = _best(problem, deadline_s, straggler_s, candidates(), "one-per-stage")
    if len(problem.choices) <= _CLIMBED_NODES:
        best = _climbed(best, {stage: sorted(row) for stage, row in tables[0].items()})
    return best.replace(seconds=time.perf_counter() - began)


_CLIMBED_NODES = 20_000


def _slowest_within(times_s: dict[int, float], limit_s: float) -> int:
    """The clock with the longest time within the limit, or the highest one."""
    within = [mhz for mhz, seconds in times_s.items() if seconds <= limit_s]
    return max(within, key=lambda mhz: times_s[mhz]) if within else max(times_s)


def _climbed(plan: Plan, clocks: dict[int, list[int]]) -> Plan:
    """Moves one stage to the next clock up or down as long as that saves energy within the deadline."""
    stages = [instruction.stage for instruction in plan.problem.pipeline.instructions]
    better = True
    while better:
        better = False
        for stage, row in clocks.items():
            at = row.index(plan.frequencies_mhz[stages.index(stage)])
            for mhz in row[max(0, at - 1) : at + 2]:
                moved = (mhz if of == stage else now for of, now in zip(stages, plan.frequencies_mhz, strict=True))
                other = plan.replace(frequencies_mhz=tuple(moved))
                if other.iteration_time_s <= plan.deadline_s and other.energy_j < plan.energy_j * (1 - 1e-9):
                    plan, better = other, True
                    break
    return plan


def _best(
    problem: Problem, deadline_s: float, straggler_s: float | None, candidates: Iterable[dict[int, int]], solver: str
) -> Plan:
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
        plan = Plan(problem, frequencies, solver, deadline_s, straggler_s)
        shortest_s = min(shortest_s, plan.iteration_time_s)
        if plan.iteration_time_s <= deadline_s and (best is None or plan.energy_j < best.energy_j):
            best = plan
    if best is None:
        raise Impossible(
            f"{solver}: no choice of clocks has an iteration of {deadline_s:.6g} s; the fastest takes "
            f"{shortest_s:.6g} s",
            asked=deadline_s,
            best=shortest_s,
        )
    return best.replace(seconds=time.perf_counter() - began)
