"""The lines that `pfo-fs doctor` prints: what each one looks at, and what each of its results means.

`catalogue_directory.py` and `catalogue_node.py` hold them; docs/doctor.md is made from the same data
(`tools/make_commands`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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


@dataclass(frozen=True)
class Outcome:
    """One possible result of a line.

    Attributes:
        ok: As in `Check`.
        meaning: What it means for training.
        todo: What to do; empty if nothing.
    """

    ok: bool | None
    meaning: str
    todo: str = ""


@dataclass(frozen=True)
class Line:
    """One line of the doctor.

    Attributes:
        name: What it is called on the screen.
        looks_at: What is tried or read.
        outcomes: Its possible results, by the name that the code gives them.
    """

    name: str
    looks_at: str
    outcomes: dict[str, Outcome]

    def check(self, outcome: str, found: str) -> Check:
        """Returns the line with one of its results.

        Args:
            outcome: A key of `outcomes`.
            found: What was found, with numbers.
        """
        result = self.outcomes[outcome]
        return Check(self.name, result.ok, found, result.todo, result.meaning)
