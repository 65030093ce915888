"""What a job could save: the scheduler's model made again, and its predictions for the job's schedules.

`Findings` is all that can be computed about a job, and the reasons for what cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pfo_fs.autotune.curves import EVERYTHING, Curves
from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.profile_exchange import points_of
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.errors import PfoError, PlanError
from pfo_fs.planner import (
    Plan,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    even_hosts,
    plan_of_orders,
)
from pfo_fs.reports.collect import Iteration, JobData, Window
from pfo_fs.reports.load_advice import LoadAdvice, load_advice
from pfo_fs.reports.timeline import dag_of
from pfo_fs.store import bodies


@dataclass(frozen=True)
class Forecast:
    """The model of one pipeline of the job, with the power of its GPUs at their present temperature.

    Attributes:
        problem: The planner's problem.
        wide: The same problem including clocks measured too imprecisely to plan with; earlier plans may use them.
        pipelines: Data-parallel degree.
        after_s: Measured time from the end of the last instruction to the end of the step, in s.
        scale: Model time divided by measured time, both at max clocks; predicted times are divided by it.
    """

    problem: Problem
    wide: Problem
    pipelines: int
    after_s: float
    scale: float

    def plan_of(self, data: JobData, window: Window, pipeline: int = 0) -> Plan:
        """The plan that one pipeline runs under a schedule; clocks that are left alone count as the highest.

        Raises:
            PlanError: A clock was not measured, or the schedule has other instructions.
        """
        highest = {kind: rows[0].frequency_mhz for kind, rows in self.wide.profile.measurements.items()}
        orders = []
        for info in data.pipeline_ranks(pipeline):
            entries = data.entries(info.rank, window)
            orders.append([(name, mhz or highest[stage, name]) for name, stage, mhz in entries])
        plan = plan_of_orders(self.wide, orders, f"schedule {window.number}")
        assert plan.measurements  # every clock is one that was measured
        return plan

    def predict(self, data: JobData, window: Window) -> Iteration:
        """Predicts an iteration under a schedule, with the slowdowns of pipelines that the schedule was made for.

        Raises:
            PlanError: A clock was not measured, or the schedule has other instructions.
        """
        slow = window.index.source.plan_inputs.slow_pipelines
        plans: dict[tuple[str | None, ...], Plan] = {}
        chosen = []
        for pipeline in range(self.pipelines):
            ranks = data.pipeline_ranks(pipeline)
            # Names of plan files end in a digest of their content.
            key = tuple((window.index.plan_file(info) or "").split(".")[-2:][0] for info in ranks)
            if key not in plans:
                plans[key] = self.plan_of(data, window, pipeline)
            chosen.append(plans[key])
        span_s = max(plan.iteration_time_s * slow.get(at, 1.0) for at, plan in enumerate(chosen))
        return self.of_plans(chosen, span_s, slow)

    def of_plans(self, plans: Sequence[Plan], span_s: float, slow: Mapping[int, float] | None = None) -> Iteration:
        """Predicts an iteration in which each pipeline runs its plan and the slowest takes `span_s` (s) by the model.

        Instructions of a slow pipeline take longer by its slowdown, at the same power.
        """
        time_s = span_s / self.scale + self.after_s
        longer = slow or {}
        energy_j = sum(
            plan.energy_over(time_s) + (longer.get(at, 1.0) - 1) * plan.effective_j for at, plan in enumerate(plans)
        )
        return Iteration(time_s, energy_j)

    def all_maximum(self) -> Iteration:
        """Predicts an iteration at max clocks."""
        plan = all_maximum(self.problem)
        return self.of_plans([plan] * self.pipelines, plan.iteration_time_s)


def forecast_of(data: JobData) -> Forecast:
    """Makes the scheduler's model of the job again, from its own figures.

    Raises:
        PlanError: The model, the profile or the order of instructions is missing or invalid.
    """
    if data.model is None:
        raise PlanError("its scheduler has written no model (model.json), so there are no predictions")
    if not all(math.isfinite(value) for value in data.model.model_dump().values() if isinstance(value, float)):
        raise PlanError("model.json holds a figure that is not a finite number, so there are no predictions")
    points = points_of_job(data)
    dag = dag_of(data)
    if dag is None:
        raise PlanError("the order of its instructions is not known, so there are no predictions")
    clocks = {
        stage: sorted(info.available_frequencies, reverse=True)
        for info in data.pipeline_ranks(0)
        for _, stage in data.orders[info.rank]
    }
    kinds = sorted({(i.stage, i.name) for i in dag.instructions})
    curves, source = Curves(Samples(points), kinds, clocks), "the job's profile"
    model = data.model
    problem = Problem(
        dag,
        _warm(curves.profile(source), model.power_drift_factor),
        model.blocking_power_w,
        model.overhead_s,
        _switch_costs(model, len(dag.orders)),
        model.gpus_per_rank,
    )
    wide = replace(problem, profile=_warm(curves.profile(source, EVERYTHING), model.power_drift_factor))
    full_s = all_maximum(problem).iteration_time_s
    scale = full_s / model.full_time_s if model.full_time_s > 0 else 1.0
    if not 0.5 < scale < 2:
        raise PlanError(
            f"an iteration at max clocks takes {model.full_time_s:.4g} s by model.json and "
            f"{full_s:.4g} s by the profile: these are of two jobs, so there are no predictions"
        )
    return Forecast(problem, wide, data.job.job_info.dp_degree, _after_s(data), scale)


def _switch_costs(model: bodies.ModelBody, ranks: int) -> SwitchCosts:
    return SwitchCosts(
        model.switch_time_s,
        model.driver_time_s,
        model.switch_latency_s,
        model.switch_late_s,
        model.switch_calls,
        even_hosts(ranks, model.ranks_per_host),
        model.max_calls_per_s or math.inf,
        model.switch_acts_late_s,
    )


def _warm(profile: Profile, power_drift_factor: float) -> Profile:
    table = {
        kind: [
            replace(m, energy_j=m.energy_j * power_drift_factor, energy_spread_j=m.energy_spread_j * power_drift_factor)
            for m in rows
        ]
        for kind, rows in profile.measurements.items()
    }
    return Profile(table, profile.source)


def _after_s(data: JobData) -> float:
    measured = [window.measured for window in data.windows if window.measured is not None]
    return max(0.0, measured[-1].time_s - measured[-1].span_s) if measured else 0.0


@dataclass
class Findings:
    """What was computed about a job; `missing` holds the reasons for what could not be computed."""

    data: JobData
    forecast: Forecast | None = None
    predictions: Mapping[int, Iteration] = field(default_factory=dict)
    points: dict[Kind, dict[int, Point]] = field(default_factory=dict)
    advice: LoadAdvice | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def figures_of(self, window: Window) -> Iteration | None:
        """An iteration under a schedule, measured, or else predicted; None if neither is known."""
        measured = window.measured.iteration if window.measured is not None else None
        return measured or self.predictions.get(window.number)


def work_out(data: JobData) -> Findings:
    """Predicts as far as the job's data allow."""
    found = Findings(data)
    try:
        found.points = points_of_job(data)
    except PfoError as error:
        found.missing["profile"] = str(error.args[-1])
    try:
        found.forecast = forecast_of(data)
        found.predictions = quiet_predictions(data, found.forecast)
    except PfoError as error:
        found.missing["model"] = str(error.args[-1])
    found.advice = load_advice(data, found.forecast.wide if found.forecast is not None else None)
    return found


def points_of_job(data: JobData) -> dict[Kind, dict[int, Point]]:
    """Returns the measurements of each kind of instruction at each clock.

    Raises:
        PlanError: The profile is missing or invalid.
    """
    if data.profile_csv is None:
        raise PlanError("there is no profile of its instructions, or none was measured on its own")
    return points_of(data.profile_csv, "profile.csv")


def quiet_predictions(data: JobData, forecast: Forecast) -> dict[int, Iteration]:
    """The predictions of all schedules that can be predicted, by number."""
    found = {}
    for window in data.windows:
        try:
            found[window.number] = forecast.predict(data, window)
        except (PfoError, KeyError):  # a schedule by hand, at a clock that was not measured
            continue
    return found
