"""The sections of the page with the pictures; each says itself what is missing."""

from __future__ import annotations

from statistics import fmean, median

from pfo_fs.errors import PfoError
from pfo_fs.reports.charts import (
    NARROW,
    WIDE,
    Dot,
    by_stage,
    frontier_chart,
    legend,
    life_chart,
    mean_clocks,
    profile_charts,
)
from pfo_fs.reports.collect import JobData, Window, results_of
from pfo_fs.reports.findings import Findings
from pfo_fs.reports.headline import Headline, above_frontier, purpose
from pfo_fs.reports.markup import Child, Markup, h
from pfo_fs.reports.parts import missing_part, seconds_text, section, table, wide_and_narrow
from pfo_fs.reports.pipeline_chart import pipeline_chart
from pfo_fs.reports.timeline import Laid, dag_of, measured_iterations

_MOST_ROWS = 2000


def frontier(found: Findings, headline: Headline) -> Markup:
    """The time-energy frontier, and where the job is on it."""
    data, dots = found.data, []
    for window in data.windows:
        measured = window.measured
        if measured is not None and measured.energy_j is not None and window is not data.in_force:
            dots.append(Dot(measured.time_s, measured.energy_j, "other", f"schedule {window.number}, measured"))
    if (figures := headline.predicted_baseline) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "maximum predicted", "highest clocks, predicted"))
    if (figures := headline.baseline) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "maximum", "highest clocks, measured", "highest clocks"))
    if (figures := headline.predicted) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "now predicted", "in force, predicted"))
    if (figures := headline.measured) is not None:
        dots.append(Dot(figures.time_s, figures.energy_j, "now", f"in force, {figures.origin}", "in force"))
    curve = found.curve
    missing = None if curve is not None else missing_part(f"No frontier: {found.missing.get('model', 'unknown')}.")
    if not dots and curve is None:
        return section("frontier", "Time and energy", None, missing)
    lead = "Least energy for each time of an iteration, over all GPUs, with waiting and the end of the step. "
    if curve is not None and not curve.with_changes:
        lead += "Clock changes are free here; what they do cost puts a real plan a little to the upper right. "
    if found.forecast is not None and abs(found.forecast.scale - 1) > 5e-4:
        lead += (
            f"At the highest clocks the model takes {found.forecast.scale - 1:+.2%} against the measured iteration, "
            "and its times are corrected for that, as the scheduler corrects them."
        )
    keys = []
    if curve is not None:
        keys += [("k-planned", "planned"), ("k-bound", "lower bound: no plan is below")]
    keys += [("k-maximum", "highest clocks"), ("k-now", "in force: measured"), ("k-predicted", "hollow: predicted")]
    keys += [("k-other", "other schedules, measured")]
    return section(
        "frontier",
        "Time and energy",
        lead,
        missing,
        wide_and_narrow(frontier_chart(curve, dots, WIDE), frontier_chart(curve, dots, NARROW)),
        h("ul", (h("li", h("i", class_=kind), text) for kind, text in keys), class_="keys"),
    )


def pipeline(found: Findings) -> Markup:
    """An iteration of the first pipeline, measured beside predicted."""
    data = found.data
    title = "The pipeline over time"
    try:
        dag = dag_of(data)
    except PfoError as error:
        return section("pipeline", title, None, missing_part(f"No picture: {error.args[-1]}."))
    if dag is None:
        return section(
            "pipeline",
            title,
            None,
            missing_part("No picture: the order of instructions of a whole pipeline is not known yet."),
        )
    ranks = data.pipeline_ranks(0)
    pictures: list[tuple[str, str, Laid]] = []
    window, remarks = _window_to_draw(data), []
    if window is not None:
        results = results_of(data, window.number, ranks)
        laid = []
        if len(results) == len(ranks):
            laid = measured_iterations(data, window, [results[info.rank].result for info in ranks], dag)
        if laid:
            number, picture = sorted(laid, key=lambda one: one[1].length_s)[len(laid) // 2]
            first = results[ranks[0].rank]
            span_s = (first.result.iter_span or first.result.iter_time)[number]
            remarks.append(
                "Only durations are measured; they are laid along the dependencies, everything as early as possible. "
                f"That makes {seconds_text(picture.length_s)} of an iteration that took {seconds_text(span_s)} "
                f"({picture.length_s / span_s - 1:+.2%})."
            )
            pictures.append(
                (
                    f"measured, step {first.first_step + number}",
                    f"schedule {window.number}, {seconds_text(picture.length_s)}",
                    picture,
                )
            )
    shown = window or data.in_force
    if found.forecast is not None and shown is not None:
        try:
            plan = found.forecast.plan_of(data, shown)
            watts = [m.energy_j / m.time_s * found.forecast.problem.gpus_per_rank for m in plan.measurements]
            times = plan.times_s
            laid_plan = Laid(dag, plan.timing.starts_s, times, plan.frequencies_mhz, watts)
            if abs(found.forecast.scale - 1) > 5e-4:
                remarks.append(
                    f"The prediction is drawn as the model has it, {found.forecast.scale - 1:+.2%} off at full clocks."
                )
            pictures.append(("predicted", f"schedule {shown.number}, {seconds_text(laid_plan.length_s)}", laid_plan))
        except (PfoError, KeyError):
            remarks.append("There is no prediction beside it: the schedule has clocks that were not measured.")
    elif found.forecast is None:
        remarks.append(f"There is no prediction: {found.missing.get('model', '')}.")
    if not pictures:
        return section(
            "pipeline", title, None, missing_part("No picture: no results of a whole pipeline are there yet.")
        )
    if window is not None and window is not data.in_force and data.in_force is not None:
        remarks.append(f"Schedule {data.in_force.number} is in force, but has no results yet.")
    lead = f"Pipeline 0{' of ' + str(data.job.job_info.dp_degree) if data.job.job_info.dp_degree > 1 else ''}. "
    lead += "Low boxes are forwards, high ones backwards; gaps are waiting. " + " ".join(remarks)
    names = [f"{data.place.split()[-1]} {info.pp_rank}" for info in ranks]
    return section("pipeline", title, lead, pipeline_chart(pictures, names))


def _window_to_draw(data: JobData) -> Window | None:
    """The schedule in force if it has results, else the newest that has."""
    if data.in_force is not None and data.in_force.measured is not None:
        return data.in_force
    return next((window for window in reversed(data.windows) if window.measured is not None), None)


def life(found: Findings) -> Markup:
    """Clocks, time and power, schedule by schedule."""
    data = found.data
    title = "Clocks and power over the job's life"
    if not data.windows:
        return section("life", title, None, missing_part("No schedule has been in force yet."))
    known = [mhz for window in data.windows for mhz in mean_clocks(data, window).values() if mhz]
    predictions = found.predictions
    lead: list[Child] = [
        f"Mean clock of each {data.place}, schedule by schedule",
        " (",
        legend(min(known), max(known), "MHz"),
        ")",
    ]
    return section(
        "life",
        title,
        lead if known else "All clocks were left alone so far.",
        wide_and_narrow(life_chart(data, predictions, WIDE), life_chart(data, predictions, NARROW)),
        h(
            "ul",
            h("li", h("i", class_="k-measured"), "measured"),
            h("li", h("i", class_="k-guess"), "predicted"),
            class_="keys",
        ),
    )


def stragglers(found: Findings) -> Markup:
    """When which pipeline was slow."""
    data = found.data
    rows: list[list[Child]] = []
    for window in data.windows:
        plan_inputs = window.index.source.plan_inputs
        until = f"step {window.end_step}" if window.end_step is not None else "now"
        slow = [(f"pipeline {at}", times, "found") for at, times in sorted(plan_inputs.slow_pipelines.items())]
        if plan_inputs.straggler is not None:
            at = plan_inputs.straggler.pipeline
            slow.append(
                (
                    f"pipeline {at}" if at is not None else "outside of the job",
                    plan_inputs.straggler.slowdown,
                    "announced",
                )
            )
        for who, times, how in slow:
            power = window.measured.power_w if window.measured else None
            rows.append(
                [
                    who,
                    f"{times:.3g} ×",
                    how,
                    f"step {window.index.start_step}",
                    until,
                    window.number,
                    f"{power:,.0f} W" if power is not None else "–",
                ]
            )
    if not rows:
        return section("stragglers", "Stragglers", None, h("p", "None was found or announced.", class_="quiet"))
    return section(
        "stragglers",
        "Stragglers",
        "Pipelines that wait for a slower one run at its iteration_times, at lower clocks.",
        table(["who", "as slow", "how", "from", "until", "schedule", "power then"], rows, "Straggler episodes"),
    )


def profile(found: Findings) -> Markup:
    """What was measured of each instruction at each clock."""
    if not found.points:
        why = found.missing.get(
            "profile", "nothing was measured instruction by instruction, or its profile is not there"
        )
        return section("profile", "What was profiled", None, missing_part(f"No profile: {why}."))
    names = list(dict.fromkeys(name for _, name in sorted(found.points)))
    every = [point for curve in found.points.values() for point in curve.values()]
    clocks = [len(curve) for curve in found.points.values()]
    times, powers = [p.time_error for p in every], [p.power_error for p in every]
    lead = (
        f"{min(clocks)} to {max(clocks)} clocks per instruction and stage. Standard errors: time {median(times):.2%} "
        f"in the middle and {max(times):.2%} at most, power {median(powers):.2%} and {max(powers):.2%}. Points are "
        "measured, bars are one standard error, lines are what is planned with. One GPU."
    )
    planned = found.forecast.problem.profile if found.forecast is not None else None
    charts = profile_charts(by_stage(found.points), planned, names)
    return section(
        "profile",
        "What was profiled",
        lead,
        h("ul", (h("li", h("i", class_=f"k-s{n % 6}"), name) for n, name in enumerate(names)), class_="keys"),
        h("div", charts[:8], class_="panels"),
        h("details", h("summary", f"{len(charts) - 8} more stages"), h("div", charts[8:], class_="panels"))
        if len(charts) > 8
        else None,
    )


def all_schedules(found: Findings) -> Markup | None:
    """Every schedule in one table."""
    data, rows = found.data, []
    if not data.windows:
        return None
    planned_before = False
    for window in data.windows[-_MOST_ROWS:]:
        measured, predicted = window.measured, found.predictions.get(window.number)
        above = above_frontier(window, predicted, found.curve)
        what = purpose(data, window, above, found.curve is not None and not planned_before)
        planned_before |= what == "plan"
        clocks = [mhz for mhz in mean_clocks(data, window).values() if mhz]
        ranks = ""
        if measured is not None and measured.ranks < data.job.job_info.world_size:
            ranks = f" ({measured.ranks} of {data.job.job_info.world_size} ranks)"
        row: list[Child] = [
            h("strong", window.number),
            window.index.start_step,
            what,
            f"{fmean(clocks):,.0f}" if clocks else "–",
            f"{measured.time_s:.4f}{ranks}" if measured is not None else "–",
            f"{predicted.time_s:.4f}" if predicted is not None else "–",
            f"{measured.energy_j:,.0f}" if measured is not None and measured.energy_j is not None else "–",
            f"{predicted.energy_j:,.0f}" if predicted is not None else "–",
            f"{measured.power_w:,.0f}" if measured is not None and measured.power_w is not None else "–",
            f"{above:+.1%}".replace("-0.0%", "+0.0%").replace("-", "−") if above is not None else "–",
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
    everything = table([*head, "over the frontier"], rows, "All schedules")
    note = "Predictions are for GPUs as warm as they are now; the first windows ran on colder ones, which draw less."
    return h(
        "section",
        h("details", h("summary", h("h2", "All schedules")), h("p", note, class_="lead"), everything),
        id="schedules",
    )
