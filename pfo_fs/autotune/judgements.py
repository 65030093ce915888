"""What is said of plans: their clocks, what is believed of them, and what measured plans tell of others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pfo_fs.arrays import Array, np


class ModelError(NamedTuple):
    """By how much the model of a job is wrong, relative, beside the errors of its curves; standard deviations.

    Attributes:
        of_all: What all plans of a job have in common.
        of_one: What a single plan has of its own.
    """

    of_all: float
    of_one: float


ERROR_OF_SAVING = ModelError(of_all=0.02, of_one=0.005)
"""Of the energy that a plan saves. Nodes that cannot make all clock changes in time take 2 % from all plans alike."""
ERROR_OF_TIME = ModelError(of_all=0.001, of_one=0.0003)
"""Of the times of iterations, where everything that was measured of instructions is known."""

_LEAST_VARIANCE = 1e-10
"""Nothing is measured more exactly than to 0.001 %."""


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
        slower: By how much they are longer than at max clocks.
        saved, saved_error: Energy saved against max clocks.
    """

    late: float
    late_error: float
    slower: float
    saved: float
    saved_error: float


class Offset(NamedTuple):
    """By how much a plan was measured to differ from its model; the standard error is infinite if it was not."""

    value: float
    error: float


def expected_offset(
    measured: Sequence[Offset | None], of_curves: Array, error: ModelError, *, shares_curves: bool
) -> tuple[float, float]:
    """Returns by how much the last plan is expected to differ from its model, and the standard error of that.

    There are three sources of error: the curves (plans with the same clocks share it), the job (all plans share it),
    and the plan itself. All three are normal, so a measured plan tells of the others by their covariance.

    Args:
        measured: What was measured of each plan; None: nothing.
        of_curves: Covariance of what the errors of the curves make of the plans.
        error: That of the model; what a plan has of its own is at least that of what was measured.
        shares_curves: Whether the errors of the curves are in what was measured. They are not where iterations are
            compared with the model of the same iterations.
    """
    count = len(measured)
    rows, values, variances = [], [], []
    for number, each in enumerate(measured):
        if each is not None and math.isfinite(each.error):
            row = np.zeros(2 * count)
            row[number], row[count + number] = 1.0, float(shares_curves)
            rows.append(row)
            values.append(each.value)
            variances.append(each.error**2)
    last = np.zeros(2 * count)
    last[count - 1] = last[-1] = 1.0
    # Plans may differ by more than was expected.
    apart = [
        float(row[count:] @ of_curves @ row[count:]) + variance for row, variance in zip(rows, variances, strict=True)
    ]
    spread = float(np.var(values)) - float(np.mean(apart)) if len(values) > 1 else 0.0
    own: Array = np.full((count, count), error.of_all**2) + np.eye(count) * max(error.of_one**2, spread)
    prior: Array = np.block([[own, np.zeros((count, count))], [np.zeros((count, count)), of_curves]])
    variance = float(last @ prior @ last)
    if not rows:
        return 0.0, math.sqrt(variance)
    seen: Array = np.array(rows)
    joint = seen @ prior @ seen.T + np.diag(np.maximum(variances, _LEAST_VARIANCE))
    gain = np.linalg.solve(joint, seen @ prior @ last)
    return float(gain @ np.array(values)), math.sqrt(max(0.0, variance - float(gain @ (seen @ prior @ last))))


def error_of_mean(values: Array) -> float:
    """The standard error of a mean."""
    return float(values.std()) / math.sqrt(max(1, len(values) - 1))


def highest_scatter(scatter: float, count: int) -> float:
    """The standard deviation that is exceeded with a probability of 5 %, if `count` values scatter by `scatter`.

    The quantile of chi square is that of Wilson and Hilferty (1931).
    """
    free = max(1, count - 1)
    quantile = free * (1 - 2 / (9 * free) - 1.645 * math.sqrt(2 / (9 * free))) ** 3
    return scatter * math.sqrt(free / max(quantile, 0.004))
