"""lowtime's plan files, `freqs_pipeline_%05d.py`: a list per stage of (instruction, MHz), then comments.

Such a file looks like Python but is data, and nothing in it ever runs. It is read in one pass, token by token:
brackets, commas, strings and numbers. Time and memory grow with the file's size, which is bounded, whatever is in it.
"""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pfo_fs.errors import PlanError
from pfo_fs.models import MAX_INSTRUCTIONS, MAX_JOB_INSTRUCTIONS, FrequencySchedule

StagePlan: TypeAlias = list[tuple[str, int]]
"""(instruction, MHz) of one stage or rank, in the order of an iteration."""

MAX_PLAN_BYTES = 16 * 2**20
"""A plan for 64 stages x 1,000 micro-batches has about 2 MB. To read the largest one takes some 5 s and 100 MB."""

_ESCAPE = r"""\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"""
_TOKEN = re.compile(
    rf"""(?P<gap>\s+|\#[^\n]*)"""
    rf"""|(?P<mark>[\[\](),])"""
    rf"""|(?P<text>'(?:[^'\\\n]|{_ESCAPE}){{0,999}}'|"(?:[^"\\\n]|{_ESCAPE}){{0,999}}")"""
    rf"""|(?P<number>[+-]?(?:0|[1-9][0-9]{{0,8}})(?:\.[0-9]{{0,20}})?(?![\w.]))"""
)
"""No token can be read in two ways, so that a text that is none is refused in time that grows with its length."""
_MOST_BRACKETS = 8
"""Open at the same time; three are enough."""


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
    if text.count(",") > 3 * MAX_JOB_INSTRUCTIONS:
        raise PlanError(f"{source}: has more than {MAX_JOB_INSTRUCTIONS:,} instructions, the most that a plan may have")
    return _checked(_value(text, source), source)


def _value(text: str, source: str) -> object:
    """Returns the lists, tuples, strings and numbers of a text, which may hold nothing else."""
    opened: list[tuple[str, list[Any]]] = [("", [])]  # each bracket that is open, and the values in it so far
    known: dict[str, Any] = {}
    before, at = "", 0  # the token before: a mark, or "value"
    while at < len(text):
        token = _TOKEN.match(text, at)
        kind, word = (token.lastgroup, token.group()) if token is not None else ("", "")
        bracket, values = opened[-1]
        fits = bool(kind)
        if kind in ("text", "number") or word in ("[", "("):
            fits = before != "value" and len(opened) <= _MOST_BRACKETS
        elif word == ",":
            fits = before == "value" and bool(bracket)
        elif kind == "mark":
            fits = bracket + word in ("[]", "()")
        if token is None or not fits:
            raise _not_in_a_plan(text, at, source)
        at = token.end()
        if kind == "gap":
            continue
        if word in ("[", "("):
            opened.append((word, []))
        elif word in ("]", ")"):
            opened.pop()
            in_brackets = word == ")" and len(values) == 1 and before == "value"  # as in (1200): no tuple
            opened[-1][1].append(values if word == "]" else values[0] if in_brackets else tuple(values))
        elif kind != "mark":
            if word not in known:
                known[word] = _scalar(word, text, token.start(), source)
            values.append(known[word])
        before = word if word in ("[", "(", ",") else "value"
    if len(opened) > 1 or not opened[0][1]:
        raise PlanError(f"{source}: is not a list of lists: {'a bracket stays open' if opened[1:] else 'it is empty'}")
    return opened[0][1][0]


def _scalar(word: str, text: str, at: int, source: str) -> str | int | float:
    if word[0] not in "'\"":
        return float(word) if "." in word else int(word)
    try:
        return str(ast.literal_eval(word)) if "\\" in word else word[1:-1]
    except SyntaxError:  # \U with a number that is no character
        raise _not_in_a_plan(text, at, source) from None


def _not_in_a_plan(text: str, at: int, source: str) -> PlanError:
    line = text.count("\n", 0, at) + 1
    rest = text[at : at + 24].split("\n")[0]
    return PlanError(
        f"{source}, line {line}: {rest!r} is not allowed in a plan here, which is lists of ('forward', 1200) "
        "and nothing else; code in plan files is never run",
        line=line,
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
