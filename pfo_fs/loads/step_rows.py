"""What one rank tells all others about a step, as a row of numbers: a fixed part, and then its loads.

    step | a step, energy counter and time at its begin | begin | steps that have ended: number, time, clock | loads

Loads may be sent ahead: the step of a row is that which runs, or a later one.

Without a pipeline, the load of a step is that of its micro-batches together: how many there are, the sum of each
feature, and, if loads are one number, the sum of their squares. The time of a step is a linear function of it. In a
pipeline, the loads are those of the micro-batches in their order, and one rank that knows them is enough.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.errors import ConfigError

MOST_FEATURES = 8
MOST_NUMBERS = 4096
"""The loads of a step have room for this many numbers, such as those of 512 micro-batches with 8 features."""
_MOST = 1e30
"""No load may be larger, so that squares and sums stay finite."""
MOST_ENDED = 4
"""A row has room for this many steps that have ended: more end between two steps only after a pause."""
_RUNS, _BEGAN, _ENDED = 1, 4, 5
FIXED = _ENDED + 3 * MOST_ENDED
"""A row has this many numbers before its loads."""
UNKNOWN = math.nan


class EndedStep(NamedTuple):
    """How a step ran on one rank.

    Attributes:
        work_s: The time of the rank's own work, until it would have waited for others.
        mhz: The mean of its clock while it worked, NaN if that is not known.
    """

    step: int
    work_s: float
    mhz: float


class Reading(NamedTuple):
    """The energy counter of a rank's GPU when a step (`runs`) has begun there, and the time then; NaN: not known."""

    runs: int
    energy_j: float = UNKNOWN
    time_s: float = UNKNOWN


def load_of_step(loads: Iterable[object] | None, micro_batches: int = 0) -> tuple[float, ...]:
    """Returns the load of a step from those of its micro-batches; empty if they make no load."""
    try:
        return checked_load(loads, micro_batches)
    except ConfigError:
        return ()


def checked_load(loads: Iterable[object] | None, micro_batches: int = 0) -> tuple[float, ...]:
    """Returns the load of a step from those of its micro-batches.

    Args:
        loads: Of each micro-batch, one number or a short sequence of them; all of the same length.
        micro_batches: In a pipeline, how many there must be; 0 without a pipeline: any number of loads is summed.

    Raises:
        ConfigError: They make no load; the message says why.
    """
    rows = []
    for load in () if loads is None else loads:
        try:
            rows.append(_features(load))
        except Exception as error:  # noqa: BLE001  a load is whatever a program gives
            raise ConfigError(f"{repr(load)[:40]}: {str(error) or type(error).__name__}") from None
    if not rows:
        raise ConfigError("there is none")
    if len(lengths := {len(row) for row in rows}) > 1:
        raise ConfigError(f"loads of {min(lengths)} and of {max(lengths)} numbers")
    if not 0 < len(rows[0]) <= MOST_FEATURES:
        raise ConfigError(f"a load of {len(rows[0])} numbers: at least 1, at most {MOST_FEATURES}")
    if wrong := [number for row in rows for number in row if not abs(number) <= _MOST]:  # NaN is not either
        raise ConfigError(f"a load of {wrong[0]:g}")
    if micro_batches:
        if len(rows) != micro_batches:
            raise ConfigError(f"{len(rows)} loads for {micro_batches} micro-batches")
        if len(rows) * len(rows[0]) > MOST_NUMBERS:
            raise ConfigError(f"more than {MOST_NUMBERS} numbers")
        return tuple(number for row in rows for number in row)
    sums = [math.fsum(column) for column in zip(*rows, strict=True)]
    if len(sums) == 1:
        sums.append(math.fsum(row[0] * row[0] for row in rows))
    return (float(len(rows)), *sums)


def _features(load: object) -> tuple[float, ...]:
    """The numbers of one load.

    Raises:
        ValueError: It is on a GPU: reading it would wait.
    """
    if getattr(getattr(load, "device", None), "type", "cpu") != "cpu":
        raise ValueError("a load on a GPU")
    values = getattr(load, "tolist", lambda: load)()
    return tuple(map(float, values if isinstance(values, (list, tuple)) else [values]))


def make_row(
    step: int, load: Sequence[float], reading: Reading, ended: Sequence[EndedStep], began_s: float = UNKNOWN
) -> list[float]:
    """Returns the row of a step.

    Args:
        load: `load_of_step`; empty if it is not known.
        reading: The reading of this step, or of one that has ended.
        ended: The steps that have ended; the row tells the last `MOST_ENDED`.
        began_s: When the step has begun, if it has, and if the reading is of another step.
    """
    fixed = [step, *reading, reading.time_s if reading.runs == step else began_s]
    for ended_step in ended[-MOST_ENDED:]:
        fixed += ended_step
    return [*fixed, *[UNKNOWN] * (FIXED - len(fixed)), *load]


def moved(row: Sequence[float], by_s: float) -> list[float]:
    """Returns a row with all times moved, from the clock of one host to that of another."""
    return [*row[: _BEGAN - 1], row[_BEGAN - 1] + by_s, row[_BEGAN] + by_s, *row[_ENDED:]]


class StepRows:
    """The rows of all ranks at one step, in the order of ranks.

    Attributes:
        steps: The step of each row, (ranks,).
        readings: `Reading` of each rank, (ranks, 3).
        begins_s: When each rank has begun the step of its row, (ranks,); NaN if it has not, or that is not known.
        ended: `EndedStep` of the steps that have ended, (ranks, steps, 3).
        odd_rank: The first rank whose loads have another form than those of most, if there is one.
    """

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        fixed: Array = np.array([row[:FIXED] for row in rows])
        self.steps: Array = fixed[:, 0]
        self.readings: Array = fixed[:, _RUNS:_BEGAN]
        self.begins_s: Array = fixed[:, _BEGAN]
        self.ended: Array = fixed[:, _ENDED:].reshape(len(rows), MOST_ENDED, 3)
        self._loads = [row[FIXED:] for row in rows]
        sizes: Array = np.array([len(load) for load in self._loads])
        self._size = int(np.bincount(sizes[sizes > 0]).argmax()) if sizes.any() else 0
        odd = np.flatnonzero((sizes > 0) & (sizes != self._size))
        self.odd_rank = int(odd[0]) if len(odd) else None

    def loads_of(self, lanes: Sequence[int], micro_batches: int) -> Array:
        """Returns the load of each micro-batch (1 without a pipeline), (micro-batches, lanes, features).

        It is NaN where none of a lane's ranks knows it; a load of another form than most loads counts as not known.
        """
        loads: Array = np.full((micro_batches, max(lanes) + 1, max(1, self._size // micro_batches)), UNKNOWN)
        for lane, load in zip(reversed(lanes), reversed(self._loads), strict=True):
            if load and len(load) == self._size and self._size % micro_batches == 0:
                loads[:, lane] = np.reshape(load, (micro_batches, -1))
        return loads
