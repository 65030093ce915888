"""The price of a clock change: each limit on the number of changes is one, found by bisection.

The higher the price, the fewer changes a plan has that counts it as energy.
"""

from __future__ import annotations

from collections.abc import Callable

from pfo_fs.planner.problem import Problem

_FIRST_SHARE, _FACTOR = 1 / 64, 4.0
"""The first price is this share of the mean energy of an instruction; until one is enough, each further one is this
multiple of the last."""


def first_price_j(problem: Problem) -> float:
    """Returns the first price that is worth trying, in J."""
    return _FIRST_SHARE * sum(abs(each.costs_j[0]) for each in problem.choices) / len(problem.choices)


def least_price_j(first_j: float, is_enough: Callable[[float], bool], steps: int) -> float:
    """Returns the least price found at which there are few enough changes, in J; if there is none, a very high one.

    Args:
        first_j: The price to try first, in J.
        is_enough: Whether there are few enough changes at a price, in J.
        steps: Number of prices to try.
    """
    too_low_j, enough_j, price_j = 0.0, float("inf"), first_j
    for _ in range(steps):
        if is_enough(price_j):
            enough_j = price_j
        else:
            too_low_j = price_j
        if enough_j == float("inf"):
            price_j *= _FACTOR
        else:
            price_j = (too_low_j * enough_j) ** 0.5 if too_low_j else enough_j / _FACTOR
    return price_j if enough_j == float("inf") else enough_j
