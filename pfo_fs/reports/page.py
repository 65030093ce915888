"""The page about one job: one file of HTML that needs nothing else, and has no script.

Templates (`templates/`) hold the markup, the functions here the data of its sections. Jinja2 escapes everything except
this package's pictures, because texts in the shared directory can come from any member of its group.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from statistics import fmean
from typing import Literal

import pfo_fs
from pfo_fs.errors import PfoError
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.pictures import SCALE, clock_bounds, life_svg, loads_svg, mean_clocks, step_svg
from pfo_fs.reports.savings import savings_of
from pfo_fs.reports.summary import headline_section, messages
from pfo_fs.reports.timeline import dag_of, measured_pipeline
from pfo_fs.reports.wording import seconds_text, signed_percent

PAGE_HAS = 'content="pfo-fs'  # in its first lines, and in no other file
_MOST_ROWS = 2000
"""A browser shows a table of this length at once."""


def render_page(data: JobData, rates: Mapping[str, float] | None = None) -> str:
    """Returns the page about a job."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pfo_fs.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = files("pfo_fs.reports").joinpath("page.css").read_text("utf-8")
    return environment.get_template("page.html").render(
        policy="default-src 'none'; style-src 'unsafe-inline'",
        version=pfo_fs.__version__,
        job_id=data.folder.job_id,
        path=str(data.folder.path),
        style=style,
        ramp=f"linear-gradient(90deg, {', '.join(SCALE)})",
        state=data.text,
        facts=_facts(data),
        metadata=data.job.job_info.job_metadata,
        headline=headline_section(data, savings_of(data), rates),
        messages=messages(data),
        last_step=last_step(data),
        pipeline=pipeline(data),
        schedules=schedules(data),
    )


def _facts(data: JobData) -> list[str]:
    info = data.job.job_info
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
    return [fact for fact in facts if fact]


def legend(values: Sequence[float], unit: str) -> dict[str, object]:
    """Returns the bounds of a colour scale."""
    return {"low": float(min(values)), "high": float(max(values)), "unit": unit}


def schedules(data: JobData) -> dict[str, object]:
    """Returns what ran when: the clocks of each schedule, and a table of all schedules with their figures."""
    section: dict[str, object] = {"lead": "", "missing": "", "picture": "", "legend": None, "straggler": False}
    if not data.windows:
        return {**section, "table": None, "missing": "No schedule has been in force yet."}
    section["table"] = _schedule_table(data)
    known = [mhz for window in data.windows for mhz in mean_clocks(data, window).values() if mhz]
    if not known:
        by_loads = "Each step has one clock, which comes from its loads and is not drawn here."
        return {**section, "lead": "All clocks were left alone so far." if data.loads is None else by_loads}
    bounds = clock_bounds(data, known)
    return {
        **section,
        "lead": f"Mean clock of each {data.place} under each schedule; low boxes are in turns with default clocks",
        "legend": legend(bounds, "MHz"),
        "picture": life_svg(data, bounds),
        "straggler": any(window.follows_straggler for window in data.windows),
    }


def last_step(data: JobData) -> dict[str, object]:
    """Returns the last step of a job with clocks from loads: who waits for whom; empty if none is known."""
    step = data.loads.last if data.loads is not None else None
    if step is None or not max(step.work_s, default=0.0):
        return {"picture": ""}
    who = "rank" if step.lanes == data.job.job_info.world_size else "pipeline"
    bounds = clock_bounds(data, [float(mhz) for mhz in step.mhz])
    some = f"{len(step.lane)} of {step.lanes} {who}s" if len(step.lane) < step.lanes else f"the {who}s"
    return {
        "lead": f"Own work of {some} in step {step.step}; the colour is the clock",
        "legend": legend(bounds, "MHz"),
        "picture": loads_svg(step, who, bounds),
    }


def _purpose(data: JobData, window: Window) -> str:
    """What a schedule was for, as its record and its clocks say."""
    if window.by_hand:
        return "by hand (schedule.yaml)"
    if not any(window.clocks_mhz):
        return "clocks left alone"
    inputs = window.index.source.plan_inputs
    slow = [f"pipeline {at} is {times:.3g} × as slow" for at, times in sorted(inputs.slow_pipelines.items())]
    if inputs.straggler is not None:
        at = inputs.straggler.pipeline
        who = "one outside of the job" if at is None else f"pipeline {at}"
        slow.append(f"{who} is {inputs.straggler.slowdown:.3g} × as slow, as announced")
    if slow:
        return f"straggler: {'; '.join(slow)}"
    if data.at_max_clocks(window):
        return "max clocks"
    return ("plan" if window.index.stays else "measuring") + (f", target: {inputs.target}" if inputs.target else "")


def _schedule_table(data: JobData) -> dict[str, object]:
    rows, size = [], data.job.job_info.world_size
    for window in data.windows[-_MOST_ROWS:]:
        row = [f"{window.number}", f"{window.index.start_step}", _purpose(data, window)]
        clocks = [mhz for mhz in mean_clocks(data, window).values() if mhz]
        row.append(f"{fmean(clocks):,.0f}" if clocks else "–")
        if (measured := window.measured) is None:
            row += ["–"] * 3
        else:
            row.append(f"{measured.time_s:.4f}" + (f" ({measured.ranks} of {size} ranks)" * (measured.ranks < size)))
            row += ["–" if value is None else f"{value:,.0f}" for value in (measured.energy_j, measured.power_w)]
        rows.append(row)
    return {
        "caption": "All schedules" if len(rows) == len(data.windows) else f"The newest {len(rows):,} schedules",
        "lead": "The first schedules ran on colder GPUs, which draw less.",
        "head": ["schedule", "from step", "what", "mean clock MHz", "time s", "energy J", "power W"],
        "rows": rows,
    }


# ---- the pipeline over time


def pipeline(data: JobData) -> dict[str, object]:
    """Returns a measured iteration of the first pipeline: that of median length under a schedule."""
    try:
        if dag_of(data) is None:
            return _missing("No picture: the order of instructions of a whole pipeline is not known yet.")
    except PfoError as error:
        return _missing(f"No picture: {error.args[-1]}.")
    window = _window_to_draw(data)
    measured = measured_pipeline(data, window, 0) if window is not None else None
    if window is None or measured is None or not measured.iterations:
        return _missing("No picture: there are no results of a whole pipeline yet.")
    most = max(sum(map(bool, laid.clocks_mhz)) for laid in measured.iterations.values())  # where all ranks had a turn
    with_most = [item for item in measured.iterations.items() if sum(map(bool, item[1].clocks_mhz)) == most]
    ordered = sorted(with_most, key=lambda item: item[1].length_s)
    number, laid = ordered[len(ordered) // 2]
    first = measured.results[0]
    span_s = (first.result.iter_span or first.result.iter_time)[number]
    degree = data.job.job_info.dp_degree
    step = first.result.iter_step[number] if first.result.iter_step else first.first_step + number
    name = f"Step {step} under schedule {window.number}"
    lead = [
        f"{name}, pipeline 0{f' of {degree}' if degree > 1 else ''}.",
        "Low boxes are forwards, high ones backwards; gaps are waiting.",
        "Boxes carry stage:micro-batch where there is room." if data.place != "stage" else "",
        "Only durations are measured; start times follow from the dependencies, with everything as early as possible. "
        f"This gives {seconds_text(laid.length_s)} for an iteration that took {seconds_text(span_s)} "
        f"({signed_percent(laid.length_s / span_s - 1, 2)}).",
    ]
    if window is not data.in_force and data.in_force is not None:
        lead.append(f"Schedule {data.in_force.number} is in force, but has no results yet.")
    clocks, powers = [mhz for mhz in laid.clocks_mhz if mhz], [power_w for power_w in laid.powers_w if power_w]
    by: Literal["clock", "power"] = "power" if powers and not clocks else "clock"
    bounds = clock_bounds(data, clocks or [0]) if by == "clock" else (min(powers), max(powers))
    return {
        "lead": " ".join(filter(None, lead)),
        "missing": "",
        "legend": legend(bounds, "MHz" if by == "clock" else "W"),
        "picture": step_svg(name, laid, bounds, by, place=data.place),
    }


def _missing(text: str) -> dict[str, object]:
    return {"lead": "", "missing": text, "picture": ""}


def _window_to_draw(data: JobData) -> Window | None:
    """The schedule in force if it has results, else the newest one with results."""
    if data.in_force is not None and data.in_force.measured is not None:
        return data.in_force
    return next((window for window in reversed(data.windows) if window.measured is not None), None)
