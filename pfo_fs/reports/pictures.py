"""Pictures: the clocks of a job over its life, and a step: of a pipeline, or of ranks whose clocks come from loads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from statistics import fmean
from typing import Literal

from pfo_fs.loads_known import LastLoadStep
from pfo_fs.planner import Plan
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.timeline import Laid, spans_of

WIDTH = 1080.0
"""Width in pixels of the page's pictures. Narrower windows shrink them; below 640 px they keep 860 px, and scroll."""
SCALE = (
    *("#443a83", "#404588", "#3c4f8a", "#375a8c", "#33638d", "#2f6c8e", "#2b748e", "#277e8e", "#24868e", "#218f8d"),
    *("#1f978b", "#1fa188", "#23a983", "#2cb17e", "#38b977", "#4ac16d", "#5cc863", "#70cf57", "#86d549", "#a0da39"),
    *("#b8de29", "#d0e11c", "#e7e419", "#fde725"),
)
"""Viridis without its darkest part. It becomes lighter all the way, so its order does not depend on hue."""
LIGHT_INK, DARK_INK = "#fffffe", "#000001"
"""Colours of text on a shade, in both themes."""
_ALONE = (
    "background: #fff; font-family: sans-serif; --soft: #5a6675; --lane: #e3e7ed; --card: #fff; --bad: #b3341c; "
    "--warn: #9a5b00"
)

Bounds = tuple[float, float]
"""The lowest and the highest value of a colour scale."""

_MOST_WINDOWS = 80
"""This many schedules fit beside one another; the table of the page has up to 2,000."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 24.0, 24.0, 44.0
"""Space in px around the boxes."""
_ROW_PX, _MOST_PX = 20.0, 320.0
"""Height of a stage in px, and the most that all stages have together."""
_LABEL_PX = 34.0
"""If a box is at least this wide, it shows its clock, and its column shows the schedule's number."""
_GAP = 30.0
"""Space in px between the two panels of a step with clocks from loads."""
_PANEL_PX = (WIDTH - _LEFT - _RIGHT - _GAP) / 2

_STEP_ROW_PX, _BOX_PX, _MOST_WIDE_PX = 24.0, 20.0, 16_000.0
"""In the picture of a step: height of a rank, mean width of an instruction, largest width of the picture."""
_MOST_TEXTS = 4000
"""In pipelines of more instructions, boxes have neither number nor tooltip, so that the page stays small."""
_HEIGHT = {"forward": 0.62, "recomputation": 0.62, "backward_weight": 0.4}
"""An instruction fills this part of a row, which shows its kind without colour; other kinds fill nearly all of it."""
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


def life_svg(data: JobData, bounds: Bounds) -> str:
    """Returns the mean clock of each stage under each schedule, over the steps of a job with at least one schedule."""
    windows = data.windows[-_MOST_WINDOWS:]
    begin, end_step = windows[0].index.start_step, max(windows[-1].index.start_step, data.last_step) + 1
    stages = max(1, *(len(mean_clocks(data, window)) for window in windows))
    row_px = min(_ROW_PX, _MOST_PX / stages)
    px_per_step = (WIDTH - _LEFT - _RIGHT) / max(1, end_step - begin)
    bottom, gap = _TOP + stages * row_px, min(2.0, row_px * 0.1)
    picture = Svg(WIDTH, bottom + _BOTTOM, f"Mean clock of each {data.place} under each schedule, over the steps")

    def x_of(step: float) -> float:
        return _LEFT + (step - begin) * px_per_step

    for window, first, end, share in spans_of(data, end_step):
        if window is None or first < begin:
            continue
        wide_px, middle = (end - first) * px_per_step, x_of((first + end) / 2)
        box_px, high_px = wide_px - min(2.0, wide_px * 0.1), (row_px - gap) * share
        for stage, mhz in mean_clocks(data, window).items():
            tone, top = shade(mhz, bounds), _TOP + stage * row_px
            about = (f"{mhz:,.0f} MHz" if mhz else "left alone") + (", in turns" if share < 1 else "")
            tooltip = f"schedule {window.number}, {data.place} {stage}: {about}"
            fill = SCALE[tone] if mhz else _LANE
            if share < 1:
                picture.box(x_of(first), top, box_px, row_px - gap, _LANE)
            picture.box(x_of(first), top + row_px - gap - high_px, box_px, high_px, fill, tooltip)
            if wide_px > _LABEL_PX and row_px > _ROW_PX / 2 and share == 1:
                text, colour = (f"{mhz:.0f}", ink(tone)) if mhz else ("–", "var(--soft)")
                picture.text(middle, top + (row_px - gap) / 2, text, fill=colour)
        if wide_px > _LABEL_PX:
            picture.text(middle, _TOP - 10, f"{window.number}")
        if window.follows_straggler:
            picture.box(x_of(first), _TOP, wide_px, stages * row_px, "none", stroke="var(--warn)")
    for stage in range(0, stages, 1 if row_px > _ROW_PX / 2 else 4):
        picture.text(_LEFT - 8, _TOP + (stage + 0.5) * row_px, f"{stage}", anchor="end")
    picture.text(_LEFT - 40, (_TOP + bottom) / 2, data.place.split()[-1], turned=True)
    _add_axis(picture, [(x_of(step), step) for step in ticks_of(begin, end_step, 8)], bottom, WIDTH / 2, "step")
    return picture.markup()


def _add_axis(picture: Svg, ticks: Sequence[tuple[float, float]], bottom: float, middle: float, title: str) -> None:
    for x, value in ticks:
        picture.text(x, bottom + 12, f"{value:,.6g}")
    picture.text(middle, bottom + 32, title)


def step_svg(
    title: str,
    laid: Laid,
    bounds: Bounds,
    by: Literal["clock", "power"],
    critical: Sequence[int] | None = None,
    *,
    place: str = "stage",
) -> str:
    """Returns one iteration: a row per rank, a box per instruction, in the colour of its clock or power.

    Args:
        bounds: Bounds of the colour scale, in MHz or W.
        critical: The instructions of a critical path, for a picture of a plan, which is a file of its own.
        place: What a row is, such as "stage".
    """
    rows, instructions = laid.rows(), laid.pipeline.instructions
    width = min(_MOST_WIDE_PX, max(WIDTH, _LEFT + _RIGHT + _BOX_PX * max(map(len, rows))))
    bottom, px_per_s = _TOP + _STEP_ROW_PX * len(rows), (width - _LEFT - _RIGHT) / laid.length_s
    picture = Svg(width, bottom + _BOTTOM, title, alone=critical is not None)
    is_staged = any(len({instructions[node].stage for node in nodes}) > 1 for nodes in rows)
    values = laid.clocks_mhz if by == "clock" else laid.powers_w
    for rank, nodes in enumerate(rows):
        middle = _TOP + _STEP_ROW_PX * (rank + 0.5)
        picture.box(_LEFT, middle - 11, width - _LEFT - _RIGHT, 22, _LANE)
        picture.text(_LEFT - 8, middle, f"{rank}", anchor="end")
        for node in nodes:
            what, mhz, power_w = instructions[node], laid.clocks_mhz[node], laid.powers_w[node]
            left, wide_px = _LEFT + laid.starts_s[node] * px_per_s, laid.times_s[node] * px_per_s
            high_px = _STEP_ROW_PX * _HEIGHT.get(what.name, 0.92)
            about = f"{what.name} of micro-batch {what.microbatch}, stage {what.stage}: {laid.times_s[node]:.4g} s"
            about += (f", {mhz} MHz" if mhz else "") + (f", {power_w:,.0f} W" if power_w else "")
            tone = shade(values[node], bounds)
            fill = SCALE[tone] if values[node] else _LANE
            with_text = len(instructions) <= _MOST_TEXTS
            picture.box(
                left, middle - high_px / 2, wide_px, high_px, fill, about if with_text else "", stroke="var(--card)"
            )
            if with_text and wide_px > (30 if is_staged else 17):
                number = f"{what.stage}:{what.microbatch}" if is_staged else f"{what.microbatch}"
                colour = ink(tone) if values[node] else "var(--soft)"
                picture.text(left + wide_px / 2, middle, number, fill=colour)
    if critical is not None:
        rank_of = {node: rank for rank, nodes in enumerate(rows) for node in nodes}
        points = [
            (_LEFT + at_s * px_per_s, _TOP + _STEP_ROW_PX * (rank_of[node] + 0.5))
            for node in critical
            for at_s in (laid.starts_s[node], laid.starts_s[node] + laid.times_s[node])
        ]
        picture.line(points, "var(--bad)")
        picture.text(_LEFT, _TOP - 10, title, anchor="start")
    picture.text(_LEFT - 40, (_TOP + bottom) / 2, place.split()[-1], turned=True)
    ticks = [(_LEFT + at_s * px_per_s, at_s) for at_s in ticks_of(0, laid.length_s, 8)]
    _add_axis(picture, ticks, bottom, width / 2, "time (s)")
    return picture.markup()


def plan_svg(plan: Plan) -> str:
    """Returns what every rank of a plan runs when, in the colour of its power, with a critical path."""
    pipeline, rows = plan.problem.pipeline, plan.problem.profile.measurements.items()
    power_w = {(*kind, m.frequency_mhz): m.energy_j / m.time_s for kind, measured in rows for m in measured}
    powers = [power_w[i.stage, i.name, mhz] for i, mhz in zip(pipeline.instructions, plan.frequencies_mhz, strict=True)]
    low_w, high_w = min(plan.problem.blocking_power_w, *powers), max(powers)
    laid = Laid(pipeline, plan.starts_s, plan.times_s, plan.frequencies_mhz, powers)
    ranks = len(pipeline.orders)
    title = (
        f"{pipeline.name}, {ranks} ranks x {pipeline.num_microbatches} micro-batches: {plan.iteration_time_s:.4g} s, "
        f"{plan.energy_j:,.0f} J{plan.gap_text}; {low_w:,.0f} W (dark) to {high_w:,.0f} W (light); red: a critical path"
    )
    place = "rank" if ranks != pipeline.num_stages else "stage"
    return step_svg(title, laid, (low_w, high_w), "power", plan.critical, place=place)


def loads_svg(step: LastLoadStep, who: str, bounds: Bounds) -> str:
    """Returns who waits for whom in a step, at max clocks and at the clocks from loads.

    Args:
        who: What a row is, such as "rank".
        bounds: Bounds of the colour scale, in MHz; the upper bound is the highest clock.
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
        picture.line([(left + end_s * px_per_s, _TOP), (left + end_s * px_per_s, bottom)], "var(--bad)")
        ticks = [(left + time_s * px_per_s, time_s) for time_s in ticks_of(0, longest_s, 6)]
        _add_axis(picture, ticks, bottom, left + _PANEL_PX / 2, "time (s)")
    picture.text(_LEFT - 40, (_TOP + bottom) / 2, who, turned=True)
    return picture.markup()


# ---- what all pictures are made of


def shade(value: float, bounds: Bounds) -> int:
    """Returns the place in `SCALE` of a value between two bounds."""
    low, high = bounds
    share = (value - low) / (high - low) if high > low else 1.0
    return min(len(SCALE) - 1, max(0, int(share * len(SCALE))))


def ink(tone: int) -> str:
    """Returns black or white, whichever is easier to read on a shade."""
    return DARK_INK if tone >= len(SCALE) * 0.45 else LIGHT_INK


def ticks_of(low: float, high: float, about: int) -> list[float]:
    """Returns round values between two others, in at most `about` steps."""
    raw = max((high - low) / about, 1e-12)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


class Svg:
    """One picture; places are pixels from its upper left corner, colours those of CSS.

    Args:
        width, height: Its size in pixels; the page makes it smaller if the window is smaller.
        name: What it shows, as text for screen readers.
        alone: Whether it is a file of its own, which has no colours of a page.
    """

    def __init__(self, width: float, height: float, name: str, *, alone: bool = False) -> None:
        view = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        # A picture wider than the page is not made smaller: it scrolls sideways.
        style = _ALONE if alone else f"min-width: {width:g}px" if width > WIDTH else ""
        own = f' style="{style}"' if style else ""
        about = f'class="chart" role="img" aria-label="{escape(name)}"'
        self._parts = [f"<svg {view} {about}{own}><title>{escape(name)}</title>"]

    def box(
        self, left: float, top: float, width: float, height: float, fill: str, tooltip: str = "", stroke: str = "none"
    ) -> None:
        """Adds a box."""
        place = f'x="{left:.1f}" y="{top:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
        title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
        self._parts.append(f'<rect {place} style="fill: {fill}; stroke: {stroke}">{title}</rect>')

    def text(
        self, x: float, y: float, text: str, *, fill: str = "var(--soft)", anchor: str = "middle", turned: bool = False
    ) -> None:
        """Adds a text, centred in height; `anchor` says which part of it is at `x`: start, middle or end."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"{turn}'
        self._parts.append(f'<text {place} style="fill: {fill}; font-size: 11.5px">{escape(text)}</text>')

    def line(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        """Adds a line from point to point."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{places}" style="fill: none; stroke: {colour}; stroke-width: 1.5"/>')

    def markup(self) -> str:
        """Returns the element."""
        return "".join([*self._parts, "</svg>"])
