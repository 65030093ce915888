"""What is wrong with a `schedule.yaml`: errors with line numbers, and what does not fit a GPU or a rank."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pfo_fs.errors import PlanError
from pfo_fs.models import InstructionOrder

MAX_PROBLEMS = 50


@dataclass(frozen=True)
class Problem:
    """What is wrong in a line of a YAML file, counted from 1, and what would be right."""

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


def one_problem(line: int, reason: str) -> ScheduleProblems:
    """Returns the error for a document with one problem."""
    return ScheduleProblems([Problem(line, reason)])


class OrderUnknown(PlanError):
    """A clock is given for all instructions of `ranks`, or by name, and their instructions are not known yet."""

    def __init__(self, ranks: Sequence[int], line: int | None = None) -> None:
        self.ranks = list(ranks)
        super().__init__(
            f"the instructions of {name_ranks(ranks)} are not known before the first step; until then only lists of "
            "instructions can be used",
            line=line,
        )


def name_ranks(ranks: Sequence[int], most: int = 4) -> str:
    """Returns `rank 3`, or `ranks 0, 1, 2, 3 and 4 more`."""
    shown = ", ".join(map(str, ranks[:most])) + (f" and {len(ranks) - most} more" if len(ranks) > most else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def closest(name: str, known: Sequence[str], what: str) -> str:
    """Returns a hint for an unknown name: the closest known name; if none is close, `what` and the first ten."""
    close = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"{what} {', '.join(known[:10])}"


def clock_problem(mhz: int, available: Collection[int], who: str) -> str:
    """Returns what is wrong with setting `mhz` on a GPU; empty if nothing is.

    0 MHz (leave alone) is always right. If `available` is empty, every clock is right: the clocks cannot be set at all,
    which is not a problem of the schedule.
    """
    if mhz == 0 or not available or mhz in available:
        return ""
    nearest = sorted(sorted(set(available), key=lambda clock: (abs(clock - mhz), clock))[:2])
    return f"the GPU of {who} does not offer {mhz} MHz; nearest: {' and '.join(map(str, nearest))}"


def describe(name: str, stage: int | None) -> str:
    """Returns `forward`, or `forward@3` if the stage is known."""
    return name if stage is None else f"{name}@{stage}"


def order_problem(
    names: Sequence[str], stages: Sequence[int | None] | None, order: InstructionOrder, who: str
) -> tuple[int, str] | None:
    """Compares the instructions of a schedule with those that a rank runs.

    Stages are compared where both sides give them. Returns the 0-based position of the first difference and what
    differs, or None if the two agree.
    """
    position = next(
        (
            i
            for i, (name, (expected, stage)) in enumerate(zip(names, order, strict=False))
            if name != expected or (stages and stage is not None and stages[i] not in (None, stage))
        ),
        min(len(names), len(order)),
    )
    if position == len(names) == len(order):
        return None
    counts = f"; {len(order)} instructions expected, got {len(names)}" if len(order) != len(names) else ""
    expected = f"expected {describe(*order[position])}" if position < len(order) else "expected the end"
    got = "the list ends"
    if position < len(names):
        got = f"got {describe(names[position], stages[position] if stages else None)}"
    return position, f"at position {position} (counted from 0) of {who}: {expected}, {got}{counts}"
