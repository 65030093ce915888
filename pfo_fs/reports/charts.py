"""The frontier, the job's life, and the profile, as SVG. Each is drawn for wide and for narrow screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from pfo_fs.autotune.samples import Kind, Point
from pfo_fs.planner import Profile
from pfo_fs.reports.axes import Scale, chart, colour, fitting, ink, path, shade, x_axis, y_axis
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.forecast import Curve, Predicted
from pfo_fs.reports.markup import Markup, h

WIDE, NARROW = 1080.0, 360.0
_MOST_WINDOWS = 80
"""So many schedules fit beside one another; the table has all."""


class Dot:
    """One point of the frontier chart."""

    def __init__(self, time_s: float, energy_j: float, kind: str, name: str, label: str = "") -> None:
        self.time_s, self.energy_j, self.kind, self.name, self.label = time_s, energy_j, kind, name, label


def frontier_chart(curve: Curve | None, dots: Sequence[Dot], width: float) -> Markup:
    """Energy over iteration time: plans, their lower bound, and where the job was.

    Args:
        curve: The frontier; None where there is no model.
        dots: What was measured and predicted. Those of kind `other` are left out where they lie outside of the rest.
        width: In pixels.
    """
    narrow = width < 600
    height = 300.0 if narrow else 420.0
    left, right, top, bottom = (
        (52.0, width - 10, 14.0, height - 44) if narrow else (76.0, width - 24, 16.0, height - 52)
    )
    line = [*curve.planned, *curve.bound] if curve is not None else []
    main = [(dot.time_s, dot.energy_j) for dot in dots if dot.kind != "other"]
    shown = line + main or [(dot.time_s, dot.energy_j) for dot in dots]
    x = fitting([t for t, _ in shown], left, right)
    y = fitting([e for _, e in shown], bottom, top, 0.1)
    parts = [x_axis(x, top, bottom, 4 if narrow else 8), y_axis(y, left, right, 5, 1e3)]
    if curve is not None:
        below = [(x(t), y(e)) for t, e in curve.bound]
        if below:
            parts.append(
                h("path", d=f"{path(below)}V{bottom:g}H{below[0][0]:.1f}Z", class_="impossible")  # nothing can be here
            )
            parts.append(h("path", h("title", "lower bound: no plan can take less"), d=path(below), class_="bound"))
        parts.append(h("path", d=path([(x(t), y(e)) for t, e in curve.planned]), class_="planned"))
        parts += [
            h("circle", h("title", f"planned: {t:.4g} s, {e:,.0f} J"), cx=x(t), cy=y(e), r=3, class_="planned-dot")
            for t, e in curve.planned
        ]
    for dot in dots:
        if not (x.low <= dot.time_s <= x.high and y.low <= dot.energy_j <= y.high):
            continue
        at_x, at_y = x(dot.time_s), y(dot.energy_j)
        said = h("title", f"{dot.name}: {dot.time_s:.4g} s, {dot.energy_j:,.0f} J")
        size = 4.0 if dot.kind == "other" else 7.0
        if dot.kind.startswith("maximum"):
            parts.append(
                h("rect", said, x=at_x - 6, y=at_y - 6, width=12, height=12, class_=f"dot {dot.kind}", tabindex=0)
            )
        else:
            parts.append(h("circle", said, cx=at_x, cy=at_y, r=size, class_=f"dot {dot.kind}", tabindex=0))
        if dot.label:
            room_right = at_x < right - 190
            parts.append(
                h(
                    "text",
                    dot.label,
                    x=at_x + (13 if room_right else -13),
                    y=at_y + 4,
                    class_="label" + ("" if room_right else " end"),
                )
            )
    parts.append(h("text", "time of an iteration (s)", x=(left + right) / 2, y=height - 8, class_="axis middle"))
    parts.append(
        h(
            "text",
            "energy of an iteration (kJ)",
            transform=f"translate({11 if narrow else 16} {(top + bottom) / 2:g}) rotate(-90)",
            class_="axis middle",
        )
    )
    return chart(width, height, "Energy of an iteration over its time", *parts, kind=_kind(width))


def mean_clocks(data: JobData, window: Window) -> dict[int, float]:
    """Mean clock of each pipeline rank (MHz), over its instructions; 0 where clocks are left alone."""
    by_stage: dict[int, list[int]] = {}
    for info in data.infos:
        if info.tp_rank == 0:
            schedule = window.schedules.get(info.rank)
            clocks = [mhz for _, mhz in schedule.frequencies] if schedule is not None else [0]
            by_stage.setdefault(info.pp_rank, []).extend(clocks or [0])
    return {stage: fmean(clocks) for stage, clocks in sorted(by_stage.items())}


def life_chart(data: JobData, predictions: Mapping[int, Predicted], width: float) -> Markup:
    """Schedule by schedule: mean clock of each stage, time and power of an iteration, and stragglers."""
    narrow = width < 600
    left, right = (44.0, width - 8) if narrow else (76.0, width - 24)
    windows = data.windows[-_MOST_WINDOWS:]
    clocks = [mean_clocks(data, window) for window in windows]
    stages = max((len(row) for row in clocks), default=0)
    known = [mhz for row in clocks for mhz in row.values() if mhz]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    step = (right - left) / max(1, len(windows))
    row_px = 20.0 if stages <= 16 else 320.0 / stages
    gap = min(2.0, step * 0.1)
    parts = [h("text", data.place.split()[-1], x=left - 6, y=11, class_="tick end")]
    top = 18.0
    for stage in range(stages):
        y = top + stage * row_px
        if row_px > 11 or stage % 4 == 0:
            parts.append(h("text", stage, x=left - 6, y=y + row_px / 2 + 4, class_="tick end"))
        for place, (window, row) in enumerate(zip(windows, clocks, strict=True)):
            mhz = row.get(stage, 0.0)
            tone = shade((mhz - low) / (high - low) if high > low else 1.0)
            box = {"x": left + place * step, "y": y, "width": max(step - gap, 0.5), "height": row_px - gap}
            said = h(
                "title",
                f"schedule {window.number}, {data.place} {stage}: " + (f"{mhz:,.0f} MHz" if mhz else "left alone"),
            )
            parts.append(h("rect", said, **box, **({"fill": colour(tone)} if mhz else {"class_": "alone"})))
            if step > 34 and row_px > 11:
                text = f"{mhz:.0f}" if mhz else "–"
                middle = left + place * step + (step - gap) / 2
                style = f"fill:{ink(tone)}" if mhz else None
                parts.append(h("text", text, x=middle, y=y + row_px / 2 + 3.5, class_="cell middle", style=style))
    y0 = top + stages * row_px + 22
    centres = [left + (place + 0.5) * step - gap / 2 for place in range(len(windows))]
    times = [
        (w.measured.time_s if w.measured else None, p.time_s if p else None) for w, p in _pairs(windows, predictions)
    ]
    powers = [
        (w.measured.power_w if w.measured else None, p.power_w if p else None) for w, p in _pairs(windows, predictions)
    ]
    each = 118.0
    parts += _stragglers(windows, left, step, top, y0 + 2 * each + 26)
    parts += _panel(times, centres, left, right, y0, each, "time of an iteration (s)", 1.0)
    parts += _panel(powers, centres, left, right, y0 + each + 34, each, "power of all GPUs (kW)", 1e3)
    bottom = y0 + 2 * each + 34
    every = max(1, -(-len(windows) * (26 if narrow else 34) // int(right - left)))
    for place, window in enumerate(windows):
        if place % every == 0:
            parts.append(h("text", window.number, x=centres[place], y=bottom + 16, class_="tick middle strong"))
            parts.append(h("text", window.index.start_step, x=centres[place], y=bottom + 31, class_="tick middle"))
    parts.append(h("text", "schedule" if not narrow else "no.", x=left - 6, y=bottom + 16, class_="tick end strong"))
    parts.append(h("text", "from step" if not narrow else "step", x=left - 6, y=bottom + 31, class_="tick end"))
    title = f"Mean clock of each {data.place}, time and power of an iteration, schedule by schedule"
    return chart(width, bottom + 40, title, *parts, kind=_kind(width))


def _pairs(windows: Sequence[Window], predictions: Mapping[int, Predicted]) -> list[tuple[Window, Predicted | None]]:
    return [(window, predictions.get(window.number)) for window in windows]


def _stragglers(windows: Sequence[Window], left: float, step: float, top: float, bottom: float) -> list[Markup]:
    parts = []
    for place, window in enumerate(windows):
        plan_inputs = window.index.source.plan_inputs
        if plan_inputs.slow_pipelines or plan_inputs.straggler is not None:
            said = h("title", f"schedule {window.number}: made beside a straggler")
            box = {"x": left + place * step - 1, "y": top - 2, "width": step, "height": bottom - top}
            parts.append(h("rect", said, **box, class_="episode"))
            parts.append(h("text", "straggler", x=left + (place + 0.5) * step, y=top - 6, class_="tick middle warn"))
    return parts


def _panel(
    values: Sequence[tuple[float | None, float | None]],
    centres: Sequence[float],
    left: float,
    right: float,
    top: float,
    height: float,
    title: str,
    unit: float,
) -> list[Markup]:
    """Measured and predicted values, one column per schedule."""
    parts = [h("text", title, x=left, y=top - 4, class_="axis")]
    everything = [value for pair in values for value in pair if value is not None]
    if not everything:
        return [*parts, h("text", "nothing measured yet", x=left + 8, y=top + height / 2, class_="tick")]
    y = fitting([*everything, min(everything) * 0.95], top + height, top + 6)
    parts.append(y_axis(y, left, right, 4, unit))
    measured = [(x, y(value)) for x, (value, _) in zip(centres, values, strict=True) if value is not None]
    parts.append(h("path", d=path(measured), class_="measured-line"))
    for x, (value, guess) in zip(centres, values, strict=True):
        if guess is not None:
            said = h("title", f"predicted: {guess / unit:.4g}")
            parts.append(h("path", said, d=f"M{x - 8:.1f} {y(guess):.1f}h16", class_="guess"))
        if value is not None:
            said = h("title", f"measured: {value / unit:.4g}")
            parts.append(h("circle", said, cx=x, cy=y(value), r=4, class_="measured-dot"))
    return parts


_INSTRUCTION_SHAPES = ("a", "b", "c", "d", "e", "f")


def profile_charts(
    points: Mapping[int, Mapping[str, Mapping[int, Point]]], planned: Profile | None, names: Sequence[str]
) -> list[Markup]:
    """For each stage, time and power of every instruction over the clock: points with their errors, and the curve that
    is planned with.

    Args:
        points: By stage, instruction and clock.
        planned: What the planner takes; None where there is none.
        names: The instructions, in the order of their colours.
    """
    return [
        h(
            "figure",
            h("figcaption", f"stage {stage}"),
            _profile_panel(stage, of_stage, planned, names, "time"),
            _profile_panel(stage, of_stage, planned, names, "power"),
        )
        for stage, of_stage in sorted(points.items())
    ]


def _profile_panel(
    stage: int,
    of_stage: Mapping[str, Mapping[int, Point]],
    planned: Profile | None,
    names: Sequence[str],
    what: str,
) -> Markup:
    width, height, left, right, top, bottom = 300.0, 150.0, 40.0, 292.0, 16.0, 126.0
    unit = 1e-3 if what == "time" else 1.0
    values = {
        name: {
            mhz: (p.time_s, p.time_error * p.time_s) if what == "time" else (p.power_w, p.power_error * p.power_w)
            for mhz, p in curve.items()
        }
        for name, curve in of_stage.items()
    }
    everything = [
        value + sign * error for curve in values.values() for value, error in curve.values() for sign in (-1, 1)
    ]
    clocks = [mhz for curve in values.values() for mhz in curve]
    x = fitting(clocks, left, right, 0.04)
    y = fitting([0.0, *everything], bottom, top, 0.02)
    parts = [x_axis(x, top, bottom, 4), y_axis(y, left, right, 4, unit)]
    for name, curve in values.items():
        kind = f"s{names.index(name) % len(_INSTRUCTION_SHAPES)}"
        rows = planned.measurements.get((stage, name), ()) if planned is not None else ()
        if rows:
            line = [
                (x(m.frequency_mhz), y(m.time_s if what == "time" else m.energy_j / m.time_s)) for m in reversed(rows)
            ]
            parts.append(h("path", d=path(line), class_=f"series {kind}"))
        for mhz, (value, error) in curve.items():
            said = f"{name} at {mhz} MHz: {value / unit:.4g} ± {error / unit:.2g} " + ("ms" if what == "time" else "W")
            said += f", {of_stage[name][mhz].count} runs"
            at_x = x(mhz)
            parts.append(
                h("path", d=f"M{at_x:.1f} {y(value - error):.1f}V{y(value + error):.1f}", class_=f"error {kind}")
            )
            parts.append(h("circle", h("title", said), cx=at_x, cy=y(value), r=2.4, class_=f"point {kind}"))
    caption = "time (ms)" if what == "time" else "power of a GPU (W)"
    parts.append(h("text", f"{caption} over clock (MHz)", x=left, y=10, class_="tick"))
    return chart(width, height, f"Stage {stage}: {caption} over the clock (MHz)", *parts)


def by_stage(points: Mapping[Kind, Mapping[int, Point]]) -> dict[int, dict[str, Mapping[int, Point]]]:
    """The points of a profile by stage and instruction."""
    found: dict[int, dict[str, Mapping[int, Point]]] = {}
    for (stage, name), curve in points.items():
        found.setdefault(stage, {})[name] = curve
    return found


def legend(low: float, high: float, unit: str) -> Markup:
    """The colour scale, as a strip."""
    if low == high:
        return h("span", f"all {high:,.0f} {unit}", class_="scale")
    scale = Scale(0, 12, 0, 120)
    return h(
        "span",
        f"{low:,.0f} ",
        h(
            "svg",
            (h("rect", x=scale(n), y=0, width=10.5, height=10, fill=colour(shade((n + 0.5) / 12))) for n in range(12)),
            viewBox="0 0 120 10",
            class_="ramp",
            role="img",
            aria_label=f"from {low:.0f} to {high:.0f} {unit}, dark to light",
        ),
        f" {high:,.0f} {unit}",
        class_="scale",
    )


def _kind(width: float) -> str:
    return "narrow" if width < 600 else "wide"
