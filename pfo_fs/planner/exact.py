"""The plan with least energy for pipelines of a few instructions, found by branch and bound over whole options.

Rounding the relaxation (`relaxation`, `rounding`) is within a fraction of a percent of the optimum for long pipelines.
It loses most where an instruction can trade time with few others. For such pipelines HiGHS's mixed-integer solver
proves the optimum in a fraction of a second.
"""

from __future__ import annotations

from pfo_fs.planner.problem import Problem
from pfo_fs.planner.solver import silent_highs

MAX_OPTIONS = 320
"""The exact solver is used if all nodes together have at most this many options: 16 instructions at 20 clocks."""
_MOST_NODES = 2_000
"""Of the search tree; not a time, so that a busy machine plans as an idle one does."""
_TOLERANCE = 1e-9


def small_enough(problem: Problem) -> bool:
    """Whether the problem is small enough for `solve_exactly`."""
    return sum(len(choices.times_s) for choices in problem.choices) <= MAX_OPTIONS


def solve_exactly(problem: Problem, deadline_s: float, waiting_power_w: float) -> list[int] | None:
    """Returns the assignment with least energy within the deadline, or None if that takes too long.

    Args:
        problem: A problem without switch time that is small enough.
        deadline_s: The longest makespan in s, without the overhead.
        waiting_power_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.
    """
    highs = silent_highs()
    for option, value in (
        ("mip_max_nodes", _MOST_NODES),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-9),
        ("mip_feasibility_tolerance", _TOLERANCE),
        ("primal_feasibility_tolerance", _TOLERANCE),
    ):
        highs.setOptionValue(option, value)
    ends = [highs.addVariable(0.0, deadline_s) for _ in problem.choices]
    makespan = highs.addVariable(0.0, deadline_s, waiting_power_w)
    taken = [[highs.addBinary(cost_j) for cost_j in choices.costs_j] for choices in problem.choices]
    for node, choices in enumerate(problem.choices):
        highs.addConstr(sum(taken[node]) == 1)
        duration = sum(seconds * chosen for seconds, chosen in zip(choices.times_s, taken[node], strict=True))
        highs.addConstr(ends[node] - duration >= 0)
        for first, delay_s in problem.before[node]:
            highs.addConstr(ends[node] - ends[first] - duration >= delay_s)
        highs.addConstr(makespan - ends[node] >= 0)
    highs.run()
    if highs.getModelStatus().name != "kOptimal":
        return None
    values = highs.getSolution().col_value
    assignment = [max(range(len(row)), key=lambda k: values[row[k].index]) for row in taken]
    within = problem.timing(problem.times_of(assignment)).iteration_time_s - problem.overhead_s <= deadline_s
    return assignment if within else None
