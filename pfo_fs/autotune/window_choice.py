"""Which clocks each stage measures in the next window, so that the fewest windows tell what a plan has to know.

A measurement at one clock also tells of the clocks around it, and of the stages that are alike. So the clocks of a
window are chosen one after another: each time the one that makes the errors that matter to a plan smallest, given those
already chosen. A window may make iterations longer by a small share only: stages that others wait for stay near the
highest clock, where most of what a plan needs to know is, and stages with slack go lower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.autotune.clock_curves import Belief, ClockCurves, Estimate
from pfo_fs.autotune.instruction_runs import Kind

_CANDIDATES = 24
"""Number of clocks that are considered."""
_NEAR, _ALWAYS = 0.15, 0.05
"""A clock matters by exp(-z / 0.15), z = log(highest clock / clock), as plans keep near the highest clock where stages
wait for each other; and by this weight at least, as plans go low where there is slack."""
_IN_PLAN = 2.0
"""Weight of a clock that a plan uses for all of an instruction's runs."""
_TIME_ERROR, _POWER_ERROR = 0.002, 0.02
"""Relative errors that one more window at a clock is expected to leave."""
MOST_TIME_ERROR, MOST_POWER_ERROR = 0.02, 0.06
"""Relative: clocks that were not measured are on offer to the planner if their estimates have smaller errors."""
_TIMES_AS_IMPORTANT = 4.0
"""An error of time matters this many times as much as one of power: it makes iterations longer, or hides slack."""


Usage = Mapping[tuple[Kind, int], float]
"""Share of an instruction's runs that a plan runs at a clock (MHz)."""


@dataclass(frozen=True)
class StageRun:
    """What one pipeline-parallel rank runs in an iteration.

    Attributes:
        kinds: Number of runs of each kind of instruction.
        clocks_mhz: Clocks on offer, highest first.
    """

    kinds: Mapping[Kind, int]
    clocks_mhz: Sequence[int]


def candidates_of(clocks_mhz: Sequence[int], lowest: float) -> list[int]:
    """Returns the clocks to choose from, highest first, down to a share `lowest` of the highest one.

    They are closer to each other near the highest one, where more depends on them.
    """
    clocks = sorted((mhz for mhz in clocks_mhz if mhz >= lowest * max(clocks_mhz)), reverse=True)
    places = [(len(clocks) - 1) * (number / (_CANDIDATES - 1)) ** 1.5 for number in range(_CANDIDATES)]
    return [clocks[place] for place in sorted({round(place) for place in places})]


def iteration_s(
    stages: Sequence[StageRun], chosen: Sequence[Sequence[int]], table: Mapping[Kind, Mapping[int, Estimate]]
) -> float:
    """Returns about how long an iteration takes in which each stage shares its runs out among its chosen clocks.

    The slowest stage runs its micro-batches one after another, and the first one passes through all the other stages.
    """
    busy_s = [
        sum(count * sum(table[kind][mhz].time_s for mhz in clocks) / len(clocks) for kind, count in stage.kinds.items())
        for stage, clocks in zip(stages, chosen, strict=True)
    ]
    microbatches = max(count for stage in stages for count in stage.kinds.values())
    return sum(busy_s) / microbatches + (microbatches - 1) / microbatches * max(busy_s)


def next_clocks(
    stages: Sequence[StageRun],
    curves: Sequence[ClockCurves],
    most: int,
    with_highest: bool,
    budget: float,
    in_plan: Usage | None = None,
    is_checked: Callable[[Kind, int, float], bool] = lambda kind, mhz, time_s: True,
) -> list[list[int]]:
    """Returns the clocks that each stage measures in the next window, highest first, without its highest clock.

    Args:
        stages: What each pipeline-parallel rank runs.
        curves: What is believed at the candidates of all stages.
        most: At most this many clocks share an iteration.
        with_highest: Whether the highest clock is one of them; otherwise only a stage that measures none runs at it.
        budget: Relative: iterations may take this much longer than at the highest clocks.
        in_plan: What a plan uses, where there is a plan.
        is_checked: Returns whether a kind cannot take much longer at a clock than is believed, in s.
    """
    table = {kind: rows for group in curves for kind, rows in group.table().items()}
    chosen: list[list[int]] = [[] for _ in stages]
    highest = [[max(table[kind]) for kind in stage.kinds][:1] for stage in stages]
    allowed_s = (1 + budget) * iteration_s(stages, highest, table)
    gains = _Gains(curves, in_plan or {})
    room = max(1, most - with_highest)
    options = {
        (number, mhz)
        for number, stage in enumerate(stages)
        for mhz in _common(stage, table)
        if all(is_checked(kind, mhz, table[kind][mhz].time_s) for kind in stage.kinds)
    }
    while options:
        number, mhz = max(options, key=lambda one: (gains.of(stages[one[0]], one[1]), one))
        options.discard((number, mhz))
        trial = [[*clocks, mhz] if at == number else clocks for at, clocks in enumerate(chosen)]
        run = [
            top + clocks if with_highest or not clocks else clocks for top, clocks in zip(highest, trial, strict=True)
        ]
        if iteration_s(stages, run, table) > allowed_s:
            continue
        chosen = trial
        gains.measured(stages[number], mhz)
        if len(chosen[number]) >= room:
            options = {one for one in options if one[0] != number}
    return [sorted(clocks, reverse=True) for clocks in chosen]


def time_and_power_errors(curves: Sequence[ClockCurves], in_plan: Usage | None = None) -> tuple[float, float]:
    """Returns the relative errors of time and of power: root mean squares over all clocks, as much as each matters.

    Plans do without clocks whose errors are larger than `MOST_TIME_ERROR` or `MOST_POWER_ERROR`, so none counts more.
    """
    import numpy as np

    weights = np.concatenate([_weights(group.where, in_plan or {}) for group in curves])

    def error(beliefs: Sequence[Belief], most: float) -> float:
        errors = np.minimum(most, np.concatenate([belief.errors for belief in beliefs]))
        return math.sqrt(float(np.average(errors**2, weights=weights)))

    times, powers = [group.times for group in curves], [group.powers for group in curves]
    return error(times, MOST_TIME_ERROR), error(powers, MOST_POWER_ERROR)


def _weights(where: Sequence[tuple[Kind, int]], in_plan: Usage) -> Any:
    """How much each clock of each kind matters to a plan."""
    import numpy as np

    top_mhz: dict[Kind, int] = {}
    for kind, mhz in where:
        top_mhz[kind] = max(mhz, top_mhz.get(kind, 0))
    return np.array(
        [
            (mhz / top_mhz[kind]) ** (1 / _NEAR) + _ALWAYS + _IN_PLAN * in_plan.get((kind, mhz), 0.0)
            for kind, mhz in where
        ]
    )


def _common(stage: StageRun, table: Mapping[Kind, Mapping[int, Estimate]]) -> list[int]:
    """The candidates of a stage below its highest clock."""
    return sorted(set.intersection(*(set(table[kind]) for kind in stage.kinds)) - {max(stage.clocks_mhz)})


class _Gains:
    """How much smaller the errors that matter become by a measurement."""

    def __init__(self, curves: Sequence[ClockCurves], in_plan: Usage) -> None:
        self._groups: list[list[Any]] = []
        self._rows: dict[tuple[Kind, int], tuple[int, int]] = {}
        for number, group in enumerate(curves):
            self._groups.append([_weights(group.where, in_plan), group.times, group.powers])
            for row, where in enumerate(group.where):
                self._rows[where] = number, row

    def of(self, stage: StageRun, mhz: int) -> float:
        """Returns how much is learned if a stage measures at a clock: by what factor errors fall, as each matters."""
        import numpy as np

        total = 0.0
        for kind in stage.kinds:
            number, row = self._rows[kind, mhz]
            weights, times, powers = self._groups[number]
            for belief, error, importance in ((times, _TIME_ERROR, _TIMES_AS_IMPORTANT), (powers, _POWER_ERROR, 1.0)):
                column = belief.covariance[row]
                before = np.diag(belief.covariance) + error**2
                after = before - column * column / (float(column[row]) + error**2)
                total += importance * float(weights @ np.log(before / after))
        return total

    def measured(self, stage: StageRun, mhz: int) -> None:
        """Notes that a stage measures at a clock."""
        for kind in stage.kinds:
            number, row = self._rows[kind, mhz]
            _, times, powers = self._groups[number]
            self._groups[number][1] = times.measured_at(row, _TIME_ERROR)
            self._groups[number][2] = powers.measured_at(row, _POWER_ERROR)
