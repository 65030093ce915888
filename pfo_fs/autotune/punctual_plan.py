"""Makes a plan faster where iterations under it would be late on average, for as little energy as possible.

The planner takes durations as fixed. Where they scatter, or clocks that are to be tried are slower than hoped, a plan
that fits exactly is late on average (`expected_time.py`). The instructions that most often lie on the longest path then
get higher clocks, those first that cost least energy for the time that they win.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from pfo_fs.autotune.expected_time import ExpectedTime
from pfo_fs.planner import Plan, Problem

_STEPS = (1, 2, 4, 8)
"""A run of instructions gets a clock that is so many steps higher."""
_AT_ONCE, _MOST_ROUNDS = 0.4, 120
"""In one round, moves are made until they win this share of what is missing."""
_CLOSE = 2e-5
"""Relative: a plan that is late by less is in time."""
_LEAST_SHARE, _LEAST_WON_S = 0.01, 1e-9
"""Instructions that lie on the longest path more seldom than the first number are left alone."""


class _Move(NamedTuple):
    """Higher clocks for some instructions of a rank in a row.

    Attributes:
        price_w: Energy that it costs for the time that it wins, in J/s.
        won_s: The time by which it makes iterations shorter on average, in s.
        rank: The rank.
        begin, end: Its first node, and the one behind its last.
        mhz: Their new clock.
    """

    price_w: float
    won_s: float
    rank: int
    begin: int
    end: int
    mhz: int


class PunctualPlans:
    """Makes plans of one problem faster.

    Args:
        problem: The problem.
        expected: Computes mean iteration times.
        left_out_mhz: Clocks that instructions do not get.
    """

    def __init__(self, problem: Problem, expected: ExpectedTime, left_out_mhz: Container[int] = ()) -> None:
        self._problem, self._expected = problem, expected
        self._spans = list(pairwise(problem.pipeline.first_nodes))
        self._kinds = [(i.stage, i.name) for i in problem.pipeline.instructions]
        self._top_mhz = {kind: max(choices.option_at) for kind, choices in problem.measured_by_kind.items()}
        self._clocks_mhz = {
            kind: sorted(mhz for mhz in choices.option_at if mhz not in left_out_mhz or mhz == self._top_mhz[kind])
            for kind, choices in problem.measured_by_kind.items()
        }
        self._nodes: dict[tuple[int, int, tuple[int, str]], tuple[float, float]] = {}

    def in_time(self, plan: Plan, target_s: float) -> Plan:
        """Returns the plan, or a faster one if iterations under it would be longer than the target on average.

        Args:
            plan: The plan.
            target_s: The longest mean time of an iteration, in s.
        """
        problem = self._problem
        clocks = list(plan.frequencies_mhz)
        busy = self._busy(clocks)
        for _ in range(_MOST_ROUNDS):
            mean_s, shares = self._expected.critical(plan.replace(frequencies_mhz=tuple(clocks), problem=problem))
            missing_s = mean_s - target_s
            if missing_s <= _CLOSE * target_s:
                break
            won_s, moved = 0.0, set()
            for move in sorted(self._moves(clocks, shares)):
                if move.rank in moved:
                    continue
                before = clocks[move.begin : move.end]
                clocks[move.begin : move.end] = [move.mhz] * len(before)
                now = self._busy(clocks)
                if now > busy:
                    clocks[move.begin : move.end] = before
                    continue
                busy, won_s = now, won_s + move.won_s
                moved.add(move.rank)
                if won_s >= _AT_ONCE * missing_s:
                    break
            if not moved:
                break
        return plan.replace(frequencies_mhz=tuple(clocks))

    def _busy(self, clocks: Sequence[int]) -> int:
        """How many things the drivers cannot do."""
        problem = self._problem
        if not problem.switch_costs.driver_time_s and not problem.switch_costs.latency_s:
            return 0
        load = problem.switch_load_of(clocks, problem.times_at(clocks))
        return load.too_short + len(load.overloaded)

    def _moves(self, clocks: Sequence[int], shares: Sequence[float]) -> Iterator[_Move]:
        for rank, (first, last) in enumerate(self._spans):
            begin = first
            while begin < last:
                end = begin + 1
                while end < last and clocks[end] == clocks[begin]:
                    end += 1
                # The clock of this run also counts in the instruction after it, where clocks act late.
                matters = max(shares[begin : min(end + 1, last)]) > _LEAST_SHARE
                for part, mhz in self._higher(clocks, begin, end, first, last) if matters else ():
                    move = self._move(clocks, shares, rank, part, mhz)
                    if move is not None:
                        yield move
                begin = end

    def _higher(
        self, clocks: Sequence[int], begin: int, end: int, first: int, last: int
    ) -> Iterator[tuple[range, int]]:
        """Parts of a run of one clock, and higher clocks for them."""
        present = clocks[begin]
        common = [
            mhz
            for mhz in self._clocks_mhz[self._kinds[begin]]
            if mhz > present and all(mhz in self._clocks_mhz[kind] for kind in set(self._kinds[begin:end]))
        ]
        beside = [clocks[node] for node in (begin - 1, end) if first <= node < last and clocks[node] in common]
        for mhz in {*(common[step - 1] for step in _STEPS if step <= len(common)), *beside}:
            yield range(begin, end), mhz
        if end - begin > 1:
            for length in range(1, min(end - begin, 4)):
                if begin > first and clocks[begin - 1] in common:
                    yield range(begin, begin + length), clocks[begin - 1]
                if end < last and clocks[end] in common:
                    yield range(end - length, end), clocks[end]

    def _move(self, clocks: Sequence[int], shares: Sequence[float], rank: int, part: range, mhz: int) -> _Move | None:
        first, last = self._spans[rank]
        won_s = costs_j = 0.0
        for node in range(part.start, min(part.stop + 1, last)):
            old_s, old_j = self._node(node, clocks[node - 1] if node > first else 0, clocks[node])
            before = mhz if node - 1 in part else (clocks[node - 1] if node > first else 0)
            new_s, new_j = self._node(node, before, mhz if node in part else clocks[node])
            won_s += shares[node] * (old_s - new_s)
            costs_j += new_j - old_j
        if won_s <= _LEAST_WON_S:
            return None
        return _Move(costs_j / won_s, won_s, rank, part.start, part.stop, mhz)

    def _node(self, node: int, before_mhz: int, mhz: int) -> tuple[float, float]:
        """Time in s and effective energy in J of a node; a clock before of 0 MHz is that of the iteration's begin."""
        kind = self._kinds[node]
        found = self._nodes.get((before_mhz, mhz, kind))
        if found is None:
            choices, late_s = self._problem.measured_by_kind[kind], self._problem.switch_costs.acts_late_s
            at = choices.option_at[mhz]
            more_s, more_j = 0.0, 0.0
            before = before_mhz or self._top_mhz[kind]
            if late_s and before != mhz:
                more_s, more_j = choices.late(before, mhz, late_s)
            found = self._nodes[before_mhz, mhz, kind] = choices.times_s[at] + more_s, choices.costs_j[at] + more_j
        return found
