"""The lines that `pfo-fs doctor` prints; `lines.yaml` holds their texts."""

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        ok: Whether it works; False makes the exit status 1. None: it does not matter here, could not be found out, or
            works with a limit that `hint` is about.
        hint: What to do; empty if nothing.
        meaning: What the result means for training.
    """

    name: str
    ok: bool | None
    found: str
    hint: str = ""
    meaning: str = ""


@cache
def lines() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns, for each line and each of its outcomes: `ok`, the `meaning`, and what is `todo`, if anything."""
    return dict(yaml.safe_load(files("pfo_fs.doctor").joinpath("lines.yaml").read_text("utf-8")))


def line(name: str, outcome: str, found: str) -> Check:
    """Returns a line with one of its outcomes in `lines.yaml`; `found`: what was found, with numbers."""
    result = lines()[name][outcome]
    return Check(name, result["ok"], found, result.get("todo", ""), result["meaning"])
