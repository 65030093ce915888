"""The sections of the page: what each shows, and a text about what is missing in it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.life_picture import clock_bounds, life_svg, mean_clocks
from pfo_fs.reports.loads_picture import loads_svg

if TYPE_CHECKING:
    from markupsafe import Markup

_MOST_ROWS = 2000
"""A browser shows a table of this length at once."""


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


def schedules(data: JobData) -> dict[str, Any]:
    """Returns what ran when: the clocks of each schedule, and a table of all schedules with their figures."""
    section: dict[str, Any] = {"lead": "", "missing": "", "picture": "", "legend": None, "straggler": False}
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
        "lead": f"Mean clock of each {data.place} under each schedule",
        "legend": legend(bounds, "MHz"),
        "picture": picture_markup(life_svg(data, bounds)),
        "straggler": any(window.follows_straggler for window in data.windows),
    }


def last_step(data: JobData) -> dict[str, Any]:
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
        "picture": picture_markup(loads_svg(step, who, bounds)),
    }


def _purpose(data: JobData, window: Window) -> str:
    """What a schedule was for, as its record and its clocks say."""
    if window.index.source.kind == "yaml":
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
    return "measuring" if window.index.steps else "plan"


def _schedule_table(data: JobData) -> dict[str, Any]:
    rows = []
    for window in data.windows[-_MOST_ROWS:]:
        measured = window.measured
        clocks = [mhz for mhz in mean_clocks(data, window).values() if mhz]
        ranks = ""
        if measured is not None and measured.ranks < data.job.job_info.world_size:
            ranks = f" ({measured.ranks} of {data.job.job_info.world_size} ranks)"
        row = {
            "schedule": window.number,
            "from step": window.index.start_step,
            "what": _purpose(data, window),
            "mean clock MHz": f"{fmean(clocks):,.0f}" if clocks else "–",
            "time s": _cell(measured, "time_s", ".4f") + ranks,
            "energy J": _cell(measured, "energy_j", ",.0f"),
            "power W": _cell(measured, "power_w", ",.0f"),
        }
        rows.append(row)
    lead = "The first schedules ran on colder GPUs, which draw less."
    table = {"caption": "All schedules", "lead": lead}
    return {**table, "head": list(rows[0]), "rows": [list(row.values()) for row in rows]}


def _cell(figures: object | None, name: str, form: str) -> str:
    value = getattr(figures, name, None)
    return "–" if value is None else format(value, form)
