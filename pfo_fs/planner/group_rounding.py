"""Real clocks for groups of instructions that share one: first fast enough for the linear program, then slower."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.planner.problem import Problem, group_options
from pfo_fs.planner.relaxation import Relaxed

_TRIALS = 3
"""Number of slower options that are tried for a group, slowest first."""

Groups = Sequence[Sequence[int]]
"""Nodes that share one clock; each node is in one group, and a group is a run of nodes of one rank."""


def groups_of(problem: Problem, clocks: Sequence[int]) -> list[list[int]]:
    """Returns the runs of one clock, each as a group."""
    changes = set(problem.changes(clocks)) | set(problem.pipeline.first_nodes)
    groups: list[list[int]] = []
    for node in range(len(clocks)):
        if node in changes:
            groups.append([])
        groups[-1].append(node)
    return groups


def rounded(problem: Problem, groups: Groups, answer: Relaxed) -> list[int]:
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


def slowed_down(problem: Problem, groups: Groups, found: Sequence[int], length_s: float) -> list[int]:
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
    starts = problem.timing(times, changes).starts_s
    latest = problem.latest_starts(times, changes, length_s - problem.overhead_s)
    return [late - soon for late, soon in zip(latest, starts, strict=True)]


def _take(assignment: list[int], group: Sequence[int], option: Sequence[int]) -> None:
    for node, k in zip(group, option, strict=True):
        assignment[node] = k
