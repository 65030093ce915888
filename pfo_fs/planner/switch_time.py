"""Where a clock change costs time, it is priced like any other.

The relaxation's duals say what a second costs at each node; dynamic programming finds each rank's cheapest sequence of
clocks at these prices; runs of one clock become groups that share it; and a second linear program, in which every
boundary between groups costs its time, says how fast each group has to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pfo_fs.errors import PlannerError
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxation, Relaxed

_WEIGHTS = (1.0, 3.0, 10.0, 100.0)
"""How many times its price a change is taken for: the relaxation that sets the prices knows of no changes."""
_INFINITE = float("inf")


def plan_with_switch_time(problem: Problem, relaxed: Relaxed, length_s: float) -> list[int]:
    """Returns the best assignment found within the length, clock changes counted.

    Args:
        problem: A problem with switch time.
        relaxed: The answer of its relaxation without changes, whose duals are the first prices.
        length_s: The longest iteration time in s; that of `problem.fastest` or longer.
    """
    best = list(problem.fastest)
    best_j = _energy(problem, best)
    tried = set()
    for weight in _WEIGHTS:
        prices = relaxed.prices_w
        for _ in range(2):  # the second time with the prices of the program that knows the changes
            groups = _runs(problem, _cheapest_clocks(problem, prices, weight))
            key = tuple(map(len, groups))
            if key in tried:
                break
            tried.add(key)
            try:
                answer = Relaxation(problem, groups).solve(length_s - problem.overhead_s, problem.waiting_power_w)
            except PlannerError:
                break
            found = _rounded(problem, groups, answer, length_s)
            if found is not None and _energy(problem, found) < best_j:
                best, best_j = found, _energy(problem, found)
            prices = answer.prices_w
    return best


def _energy(problem: Problem, assignment: Sequence[int]) -> float:
    return problem.cost_of(assignment) + problem.waiting_power_w * problem.iteration_time_of(assignment)


def _cheapest_clocks(problem: Problem, prices_w: Sequence[float], weight: float) -> list[int]:
    """Each rank's cheapest sequence of clocks (MHz) at these prices of time, by dynamic programming."""
    result: list[int] = []
    for first, end in pairwise(problem.pipeline.first_nodes):
        clocks = sorted({mhz for node in range(first, end) for mhz in problem.choices[node].frequencies_mhz})
        so_far = dict.fromkeys(clocks, 0.0)
        came_from: list[dict[int, int]] = []
        for node in range(first, end):
            choices, price = problem.choices[node], prices_w[node]
            cost_at = {
                mhz: cost + price * seconds
                for mhz, cost, seconds in zip(choices.frequencies_mhz, choices.costs_j, choices.times_s, strict=True)
            }
            cheapest = min(so_far, key=lambda mhz: so_far[mhz])
            change_j = so_far[cheapest] + weight * price * problem.switch_time_s
            origin = {mhz: mhz if so_far[mhz] <= change_j else cheapest for mhz in clocks}
            so_far = {mhz: min(so_far[mhz], change_j) + cost_at.get(mhz, _INFINITE) for mhz in clocks}
            came_from.append(origin)
        mhz = min(so_far, key=lambda mhz: so_far[mhz])
        backwards = []
        for origin in reversed(came_from):
            backwards.append(mhz)
            mhz = origin[mhz]
        result += reversed(backwards)
    return result


def _runs(problem: Problem, clocks: Sequence[int]) -> list[list[int]]:
    changes = set(problem.changes(clocks)) | set(problem.pipeline.first_nodes)
    groups: list[list[int]] = []
    for node in range(len(clocks)):
        if node in changes:
            groups.append([])
        groups[-1].append(node)
    return groups


def _rounded(problem: Problem, groups: Sequence[Sequence[int]], answer: Relaxed, length_s: float) -> list[int] | None:
    """Gives each group the slowest clock that is as fast as the answer, then slows down those that have room."""
    assignment = [0] * len(problem.choices)
    options_of = [_group_options(problem, group) for group in groups]
    taken = [0] * len(groups)
    for number, (group, options) in enumerate(zip(groups, options_of, strict=True)):
        for position, option in enumerate(options):
            if all(
                problem.choices[node].times_s[k] <= answer.times_s[node] + 1e-12
                for node, k in zip(group, option, strict=True)
            ):
                taken[number] = position
        _take(assignment, group, options[taken[number]])
    if problem.iteration_time_of(assignment) > length_s:
        return None
    for _ in range(2):
        for number, (group, options) in enumerate(zip(groups, options_of, strict=True)):
            low, high = taken[number], len(options) - 1
            while low < high:  # the slowest that fits, by bisection: times rise with the position
                middle = (low + high + 1) // 2
                _take(assignment, group, options[middle])
                if problem.iteration_time_of(assignment) <= length_s:
                    low = middle
                else:
                    high = middle - 1
            taken[number] = low
            _take(assignment, group, options[low])
    return assignment


def _take(assignment: list[int], group: Sequence[int], option: Sequence[int]) -> None:
    for node, k in zip(group, option, strict=True):
        assignment[node] = k


def _group_options(problem: Problem, group: Sequence[int]) -> list[list[int]]:
    """The clocks that all nodes of a group offer, as options of each node; slower ones later, none that costs more."""
    tables = [dict(zip(problem.choices[n].frequencies_mhz, range(10**6), strict=False)) for n in group]
    common = set.intersection(*(set(table) for table in tables))
    found: list[tuple[float, float, list[int]]] = []
    for mhz in common:
        option = [table[mhz] for table in tables]
        seconds = sum(problem.choices[n].times_s[k] for n, k in zip(group, option, strict=True))
        cost = sum(problem.choices[n].costs_j[k] for n, k in zip(group, option, strict=True))
        found.append((seconds, cost, option))
    found.sort(key=lambda item: item[:2])
    worth: list[list[int]] = []
    least = _INFINITE
    for _, cost, option in found:
        if cost < least:
            worth.append(option)
            least = cost
    return worth
