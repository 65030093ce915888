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

_WEIGHTS = (10.0, 1.0, 3.0, 100.0)
"""How many times its price a change is taken for: the relaxation that sets the prices knows of no changes. Mostly the
first is the best."""
_TRIALS = 3
_REFINED = 2
"""Of what the programs suggest, so many are worked out."""
_INFINITE = float("inf")


def plan_with_switch_time(problem: Problem, relaxed: Relaxed, length_s: float, thorough: bool = True) -> list[int]:
    """Returns the best assignment found within the length, clock changes counted.

    Args:
        problem: A problem with switch time.
        relaxed: The answer of its relaxation without changes, whose duals are the first prices.
        length_s: The longest iteration time in s; that of `problem.fastest` or longer.
        thorough: Try more prices, which takes four times as long.
    """
    candidates: list[tuple[float, list[list[int]], list[int]]] = []
    tried = set()
    for weight in _WEIGHTS if thorough else _WEIGHTS[:1]:
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
            found = _rounded(problem, groups, answer)
            if problem.iteration_time_of(found) <= length_s:
                candidates.append((_energy(problem, found), groups, found))
            prices = answer.prices_w
    candidates.sort(key=lambda candidate: candidate[0])
    refined = [_slowed_down(problem, groups, found, length_s) for _, groups, found in candidates[:_REFINED]]
    return min([list(problem.fastest), *refined], key=lambda found: _energy(problem, found))


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


def _rounded(problem: Problem, groups: Sequence[Sequence[int]], answer: Relaxed) -> list[int]:
    """Gives each group the slowest clock that is as fast as the answer."""
    assignment = [0] * len(problem.choices)
    for group in groups:
        options = _group_options(problem, group)
        fast_enough = [
            option
            for option in options
            if all(
                problem.choices[node].times_s[k] <= answer.times_s[node] + 1e-12
                for node, k in zip(group, option, strict=True)
            )
        ]
        _take(assignment, group, fast_enough[-1] if fast_enough else options[0])
    return assignment


def _slowed_down(problem: Problem, groups: Sequence[Sequence[int]], found: Sequence[int], length_s: float) -> list[int]:
    """Returns the assignment with groups at slower clocks wherever there is room, or where that saves a change."""
    assignment = list(found)
    options_of = [_group_options(problem, group) for group in groups]
    taken = [
        options.index([assignment[node] for node in group]) for group, options in zip(groups, options_of, strict=True)
    ]
    for _ in range(2):
        slack = _slack(problem, assignment, length_s)
        for number, (group, options) in enumerate(zip(groups, options_of, strict=True)):
            clocks = [problem.choices[group[0]].frequencies_mhz[option[0]] for option in options]
            slower = _slower(problem, group, options, taken[number], slack)
            for position in sorted(
                {*slower, *_merging(problem, assignment, group, clocks, taken[number])}, reverse=True
            ):
                _take(assignment, group, options[position])
                if problem.iteration_time_of(assignment) <= length_s:
                    taken[number] = position
                    slack = _slack(problem, assignment, length_s)
                    break
            _take(assignment, group, options[taken[number]])
    return assignment


def _slower(
    problem: Problem, group: Sequence[int], options: Sequence[Sequence[int]], taken: int, slack: Sequence[float]
) -> range:
    """The slower options of a group for which each of its nodes, alone, has slack; the last few of them."""
    now = options[taken]
    last = taken
    for position in range(taken + 1, len(options)):
        for node, before, after in zip(group, now, options[position], strict=True):
            times = problem.choices[node].times_s
            if times[after] - times[before] > slack[node]:
                return range(max(taken + 1, last - _TRIALS + 1), last + 1)
        last = position
    return range(max(taken + 1, last - _TRIALS + 1), last + 1)


def _merging(
    problem: Problem, assignment: Sequence[int], group: Sequence[int], clocks: Sequence[int], taken: int
) -> list[int]:
    """The slower options with which a group has the clock of the one before or behind, so that a change is saved."""
    ends = set(problem.pipeline.first_nodes)
    around = [n for n, edge in ((group[0] - 1, group[0]), (group[-1] + 1, group[-1] + 1)) if edge not in ends]
    theirs = {problem.choices[n].frequencies_mhz[assignment[n]] for n in around}
    return [position for position in range(taken + 1, len(clocks)) if clocks[position] in theirs]


def _slack(problem: Problem, assignment: Sequence[int], length_s: float) -> list[float]:
    """By how much each node alone could take longer without the iteration being longer than `length_s`."""
    times = problem.times_of(assignment)
    changes = problem.changes(problem.frequencies_of(assignment))
    lost = dict.fromkeys(changes, problem.switch_time_s)
    starts = problem.timing(times, changes).starts_s
    latest = [length_s - problem.overhead_s] * len(times)
    for node in reversed(problem.pipeline.topological):
        for later, delay_s in problem.after[node]:
            change_s = lost.get(later, 0.0) if later == node + 1 else 0.0
            latest[node] = min(latest[node], latest[later] - times[later] - delay_s - change_s)
    return [end - start - seconds for end, start, seconds in zip(latest, starts, times, strict=True)]


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
