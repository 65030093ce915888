"""The lines that `pfo-fs doctor` prints: what each one looks at, and what each of its results means.

`lines.yaml` holds the texts.
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
def texts() -> dict[str, Any]:
    """Returns what the file holds: the begin of the page, and the lines of a `directory` and of a `node`."""
    return dict(yaml.safe_load(files("pfo_fs.doctor").joinpath("lines.yaml").read_text("utf-8")))


def lines() -> dict[str, dict[str, Any]]:
    """Returns what the file says of each line: what it `looks_at`, and its `outcomes` (`ok`, `meaning`, `todo`)."""
    return {**texts()["directory"], **texts()["node"]}


def line(name: str, outcome: str, found: str) -> Check:
    """Returns a line with one of its results.

    Args:
        name: The line.
        outcome: One of its outcomes in the file.
        found: What was found, with numbers.
    """
    result = lines()[name]["outcomes"][outcome]
    return Check(name, result["ok"], found, result.get("todo", ""), result["meaning"])
