"""Plans where a clock change costs time: the time of a change is priced like the time of an instruction.

The relaxation's duals are the price of a second at each node. Dynamic programming finds each rank's cheapest sequence
of clocks at these prices. Runs of one clock become groups that share a clock. A second linear program, in which every
boundary between groups costs its time, gives the time that each group may take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pfo_fs.errors import PlannerError
from pfo_fs.planner.problem import Problem, group_options
from pfo_fs.planner.relaxation import Relaxation, Relaxed
from pfo_fs.planner.stage_clocks import StageClocks

_WEIGHTS = (10.0, 1.0, 3.0, 100.0)
"""The price of a change is multiplied by each of these in turn, because the relaxation that sets the prices does not
count changes. The first weight usually gives the best plan."""
_TRIALS = 3
"""Number of slower options that are tried for a group, slowest first."""
_REFINED = 2
"""Number of assignments, those with least energy, in which groups are then slowed down further."""
_INFINITE = float("inf")


Groups = Sequence[Sequence[int]]
"""Nodes that share one clock; each node is in one group, and a group is a run of nodes of one rank."""


class SwitchTimePlanner:
    """Plans a problem in which clock changes cost time.

    Args:
        problem: A problem with switch time.
        thorough: Try more prices, which takes four times as long.
    """

    def __init__(self, problem: Problem, thorough: bool = True) -> None:
        self._problem = problem
        self._thorough = thorough
        self._stage_clocks = StageClocks(problem)
        self._slowest = [choices.hull[-1] for choices in problem.choices]

    def plan(self, relaxed: Relaxed, length_s: float, straggler: bool) -> list[int]:
        """Returns the best assignment found within the length, clock changes counted.

        The simple assignments (one clock per stage, every instruction at its highest clock, at its fastest, or at its
        cheapest) are among those that are compared, so the result never takes more energy than the best of them.

        Args:
            relaxed: The answer of the relaxation without changes, whose duals are the first prices.
            length_s: The longest iteration time in s; that of `problem.fastest` or longer.
            straggler: The iteration lasts until `length_s` in any case, so that ending earlier saves no waiting.
        """
        problem = self._problem
        waiting_w = 0.0 if straggler else problem.waiting_power_w

        def energy_j(assignment: Sequence[int]) -> float:
            return problem.cost_of(assignment) + waiting_w * problem.iteration_time_of(assignment)

        simple = [list(problem.fastest), self._highest(), self._slowest]
        clocks_mhz = self._stage_clocks.best(length_s, length_s if straggler else None)
        if clocks_mhz is not None:
            simple.append(self._stage_clocks.options([clocks_mhz])[:-1, 0].tolist())
        candidates = [(_runs(problem, problem.frequencies_of(each)), each) for each in simple]
        candidates += self._suggested(relaxed, length_s, waiting_w)
        within = [each for each in candidates if problem.iteration_time_of(each[1]) <= length_s]
        within.sort(key=lambda each: energy_j(each[1]))
        best = [found for _, found in within[:1]]
        for groups, found in within[:_REFINED]:
            # Where waiting costs energy, slower clocks save energy up to the relaxation's end at most.
            end_s = max(problem.iteration_time_of(found), relaxed.makespan_s + problem.overhead_s)
            limit_s = min(length_s, end_s) if waiting_w else length_s
            best.append(_slowed_down(problem, groups, found, limit_s))
        return min(best, key=energy_j)

    def _highest(self) -> list[int]:
        return [choices.frequencies_mhz.index(max(choices.frequencies_mhz)) for choices in self._problem.choices]

    def _suggested(
        self, relaxed: Relaxed, length_s: float, waiting_w: float
    ) -> Iterator[tuple[list[list[int]], list[int]]]:
        """Yields what the linear programs suggest: groups of nodes, and an assignment in which each has one clock."""
        problem = self._problem
        tried = set()
        for weight in _WEIGHTS if self._thorough else _WEIGHTS[:1]:
            prices = relaxed.prices_w
            for _ in range(2):  # the second time with the prices of the program that counts the changes
                groups = _runs(problem, _cheapest_clocks(problem, prices, weight))
                key = tuple(map(len, groups))
                if key in tried:
                    break
                tried.add(key)
                try:
                    answer = Relaxation(problem, groups).solve(length_s - problem.overhead_s, waiting_w)
                except PlannerError:
                    break
                yield groups, _rounded(problem, groups, answer)
                prices = answer.prices_w


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


def _rounded(problem: Problem, groups: Groups, answer: Relaxed) -> list[int]:
    """Gives each group the slowest clock that is as fast as the answer."""
    assignment = [0] * len(problem.choices)
    for group in groups:
        options = group_options(problem, group)
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


def _slowed_down(problem: Problem, groups: Groups, found: Sequence[int], length_s: float) -> list[int]:
    """Returns the assignment with groups at slower clocks wherever there is room, or where that saves a change."""
    assignment = list(found)
    options_of = [group_options(problem, group, [assignment[node] for node in group]) for group in groups]
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
    """The slower options of a group that fit into the slack of each of its nodes alone; the slowest few of them."""
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
    """The slower options that give a group the clock of the group before or behind it, which saves a change."""
    ends = set(problem.pipeline.first_nodes)
    around = [n for n, edge in ((group[0] - 1, group[0]), (group[-1] + 1, group[-1] + 1)) if edge not in ends]
    theirs = {problem.choices[n].frequencies_mhz[assignment[n]] for n in around}
    return [position for position in range(taken + 1, len(clocks)) if clocks[position] in theirs]


def _slack(problem: Problem, assignment: Sequence[int], length_s: float) -> list[float]:
    """How much longer each node alone could take, in s, while the iteration stays within `length_s`."""
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
