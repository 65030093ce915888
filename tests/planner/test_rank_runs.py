"""The clocks of one rank: as good as all possible ones tried out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.planner.rank_runs import cheapest, nodes_needed

COUNT, CLOCKS = 5, 3


def runs_of(clocks: tuple[int, ...]) -> list[tuple[int, int, bool]]:
    """Begin and length of each run of one clock, and whether the clock before was higher."""
    found, first = [], 0
    for clock, members in itertools.groupby(clocks):
        length = len(list(members))
        found.append((first, length, first > 0 and clock < clocks[first - 1]))
        first += length
    return found


@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 1.5, 2.5, 9.0]))
def test_the_cheapest_of_all_clocks_is_found(seed: int, missing: float, shortest_s: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((COUNT, CLOCKS)) < missing, np.inf, rng.normal(size=(COUNT, CLOCKS)))
    values[:, -1] = np.abs(rng.normal(size=COUNT))  # the highest clock was measured
    changes = rng.random((COUNT - 1, CLOCKS, CLOCKS))
    needed = nodes_needed(np.ones((COUNT, CLOCKS)), np.array([[shortest_s] * CLOCKS, [1.5 * shortest_s] * CLOCKS]))

    def cost(clocks: tuple[int, ...]) -> float:
        if any(length < needed[int(lowered), first, clocks[first]] for first, length, lowered in runs_of(clocks)):
            return np.inf
        total = sum(values[k, clock] for k, clock in enumerate(clocks))
        pairs = enumerate(itertools.pairwise(clocks))
        return float(total + sum(changes[k, old, new] for k, (old, new) in pairs if old != new))

    least = min(map(cost, itertools.product(range(CLOCKS), repeat=COUNT)))
    assert cost(tuple(cheapest(values, needed, changes).tolist())) == pytest.approx(least)


def test_none_is_found_where_each_clock_lacks_an_instruction_and_runs_are_long() -> None:
    values = np.array([[1.0, np.inf], [np.inf, 1.0]])
    needed = np.array([[[2, 2], [1, 1]]] * 2)
    assert cheapest(values, needed, np.zeros((1, 2, 2))) is None


def test_a_run_needs_as_many_instructions_as_last_until_the_next_change_or_all_that_are_left() -> None:
    times_s = np.array([[1.0, np.inf], [1.0, 2.0], [1.0, 2.0]])
    needed = nodes_needed(times_s, np.array([[1.5, 1.5], [2.5, 4.5]]))
    assert needed[0].tolist() == [[2, 2], [2, 1], [1, 1]]
    assert needed[1].tolist() == [[3, 3], [2, 2], [1, 1]]
