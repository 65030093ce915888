"""Shared by all pictures: colours, axes, and output to a file (PNG, PDF, SVG) or into the report page.

matplotlib draws; functions import it, because commands without pictures start faster without it. In the page, colours
of the palette become the page's CSS variables, so that pictures follow the light or dark theme, and every point can
have a tooltip.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pfo_fs.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

COLOURS = {
    "text": "#17202b",
    "soft": "#5a6675",
    "line": "#d9dee5",
    "grid": "#e6eaef",
    "lane": "#e3e7ed",
    "card": "#ffffff",
    "accent": "#0b63c5",
    "good": "#0a7a43",
    "bad": "#b3341c",
    "warn": "#9a5b00",
}
"""Colours by name, as `page.css` has them in its light theme."""

_DARKEST = 0.17
"""Scales are viridis without its darkest part. It becomes lighter all the way, so its order does not depend on hue."""
SHADES = 24
"""Number of colours of a scale."""
WIDTH = 1080.0
"""Width in pixels of the page's pictures. On narrower screens they scroll sideways, so that text stays readable."""
Box = tuple[float, float, float, float]
"""Left and right end, middle and half height of a box."""
LIGHT_INK, DARK_INK = "#fffffe", "#000001"
"""Colours of text on a shade. They differ from the palette's colours, so that the dark theme does not change them."""

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_DPI = 130


def shade(value: float, low: float, high: float) -> int:
    """Returns the number of the shade, out of `SHADES`, for a value between two bounds."""
    share = (value - low) / (high - low) if high > low else 1.0
    return min(SHADES - 1, max(0, int(share * SHADES)))


@cache
def colour(step: int) -> str:
    """Returns the colour of a shade, as #rrggbb."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["viridis"](_DARKEST + (1 - _DARKEST) * step / (SHADES - 1)))


def ink(step: int) -> str:
    """Returns black or white, whichever is easier to read on a shade."""
    return DARK_INK if step >= SHADES * 0.45 else LIGHT_INK


@contextmanager
def drawing(salt: str = "pfo-fs") -> Iterator[None]:
    """Sets matplotlib's options while a picture is made.

    Args:
        salt: Names in an SVG are hashed with it, so that the same picture is always the same file, and two pictures on
            one page do not share names.
    """
    import matplotlib

    options = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.parse_math": False,  # names come from files; a "$" in one does not begin a formula
        "font.size": 12,
        "text.color": COLOURS["text"],
        "axes.labelcolor": COLOURS["soft"],
        "axes.edgecolor": COLOURS["line"],
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": COLOURS["grid"],
        "grid.linewidth": 1,
        "xtick.color": COLOURS["soft"],
        "ytick.color": COLOURS["soft"],
        "xtick.labelsize": 11.5,
        "ytick.labelsize": 11.5,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "path.simplify": False,
    }
    with matplotlib.rc_context(options):
        yield


def new_figure(width_in: float, height_in: float, *, automatic_layout: bool = True) -> Figure:
    """Returns an empty figure; inside of `drawing`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained" if automatic_layout else None)


def page_figure(width: float, height: float) -> Figure:
    """Returns an empty figure for the page, in pixels, without background."""
    figure = new_figure(width / 72, height / 72, automatic_layout=False)
    figure.patch.set_visible(False)
    return figure


def page_axes(figure: Figure, left: float, top: float, right: float, bottom: float) -> Axes:
    """Returns axes between four edges in pixels, counted from the left and the top, with grid lines and no frame."""
    width, height = (size * 72 for size in figure.get_size_inches())
    axes = figure.add_axes(
        (left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height),
    )
    axes.spines[:].set_visible(False)
    axes.patch.set_visible(False)
    return axes


def set_title(axes: Axes, text: str) -> None:
    """Writes what axes show above their left end."""
    axes.set_title(text, loc="left", fontsize=12, color=COLOURS["soft"], pad=4)


def add_boxes(axes: Axes, boxes: Sequence[Box], faces: Sequence[str], gid: str) -> None:
    """Adds boxes in the order of their tooltips, and removes the grid behind them."""
    from matplotlib.collections import PolyCollection

    corners = [[(x, y - h), (right, y - h), (right, y + h), (x, y + h)] for x, right, y, h in boxes]
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors="none", gid=gid), autolim=False)
    axes.grid(visible=False)


def set_ticks(axis: Axis, about: int, unit: float = 1.0) -> None:
    """Puts round values on an axis, in at most `about` steps, and writes them as multiples of a power of ten."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_locator(_round_values(about))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:,.6g}"))


def ticks_of(length: float, about: int) -> list[float]:
    """Returns round values from 0 to a length, in at most `about` steps."""
    return [float(tick) for tick in _round_values(about).tick_values(0, length) if tick <= length]


def _round_values(about: int) -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(about, steps=(1, 2, 2.5, 5, 10))


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes a figure to a file, `.png`, `.svg` or `.pdf` by its name; inside of `drawing`.

    Raises:
        ConfigError: It cannot be written there, or its name says another format.
    """
    date = {".svg": "Date", ".pdf": "CreationDate"}.get(Path(path).suffix)
    try:
        figure.savefig(path, dpi=_DPI, metadata={date: None} if date else None)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be written: {reason}") from error


def svg_of(
    figure: Figure,
    name: str,
    tooltips: Mapping[str, Sequence[str]] | None = None,
    classes: Mapping[str, str] | None = None,
) -> str:
    """Returns a figure as an SVG element for the page; inside of `drawing`.

    Args:
        figure: The figure; its size in inches times 72 are the units of its view.
        name: What the picture shows, as text for screen readers.
        tooltips: For the gid of an artist, the text of each of its points.
        classes: For the gid of an artist, its class in the page's style.
    """
    for artist in figure.findobj():
        artist.set_clip_on(False)  # all lies within the limits; clipping would need "url(...)" in the page
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(file.getvalue())  # noqa: S314  matplotlib wrote it
    for gid, texts in (tooltips or {}).items():
        _add_tooltips(root, gid, texts)
    for gid, class_ in (classes or {}).items():
        _by_id(root, gid).set("class", class_)
    _clean(root)
    for attribute in ("width", "height"):
        del root.attrib[attribute]
    root.attrib |= {"class": "chart", "role": "img", "aria-label": name}
    title = ElementTree.Element(f"{{{_SVG}}}title")
    title.text = name
    root.insert(0, title)
    return _themed(ElementTree.tostring(root, encoding="unicode"))


def _by_id(root: ElementTree.Element, gid: str) -> ElementTree.Element:
    return next(element for element in root.iter() if element.get("id") == gid)


def _add_tooltips(root: ElementTree.Element, gid: str, texts: Sequence[str]) -> None:
    """Adds texts to the points or boxes of an artist, in drawing order; a style that all share goes to the group."""
    group = _by_id(root, gid)
    defined = {id(path) for defs in group.iter(f"{{{_SVG}}}defs") for path in defs.iter()}
    drawn = [e for e in group.iter() if e.tag in (f"{{{_SVG}}}use", f"{{{_SVG}}}path") and id(e) not in defined]
    if len({element.get("style") for element in drawn}) == 1:
        group.set("style", drawn[0].attrib["style"])
        for element in drawn:
            del element.attrib["style"]
    for element, text in zip(drawn, texts, strict=True):
        ElementTree.SubElement(element, f"{{{_SVG}}}title").text = text


def _clean(root: ElementTree.Element) -> None:
    """Removes what would disturb the page: names of groups, and styles, which would hold for all of it."""
    for element in list(root.iter()):
        if element.tag == f"{{{_SVG}}}g":
            element.attrib.pop("id", None)
        if "d" in element.attrib:
            short = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", element.attrib["d"])
            element.set("d", " ".join(short.split()))
        element[:] = [child for child in element if not child.tag.endswith(("}style", "}metadata"))]


def _themed(svg: str) -> str:
    """Replaces the palette's colours by the variables of the page's style."""
    for name, value in COLOURS.items():
        svg = svg.replace(f": {value}", f": var(--{name})")
    return svg
