"""The page about one job: one file of HTML that needs nothing else, neither a network nor JavaScript."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean, median

import pfo_fs
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
from pfo_fs.reports.forecast import Curve, Forecast, Predicted, forecast_of, frontier_of, points_of, quiet_predictions
from pfo_fs.reports.headline import Headline, above_frontier, headline_of, purpose
from pfo_fs.reports.markup import Child, Markup, h
from pfo_fs.reports.pipeline_chart import pipeline_chart
from pfo_fs.reports.timeline import Laid, dag_of, measured_iterations
from pfo_fs.scheduler.samples import Kind, Point

_MOST_ROWS = 2000


@dataclass
class Findings:
    """What was worked out about a job; where something could not be, `missing` says why."""

    data: JobData
    forecast: Forecast | None = None
    predictions: Mapping[int, Predicted] = field(default_factory=dict)
    curve: Curve | None = None
    points: dict[Kind, dict[int, Point]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def render_page(data: JobData, points: int | None = None) -> str:
    """Returns the page.

    Args:
        data: The job.
        points: How many plans the frontier has, with what clock changes cost planned in; None: what takes seconds.
    """
    found = _work_out(data, points)
    headline = headline_of(data, found.forecast, found.predictions)
    style = files(pfo_fs.reports).joinpath("page.css").read_text()
    script = files(pfo_fs.reports).joinpath("page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    title = f"{data.folder.job_id} – pfo-fs report"
    page = h(
        "html",
        h(
            "head",
            h("meta", charset="utf-8"),
            h("meta", http_equiv="Content-Security-Policy", content=policy),
            h("meta", name="viewport", content="width=device-width, initial-scale=1"),
            h("meta", name="color-scheme", content="light dark"),
            h("meta", name="generator", content=f"pfo-fs {pfo_fs.__version__}"),
            h("title", title),
            h("style", Markup(style)),
        ),
        h(
            "body",
            _header(data),
            h(
                "main",
                _headline(data, headline),
                _warnings(found),
                _frontier(found, headline),
                _pipeline(found),
                _life(found),
                _episodes(found),
                _profile(found),
                _schedules(found),
            ),
            h("footer", f"pfo-fs {pfo_fs.__version__}, from {data.folder.path}"),
            h("script", Markup(script)),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _work_out(data: JobData, points: int | None) -> Findings:
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
    return found


def _section(key: str, title: str, lead: Child, *children: Child) -> Markup:
    return h("section", h("h2", title), h("p", lead, class_="lead") if lead else None, children, id=key)


def _missing(text: str) -> Markup:
    return h("p", text, class_="missing")


def _seconds(seconds: float) -> str:
    """Five digits: what is compared here differs by parts of a percent."""
    return f"{seconds:#.5g} s"


def _both(make: Markup, narrow: Markup) -> Markup:
    return h("div", make, narrow, class_="figure")


# ---- what job this is


def _header(data: JobData) -> Markup:
    info = data.job.job_info
    state: str = data.current.state if data.current is not None else "waiting"
    if data.end is not None:
        state = data.end.reason
    elif data.archived:
        state = "archived"
    gpus = sorted({rank.gpu_name for rank in data.ranks if rank.gpu_name})
    facts = [
        f"{info.pp_degree} {data.place}s × {info.dp_degree} pipeline{'s' if info.dp_degree > 1 else ''}"
        + (f" × {info.tp_degree} GPUs each" if info.tp_degree > 1 else ""),
        f"{info.world_size} × {', '.join(gpus)}" if gpus else f"{info.world_size} ranks",
        f"{len(data.ranks)} of {info.world_size} ranks registered" if len(data.ranks) < info.world_size else "",
        f"started {data.job.started}" if data.job.started else "",
        f"last step {data.last_step}" if data.last_step >= 0 else "no step yet",
        "scheduled by " + {"daemon": "a daemon", "local": "rank 0"}[data.claim.kind] if data.claim else "",
        data.job.scheduler,
    ]
    return h(
        "header",
        h("p", "pfo-fs report", class_="brand"),
        h("h1", data.folder.job_id, " ", h("span", state, class_=f"state {state}")),
        h("p", " · ".join(fact for fact in facts if fact), class_="facts"),
        h("p", info.job_metadata, class_="facts") if info.job_metadata else None,
    )


# ---- headline


def _headline(data: JobData, headline: Headline) -> Markup:
    window, best, against = data.in_force, headline.best, headline.against()
    cards: list[Markup] = []
    if best is not None and against is not None:
        how = "measured" if headline.measured is not None else "predicted, not measured yet"
        cards = [
            _card(
                "energy per iteration", best.energy_j / against.energy_j - 1, "J", against.energy_j, best.energy_j, how
            ),
            _card(
                "time per iteration", best.span_s / against.span_s - 1, "s", against.span_s, best.span_s, how, digits=2
            ),
            _card("average power", best.power_w / against.power_w - 1, "W", against.power_w, best.power_w, how),
        ]
    elif best is not None:
        how = "measured" if headline.measured is not None else "predicted"
        cards = [
            _plain_card("energy per iteration", f"{best.energy_j:,.0f} J", how),
            _plain_card("time per iteration", _seconds(best.span_s), how),
            _plain_card("average power", f"{best.power_w:,.0f} W", how),
        ]
    if window is not None:
        since = f"since step {window.index.start_step}"
        if headline.same_since is not None and headline.same_since != window.index.start_step:
            since += f"; the same clocks first at step {headline.same_since}"
        cards.append(_plain_card("in force", f"schedule {window.number}", since, _target_of(data, window)))
    else:
        said = data.current.message if data.current is not None else ""
        cards.append(_plain_card("in force", "no schedule yet", said or "clocks are left alone"))
    saved = _saved(data, headline)
    return h(
        "section",
        h("h2", "Against everything at the highest clocks" if against is not None else "An iteration"),
        h("div", cards, class_="cards"),
        saved,
        None
        if against is not None
        else _missing(
            "Nothing to compare with: no iteration with everything at the highest clocks, or with clocks left alone, "
            "was measured."
            if best is not None
            else "No energies yet: neither complete results of all ranks nor a model of the job are there."
        ),
        _comparison(headline),
        id="headline",
    )


def _card(title: str, change: float, unit: str, before: float, now: float, how: str, digits: int = 1) -> Markup:
    now_text, before_text = (_seconds(v) if unit == "s" else f"{v:,.0f} {unit}" for v in (now, before))
    kind = "good" if change < -0.0005 else "bad" if change > 0.01 else "even"
    return h(
        "div",
        h("h3", title),
        h("p", f"{change * 100:+.{digits}f} %".replace("-", "−"), class_=f"big {kind}"),
        h("p", f"{now_text} instead of {before_text}"),
        h("p", how, class_="hint"),
        class_="card",
    )


def _plain_card(title: str, big: str, *small: str) -> Markup:
    return h(
        "div", h("h3", title), h("p", big, class_="big even"), (h("p", text) for text in small if text), class_="card"
    )


def _target_of(data: JobData, window: Window) -> str:
    if window.index.source.kind == "yaml":
        return "by hand (schedule.yaml)"
    target = window.index.source.situation.target
    if target is not None:
        return f"target: {target}"
    news = data.current.news if data.current is not None else ""
    return news.split(";")[0] if news.startswith("target: ") else ""


def _saved(data: JobData, headline: Headline) -> Markup | None:
    window, best, against = data.in_force, headline.best, headline.against()
    if window is None or best is None or against is None:
        return None
    steps = data.last_step - window.index.start_step + 1
    saved_j = (against.energy_j - best.energy_j) * steps
    if steps < 1 or saved_j <= 0:
        return None
    amount = f"{saved_j / 3.6e6:,.2f} kWh" if saved_j > 3.6e5 else f"{saved_j / 1e3:,.0f} kJ"
    return h(
        "p",
        f"About {amount} of GPU energy saved in the {steps:,} iterations under schedule {window.number} so far "
        "(extrapolated from the measured ones)."
        if headline.measured is not None
        else f"About {amount} of GPU energy saved under schedule {window.number} so far, if predictions hold.",
        class_="lead",
    )


def _comparison(headline: Headline) -> Markup | None:
    rows = [
        ("highest clocks, measured", headline.baseline),
        ("highest clocks, predicted", headline.predicted_baseline),
        ("schedule in force, measured", headline.measured),
        ("schedule in force, predicted", headline.predicted),
    ]
    if not any(figures for _, figures in rows):
        return None
    return _table(
        ["iteration", "time s", "energy J", "power W", "how"],
        [
            [name, f"{figures.span_s:.4f}", f"{figures.energy_j:,.0f}", f"{figures.power_w:,.0f}", figures.origin]
            if figures is not None
            else [name, "–", "–", "–", "not known"]
            for name, figures in rows
        ],
        "Measured and predicted figures of an iteration",
    )


def _table(head: list[str], rows: list[list[Child]], caption: str) -> Markup:
    return h(
        "div",
        h(
            "table",
            h("caption", caption, class_="hidden"),
            h("thead", h("tr", (h("th", cell, scope="col") for cell in head))),
            h("tbody", (h("tr", (h("td", cell) for cell in row)) for row in rows)),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


# ---- warnings


def _warnings(found: Findings) -> Markup:
    data = found.data
    rows: list[tuple[str, str, str]] = []
    current = data.current
    if current is not None:
        rows += [("warn", "coordinator", current.message), ("warn", "schedule.yaml refused", current.yaml_problem)]
        rows += [("info", "scheduler", current.news)]
    if data.end is not None:
        rows.append(("info", f"ended: {data.end.reason}", data.end.message or data.end.reason))
    by_text: dict[tuple[str, str], list[int]] = {}
    for rank in data.ranks:
        by_text.setdefault(("registering", rank.message), []).append(rank.rank_info.rank)
    for progress in data.progress:
        by_text.setdefault(("error", progress.error), []).append(progress.rank)
    for pace in data.paces:
        by_text.setdefault(("clocks are held back", pace.throttled), []).append(pace.rank)
    for (what, text), ranks in by_text.items():
        some = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        rows.append(("warn", f"rank {some}: {what}", text))
    rows += [("warn", "shared directory", text) for text in dict.fromkeys(data.store_errors)]
    rows += [("warn", "not readable", text) for text in dict.fromkeys(data.unreadable)]
    rows += [("warn", "profile", text) for text in (found.forecast.problem.warnings if found.forecast else ())]
    rows = [row for row in rows if row[2]][:200]
    if not any(kind == "warn" for kind, _, _ in rows):
        rows.insert(0, ("fine", "no warnings", "neither coordinator nor ranks report a problem"))
    return _section(
        "warnings",
        "Messages",
        None,
        h(
            "ul",
            (
                h("li", h("strong", {"warn": "⚠ ", "info": "", "fine": "✓ "}[k], who), " ", text, class_=k)
                for k, who, text in rows
            ),
            class_="messages",
        ),
    )


# ---- frontier


def _frontier(found: Findings, headline: Headline) -> Markup:
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
    missing = None if curve is not None else _missing(f"No frontier: {found.missing.get('model', 'unknown')}.")
    if not dots and curve is None:
        return _section("frontier", "Time and energy", None, missing)
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
    return _section(
        "frontier",
        "Time and energy",
        lead,
        missing,
        _both(frontier_chart(curve, dots, WIDE), frontier_chart(curve, dots, NARROW)),
        h("ul", (h("li", h("i", class_=kind), text) for kind, text in keys), class_="keys"),
    )


# ---- pipeline


def _pipeline(found: Findings) -> Markup:
    data = found.data
    title = "The pipeline over time"
    try:
        dag = dag_of(data)
    except PfoError as error:
        return _section("pipeline", title, None, _missing(f"No picture: {error.args[-1]}."))
    if dag is None:
        return _section(
            "pipeline",
            title,
            None,
            _missing("No picture: the order of instructions of a whole pipeline is not known yet."),
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
                f"That makes {_seconds(picture.length_s)} of an iteration that took {_seconds(span_s)} "
                f"({picture.length_s / span_s - 1:+.2%})."
            )
            pictures.append(
                (
                    f"measured, step {first.first_step + number}",
                    f"schedule {window.number}, {_seconds(picture.length_s)}",
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
            pictures.append(("predicted", f"schedule {shown.number}, {_seconds(laid_plan.length_s)}", laid_plan))
        except (PfoError, KeyError):
            remarks.append("There is no prediction beside it: the schedule has clocks that were not measured.")
    elif found.forecast is None:
        remarks.append(f"There is no prediction: {found.missing.get('model', '')}.")
    if not pictures:
        return _section("pipeline", title, None, _missing("No picture: no results of a whole pipeline are there yet."))
    if window is not None and window is not data.in_force and data.in_force is not None:
        remarks.append(f"Schedule {data.in_force.number} is in force, but has no results yet.")
    lead = f"Pipeline 0{' of ' + str(data.job.job_info.dp_degree) if data.job.job_info.dp_degree > 1 else ''}. "
    lead += "Low boxes are forwards, high ones backwards; gaps are waiting. " + " ".join(remarks)
    names = [f"{data.place.split()[-1]} {info.pp_rank}" for info in ranks]
    return _section("pipeline", title, lead, pipeline_chart(pictures, names))


def _window_to_draw(data: JobData) -> Window | None:
    """The schedule in force if it has results, else the newest that has."""
    if data.in_force is not None and data.in_force.measured is not None:
        return data.in_force
    return next((window for window in reversed(data.windows) if window.measured is not None), None)


# ---- the job's life


def _life(found: Findings) -> Markup:
    data = found.data
    title = "Clocks and power over the job's life"
    if not data.windows:
        return _section("life", title, None, _missing("No schedule has been in force yet."))
    known = [mhz for window in data.windows for mhz in mean_clocks(data, window).values() if mhz]
    predictions = found.predictions
    lead: list[Child] = [
        f"Mean clock of each {data.place}, schedule by schedule",
        " (",
        legend(min(known), max(known), "MHz"),
        ")",
    ]
    return _section(
        "life",
        title,
        lead if known else "All clocks were left alone so far.",
        _both(life_chart(data, predictions, WIDE), life_chart(data, predictions, NARROW)),
        h(
            "ul",
            h("li", h("i", class_="k-measured"), "measured"),
            h("li", h("i", class_="k-guess"), "predicted"),
            class_="keys",
        ),
    )


def _episodes(found: Findings) -> Markup:
    data = found.data
    rows: list[list[Child]] = []
    for window in data.windows:
        situation = window.index.source.situation
        until = f"step {window.end_step}" if window.end_step is not None else "now"
        slow = [(f"pipeline {at}", times, "found") for at, times in sorted(situation.slow_pipelines.items())]
        if situation.straggler is not None:
            at = situation.straggler.pipeline
            slow.append(
                (
                    f"pipeline {at}" if at is not None else "outside of the job",
                    situation.straggler.slowdown,
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
        return _section("stragglers", "Stragglers", None, h("p", "None was found or announced.", class_="quiet"))
    return _section(
        "stragglers",
        "Stragglers",
        "Pipelines that wait for a slower one run at its pace, at lower clocks.",
        _table(["who", "as slow", "how", "from", "until", "schedule", "power then"], rows, "Straggler episodes"),
    )


# ---- profile


def _profile(found: Findings) -> Markup:
    if not found.points:
        why = found.missing.get(
            "profile", "nothing was measured instruction by instruction, or its profile is not there"
        )
        return _section("profile", "What was profiled", None, _missing(f"No profile: {why}."))
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
    return _section(
        "profile",
        "What was profiled",
        lead,
        h("ul", (h("li", h("i", class_=f"k-s{n % 6}"), name) for n, name in enumerate(names)), class_="keys"),
        h("div", charts[:8], class_="panels"),
        h("details", h("summary", f"{len(charts) - 8} more stages"), h("div", charts[8:], class_="panels"))
        if len(charts) > 8
        else None,
    )


# ---- all schedules


def _schedules(found: Findings) -> Markup | None:
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
    table = _table([*head, "over the frontier"], rows, "All schedules")
    note = "Predictions are for GPUs as warm as they are now; the first windows ran on colder ones, which draw less."
    return h(
        "section",
        h("details", h("summary", h("h2", "All schedules")), h("p", note, class_="lead"), table),
        id="schedules",
    )
