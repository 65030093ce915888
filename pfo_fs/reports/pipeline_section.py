"""The page's section about the pipeline over time: which iteration it shows, and the data of its script."""

from __future__ import annotations

from typing import Any

from pfo_fs.errors import PfoError
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.figures import ticks_of
from pfo_fs.reports.life_picture import clock_bounds
from pfo_fs.reports.pipeline_picture import ROW_PX, pipeline_svg
from pfo_fs.reports.sections import legend, picture_markup, seconds_text
from pfo_fs.reports.timeline import Laid, dag_of, measured_pipeline
from pfo_fs.reports.wording import signed_percent


def pipeline(data: JobData) -> dict[str, Any]:
    """Returns a measured iteration of the first pipeline: the one of median length under a schedule."""
    try:
        if dag_of(data) is None:
            return _missing("No picture: the order of instructions of a whole pipeline is not known yet.")
    except PfoError as error:
        return _missing(f"No picture: {error.args[-1]}.")
    window = _window_to_draw(data)
    measured = measured_pipeline(data, window, 0) if window is not None else None
    if window is None or measured is None or not measured.iterations:
        return _missing("No picture: there are no results of a whole pipeline yet.")
    ordered = sorted(measured.iterations.items(), key=lambda item: item[1].length_s)
    number, laid = ordered[len(ordered) // 2]
    first = measured.results[0]
    span_s = (first.result.iter_span or first.result.iter_time)[number]
    degree = data.job.job_info.dp_degree
    lead = [
        f"Pipeline 0{f' of {degree}' if degree > 1 else ''}.",
        "Low boxes are forwards, high ones backwards; gaps are waiting.",
        "Boxes carry stage:micro-batch where there is room." if data.place != "stage" else "",
        "Only durations are measured; start times follow from the dependencies, with everything as early as possible. "
        f"This gives {seconds_text(laid.length_s)} for an iteration that took {seconds_text(span_s)} "
        f"({signed_percent(laid.length_s / span_s - 1, 2)}).",
    ]
    if window is not data.in_force and data.in_force is not None:
        lead.append(f"Schedule {data.in_force.number} is in force, but has no results yet.")
    return {
        "lead": " ".join(filter(None, lead)),
        "missing": "",
        "ranks": [f"{data.place.split()[-1]} {info.pp_rank}" for info in data.pipeline_ranks(0)],
        "name": f"measured, step {first.first_step + number}",
        "remark": f"schedule {window.number}, {seconds_text(laid.length_s)}",
        **_chart(data, laid),
    }


def _missing(text: str) -> dict[str, Any]:
    return {"lead": "", "missing": text, "svg": ""}


def _window_to_draw(data: JobData) -> Window | None:
    """The schedule in force if it has results, else the newest one with results."""
    if data.in_force is not None and data.in_force.measured is not None:
        return data.in_force
    return next((window for window in reversed(data.windows) if window.measured is not None), None)


def _chart(data: JobData, laid: Laid) -> dict[str, Any]:
    """The picture, its time axis and colour scales, and the data for the script."""
    length_s = laid.length_s
    clocks = [mhz for mhz in laid.clocks_mhz if mhz]
    powers = [power_w for power_w in laid.powers_w if power_w > 0]
    scales = [
        legend(values, unit) | {"kind": kind}
        for kind, values, unit in (("clock", clocks and clock_bounds(data, clocks), "MHz"), ("power", powers, "W"))
        if values
    ]
    bounds = {scale["kind"]: (scale["low"], scale["high"]) for scale in scales}
    instructions = laid.pipeline.instructions
    names = sorted({instruction.name for instruction in instructions})
    boxes = [
        [
            [
                round(laid.starts_s[node], 5),
                round(laid.times_s[node], 5),
                names.index(instructions[node].name),
                instructions[node].stage,
                instructions[node].microbatch,
                laid.clocks_mhz[node],
                round(laid.powers_w[node], 1),
            ]
            for node in nodes
        ]
        for nodes in laid.rows()
    ]
    return {
        "svg": picture_markup(pipeline_svg("Pipeline over time", laid, length_s, bounds)),
        "scales": scales,
        "by": next(iter(bounds), "clock"),
        "ticks": [(f"{100 * tick / length_s:.2f}", f"{tick:,.6g}") for tick in ticks_of(length_s, 8)],
        "data": {
            "length": length_s,
            "names": names,
            "row": ROW_PX,
            "bounds": bounds,
            "staged": data.place != "stage",
            "dense": max(map(len, boxes)),
            "rows": boxes,
        },
    }
