"""The scheduler's model, made again from its own figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfo_fs.errors import PlanError
from pfo_fs.reports.collect import JobData
from pfo_fs.reports.forecast import (
    Forecast,
    forecast_of,
    quiet_predictions,
)


@pytest.fixture(scope="module")
def forecast(data: JobData) -> Forecast:
    return forecast_of(data)


def test_every_schedule_is_predicted_within_two_percent_of_what_was_measured(data: JobData, forecast: Forecast) -> None:
    predictions = quiet_predictions(data, forecast)
    assert set(predictions) == {window.number for window in data.windows}
    slow = [bool(window.index.source.plan_inputs.slow_pipelines) for window in data.windows]
    for window, follows, still in zip(data.windows, slow, [*slow[1:], False], strict=True):
        if follows and not still:
            continue  # the straggler was healthy again while it was measured
        if window.measured is None:
            continue  # the newest one, which has only just begun
        assert predictions[window.number].time_s == pytest.approx(window.measured.time_s, rel=0.02)
        assert predictions[window.number].energy_j == pytest.approx(window.measured.energy_j, rel=0.025)


@pytest.mark.parametrize(
    ("gone", "said"),
    [("model", "no model"), ("profile_csv", "no profile"), ("orders", "order of its instructions is not known")],
)
def test_without_what_it_needs_it_says_what_is_missing(data: JobData, gone: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        forecast_of(replace(data, **{gone: {} if gone == "orders" else None}))


def test_a_model_of_another_job_is_refused(data: JobData) -> None:
    assert data.model is not None
    with pytest.raises(PlanError, match="two jobs"):
        forecast_of(replace(data, model=data.model.model_copy(update={"full_time_s": 100.0})))


def test_plans_of_the_forecast_count_the_costs_of_clock_changes_that_the_model_names(data: JobData) -> None:
    assert data.model is not None
    model = data.model.model_copy(
        update={"switch_time_s": 0.0, "driver_time_s": 0.04, "switch_calls": 8, "ranks_per_host": 2}
    )
    costs = forecast_of(replace(data, model=model)).problem.switch_costs
    assert costs.wrong_clock_s == pytest.approx(0.0175)
    assert costs.hosts == ((0, 1), (2, 3))
    assert costs.max_calls_per_s == float("inf")
