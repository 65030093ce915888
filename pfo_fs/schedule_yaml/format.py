"""Writes schedules as a `schedule.yaml` that a user can read, change and use."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.schedule_yaml.problems import describe

_Instruction: TypeAlias = tuple[str, "int | None", int]
_Instructions: TypeAlias = tuple[_Instruction, ...]

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_LONGEST_GROUP = 8
"""The most instructions of a repeated group: 2 are needed in 1F1B (one forward, one backward), 3 in zero-bubble
schedules (split backwards), more where ranks hold several stages."""
_WIDTH = 96


def format_schedule_yaml(
    schedules: Sequence[FrequencySchedule],
    rank_infos: Sequence[RankInfo],
    job_info: JobInfo,
    comment: str = "",
    turns: Sequence[int] = (),
    until: int = 0,
) -> str:
    """Returns YAML that `parse_schedule_yaml` and `resolve` turn into the same schedules again.

    If all ranks of a stage are equal, they become one entry; equal stages become one entry of a range. Runs and
    repeated groups become one line each.

    Args:
        comment: Text at the top; each of its lines follows a `#`.
        turns, until: As in `ScheduleDocument`.
    """
    lines = [f"# {line}".rstrip() for line in re.split(r"[\r\n\x85\u2028\u2029]+", comment)] if comment else []
    lines = [re.sub(r"[^\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]", "?", line) for line in lines]
    lines += [f"turns: {list(turns)}"] * bool(turns) + [f"until: {until}"] * bool(until)
    instructions_of = {schedule.rank: _instructions(schedule) for schedule in schedules}
    if not instructions_of:
        return "\n".join([*lines, "all: 0"]) + "\n"
    stages, ranks = _sort_into_stages(instructions_of, rank_infos)
    for title, table in (("stages", stages), ("ranks", ranks)):
        if table:
            lines.append(f"{title}:  # of {job_info.pp_degree if title == 'stages' else job_info.world_size}")
            lines.extend(_format_table(table))
    return "\n".join(lines) + "\n"


def _instructions(schedule: FrequencySchedule) -> _Instructions:
    stages: Sequence[int | None] = schedule.stages or [None] * len(schedule.frequencies)
    return tuple((name, stage, mhz) for (name, mhz), stage in zip(schedule.frequencies, stages, strict=True))


def _sort_into_stages(
    instructions_of: dict[int, _Instructions], rank_infos: Sequence[RankInfo]
) -> tuple[dict[int, _Instructions], dict[int, _Instructions]]:
    """Returns what can be written per stage and what must be written per rank."""
    members: dict[int, list[int]] = {}
    for info in rank_infos:
        members.setdefault(info.pp_rank, []).append(info.rank)
    stages: dict[int, _Instructions] = {}
    ranks = dict(instructions_of)
    for stage, there in members.items():
        first = instructions_of.get(there[0])
        if first is None or any(instructions_of.get(rank) != first for rank in there):
            continue
        if any(on is not None and on != stage for _, on, _ in first):
            continue  # where ranks hold several stages, an entry of a stage means something else
        stages[stage] = first
        for rank in there:
            ranks.pop(rank, None)
    return stages, ranks


def _format_table(table: dict[int, _Instructions]) -> Iterator[str]:
    groups: dict[_Instructions, list[int]] = {}
    for number in sorted(table):
        groups.setdefault(table[number], []).append(number)
    for instructions, numbers in groups.items():
        if not instructions:
            yield f"  {_format_key(numbers)}: []"
            continue
        yield f"  {_format_key(numbers)}:"
        for line in _format_instructions(instructions):
            yield f"    - {line}"


def _format_key(numbers: Sequence[int]) -> str:
    parts: list[str] = []
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    key = ",".join(parts)
    if "," not in key:
        return key
    # In YAML a key is at most 1,024 characters from its colon; longer keys need the `?` form.
    return f'"{key}"' if len(key) < 1000 else f'? "{key}"\n  '


def _format_instructions(instructions: _Instructions) -> Iterator[str]:
    """Yields the items of a list: one line per repeated group, several other instructions on a line."""
    waiting: list[str] = []
    at = 0
    while at < len(instructions):
        length, repeat = _best_group(instructions, at)
        words = [_format_instruction(instruction) for instruction in instructions[at : at + length]]
        at += length * repeat
        if repeat > 1:
            if waiting:
                yield _quoted(waiting)
                waiting = []
            yield _quoted(words, repeat)
            continue
        if waiting and len(", ".join([*waiting, *words])) > _WIDTH:
            yield _quoted(waiting)
            waiting = []
        waiting.extend(words)
    if waiting:
        yield _quoted(waiting)


def _best_group(instructions: _Instructions, at: int) -> tuple[int, int]:
    """Returns length and count of the repetition that covers most from `at` on; (1, 1) if all are too short."""
    best = (1, 1)
    for length in range(1, _LONGEST_GROUP + 1):
        group = instructions[at : at + length]
        repeat = 1
        while instructions[at + repeat * length : at + (repeat + 1) * length] == group and len(group) == length:
            repeat += 1
        if repeat > 1 and length * repeat >= 3 and length * repeat > best[0] * best[1]:
            best = (length, repeat)
    return best


def _format_instruction(instruction: _Instruction) -> str:
    name, stage, mhz = instruction
    return f"{describe(name if _PLAIN_NAME.fullmatch(name) else json.dumps(name), stage)} {mhz}"


def _quoted(words: Iterable[str], repeat: int = 1) -> str:
    line = ", ".join(words) + (f" x{repeat}" if repeat > 1 else "")
    return "'" + line.replace("'", "''") + "'" if '"' in line else line
