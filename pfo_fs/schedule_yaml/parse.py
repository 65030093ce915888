"""`schedule.yaml`: schedules that a user writes, as docs/planning.md describes.

`target` and `straggler` are requests to the scheduler; a file with nothing else leaves the clocks to the scheduler.

The file comes from a folder that other users can write to. `parse_schedule_yaml` checks everything and reports all
problems at once, with their lines; `ScheduleDocument.resolve` compares the document with a job. Turn 1 is that of the
even half, in which pp_rank + dp_rank is even, 2 that of the odd half (`turns.half_of`).
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import yaml
from pydantic import ValidationError

from pfo_fs.errors import first_problem
from pfo_fs.models import MAX_WORLD_SIZE, MOST_SLOWDOWN, MOST_STRAGGLING, Straggler, Target, implausible
from pfo_fs.schedule_yaml.clock_entries import BadValue, ClockEntryReader, SelectedEntry, read_number
from pfo_fs.schedule_yaml.nodes import compose, describe_node, line_of, pairs_of
from pfo_fs.schedule_yaml.problems import Problem, ScheduleProblems, closest, one_problem
from pfo_fs.schedule_yaml.resolve import ScheduleDocument
from pfo_fs.turns import ALL, MOST_TURNS

Request = TypeVar("Request", Target, Straggler)
_TOP_LEVEL = ("all", "stages", "ranks", "turns", "until", "target", "straggler")
_TURNS = f"turns is a list of up to {MOST_TURNS:,}, as [1, 2, 3, 0]: 1 the even half, 2 the odd half, 3 all, 0 none"
_EMPTY = "the file is empty; remove it, or write `all: 0` to leave all clocks alone"
_RANGE = re.compile(r"(?P<first>[^\s,-]+)(?:\s*-\s*(?P<last>[^\s,-]+))?")


def parse_schedule_yaml(text: bytes | str) -> ScheduleDocument:
    """Reads a document without knowing the job: syntax and structure.

    Raises:
        ScheduleProblems: The document has problems; the exception holds all. Text that is not YAML is one problem.
    """
    root = compose(text)
    if root is None or not root.value:
        raise one_problem(1 if root is None else line_of(root), _EMPTY)
    if not isinstance(root, yaml.MappingNode):
        keys = ", ".join(_TOP_LEVEL)
        raise one_problem(line_of(root), f"expected the keys {keys}, got {describe_node(root)}")
    reader = _DocumentReader()
    document = reader.read(root)
    if reader.problems:
        raise ScheduleProblems(reader.problems)
    return document


class _DocumentReader:
    """Reads one document, and keeps all that is wrong with it in `problems`."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._entries = ClockEntryReader(self.problems)

    def read(self, root: yaml.MappingNode) -> ScheduleDocument:
        document = ScheduleDocument()
        seen: dict[str | None, int] = {}
        for key, line, value in pairs_of(root):
            if key not in _TOP_LEVEL:
                self.problems.append(Problem(line, unknown_key(key, _TOP_LEVEL)))
            elif key in seen:
                self.problems.append(Problem(line, f"the key {key!r} is given twice, first in line {seen[key]}"))
            elif key == "all":
                document = replace(document, for_all=self._entries.read(value, "all"))
            elif key == "stages":
                document = replace(document, stages=self._selected(key, "stage", value))
            elif key == "ranks":
                document = replace(document, ranks=self._selected(key, "rank", value))
            elif key == "turns":
                document = replace(document, turns=self._read_turns(value))
            elif key == "until":
                document = replace(document, until=self._read_number(value, "until", 10**9), until_line=line)
            elif key == "target":
                example = "{slowdown: 1.05}, {deadline: 16.2} or {power: 18000}"
                document = replace(document, target=self._read_request(Target, key, example, value))
            else:
                example = "{slowdown: 1.2, pipeline: 3}"
                document = replace(document, straggler=self._read_request(Straggler, key, example, value))
            seen.setdefault(key, line)
        has_clocks = not seen.keys().isdisjoint(("all", "stages", "ranks"))
        for key in {"turns", "until"} & seen.keys() if not has_clocks else ():
            self.problems.append(Problem(seen[key], f"{key} needs clocks; set some by all, stages or ranks, too"))
        for key in {"target", "straggler"} & seen.keys() if has_clocks and "until" not in seen else ():
            reason = (
                f"{key} is for the scheduler, and does nothing while this file sets the clocks; leave one of them out"
            )
            self.problems.append(Problem(seen[key], reason))
        return document

    def _read_turns(self, node: yaml.Node) -> tuple[int, ...]:
        if not isinstance(node, yaml.SequenceNode) or not 0 < len(node.value) <= MOST_TURNS:
            self.problems.append(Problem(line_of(node), f"{_TURNS}; got {describe_node(node)}"))
            return ()
        return tuple(self._read_number(turn, "a turn", ALL) for turn in node.value)

    def _read_number(self, node: yaml.Node, what: str, most: int) -> int:
        try:
            return read_number(node.value if isinstance(node, yaml.ScalarNode) else describe_node(node), what, most)
        except BadValue as error:
            self.problems.append(Problem(line_of(node), str(error)))
            return 0

    def _read_request(self, model: type[Request], what: str, example: str, node: yaml.Node) -> Request | None:
        if not isinstance(node, yaml.MappingNode):
            self.problems.append(Problem(line_of(node), f"a {what} looks like {example}; got {describe_node(node)}"))
            return None
        numbers: dict[str, str] = {}
        known = list(model.model_fields)
        for key, line, value in pairs_of(node):
            if key not in known:
                self.problems.append(Problem(line, unknown_key(key, known)))
            elif key in numbers or not isinstance(value, yaml.ScalarNode):
                self.problems.append(Problem(line, f"{key!r} takes one number; a {what} looks like {example}"))
            else:
                numbers[key] = value.value
        try:
            request = model.model_validate(numbers)
            problem = implausible(request.slowdown, MOST_SLOWDOWN if what == "target" else MOST_STRAGGLING)
            if problem:
                self.problems.append(Problem(line_of(node), f"{what}: slowdown {problem}"))
            return None if problem else request
        except ValidationError as error:
            reason = f"{' '.join(first_problem(error)).lstrip()}; a {what} looks like {example}"
            self.problems.append(Problem(line_of(node), reason))
            return None

    def _selected(self, section: str, what: str, node: yaml.Node) -> tuple[SelectedEntry, ...]:
        if node.tag == "tag:yaml.org,2002:null":
            return ()  # the lines below the key are comments
        if not isinstance(node, yaml.MappingNode):
            reason = f"{section!r} has a line per {what}, such as `0: 1200`; got {describe_node(node)}"
            self.problems.append(Problem(line_of(node), reason))
            return ()
        selected: list[SelectedEntry] = []
        for key, line, value in pairs_of(node):
            entry = self._entries.read(value, f"{what} {key[:20]}" if key else what)
            try:
                ranges = read_ranges(key, what)
            except BadValue as error:
                self.problems.append(Problem(line, str(error)))
                continue
            if entry is not None:
                selected += [SelectedEntry(first, last, entry, line) for first, last in ranges]
        widest: SelectedEntry | None = None
        for of in sorted(selected, key=lambda of: (of.first, of.last)):
            if widest is not None and of.first <= widest.last:
                first, second = sorted((widest.line, of.line))
                self.problems.append(Problem(second, f"{what} {of.first} is given twice, first in line {first}"))
            if widest is None or of.last > widest.last:
                widest = of
        return tuple(selected)


def read_ranges(key: str | None, what: str) -> list[tuple[int, int]]:
    """Returns the (first, last) pairs of a key such as `3`, `0-3` or `0,2,5-7`; raises `BadValue` for others."""
    if not key:
        raise BadValue(f'expected the number of a {what} as key, such as 3, 0-3 or "0,2,5"')
    ranges = []
    for part in key.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise BadValue(f'{key[:40]!r} is not a {what}; write 3, 0-3 or "0,2,5"')
        first = read_number(match["first"], f"a {what}", MAX_WORLD_SIZE)
        last = first if match["last"] is None else read_number(match["last"], f"a {what}", MAX_WORLD_SIZE)
        if last < first:
            raise BadValue(f"{part.strip()!r}: the range ends before it begins")
        ranges.append((first, last))
    return ranges


def unknown_key(key: str | None, known: Iterable[str]) -> str:
    """Returns the message about an unknown key, with the closest known one."""
    names = list(known)
    if key is None:
        return f"expected one of the keys {', '.join(names)}, got something that is not text"
    return f"unknown key {key[:40]!r}; {closest(key, names, 'known are')}"
