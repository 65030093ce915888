"""HTML and SVG from Python. Everything that is not `Markup` is escaped: text of the directory comes from anybody."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

_VOID = frozenset({"br", "hr", "input", "meta", "link"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | float | Iterable[Child] | None"
"""Text (escaped unless it is `Markup`), numbers, None for nothing, or several of these."""


def h(tag: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Returns an element.

    Args:
        tag: Its name.
        children: What is in it.
        attributes: `class_` for class, underscores for dashes; True for an attribute without value, None and False for
            none.
    """
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(f" {name}")
        elif value is not None and value is not False:
            parts.append(f' {name}="{escape(number(value) if isinstance(value, float) else str(value))}"')
    if tag in _VOID:
        return Markup("".join([*parts, ">"]))
    return Markup("".join([*parts, ">", join(children), f"</{tag}>"]))


def join(children: Child) -> Markup:
    """Returns children one after another, escaped."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(escape(children))
    if isinstance(children, (int, float)):
        return Markup(number(children))
    return Markup("".join(join(child) for child in children))


def number(value: float) -> str:
    """A coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
