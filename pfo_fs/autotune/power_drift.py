"""How much more power warm GPUs draw at the same clocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median, median_low

from pfo_fs.autotune.job_layout import JobLayout, Kind
from pfo_fs.autotune.samples import Samples
from pfo_fs.models import FrequencySchedule, ProfilingResult

_SURE_POWER_ERROR = 0.02
"""Relative: a power with a larger error is not used to measure the drift of power."""
_DRIFT_OF_A_WINDOW = 0.01
"""Relative: power drifts by about this much from one window to the next."""
_DRIFT_STEPS = 8
_SAME_CLOCK_ERROR, _CHANGING_CLOCK_ERROR = 0.005, 0.02
"""Relative: powers are wrong by this much where a rank keeps its clock, and where it changes it."""


def power_drift(
    results: Sequence[ProfilingResult],
    in_force: Mapping[int, FrequencySchedule],
    layout: JobLayout,
    samples: Samples,
    factor: float,
) -> float:
    """Returns present power as a multiple of that of the first measurements, from a window and what was known before.

    Powers rise little by little. A single one that is far off was measured at another clock than it seems: clocks
    act later than expected, or at other times on the GPUs that compute together.

    Args:
        results: The results of the window that are used.
        in_force: The schedules in force, by rank.
        layout: The job.
        samples: What was measured before.
        factor: The same multiple before the window.
    """
    ratios: dict[tuple[Kind, int], list[tuple[float, float]]] = {}  # with their errors
    for result in results:
        stages = dict(layout.order(result.rank))
        clocks = {mhz for _, _, mhz in layout.run_by(result.rank, in_force.get(result.rank))}
        for power in result.powers:
            if power.instruction not in stages or power.error >= _SURE_POWER_ERROR * power.power:
                continue
            kind = stages[power.instruction], power.instruction
            before = samples.curve(kind).get(power.frequency)
            if before is not None and before.power_error < _SURE_POWER_ERROR:
                wrong = _SAME_CLOCK_ERROR if len(clocks) == 1 else _CHANGING_CLOCK_ERROR
                error = math.hypot(power.error / power.power, before.power_error, wrong)
                ratios.setdefault((kind, power.frequency), []).append((power.power / before.power_w, error))
    seen = [(median(ratio for ratio, _ in each), median(error for _, error in each)) for each in ratios.values()]
    found = median_low([factor, *(ratio for ratio, _ in seen)])
    for _ in range(_DRIFT_STEPS):  # those that are far off count less and less
        weights = [1 / (error**2 + (ratio - found) ** 2) for ratio, error in seen]
        of_factor = 1 / _DRIFT_OF_A_WINDOW**2
        total = of_factor * factor + sum(weight * ratio for weight, (ratio, _) in zip(weights, seen, strict=True))
        found = total / (of_factor + sum(weights))
    return found
