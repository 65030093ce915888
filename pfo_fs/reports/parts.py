"""What the sections of the page are built of."""

from __future__ import annotations

from pfo_fs.reports.markup import Child, Markup, h


def section(key: str, title: str, lead: Child, *children: Child) -> Markup:
    """A section of the page, with an id, a title and what to know before looking at it."""
    return h("section", h("h2", title), h("p", lead, class_="lead") if lead else None, children, id=key)


def missing_part(text: str) -> Markup:
    """Says what is not there, and why."""
    return h("p", text, class_="missing")


def seconds_text(seconds: float) -> str:
    """Five digits: what is compared here differs by parts of a percent."""
    return f"{seconds:#.5g} s"


def wide_and_narrow(wide: Markup, narrow: Markup) -> Markup:
    """One picture for wide screens and paper and one for narrow ones; the style shows one of them."""
    return h("div", wide, narrow, class_="figure")


def table(head: list[str], rows: list[list[Child]], caption: str) -> Markup:
    """A table that scrolls where it is too wide; the caption is for those who do not see it."""
    return h(
        "div",
        h(
            "table",
            h("caption", caption, class_="hidden"),
            h("thead", h("tr", (h("th", cell, scope="col") for cell in head))),
            h("tbody", (h("tr", (h("td", cell) for cell in row)) for row in rows)),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )
