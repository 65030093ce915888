"""The pipeline over time: measured beside predicted, on one time axis that zooms."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from pfo_fs.reports.axes import Scale, colour, decimals, shade
from pfo_fs.reports.charts import legend
from pfo_fs.reports.markup import Markup, h
from pfo_fs.reports.timeline import Laid

_ROW = 24.0
_HEIGHT = {"forward": 0.62, "recomputation": 0.62, "backward_weight": 0.4}
"""Part of a row that an instruction fills: kinds are told apart without colour. Others fill most of it."""


def pipeline_chart(pictures: Sequence[tuple[str, str, Laid]], rank_names: Sequence[str]) -> Markup:
    """Draws iterations of one pipeline below one another.

    The picture is complete without JavaScript; with it, it zooms, names what is pointed at and numbers micro-batches.

    Args:
        pictures: (name, remark, iteration).
        rank_names: Of each rank.
    """
    length_s = max(laid.length_s for _, _, laid in pictures)
    clocks = [mhz for _, _, laid in pictures for mhz in laid.clocks_mhz if mhz]
    powers = [power_w for _, _, laid in pictures for power_w in laid.powers_w if power_w > 0]
    scales = {}
    if clocks:
        scales["clock"] = (float(min(clocks)), float(max(clocks)), "MHz")
    if powers:
        scales["power"] = (min(powers), max(powers), "W")
    by = next(iter(scales), "clock")
    names = sorted({i.name for _, _, laid in pictures for i in laid.pipeline.instructions})
    blocks = [
        h(
            "div",
            h("h3", name, " ", h("small", remark)),
            h(
                "div",
                h("div", (h("span", rank) for rank in rank_names), class_="rows"),
                h(
                    "div",
                    _picture(f"Pipeline over time, {name}", laid, length_s, scales, len(rank_names)),
                    h("div", class_="numbers", aria_hidden="true"),
                    class_="view",
                    tabindex=0,
                    role="group",
                    aria_label=f"{name}; arrow keys move, plus and minus zoom, Home shows all",
                    data_picture=place,
                ),
                class_="pipeline",
            ),
        )
        for place, (name, remark, laid) in enumerate(pictures)
    ]
    data = {
        "length": length_s,
        "names": names,
        "row": _ROW,
        "heights": [_height(name) for name in names],
        "dense": max(len(row) for _, _, laid in pictures for row in laid.rows()),
        "pictures": [_data(laid, names) for _, _, laid in pictures],
    }
    scale = Scale(0.0, length_s, 0.0, 100.0)
    ticks = scale.ticks(8)
    text = decimals(ticks)
    return h(
        "div",
        h(
            "div",
            h("span", "colour:", class_="hint"),
            (
                h("button", kind, type="button", data_colour=kind, aria_pressed=str(kind == by).lower())
                for kind in scales
            ),
            h("span", "show:", class_="hint"),
            (
                h("button", label, type="button", data_from=first, data_to=last)
                for label, first, last in _windows(pictures[0][2], length_s)
            ),
            h("button", "−", type="button", data_zoom="1.6", aria_label="zoom out"),
            h("button", "+", type="button", data_zoom="0.625", aria_label="zoom in"),
            class_="controls",
        ),
        (
            h("div", legend(*bounds), class_="legend", data_scale=kind, hidden=kind != by)
            for kind, bounds in scales.items()
        ),
        blocks,
        h(
            "div",
            (h("span", text(tick), style=f"left:{scale(tick):.2f}%") for tick in ticks),
            class_="time-axis",
            id="time-axis",
        ),
        h("p", "time (s)", class_="hint middle"),
        h("div", id="tip", role="status", hidden=True),
        h("script", Markup(safe_json(data)), type="application/json", id="pipeline-data"),
        id="pipelines",
        class_=f"by-{by}",
    )


def safe_json(value: object) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _windows(laid: Laid, length_s: float) -> list[tuple[str, float, float]]:
    """Whole, and stretches in which a micro-batch can be followed."""
    longest = max(len(row) for row in laid.rows())
    if longest <= 40:
        return [("whole iteration", 0.0, length_s)]
    part = length_s * 36 / longest
    return [
        ("whole iteration", 0.0, length_s),
        ("begin", 0.0, part),
        ("middle", (length_s - part) / 2, (length_s + part) / 2),
        ("end", length_s - part, length_s),
    ]


def _height(name: str) -> float:
    return _HEIGHT.get(name, 0.92)


def _picture(
    title: str, laid: Laid, length_s: float, scales: dict[str, tuple[float, float, str]], ranks: int
) -> Markup:
    """All instructions of one shade as one path: thousands of them stay small."""
    layers = []
    for kind, (low, high, _) in scales.items():
        values = laid.clocks_mhz if kind == "clock" else laid.powers_w
        paths: dict[int | None, list[str]] = defaultdict(list)
        for rank, nodes in enumerate(laid.rows()):
            for node in nodes:
                height = _height(laid.pipeline.instructions[node].name) * _ROW
                x, wide = laid.starts_s[node] / length_s * 1e4, laid.times_s[node] / length_s * 1e4
                y, value = (rank + 0.5) * _ROW - height / 2, values[node]
                tone = shade((value - low) / (high - low) if high > low else 1.0) if value else None
                paths[tone].append(f"M{x:.1f} {y:.1f}h{wide:.1f}v{height:.1f}h{-wide:.1f}z")
        layers.append(
            h(
                "g",
                (
                    h("path", d="".join(parts), **({"fill": colour(tone)} if tone is not None else {"class_": "alone"}))
                    for tone, parts in sorted(paths.items(), key=lambda item: -1 if item[0] is None else item[0])
                ),
                class_=f"layer {kind}",
            )
        )
    return h(
        "svg",
        h("title", title),
        layers,
        viewBox=f"0 0 10000 {ranks * _ROW:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
        style=f"height:{ranks * _ROW:g}px",
    )


def _data(laid: Laid, names: Sequence[str]) -> list[list[list[float]]]:
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
