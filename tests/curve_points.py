"""Measured points of instructions whose true curves are known, for tests of what is made of them."""

import random
from collections.abc import Callable, Mapping, Sequence

from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.samples import Point

CLOCKS = list(range(1410, 840, -15))
Truth = Callable[[Kind, int], tuple[float, float]]
"""Returns time in s and power in W of an instruction at a clock."""


def follows(share: float, cap_mhz: int = 10_000) -> Truth:
    """Instructions of which a share follows the clock, up to the board's power limit."""

    def truth(kind: Kind, mhz: int) -> tuple[float, float]:
        x = min(mhz, cap_mhz) / 1410
        return (1 + kind[0]) * 0.05 * (share / x + 1 - share), 90 + 250 * x**2.5

    return truth


def points_of(
    truth: Truth, where: Mapping[Kind, Sequence[int]], error: float = 0.0005, seed: int = 0
) -> dict[Kind, dict[int, Point]]:
    rng, count = random.Random(seed), 20
    points: dict[Kind, dict[int, Point]] = {}
    for kind, clocks in where.items():
        for mhz in clocks:
            time_s, power_w = truth(kind, mhz)
            point = points.setdefault(kind, {})[mhz] = Point()
            point.add_times(count, time_s * (1 + error * rng.gauss(0, 1)), error * time_s)
            point.add_power(power_w * (1 + 10 * error * rng.gauss(0, 1)), 10 * error * power_w)
    return points
