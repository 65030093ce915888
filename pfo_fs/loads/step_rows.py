"""What one rank tells all others about a step, as a row of numbers of a fixed length.

    step | its load | step that runs, energy counter, time of its reading | steps that have ended: number, time, clock

Steps may be told before they run, so that the step of a row is that which runs, or a later one.

The load of a step is that of its micro-batches together, of which the time of a step is a linear function: how many
there are, the sum of each feature, and, of loads of one number, the sum of their squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_FEATURES = 8
MOST_ENDED = 4
"""A row has room for this many steps that have ended: more end between two steps only after a pause."""
_LOAD = 1
_RUNS = _LOAD + MOST_FEATURES + 2
_ENDED = _RUNS + 3
WIDTH = _ENDED + 3 * MOST_ENDED
UNKNOWN = math.nan

Array = Any
"""An array of numpy, which is not typed here."""


@dataclass(frozen=True)
class EndedStep:
    """How a step ran on one rank.

    Attributes:
        step: Its number.
        work_s: The time of the rank's own work, until it would have waited for others, in s.
        mhz: The clock of that work; negative if it came while the work went on, NaN if it is not known.
    """

    step: int
    work_s: float
    mhz: float


@dataclass(frozen=True)
class Reading:
    """The energy counter of a rank's GPU, in J, and the time at which it was read, in s; NaN if they are not known.

    `runs` is the step that begins just then.
    """

    runs: int
    energy_j: float = UNKNOWN
    time_s: float = UNKNOWN


def load_of_step(loads: Iterable[Any] | None) -> tuple[float, ...]:
    """Returns the load of a step from those of its micro-batches; empty if it cannot be one.

    Args:
        loads: Of each micro-batch, one number or a short sequence of them; all of the same length.
    """
    try:
        given = () if loads is None else loads
        rows = [_features(one) for one in given]
    except (TypeError, ValueError):
        return ()
    if not rows or not 0 < len(rows[0]) <= MOST_FEATURES or any(len(row) != len(rows[0]) for row in rows):
        return ()
    sums = [math.fsum(column) for column in zip(*rows, strict=True)]
    if len(sums) == 1:
        sums.append(math.fsum(one[0] * one[0] for one in rows))
    found = (float(len(rows)), *sums)
    return found if all(map(math.isfinite, found)) else ()


def _features(load: Any) -> tuple[float, ...]:
    """The numbers of one load.

    Raises:
        ValueError: It is on a GPU: reading it would wait.
    """
    if getattr(getattr(load, "device", None), "type", "cpu") != "cpu":
        raise ValueError("a load on a GPU")
    values = load.tolist() if hasattr(load, "tolist") else load
    return tuple(map(float, values)) if isinstance(values, (list, tuple)) else (float(values),)


def make_row(step: int, load: Sequence[float], reading: Reading, ended: Sequence[EndedStep]) -> list[float]:
    """Returns the row of a step.

    Args:
        step: The step.
        load: `load_of_step`; empty if it is not known.
        reading: The energy counter.
        ended: The last steps that have ended, at most `MOST_ENDED`.
    """
    row = [UNKNOWN] * WIDTH
    row[0] = step
    row[_LOAD : _LOAD + len(load)] = load
    row[_RUNS:_ENDED] = reading.runs, reading.energy_j, reading.time_s
    for place, one in enumerate(ended[-MOST_ENDED:]):
        row[_ENDED + 3 * place : _ENDED + 3 * place + 3] = one.step, one.work_s, one.mhz
    return row


def loads_in(rows: Array) -> Array:
    """Returns the loads in the rows of all ranks, (ranks, features), NaN where one is not known.

    Ranks whose loads have another number of features than most have none that is known.
    """
    import numpy as np

    found = rows[:, _LOAD:_RUNS]
    counts = np.isfinite(found).sum(axis=1)
    most = int(np.bincount(counts).argmax())
    found = found[:, : max(1, most)].copy()
    found[counts != most] = UNKNOWN
    return found


def odd_one(rows: Array) -> int | None:
    """Returns the first rank whose load has another number of features than most, if there is one."""
    import numpy as np

    counts = np.isfinite(rows[:, _LOAD:_RUNS]).sum(axis=1)
    odd = np.flatnonzero((counts > 0) & (counts != np.bincount(counts).argmax()))
    return int(odd[0]) if len(odd) else None


def readings_in(rows: Array) -> Array:
    """Returns (ranks, 3): the step that runs, energy in J, time in s."""
    return rows[:, _RUNS:_ENDED]


def ended_in(rows: Array) -> Array:
    """Returns (ranks, steps, 3): number, time and clock of the steps that have ended."""
    return rows[:, _ENDED:].reshape(len(rows), MOST_ENDED, 3)
