"""Makes the model of a job from its measurements."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from statistics import median

from pfo_fs.autotune.curve_profile import WIDE
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.job_model import JobModel, pipeline_of
from pfo_fs.autotune.measured_switching import ClockOffer
from pfo_fs.planner import SwitchCosts

log = logging.getLogger(__name__)

_BLOCKING_SHARE = 0.2
"""Blocking power (of a waiting GPU) as a share of the power at the highest clock, if none was measured: 84 of 475 W
(A100), 70 of 299 W (A40)."""
_USABLE_WAITING_POWER_ERROR = 0.2
"""Relative: a measured blocking power with a larger error is not used."""


@dataclass(frozen=True)
class ModelSettings:
    """The user's settings of the model.

    Attributes:
        switch_costs: What a clock change costs.
        blocking_power_w: Power of a waiting GPU, in W; None: as measured in the training itself.
        offers: The clocks that plans may use (`MeasuredSwitching.offers`).
        changes_act_late: Whether the instruction after a change is longer by the time for which ranks stand still, as
            where that time is not the user's but found from plans that were late.
    """

    switch_costs: SwitchCosts
    blocking_power_w: float | None
    offers: tuple[ClockOffer, ...] = (ClockOffer(),)
    changes_act_late: bool = False


def build_model(measurements: JobMeasurements, settings: ModelSettings, earlier_waiting_w: float) -> JobModel:
    """Returns the model of the job from everything measured so far.

    Args:
        measurements: The job's measurements.
        settings: The user's settings.
        earlier_waiting_w: Power of a waiting GPU in an earlier job of the same kind, in W; 0 if it is not known.

    Raises:
        PlanError: Instructions cannot run in the recorded order, or one of them was not measured.
    """
    layout = measurements.layout
    pipeline = pipeline_of([layout.order(rank) for rank in layout.one_pipeline()])
    return JobModel(
        pipeline,
        measurements.profile(),
        settings.blocking_power_w or _waiting_power_w(measurements, earlier_waiting_w),
        layout.job_info.tp_degree,
        measurements.iterations(pipeline),
        settings.switch_costs,
        settings.offers,
        measurements.samples.scatter,
        measurements.profile(WIDE),
        settings.changes_act_late,
    )


def _waiting_power_w(measurements: JobMeasurements, earlier_waiting_w: float) -> float:
    waiting = measurements.samples.waiting
    if waiting.power_error < _USABLE_WAITING_POWER_ERROR:
        return waiting.power_w
    if earlier_waiting_w:
        return earlier_waiting_w
    curves = [measurements.samples.curve(kind) for kind in measurements.samples.points]
    guess_w = _BLOCKING_SHARE * median(curve[max(curve)].power_w for curve in curves if curve)
    log.warning("no GPU waited long enough to measure its power; it is assumed to be %.0f W", guess_w)
    return guess_w
