"""Pictures of the page: what ran when, a step of a pipeline, and who waits for whom where clocks come from loads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from pfo_fs.loads_known import LastLoadStep
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.svg import SCALE, WIDTH, Bounds, Svg, ink, shade, ticks_of
from pfo_fs.reports.timeline import Laid

_MOST_WINDOWS = 80
"""This many schedules fit beside one another; the table of the page has all."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 24.0, 24.0, 44.0
"""Space in px around the boxes."""
_ROW_PX, _MOST_PX = 20.0, 320.0
"""Height of a stage, and of all of them."""
_LABEL_PX = 34.0
"""A box has the clock written in it, and its column the schedule's number, where it is at least so wide."""
_GAP = 30.0
"""Space in px between the two panels of a step with clocks from loads."""
_PANEL_PX = (WIDTH - _LEFT - _RIGHT - _GAP) / 2

PIPELINE_ROW_PX = 24.0
_PIPELINE_WIDTH = 10_000.0
"""Units of a step's picture from its begin to its end; the script zooms in them."""
_HEIGHT = {"forward": 0.62, "recomputation": 0.62, "backward_weight": 0.4}
_LANE = "var(--lane)"


def mean_clocks(data: JobData, window: Window) -> dict[int, float]:
    """Returns the mean clock of each pipeline rank (MHz) over its instructions; 0 where clocks are left alone."""
    by_stage: dict[int, list[int]] = {}
    for info in data.infos:
        if info.tp_rank == 0:
            schedule = window.schedules.get(info.rank)
            clocks = [mhz for _, mhz in schedule.frequencies] if schedule is not None else [0]
            by_stage.setdefault(info.pp_rank, []).extend(clocks or [0])
    return {stage: fmean(clocks) for stage, clocks in sorted(by_stage.items())}


def clock_bounds(data: JobData, clocks: Sequence[float]) -> Bounds:
    """Returns the bounds of a colour scale: from the lowest of these clocks to the highest that the GPUs offer (MHz).

    So a job that runs at a single low clock has the colour of a low clock.
    """
    offered = [max(info.available_frequencies) for info in data.infos if info.available_frequencies]
    return min(clocks), max(*clocks, *offered) if offered else max(clocks)


def height_of(instruction: str) -> float:
    """Returns the part of a row's height that an instruction fills, which shows its kind without colour."""
    return _HEIGHT.get(instruction, 0.92)


def life_svg(data: JobData, bounds: Bounds) -> str:
    """Returns the mean clock of each stage under each schedule, over the steps of a job with at least one schedule."""
    windows = data.windows[-_MOST_WINDOWS:]
    begins = [window.index.start_step for window in windows]
    edges = [*begins, max(begins[-1], data.last_step) + 1]
    stages = max(1, *(len(mean_clocks(data, window)) for window in windows))
    row_px = min(_ROW_PX, _MOST_PX / stages)
    px_per_step = (WIDTH - _LEFT - _RIGHT) / max(1, edges[-1] - edges[0])
    bottom, gap = _TOP + stages * row_px, min(2.0, row_px * 0.1)
    picture = Svg(WIDTH, bottom + _BOTTOM, f"Mean clock of each {data.place} under each schedule, over the steps")

    def x_of(step: float) -> float:
        return _LEFT + (step - edges[0]) * px_per_step

    for window, first, end in zip(windows, edges, edges[1:], strict=False):
        wide_px, middle = (end - first) * px_per_step, x_of((first + end) / 2)
        for stage, mhz in mean_clocks(data, window).items():
            tone, top = shade(mhz, bounds), _TOP + stage * row_px
            about = f"{mhz:,.0f} MHz" if mhz else "left alone"
            tooltip = f"schedule {window.number}, {data.place} {stage}: {about}"
            fill = SCALE[tone] if mhz else _LANE
            picture.box(x_of(first), top, wide_px - min(2.0, wide_px * 0.1), row_px - gap, fill, tooltip)
            if wide_px > _LABEL_PX and row_px > _ROW_PX / 2:
                text, colour = (f"{mhz:.0f}", ink(tone)) if mhz else ("–", "var(--soft)")
                picture.text(middle, top + (row_px - gap) / 2, text, fill=colour)
        if wide_px > _LABEL_PX:
            picture.text(middle, _TOP - 10, f"{window.number}")
        if window.follows_straggler:
            picture.box(x_of(first), _TOP, wide_px, stages * row_px, "none", stroke="var(--warn)")
    for stage in range(0, stages, 1 if row_px > _ROW_PX / 2 else 4):
        picture.text(_LEFT - 8, _TOP + (stage + 0.5) * row_px, f"{stage}", anchor="end")
    picture.text(_LEFT - 40, (_TOP + bottom) / 2, data.place.split()[-1], turned=True)
    _add_axis(picture, [(x_of(step), step) for step in ticks_of(edges[0], edges[-1], 8)], bottom, WIDTH / 2, "step")
    return picture.markup()


def _add_axis(picture: Svg, ticks: Sequence[tuple[float, float]], bottom: float, middle: float, title: str) -> None:
    for x, value in ticks:
        picture.text(x, bottom + 12, f"{value:,.6g}")
    picture.text(middle, bottom + 32, title)


def pipeline_svg(title: str, laid: Laid, scales: Mapping[str, Bounds]) -> str:
    """Returns one iteration: only its boxes, once for each colour scale, `clock` (MHz) or `power` (W)."""
    rows, length_s = laid.rows(), laid.length_s
    height = len(rows) * PIPELINE_ROW_PX
    picture = Svg(_PIPELINE_WIDTH, height, title, f"height:{height:g}px")
    for kind, bounds in scales.items():
        values = laid.clocks_mhz if kind == "clock" else laid.powers_w
        boxes: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
        for rank, nodes in enumerate(rows):
            for node in nodes:
                half = height_of(laid.pipeline.instructions[node].name) / 2
                left, right = laid.starts_s[node], laid.starts_s[node] + laid.times_s[node]
                top, bottom = (rank + 0.5 - half) * PIPELINE_ROW_PX, (rank + 0.5 + half) * PIPELINE_ROW_PX
                fill = SCALE[shade(values[node], bounds)] if values[node] else _LANE
                boxes[fill].append((_PIPELINE_WIDTH * left / length_s, top, _PIPELINE_WIDTH * right / length_s, bottom))
        picture.layer(kind, boxes)
    return picture.markup()


def loads_svg(step: LastLoadStep, who: str, bounds: Bounds) -> str:
    """Returns who waits for whom in a step, at max clocks and at the clocks from loads.

    Args:
        who: What a row is, such as "rank".
        bounds: Those of the colour scale, in MHz; the upper one is the highest clock.
    """
    rows = len(step.lane)
    bottom, longest_s = _TOP + _ROW_PX * rows, 1.02 * (max(*step.work_s, *step.full_s) or 1.0)
    name = f"Own work and waiting of each {who} in step {step.step}, before and after"
    picture = Svg(WIDTH, bottom + _BOTTOM, name)
    highest = "at max clocks", step.full_s, [round(bounds[1])] * rows
    panels = highest, ("at the clocks from loads", step.work_s, step.mhz)
    for number, (title, work_s, clocks) in enumerate(panels):
        left, end_s, px_per_s = _LEFT + number * (_PANEL_PX + _GAP), max(work_s), _PANEL_PX / longest_s
        picture.text(left, _TOP - 10, title, anchor="start")
        for place, (lane, time_s, mhz) in enumerate(zip(step.lane, work_s, clocks, strict=True)):
            top, tone, work_px = _TOP + place * _ROW_PX, shade(mhz, bounds), time_s * px_per_s
            waits = f"{who} {lane} waits {end_s - time_s:.3g} s"
            picture.box(left + work_px, top, (end_s - time_s) * px_per_s, _ROW_PX - 3, _LANE, waits)
            works = f"{who} {lane} works {time_s:.3g} s at {mhz} MHz"
            picture.box(left, top, work_px, _ROW_PX - 3, SCALE[tone], works)
            if work_px > _LABEL_PX:
                picture.text(left + 6, top + (_ROW_PX - 3) / 2, f"{mhz}", fill=ink(tone), anchor="start")
            if not number:
                picture.text(left - 8, top + (_ROW_PX - 3) / 2, f"{lane}", anchor="end")
        picture.line(left + end_s * px_per_s, _TOP, bottom, "var(--bad)")
        ticks = [(left + time_s * px_per_s, time_s) for time_s in ticks_of(0, longest_s, 6)]
        _add_axis(picture, ticks, bottom, left + _PANEL_PX / 2, "time (s)")
    picture.text(_LEFT - 40, (_TOP + bottom) / 2, who, turned=True)
    return picture.markup()
