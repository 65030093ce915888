"""lowtime's plan files, `freqs_pipeline_%05d.py`: a list per stage of (instruction, MHz), then comments.

Such a file looks like Python but is data, and nothing in it ever runs. It is read in three steps: a read of bounded
size; a check that only brackets and commas are left when strings, numbers and comments are removed, so that the parser
gets no expressions (a long chain of operators would exhaust its recursion); and `ast.literal_eval`.
"""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from pfo_fs.errors import PlanError
from pfo_fs.models import MAX_INSTRUCTIONS, FrequencySchedule

StagePlan: TypeAlias = list[tuple[str, int]]
"""(instruction, MHz) of one stage or rank, in the order of an iteration."""

MAX_PLAN_BYTES = 16 * 2**20
"""A plan for 64 stages x 1,000 micro-batches has about 2 MB."""
MAX_PLAN_INSTRUCTIONS = 400_000
"""The limit over all stages; 64 stages x 1,000 micro-batches have 128,000. To read 100,000 takes about 2 s, and 320 MB
of memory meanwhile."""

_TOKEN = re.compile(
    r"""\#[^\n]*"""
    r"""|(?P<text>'(?:[^'\\\n]|\\.){0,999}'|"(?:[^"\\\n]|\\.){0,999}")"""
    r"""|(?P<number>(?<![\w.])[+-]?\d{1,9}(?:\.\d{0,20})?(?![\w.]))"""
)
_NOT_DATA = re.compile(r"[^\s\[\](),'0]|[\])0]\s*[\[(0]")
"""What must not be left: other characters, or a call or subscript, as long chains of these exhaust the parser, too."""


def read_bounded(path: str | os.PathLike[str], limit: int) -> bytes:
    """Returns the content of a regular file that the user named, if it has at most `limit` bytes.

    Raises:
        PlanError: The file is missing, cannot be read, is not a regular file (a pipe would block for ever) or is
            larger.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PlanError(f"{path}: is not a regular file")
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with NUL in it
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > limit:
        raise PlanError(f"{path}: is larger than {limit:,} bytes, the most for a plan")
    return data


def read_plan(path: str | os.PathLike[str], max_bytes: int = MAX_PLAN_BYTES) -> list[StagePlan]:
    """Reads a plan file.

    Args:
        path: The file, in lowtime's format.
        max_bytes: Larger files are refused.

    Returns:
        For each stage (or rank) in order, its list of (instruction, MHz).

    Raises:
        PlanError: The file cannot be read or is not a plan; the message names stage, position and value.
    """
    return parse_plan(read_bounded(path, max_bytes), str(path))


def parse_plan(data: bytes, source: str) -> list[StagePlan]:
    """Parses the content of a plan file; `source` is its name in messages.

    Raises:
        PlanError: As for `read_plan`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlanError(f"{source}, line {line}: is not UTF-8 text", line=line) from error
    _refuse_code(text, source)
    try:
        value = ast.literal_eval(text.strip())
    except SyntaxError as error:
        raise PlanError(f"{source}: is not a list of lists: {error.msg}", line=error.lineno) from error
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise PlanError(f"{source}: is not a list of lists: {type(error).__name__}: {error}") from error
    return _checked(value, source)


def _refuse_code(text: str, source: str) -> None:
    """Refuses a text with anything except strings, numbers, brackets, commas and comments."""

    def blank(match: re.Match[str]) -> str:
        return "''" if match["text"] else "0" if match["number"] else ""

    bare = _TOKEN.sub(blank, text).replace("''", "")
    found = _NOT_DATA.search(bare)
    if found:
        line = bare.count("\n", 0, found.start()) + 1
        rest = bare[found.start() : found.start() + 24].split("\n")[0]
        raise PlanError(
            f"{source}, line {line}: {rest!r} is not allowed in a plan, which is lists of ('forward', 1200) "
            "and nothing else; code in plan files is never run",
            line=line,
        )
    if bare.count(",") > 3 * MAX_PLAN_INSTRUCTIONS:
        raise PlanError(
            f"{source}: has more than {MAX_PLAN_INSTRUCTIONS:,} instructions, the most that a plan may have"
        )


def _checked(value: object, source: str) -> list[StagePlan]:
    if not isinstance(value, (list, tuple)):
        raise PlanError(f"{source}: is {_found(value)}, not a list with one list per stage")
    if not value:
        raise PlanError(f"{source}: has no stages")
    known: dict[tuple[str, int], tuple[str, int]] = {}
    plan: list[StagePlan] = []
    for stage, row in enumerate(value):
        if not isinstance(row, (list, tuple)):
            raise PlanError(f"{source}: stage {stage} is {_found(row)}, not a list of ('forward', 1200)")
        if len(row) > MAX_INSTRUCTIONS:
            raise PlanError(
                f"{source}: stage {stage} has {len(row):,} instructions; at most {MAX_INSTRUCTIONS:,} are allowed"
            )
        instructions = []
        for position, pair in enumerate(row):
            problem = _pair_problem(pair)
            if problem:
                raise PlanError(f"{source}: stage {stage}, position {position}: {problem}")
            instruction = (str(pair[0]), int(pair[1]))
            instructions.append(known.setdefault(instruction, instruction))
        plan.append(instructions)
    return plan


def _pair_problem(pair: object) -> str:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return f"found {_found(pair)} where ('forward', 1200) was expected"
    name, mhz = pair
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
        return f"found {_found(name)} where an instruction's name of 1 to 64 printable characters was expected"
    if not isinstance(mhz, int) or isinstance(mhz, bool) or not 0 <= mhz <= 60_000:
        return f"found {_found(mhz)} where a clock in MHz was expected (0 leaves the clock alone)"
    return ""


def _found(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def format_lowtime_plan(schedules: Sequence[FrequencySchedule], comments: Sequence[str] = ()) -> str:
    """Returns schedules as the text of a plan file: one line per schedule in the order of their ranks.

    Args:
        schedules: One per stage, with ranks 0, 1, 2, ... in any order.
        comments: Lines that end the file.

    Raises:
        PlanError: A rank is missing or appears twice, which the format cannot express.
    """
    ordered = sorted(schedules, key=lambda schedule: schedule.rank)
    ranks = [schedule.rank for schedule in ordered]
    if ranks != list(range(len(ranks))):
        raise PlanError(f"a plan file holds one list for each rank from 0 up without gaps; these are for {ranks[:20]}")
    lines = ["["]
    for schedule in ordered:
        steps = ", ".join(f"({name!a}, {mhz})" for name, mhz in schedule.frequencies)
        lines.append(f"[{steps}],")
    lines.append("]")
    lines.extend(f"# {line}" for comment in comments for line in comment.splitlines())
    return "\n".join(lines) + "\n"


def plan_suffix(path: str | os.PathLike[str]) -> str:
    """Returns `.py` or `.yaml`, the two kinds of plan files.

    Raises:
        PlanError: The name ends otherwise.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".py":
        return suffix
    if suffix in (".yaml", ".yml"):
        return ".yaml"
    raise PlanError(f"{path}: a plan file ends in .py (lowtime) or .yaml")
