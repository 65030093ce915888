"""Errors about a `schedule.yaml`, with line numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.errors import PlanError

MAX_PROBLEMS = 50


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a YAML file.

    Attributes:
        line: The line's number, from 1.
        reason: What is wrong there and what would be right.
    """

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class ScheduleProblems(PlanError):
    """Everything that is wrong with a `schedule.yaml`, in the order of its lines.

    Attributes:
        problems: At most 50 problems, and one that gives the number of the rest.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line)
        if len(ordered) > MAX_PROBLEMS:
            rest = len(ordered) - MAX_PROBLEMS
            ordered = [*ordered[:MAX_PROBLEMS], Problem(ordered[MAX_PROBLEMS].line, f"and {rest} more problems")]
        self.problems = ordered
        super().__init__("; ".join(map(str, ordered)), line=ordered[0].line if ordered else None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class OrderUnknown(PlanError):
    """A clock is given for all instructions of a rank, or by name, and the rank's instructions are not known yet.

    Attributes:
        ranks: The ranks whose order is not known.
    """

    def __init__(self, ranks: Sequence[int], line: int | None = None) -> None:
        self.ranks = list(ranks)
        shown = ", ".join(map(str, self.ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        super().__init__(
            f"the instructions of {'rank' if len(ranks) == 1 else 'ranks'} {shown} are not known before the first "
            "step; until then only lists of instructions can be used",
            line=line,
        )

    def __reduce__(self) -> tuple[type[OrderUnknown], tuple[list[int], int | None]]:
        return type(self), (self.ranks, self.line)
