"""lowtime's plan files, `freqs_pipeline_%05d.py`: a list per stage of (instruction, MHz), then comments.

Such a file looks like Python but is data, and nothing in it ever runs: without comments, and with other brackets and
quotes, it is JSON. Time and memory grow with the file's size, which is bounded, whatever is in it.
"""

import os
import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from pfo_fs.errors import PlanError
from pfo_fs.models import MAX_INSTRUCTIONS, MAX_JOB_INSTRUCTIONS, FrequencySchedule
from pfo_fs.user_files import read_user_file

StagePlan: TypeAlias = list[tuple[str, int]]
"""(instruction, MHz) of one stage or rank, in the order of an iteration."""

MAX_PLAN_BYTES = 16 * 2**20
"""A plan for 64 stages x 1,000 micro-batches has about 2 MB. To read the largest plan takes some 5 s and 100 MB."""

_NOT_IN_NAMES = frozenset("'\"\\#()[]")
_AS_JSON = str.maketrans("()'", '[]"')
_COMMENT, _LAST_COMMA = re.compile(r"#[^\n]*"), re.compile(r",(?=\s*[\])])")
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
_Stage: TypeAlias = Annotated[
    list[tuple[_Name, Annotated[int, Meta(ge=0, le=60_000)]]], Meta(max_length=MAX_INSTRUCTIONS)
]
_PLACE = re.compile(r"(?P<reason>.*?)(?: - at `\$(?:\[(?P<stage>\d+)\])?(?:\[(?P<position>\d+)\])?.*)?", re.DOTALL)
_BYTE = re.compile(r"byte (\d+)")


def read_plan(path: str | os.PathLike[str]) -> list[StagePlan]:
    """Reads a plan file: for each stage (or rank) in order, its list of (instruction, MHz).

    Raises:
        PlanError: The file cannot be read or is not a plan; the message names stage, position and what is expected.
    """
    return parse_plan(read_user_file(path, MAX_PLAN_BYTES, "a plan"), str(path))


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
    # Blanks take the place of comments and last commas, so that places in messages are those in the file.
    for blank in (_COMMENT, _LAST_COMMA):
        text = blank.sub(lambda found: " " * len(found.group()), text)
    content = text.translate(_AS_JSON).encode()
    try:
        plan = msgspec.json.decode(content, type=Annotated[list[_Stage], Meta(min_length=1)])
    except msgspec.ValidationError as error:
        found = _PLACE.fullmatch(str(error))
        assert found is not None
        where = "".join(f"{name} {found[name]}, " for name in ("stage", "position") if found[name])
        raise PlanError(f"{source}: {where}{found['reason']}; a stage is a list of ('forward', 1200)") from error
    except msgspec.DecodeError as error:
        at = _BYTE.search(str(error))
        line = content.count(b"\n", 0, int(at[1]) if at else len(content)) + 1
        raise PlanError(
            f"{source}, line {line}: code is never run here; a plan is lists of ('forward', 1200) and nothing else",
            line=line,
        ) from error
    known: dict[tuple[str, int], tuple[str, int]] = {}
    plan = [[known.setdefault(instruction, instruction) for instruction in stage] for stage in plan]
    for name, _ in known:
        _check_name(name, source)
    return plan


def _check_name(name: str, source: str) -> None:
    if not name.isprintable() or _NOT_IN_NAMES.intersection(name):
        raise PlanError(
            f"{source}: {name!r} cannot name an instruction in a plan file: give printable characters, without quotes, "
            "brackets, # and backslashes"
        )


def format_lowtime_plan(schedules: Sequence[FrequencySchedule], comments: Sequence[str] = ()) -> str:
    """Returns schedules as the text of a plan file: one line per schedule in the order of their ranks.

    Raises:
        PlanError: A rank is missing or appears twice, or an instruction has a name that the format cannot express.
    """
    ordered = sorted(schedules, key=lambda schedule: schedule.rank)
    ranks = [schedule.rank for schedule in ordered]
    if ranks != list(range(len(ranks))):
        raise PlanError(f"a plan file holds one list for each rank from 0 up without gaps; these are for {ranks[:20]}")
    for name in {name for schedule in ordered for name, _ in schedule.frequencies}:
        _check_name(name, "a plan file")
    lines = ["["]
    for schedule in ordered:
        steps = ", ".join(f"('{name}', {mhz})" for name, mhz in schedule.frequencies)
        lines.append(f"[{steps}],")
    lines.append("]")
    lines.extend(f"# {line}" for comment in comments for line in comment.splitlines())
    return "\n".join(lines) + "\n"
