"""The lines that `pfo-fs doctor` prints: what each one looks at, and what each of its results means.

`lines.yaml` holds the texts, and docs/doctor.md is made from the same file (`tools/make_commands`).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: What.
        ok: Whether it works; False makes the exit status 1. None: it does not matter here, could not be found out, or
            works with a limit that `hint` is about.
        found: What was found.
        hint: What to do; empty if nothing.
        meaning: What the result means for training.
    """

    name: str
    ok: bool | None
    found: str
    hint: str = ""
    meaning: str = ""


@cache
def _texts() -> dict[str, Any]:
    return dict(yaml.safe_load(files("pfo_fs.doctor").joinpath("lines.yaml").read_text("utf-8")))


def lines() -> dict[str, dict[str, Any]]:
    """Returns what the file says of each line: what it `looks_at`, and its `outcomes` (`ok`, `meaning`, `todo`)."""
    return {**_texts()["directory"], **_texts()["node"]}


def line(name: str, outcome: str, found: str) -> Check:
    """Returns a line with one of its results.

    Args:
        name: The line.
        outcome: One of its outcomes in the file.
        found: What was found, with numbers.
    """
    result = lines()[name]["outcomes"][outcome]
    return Check(name, result["ok"], found, result.get("todo", ""), result["meaning"])


def doctor_markdown() -> str:
    """Returns docs/doctor.md."""
    parts = [_texts()["page"]]
    for title, part in (("The shared directory", "directory"), ("The node", "node")):
        parts += [f"## {title}\n", *(_section(name, about) for name, about in _texts()[part].items())]
    return "\n".join(parts)


def _section(name: str, about: dict[str, Any]) -> str:
    rows = [
        f"| {_WORDS[one['ok']]} | {_cell(one['meaning'])} | {_cell(one.get('todo', '')) or 'nothing'} |"
        for one in about["outcomes"].values()
    ]
    head = f"### {name}\n\nWhat is looked at: {about['looks_at']}.\n\n| result | what it means | what to do |"
    return "\n".join([head, "| --- | --- | --- |", *rows, ""])


_WORDS = {True: "ok", False: "no", None: "-"}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
