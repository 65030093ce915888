"""What is said of plans: their clocks, what is believed of them, and what measured plans tell of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import stdev
from typing import Any, NamedTuple

from pfo_fs.planner import SwitchCosts

Array = Any
"""An array of numpy, which is not typed here."""

MODEL_OF_SAVING = 0.02, 0.005
"""Savings by the model are off by about the first number for all plans of a job, as on nodes that cannot make all clock
changes in time, and by the second one for a single plan."""
MODEL_OF_TIME = 0.001, 0.0003
"""The same of times of iterations, relative, where everything that was measured of instructions is known."""


@dataclass(frozen=True)
class ClockPlan:
    """A clock for each instruction of each pipeline.

    Attributes:
        clocks_mhz: For each group of pipelines, the clock of each node.
        group_of: The group of each pipeline, by data-parallel rank; pipelines that are not named belong to group 0.
    """

    clocks_mhz: tuple[tuple[int, ...], ...]
    group_of: Mapping[int, int]

    def of(self, pipeline: int) -> tuple[int, ...]:
        """Returns the clocks of a pipeline's nodes."""
        return self.clocks_mhz[self.group_of.get(pipeline, 0)]

    @property
    def key(self) -> object:
        """A key that is equal for equal plans."""
        return self.clocks_mhz, tuple(sorted(self.group_of.items()))


class Judgement(NamedTuple):
    """What is believed of a plan, relative, with standard errors.

    Attributes:
        late, late_error: By how much iterations are longer than the target on average.
        slower: By how much they are longer than at the highest clocks.
        saved, saved_error: Energy saved against the highest clocks.
    """

    late: float
    late_error: float
    slower: float
    saved: float
    saved_error: float


@dataclass(frozen=True)
class ModelSettings:
    """What the user has set of the model.

    Attributes:
        switch_costs: What a clock change costs; None: as measured in the training.
        blocking_power_w: Power of a waiting GPU, in W; None: as measured in the training.
    """

    switch_costs: SwitchCosts | None = None
    blocking_power_w: float | None = None


def expected_offset(
    measured: Mapping[object, tuple[float, float]], key: object, of_all: float, of_one: float
) -> tuple[float, float]:
    """Returns by how much a plan is expected to differ from its model, and the standard error of that.

    Args:
        measured: For the key of each plan that was measured: the difference, and its standard error.
        key: That of the plan.
        of_all, of_one: Standard deviation of what all plans of a job have in common, and of what each has of its own;
            `of_one` is at least that of what was measured.
    """
    if len(measured) > 1:  # plans may differ by more than was expected
        values = [value for value, _ in measured.values()]
        of_one = max(of_one, stdev(values))
    weights = {each: 1 / (error**2 + of_one**2) for each, (_, error) in measured.items()}
    total = sum(weights.values()) + 1 / of_all**2
    shared = sum(weights[each] * value for each, (value, _) in measured.items()) / total
    own = measured[key][0] - shared if key in measured else 0.0
    known = of_one**2 * weights.get(key, 0.0)
    # What is not known of the common difference and of the plan's own one together was measured with the plan.
    return shared + known * own, math.sqrt((1 - known) ** 2 / total + of_one**2 * (1 - known))


def error_of_mean(values: Array) -> float:
    """The standard error of a mean."""
    return float(values.std()) / math.sqrt(max(1, len(values) - 1))
