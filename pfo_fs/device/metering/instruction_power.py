"""The power of each instruction at each clock, from an energy counter that ticks more slowly than instructions run.

Between two ticks of the counter a GPU runs parts of some instructions, and waits in between. Each pair of ticks gives
one equation: the energy between them is the sum of power times time over the instructions that ran. From some hundred
ticks, in which the shares differ, least squares gives each power and its standard error. The power of waiting is the
*blocking power* (Perseus, SOSP'24, section 3.2), measured in the training itself. The fit is plain Python, because the
clock process must start fast and the unknowns are few.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

_LEAST_S = 0.05
"""Instructions that ran for less than this in total are left out, with the ticks in which they ran."""
_TICKS_BETWEEN_YIELDS = 64
_MAX_UNKNOWNS = 128
_SEEN_S, _LIKE_TICKS = 0.002, 4
"""A tick is seen with an error of about 2 ms. A few ticks can fit better than that by chance, so this error counts as
if four more ticks had shown it."""
_MOST_ERROR_W = 1000.0
"""A power with a larger standard error says nothing: no GPU draws more."""


class Power(NamedTuple):
    """The power of a GPU while it runs an instruction at a clock, in W, with its standard error in W.

    Attributes:
        instruction: The instruction's name; empty for waiting.
        frequency: The clock in MHz; 0 for the driver's default, and for waiting at any clock.
    """

    instruction: str
    frequency: int
    power: float
    error: float
    seconds: float


_Key = tuple[str, int]
_WAITING: _Key = ("", 0)


class PowerFit:
    """Collects ticks and fits powers to them.

    Args:
        top_mhz: The highest clock of the GPU, in MHz, as which the default clock counts; 0: no clock is ever set.
    """

    def __init__(self, top_mhz: int) -> None:
        self._top_mhz = top_mhz
        self._clocks: list[tuple[int, int]] = [(0, 0)]  # (ns from which on the clock acts, MHz)
        self._rows: list[tuple[dict[_Key, float], float]] = []  # seconds of each instruction, joules of all

    def clear(self) -> None:
        self._rows.clear()

    def clock_acts(self, t_ns: int, mhz: int) -> None:
        """Notes from when on a clock acts, which replaces clocks that were to act later."""
        while len(self._clocks) > 1 and self._clocks[-1][0] >= t_ns:
            self._clocks.pop()
        self._clocks.append((t_ns, mhz))
        if len(self._clocks) > 100_000:
            del self._clocks[:50_000]

    def forget_before(self, t_ns: int) -> None:
        """Drops clocks that had ended before `t_ns`."""
        del self._clocks[: self._place_at(t_ns)]

    def _place_at(self, t_ns: int) -> int:
        """Returns the place of the clock that acts at a time."""
        return max(0, bisect_right(self._clocks, t_ns, key=lambda clock: clock[0]) - 1)

    def _parts(self, begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Returns for how many ns each clock acts between two times: (ns, MHz)."""
        first, last = self._place_at(begin_ns), self._place_at(end_ns)
        ends_ns = [*(acts_ns for acts_ns, _ in self._clocks[first + 1 : last + 1]), end_ns]
        clocks = self._clocks[first : last + 1]
        return [(until - max(acts, begin_ns), mhz) for (acts, mhz), until in zip(clocks, ends_ns, strict=True)]

    def mean_clocks(self, instructions: Iterable[tuple[str, int, int]]) -> Iterator[int]:
        """Yields the mean clock in MHz of each instruction (name, begin, end in ns); 0 if all of it ran at the default.

        If a part of an instruction ran at the default clock, that part counts as run at the highest clock.
        """
        for _, begin_ns, end_ns in instructions:
            parts = self._parts(begin_ns, end_ns)
            total_ns = sum(ns for ns, _ in parts)
            if total_ns <= 0:
                yield max(mhz for _, mhz in parts)
            elif not any(ns and mhz for ns, mhz in parts):
                yield 0
            else:
                yield round(sum(ns * (mhz or self._top_mhz) for ns, mhz in parts) / total_ns)

    def add(self, instructions: Sequence[tuple[str, int, int]], ticks: Sequence[tuple[int, float]]) -> Iterator[None]:
        """Adds a step.

        Args:
            instructions: (name, begin, end in ns), ordered by begin.
            ticks: (ns, J) of the counter, within the step.

        Yields:
            None every 64 ticks, so that the caller can do more urgent work.
        """
        at = 0
        for number, ((begin_ns, begin_j), (end_ns, end_j)) in enumerate(pairwise(ticks)):
            if number % _TICKS_BETWEEN_YIELDS == 0:
                yield None
            while at < len(instructions) and instructions[at][2] <= begin_ns:
                at += 1
            shares: dict[_Key, float] = {}
            waiting_ns = end_ns - begin_ns
            for name, t0, t1 in instructions[at:]:
                if t0 >= end_ns:
                    break
                first_ns, last_ns = max(t0, begin_ns), min(t1, end_ns)
                waiting_ns -= last_ns - first_ns
                for ran_ns, mhz in self._parts(first_ns, last_ns):
                    if ran_ns > 0:
                        shares[name, mhz] = shares.get((name, mhz), 0.0) + ran_ns / 1e9
            if waiting_ns > 0:
                shares[_WAITING] = waiting_ns / 1e9
            self._rows.append((shares, end_j - begin_j))

    def solve(self) -> list[Power]:
        """Returns the powers, smallest standard error first; empty if there are too few ticks for a fit."""
        seconds: dict[_Key, float] = {}
        for shares, _ in self._rows:
            for key, share_s in shares.items():
                seconds[key] = seconds.get(key, 0.0) + share_s
        keys = sorted((key for key, total_s in seconds.items() if total_s >= _LEAST_S), key=lambda key: -seconds[key])
        number = {key: n for n, key in enumerate(keys[:_MAX_UNKNOWNS])}
        rows = [(shares, energy_j) for shares, energy_j in self._rows if shares.keys() <= number.keys()]
        size = len(number)
        if not size or len(rows) <= size:
            return []
        matrix = [[0.0] * size for _ in range(size)]
        right = [0.0] * size
        squares = 0.0
        for shares, energy_j in rows:
            squares += energy_j * energy_j
            for key, share_s in shares.items():
                row = matrix[number[key]]
                right[number[key]] += share_s * energy_j
                for other, other_s in shares.items():
                    row[number[other]] += share_s * other_s
        inverse = _inverse(matrix)
        if inverse is None:
            return []
        powers = [sum(a * b for a, b in zip(row, right, strict=True)) for row in inverse]
        rest = max(0.0, squares - sum(power * b for power, b in zip(powers, right, strict=True)))
        total_s = sum(sum(shares.values()) for shares, _ in rows)
        usual_j = _SEEN_S * sum(energy_j for _, energy_j in rows) / total_s
        variance = (rest + _LIKE_TICKS * usual_j**2) / (len(rows) - size + _LIKE_TICKS)
        found = [
            Power(
                key[0],
                key[1],
                float(f"{powers[n]:.6g}"),
                float(f"{math.sqrt(max(0.0, variance * inverse[n][n])):.3g}"),
                float(f"{seconds[key]:.6g}"),
            )
            for key, n in number.items()
        ]
        return sorted((power for power in found if power.error <= _MOST_ERROR_W), key=lambda power: power.error)


def _inverse(matrix: list[list[float]]) -> list[list[float]] | None:
    """Inverts a symmetric positive definite matrix (Gauss-Jordan); None if it is not positive definite.

    Powers of instructions that run in the same proportion in every tick cannot be separated: adding a billionth to the
    diagonal keeps the result finite, and its standard error is then large.
    """
    size = len(matrix)
    ridge = 1e-9 * max(matrix[n][n] for n in range(size))
    rows = [
        [
            *(value + (ridge if column == n else 0.0) for column, value in enumerate(row)),
            *(float(k == n) for k in range(size)),
        ]
        for n, row in enumerate(matrix)
    ]
    for n in range(size):
        scale = rows[n][n]  # positive in each row, so that rows need not be exchanged
        if scale < 1e-30:
            return None
        rows[n] = [value / scale for value in rows[n]]
        for k in range(size):
            factor = rows[k][n]
            if k != n and factor:
                rows[k] = [value - factor * own for value, own in zip(rows[k], rows[n], strict=True)]
    return [row[size:] for row in rows]
