"""The page's section about the pipeline over time: which iterations it shows, and the data of its script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfo_fs.errors import PfoError
from pfo_fs.planner import Pipeline
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.figures import ticks_of
from pfo_fs.reports.forecast import Findings
from pfo_fs.reports.life_picture import clock_bounds
from pfo_fs.reports.pipeline_picture import ROW_PX, height_of, pipeline_svg
from pfo_fs.reports.sections import legend, picture_markup, seconds_text
from pfo_fs.reports.timeline import Laid, dag_of, measured_pipeline
from pfo_fs.reports.wording import signed_percent

Picture = tuple[str, str, Laid]
"""An iteration, with its name and what it is of."""


def pipeline(found: Findings) -> dict[str, Any]:
    """Returns an iteration of the first pipeline, measured beside predicted."""
    data = found.data
    try:
        dag = dag_of(data)
    except PfoError as error:
        return _missing(f"No picture: {error.args[-1]}.")
    if dag is None:
        return _missing("No picture: the order of instructions of a whole pipeline is not known yet.")
    window = _window_to_draw(data)
    both = _measured(data, window), _predicted(found, window or data.in_force, dag)
    pictures, remarks = [picture for picture, _ in both if picture is not None], [remark for _, remark in both]
    if not pictures:
        return _missing("No picture: there are no results of a whole pipeline yet.")
    if window is not None and window is not data.in_force and data.in_force is not None:
        remarks.append(f"Schedule {data.in_force.number} is in force, but has no results yet.")
    degree = data.job.job_info.dp_degree
    lead = [
        f"Pipeline 0{f' of {degree}' if degree > 1 else ''}.",
        "Low boxes are forwards, high ones backwards; gaps are waiting.",
        "Boxes carry stage:micro-batch where there is room." if data.place != "stage" else "",
        *remarks,
    ]
    ranks = [f"{data.place.split()[-1]} {info.pp_rank}" for info in data.pipeline_ranks(0)]
    return {"lead": " ".join(filter(None, lead)), "missing": "", "ranks": ranks, **_chart(data, pictures)}


def _missing(text: str) -> dict[str, Any]:
    return {"lead": "", "missing": text, "pictures": []}


def _window_to_draw(data: JobData) -> Window | None:
    """The schedule in force if it has results, else the newest one with results."""
    if data.in_force is not None and data.in_force.measured is not None:
        return data.in_force
    return next((window for window in reversed(data.windows) if window.measured is not None), None)


def _measured(data: JobData, window: Window | None) -> tuple[Picture | None, str]:
    """The iteration whose length is the median of those measured under a schedule, and a remark."""
    found = measured_pipeline(data, window, 0) if window is not None else None
    if window is None or found is None or not found.iterations:
        return None, ""
    ordered = sorted(found.iterations.items(), key=lambda one: one[1].length_s)
    number, laid = ordered[len(ordered) // 2]
    first = found.results[0]
    span_s = (first.result.iter_span or first.result.iter_time)[number]
    remark = (
        "Only durations are measured; begins follow from the dependencies, with everything as early as possible. "
        f"This gives {seconds_text(laid.length_s)} for an iteration that took {seconds_text(span_s)} "
        f"({signed_percent(laid.length_s / span_s - 1, 2)})."
    )
    about = f"schedule {window.number}, {seconds_text(laid.length_s)}"
    return (f"measured, step {first.first_step + number}", about, laid), remark


def _predicted(found: Findings, window: Window | None, dag: Pipeline) -> tuple[Picture | None, str]:
    """The same iteration as it is predicted, and a remark."""
    forecast = found.forecast
    if forecast is None:
        return None, f"There is no prediction: {found.missing.get('model', '')}."
    if window is None:
        return None, ""
    try:
        plan = forecast.plan_of(found.data, window)
        watts = [m.energy_j / m.time_s * forecast.problem.gpus_per_rank for m in plan.measurements]
        laid = Laid(dag, plan.timing.starts_s, plan.times_s, plan.frequencies_mhz, watts)
    except (PfoError, KeyError):
        return None, "There is no prediction beside it: the schedule has clocks that were not measured."
    remark, off = "", forecast.scale - 1
    if abs(off) > 5e-4:
        remark = f"The prediction is not corrected: the model is {signed_percent(off, 2)} off at max clocks."
    return ("predicted", f"schedule {window.number}, {seconds_text(laid.length_s)}", laid), remark


def _chart(data: JobData, pictures: Sequence[Picture]) -> dict[str, Any]:
    """The pictures, one below the other on one time axis, and the data for the script."""
    length_s = max(laid.length_s for _, _, laid in pictures)
    clocks = [mhz for _, _, laid in pictures for mhz in laid.clocks_mhz if mhz]
    powers = [power_w for _, _, laid in pictures for power_w in laid.powers_w if power_w > 0]
    scales = [
        legend(values, unit) | {"kind": kind}
        for kind, values, unit in (("clock", clocks and clock_bounds(data, clocks), "MHz"), ("power", powers, "W"))
        if values
    ]
    bounds = {scale["kind"]: (scale["low"], scale["high"]) for scale in scales}
    names = sorted({i.name for _, _, laid in pictures for i in laid.pipeline.instructions})
    return {
        "pictures": [
            {
                "name": name,
                "remark": remark,
                "svg": picture_markup(pipeline_svg(f"Pipeline over time, {name}", laid, length_s, bounds)),
            }
            for name, remark, laid in pictures
        ],
        "scales": scales,
        "by": next(iter(bounds), "clock"),
        "ticks": [(f"{100 * tick / length_s:.2f}", f"{tick:,.6g}") for tick in ticks_of(length_s, 8)],
        "data": {
            "length": length_s,
            "names": names,
            "row": ROW_PX,
            "heights": [height_of(name) for name in names],
            "bounds": bounds,
            "staged": data.place != "stage",
            "dense": max(len(row) for _, _, laid in pictures for row in laid.rows()),
            "pictures": [_boxes(laid, names) for _, _, laid in pictures],
        },
    }


def _boxes(laid: Laid, names: Sequence[str]) -> list[list[list[float]]]:
    """For each rank, [begin (s), duration (s), name, stage, micro-batch, MHz, W] of each instruction."""
    instructions = laid.pipeline.instructions
    return [
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
