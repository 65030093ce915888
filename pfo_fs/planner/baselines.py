"""Simpler plans for the same problem, for comparison: they show how much more one clock per instruction saves.

`straggler_s`: the iteration time in s of a pipeline that this one waits for; energies are over at least this time.
"""

import time

from pfo_fs.arrays import Array, np
from pfo_fs.errors import Impossible
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem

_BATCH = 4_000_000
"""At most this many instructions times combinations are evaluated at once: about 100 MB."""


def all_maximum(problem: Problem) -> Plan:
    """Every instruction at the highest clock that was measured for it: training without this library."""
    top = {kind: max(m.frequency_mhz for m in ms) for kind, ms in problem.profile.measurements.items()}
    frequencies = tuple(top[i.stage, i.name] for i in problem.pipeline.instructions)
    plan = Plan(problem, frequencies, "all-maximum", deadline_s=0.0)
    return plan.replace(deadline_s=plan.iteration_time_s)


def one_frequency(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock for all stages: the one that takes least energy within the deadline.

    Raises:
        Impossible: No clock is fast enough; or no clock was measured for all instructions.
    """
    began = time.perf_counter()
    return equal_clocks(problem).plan("one-frequency", deadline_s, straggler_s, began)


def one_per_stage(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> Plan:
    """One clock per stage: the best of two ways to choose them.

    The first is `ZeusPerStage` of the Perseus paper (SOSP'24, section 6.1): for each forward time that a stage can
    have, every stage runs at the slowest clock that keeps to this time. The second is one clock for all stages.

    Raises:
        Impossible: No combination is fast enough; or a stage lacks a clock that its instructions share.
    """
    began = time.perf_counter()
    return stage_clocks(problem).plan("one-per-stage", deadline_s, straggler_s, began)


class Combinations:
    """Combinations of one clock per stage, evaluated without the cost of clock changes.

    Args:
        clocks: The clock of each stage as a position, (combinations, stages).
    """

    def __init__(self, problem: Problem, clocks: Array) -> None:
        self._problem, self.clocks = problem, clocks
        table, kind = problem.table, problem.table.kind[:, None]
        self._stages = np.array([instruction.stage for instruction in problem.pipeline.instructions])
        costs_j, times_s = [np.zeros(0)], [np.zeros(0)]
        size = max(1, _BATCH // len(self._stages))
        for start in range(0, len(clocks), size):
            of_nodes = clocks[start : start + size].T[self._stages]
            costs_j.append(table.cost_j[kind, of_nodes].sum(axis=0))
            times_s.append(problem.paths.ends(table.time_s[kind, of_nodes]).ends_s.max(axis=0) + problem.overhead_s)
        self._costs_j, self._times_s = np.concatenate(costs_j), np.concatenate(times_s)

    def best(self, deadline_s: float, straggler_s: float | None = None) -> tuple[int, ...] | None:
        """Returns each node's clock in the combination of least energy within the deadline; None if all are slower."""
        energies_j = self._costs_j + self._problem.waiting_power_w * np.maximum(self._times_s, straggler_s or 0.0)
        energies_j = np.where(self._times_s <= deadline_s, energies_j, np.inf)
        if not np.isfinite(energies_j).any():
            return None
        chosen = self.clocks[int(energies_j.argmin())]
        return tuple(self._problem.table.mhz[number] for number in chosen[self._stages])

    def plan(self, solver: str, deadline_s: float, straggler_s: float | None, began: float) -> Plan:
        """Returns the best combination as a plan; `began`: when the solver began, by `time.perf_counter`."""
        clocks_mhz = self.best(deadline_s, straggler_s)
        if clocks_mhz is None:
            best = float(min(self._times_s, default=float("inf")))
            text = f"no choice of clocks ends an iteration in {deadline_s:.6g} s; the fastest takes {best:.6g} s"
            raise Impossible(f"{solver}: {text}", asked=deadline_s, best=best)
        return Plan(self._problem, clocks_mhz, solver, deadline_s, straggler_s, seconds=time.perf_counter() - began)


def equal_clocks(problem: Problem) -> Combinations:
    """Returns the combinations in which all stages have the same clock."""
    common = np.flatnonzero(np.isfinite(problem.table.time_s).all(axis=0))[::-1]
    return Combinations(problem, common[:, None].repeat(problem.pipeline.num_stages, axis=1))


def stage_clocks(problem: Problem) -> Combinations:
    """For every time that a forward can take, each stage at its slowest clock within that time; and equal clocks.

    If a stage has no forwards, its first instruction by name takes their place.
    """
    table, same = problem.table, equal_clocks(problem)
    rows = [[row for row, kind in enumerate(table.kinds) if kind[0] == s] for s in range(problem.pipeline.num_stages)]
    has: Array = np.array([np.isfinite(table.time_s[of]).all(axis=0) for of in rows])
    if not (all(rows) and has.any(axis=1).all()):
        return same
    forwards = [min(of, key=lambda row: table.kinds[row][1] != "forward") for of in rows]
    forward_s = table.time_s[forwards]
    highest = has.shape[1] - 1 - has[:, ::-1].argmax(axis=1)
    clocks = []
    for limit_s in np.unique(forward_s[has]):
        within_s = np.where(has & (forward_s <= limit_s), forward_s, 0.0)
        clocks.append(np.where(within_s.any(axis=1), within_s.argmax(axis=1), highest))
    return Combinations(problem, np.vstack([*clocks, same.clocks]))
