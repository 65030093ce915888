"""Computes the model, predictions and frontier of a job for its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.profile_exchange import points_of
from pfo_fs.autotune.samples import Point
from pfo_fs.errors import PfoError
from pfo_fs.reports.collect import JobData
from pfo_fs.reports.forecast import (
    Curve,
    Forecast,
    Predicted,
    forecast_of,
    frontier_of,
    quiet_predictions,
)
from pfo_fs.reports.load_advice import LoadAdvice, load_advice


@dataclass
class Findings:
    """What was computed about a job; `missing` holds the reasons for what could not be computed."""

    data: JobData
    forecast: Forecast | None = None
    predictions: Mapping[int, Predicted] = field(default_factory=dict)
    curve: Curve | None = None
    points: dict[Kind, dict[int, Point]] = field(default_factory=dict)
    advice: LoadAdvice | None = None
    missing: dict[str, str] = field(default_factory=dict)


def work_out(data: JobData, points: int | None) -> Findings:
    """Predicts and plans as far as the job's data allow; `points` as in `render_page`."""
    found = Findings(data)
    try:
        found.forecast = forecast_of(data)
        found.points = found.forecast.points
        found.predictions = quiet_predictions(data, found.forecast)
        found.curve = frontier_of(found.forecast, points)
    except PfoError as error:
        found.missing["model"] = str(error.args[-1])
    if not found.points and data.profile_csv is not None:
        try:
            found.points = points_of(data.profile_csv, "profile")
        except PfoError as error:
            found.missing["profile"] = str(error.args[-1])
    found.advice = load_advice(data, found.forecast)
    return found
