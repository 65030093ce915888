"""The data of the page's sections; each has a text about what is missing in it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.forecast import Findings
from pfo_fs.reports.frontier_picture import Dot, frontier_svg
from pfo_fs.reports.life_picture import clock_bounds, life_svg, mean_clocks
from pfo_fs.reports.loads_picture import loads_svg
from pfo_fs.reports.profile_picture import by_stage, profile_svg
from pfo_fs.reports.savings import Savings
from pfo_fs.reports.wording import signed_percent

if TYPE_CHECKING:
    from markupsafe import Markup

_MOST_ROWS = 2000


def picture_markup(svg: str) -> Markup:
    """Returns a picture of `figures.svg_of`, which has escaped its texts, for the template."""
    from markupsafe import Markup

    return Markup(svg)  # noqa: S704


def seconds_text(seconds: float) -> str:
    """Returns a time with five digits, because the compared times differ by parts of a percent."""
    return f"{seconds:#.5g} s"


def legend(values: Sequence[float], unit: str) -> dict[str, Any]:
    """Returns the bounds of a colour scale."""
    return {"low": float(min(values)), "high": float(max(values)), "unit": unit}


def frontier(found: Findings, savings: Savings) -> dict[str, Any]:
    """Returns the time-energy frontier, and where the job is on it."""
    data, dots = found.data, []
    for window in data.windows:
        measured = window.measured
        if measured is not None and measured.energy_j is not None and window is not data.in_force:
            dots.append(Dot(measured.time_s, measured.energy_j, "other", f"schedule {window.number}, measured"))
    if (figures := savings.predicted_baseline) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "maximum", "max clocks, predicted", predicted=True))
    if (figures := savings.baseline) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "maximum", "max clocks, measured", "max clocks"))
    if (figures := savings.predicted) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "now", "in force, predicted", predicted=True))
    if (figures := savings.measured) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "now", f"in force, {figures.origin}", "in force"))
    curve = found.curve
    missing = "" if curve is not None else f"No frontier: {found.missing.get('model', 'unknown')}."
    if not dots and curve is None:
        return {"lead": "", "missing": missing, "picture": "", "keys": []}
    lead = "Least energy for each time of an iteration, over all GPUs, with waiting and the end of the step. "
    if curve is not None and not curve.with_changes:
        lead += "The curve does not count the time of clock changes; a real plan is a little to the upper right of it. "
    if found.forecast is not None and abs(found.forecast.scale - 1) > 5e-4:
        lead += (
            f"At max clocks the model's time is {signed_percent(found.forecast.scale - 1, 2)} off the measured "
            "iteration; "
            "times are corrected for this, as the scheduler corrects them."
        )
    keys = []
    if curve is not None:
        keys += [("k-planned", "planned"), ("k-bound", "lower bound: no plan is below")]
    keys += [("k-maximum", "max clocks"), ("k-now", "in force: measured"), ("k-predicted", "hollow: predicted")]
    keys += [("k-other", "other schedules, measured")]
    return {"lead": lead, "missing": missing, "picture": picture_markup(frontier_svg(curve, dots)), "keys": keys}


def life(found: Findings) -> dict[str, Any]:
    """Returns clocks, time and power, schedule by schedule."""
    data = found.data
    if not data.windows:
        return {"missing": "No schedule has been in force yet.", "picture": ""}
    known = [mhz for window in data.windows for mhz in mean_clocks(data, window).values() if mhz]
    lead = "All clocks were left alone so far."
    if known:
        lead = f"Mean clock of each {data.place} over the time of the job"
    elif data.loads is not None:
        lead = "Each step has one clock, which comes from its loads and is not drawn here."
    return {
        "missing": "",
        "lead": lead,
        "legend": legend(clock_bounds(data, known), "MHz") if known else None,
        "picture": picture_markup(life_svg(found)),
    }


def last_step(found: Findings) -> dict[str, Any]:
    """Returns the last step of a job with clocks from loads: who waits for whom; empty if none is known."""
    data = found.data
    step = data.loads.last if data.loads is not None else None
    if step is None or not max(step.work_s, default=0.0):
        return {"picture": ""}
    who = "rank" if step.lanes == data.job.job_info.world_size else "pipeline"
    bounds = clock_bounds(data, [float(mhz) for mhz in step.mhz])
    some = f"{len(step.lane)} of {step.lanes} {who}s" if len(step.lane) < step.lanes else f"the {who}s"
    return {
        "lead": f"Own work of {some} in step {step.step}; the colour is the clock",
        "legend": legend(bounds, "MHz"),
        "picture": picture_markup(loads_svg(step, who, bounds)),
    }


def stragglers(found: Findings) -> dict[str, Any]:
    """Returns which pipelines were slow, and when."""
    rows: list[list[Any]] = []
    for window in found.data.windows:
        inputs = window.index.source.plan_inputs
        slow = [(f"pipeline {at}", times, "found") for at, times in sorted(inputs.slow_pipelines.items())]
        if inputs.straggler is not None:
            at = inputs.straggler.pipeline
            who = "outside of the job" if at is None else f"pipeline {at}"
            slow.append((who, inputs.straggler.slowdown, "announced"))
        until = f"step {window.end_step}" if window.end_step is not None else "now"
        power_w = window.measured.power_w if window.measured else None
        when = [
            f"step {window.index.start_step}",
            until,
            window.number,
            "–" if power_w is None else f"{power_w:,.0f} W",
        ]
        rows += [[who, f"{times:.3g} ×", how, *when] for who, times, how in slow]
    head = ["who", "as slow", "how", "from", "until", "schedule", "power then"]
    return {"caption": "Straggler episodes", "head": head, "rows": rows}


def profile(found: Findings) -> dict[str, Any]:
    """Returns the measurements of each instruction at each clock."""
    if not found.points:
        why = found.missing.get("profile", "no instruction was measured on its own, or the job's profile is missing")
        return {"lead": "", "missing": f"No profile: {why}.", "pictures": [], "keys": []}
    names = list(dict.fromkeys(name for _, name in sorted(found.points)))
    every = [point for curve in found.points.values() for point in curve.values()]
    clocks = [len(curve) for curve in found.points.values()]
    times, powers = [p.time_error for p in every], [p.power_error for p in every]
    lead = (
        f"{_span(min(clocks), max(clocks))} per instruction and stage. Standard errors: time {median(times):.2%} "
        f"(median) and {max(times):.2%} (largest), power {median(powers):.2%} and {max(powers):.2%}. Points are "
        "measured, bars are one standard error, lines are the planner's profile. Figures are of one GPU."
    )
    planned = found.forecast.problem.profile if found.forecast is not None else None
    pictures = [
        (stage, picture_markup(profile_svg(stage, curves, planned, names)))
        for stage, curves in sorted(by_stage(found.points).items())
    ]
    keys = [(f"k-s{number % 6}", name) for number, name in enumerate(names)]
    return {"lead": lead, "missing": "", "pictures": pictures, "keys": keys}


def _span(fewest: int, most: int) -> str:
    return f"{fewest} to {most} clocks" if fewest < most else f"{most} clock{'s' * (most > 1)}"


def _above_frontier(found: Findings, window: Window) -> float | None:
    """How much more energy an iteration takes than the least at its time, relative; None if it is not known."""
    figures = found.figures_of(window)
    if found.curve is None or figures is None or window.follows_straggler:
        return None  # the frontier does not hold for iterations that wait for a straggler
    least_j = found.curve.energy_at(figures.time_s)
    return None if least_j is None else figures.energy_j / least_j - 1


def _purpose(data: JobData, window: Window) -> str:
    """What a schedule was for, as its record and its clocks say."""
    if window.index.source.kind == "yaml":
        return "by hand (schedule.yaml)"
    if not any(window.clocks_mhz):
        return "clocks left alone"
    if window.follows_straggler:
        return "plan for a straggler's pace"
    if data.at_max_clocks(window):
        return "max clocks"
    return "measuring" if window.index.steps else "plan"


def all_schedules(found: Findings) -> dict[str, Any]:
    """Returns every schedule, for one table."""
    data, rows = found.data, []
    for window in data.windows[-_MOST_ROWS:]:
        measured, predicted = window.measured, found.predictions.get(window.number)
        above = _above_frontier(found, window)
        clocks = [mhz for mhz in mean_clocks(data, window).values() if mhz]
        ranks = ""
        if measured is not None and measured.ranks < data.job.job_info.world_size:
            ranks = f" ({measured.ranks} of {data.job.job_info.world_size} ranks)"
        row = [
            window.number,
            window.index.start_step,
            _purpose(data, window),
            f"{fmean(clocks):,.0f}" if clocks else "–",
            f"{measured.time_s:.4f}{ranks}" if measured is not None else "–",
            f"{predicted.time_s:.4f}" if predicted is not None else "–",
            f"{measured.energy_j:,.0f}" if measured is not None and measured.energy_j is not None else "–",
            f"{predicted.energy_j:,.0f}" if predicted is not None else "–",
            f"{measured.power_w:,.0f}" if measured is not None and measured.power_w is not None else "–",
            signed_percent(above) if above is not None else "–",
        ]
        rows.append(row)
    head = [
        "schedule",
        "from step",
        "what",
        "mean clock MHz",
        "time s",
        "predicted",
        "energy J",
        "predicted",
        "power W",
    ]
    return {"caption": "All schedules", "head": [*head, "over the frontier"], "rows": rows}
