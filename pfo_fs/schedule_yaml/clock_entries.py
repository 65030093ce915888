"""Reads the entries of `schedule.yaml`: what a user may write for a rank, a stage or all ranks.

    1200                                    one clock for every instruction
    {forward: 1200, backward: 1110}         one clock per instruction; `forward@4` is on stage 4 only
    - forward 885 x7                        instruction by instruction, the `x` repeats the whole line
    - backward 870, forward 885 x4

Names with unusual characters are written as in JSON: `'"my op, odd" 885'`.
"""

import json
import re
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from pfo_fs.models import MAX_INSTRUCTIONS, MAX_JOB_INSTRUCTIONS
from pfo_fs.schedule_yaml.nodes import describe_node, line_of, pairs_of, shorten
from pfo_fs.schedule_yaml.problems import Problem

_MAX_MHZ = 60_000
_MAX_LINE = 4096  # characters

_NAME = r'(?P<name>"(?:[^"\\]|\\.)*"|[^\s,@"]+)(?:@(?P<stage>\S*?))?'
_KEY = re.compile(_NAME)
_INSTRUCTION = re.compile(rf"\s*{_NAME}\s+(?P<mhz>[^\s,]+)(?:\s+(?P<rest>[^\s,][^,]*)?)?(?:,|$)")
"""A blank can match one part of the pattern only; otherwise time would grow with the square of the number of blanks."""
_REPEAT = re.compile(r"[xX×](?P<count>.*)", re.DOTALL)


@dataclass(frozen=True)
class SameClock:
    """The same clock, in MHz, for every instruction."""

    mhz: int
    line: int


@dataclass(frozen=True)
class ClockByName:
    """(MHz, line) for each (name, stage or None)."""

    clocks: dict[tuple[str, int | None], tuple[int, int]]
    line: int


@dataclass(frozen=True)
class InstructionList:
    """Name and clock, in MHz (0: leave alone), of each instruction of an iteration, in order, with repetitions.

    `stages`: the stage of each instruction, None if the list names none. `lines`: the line of each instruction in the
    document. `line`: where the list begins.
    """

    frequencies: list[tuple[str, int]]
    stages: list[int] | None
    lines: list[int]
    line: int = 0


ClockEntry: TypeAlias = SameClock | ClockByName | InstructionList


@dataclass(frozen=True)
class SelectedEntry:
    """An entry for the stages or ranks `first` to `last`, both included, and the line of its key."""

    first: int
    last: int
    entry: ClockEntry
    line: int


class BadValue(ValueError):
    """A word that cannot be read; the message gives the reason."""


def read_number(text: str, what: str, most: int) -> int:
    """Returns a whole number without sign, leading zeros, underscores or decimals.

    Raises:
        BadValue: The text is not a whole number, or the number is larger than `most`.
    """
    if not re.fullmatch(r"0|[1-9][0-9]*", text):
        hint = "; leave out the leading zeros" if re.fullmatch(r"[0-9]+", text) else ""
        raise BadValue(f"{what} is a whole number, got {shorten(text)}{hint}")
    if len(text) > len(str(most)) or int(text) > most:
        raise BadValue(f"{what} is at most {most:,}, got {shorten(text)}")
    return int(text)


class ClockEntryReader:
    """Reads the entries of one document and adds what is wrong with them to `problems`."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self._written = 0

    def read(self, node: yaml.Node, who: str) -> ClockEntry | None:
        """Returns the entry in a node, or None if there are problems with it; `who` is e.g. `stage 3`."""
        before = len(self.problems)
        entry: ClockEntry | None = None
        try:
            if isinstance(node, yaml.ScalarNode):
                entry = self._one_clock(node)
            elif isinstance(node, yaml.MappingNode):
                entry = self._by_name(node, who)
            else:
                entry = self._listing(node, who)
        except BadValue as error:
            self._add_problem(line_of(node), who, error)
        return entry if len(self.problems) == before else None

    def _add_problem(self, line: int, who: str, reason: object) -> None:
        self.problems.append(Problem(line, f"{who}: {reason}"))

    def _one_clock(self, node: yaml.ScalarNode) -> SameClock:
        if not node.value or node.tag == "tag:yaml.org,2002:null":
            raise BadValue("there is no value; write 0 to leave the clocks alone, or remove the key")
        if _INSTRUCTION.fullmatch(node.value) and not node.value[0].isdigit():
            raise BadValue("instructions are written as a list, each line with `- ` before it")
        return SameClock(read_number(node.value, "a clock in MHz", _MAX_MHZ), line_of(node))

    def _by_name(self, node: yaml.MappingNode, who: str) -> ClockByName:
        clocks: dict[tuple[str, int | None], tuple[int, int]] = {}
        for key, line, value in pairs_of(node):
            try:
                name = _read_key(key)
                if name in clocks:
                    raise BadValue(f"{shorten(str(key))} is given twice, first in line {clocks[name][1]}")
                if not isinstance(value, yaml.ScalarNode):
                    raise BadValue(f"{shorten(str(key))} has one clock in MHz, got {describe_node(value)}")
                clocks[name] = read_number(value.value, f"the clock of {shorten(str(key))}", _MAX_MHZ), line
            except BadValue as error:
                self._add_problem(line, who, error)
        return ClockByName(clocks, line_of(node))

    def _listing(self, node: yaml.Node, who: str) -> InstructionList | None:
        frequencies: list[tuple[str, int]] = []
        stages: list[int | None] = []
        lines: list[int] = []
        for item in node.value:
            try:
                instructions, repeat = _read_line(item)
            except BadValue as error:
                self._add_problem(line_of(item), who, error)
                continue
            count = repeat * len(instructions)
            if len(lines) + count > MAX_INSTRUCTIONS:
                reason = f"more than {MAX_INSTRUCTIONS:,} instructions in one iteration"
                self._add_problem(line_of(item), who, reason)
                return None
            self._written += count
            if self._written > MAX_JOB_INSTRUCTIONS:
                raise BadValue(f"up to this line, the document has more than {MAX_JOB_INSTRUCTIONS:,} instructions")
            frequencies += [(name, mhz) for name, _, mhz in instructions] * repeat
            stages += [stage for _, stage, _ in instructions] * repeat
            lines += [line_of(item)] * count
        given = [stage for stage in stages if stage is not None]
        if len(given) not in (0, len(stages)):
            raise BadValue("give `name@stage` for all instructions of the list or for none")
        return InstructionList(frequencies, given or None, lines, line_of(node))


def _read_line(item: yaml.Node) -> tuple[list[tuple[str, int | None, int]], int]:
    """Returns the instructions of a line, as (name, stage or None, MHz), and how often they run one after another."""
    if not isinstance(item, yaml.ScalarNode):
        hint = "; no colon between name and clock" if isinstance(item, yaml.MappingNode) else ""
        raise BadValue(f"expected e.g. `forward 885 x7`, got {describe_node(item)}{hint}")
    text = str(item.value)
    instructions: list[tuple[str, int | None, int]] = []
    repeat, at = 1, 0
    if len(text) > _MAX_LINE:
        raise BadValue(f"the line has {len(text):,} characters; write several, of at most {_MAX_LINE:,}")
    while at < len(text):
        match = _INSTRUCTION.match(text, at)
        if match is None:
            raise BadValue(
                f"expected e.g. `forward 885 x7` or `backward 870, forward 885 x4`, got {shorten(text[at:])}"
            )
        at = match.end()
        name, stage = _read_name(match)
        instructions.append((name, stage, read_number(match["mhz"], f"the clock of {shorten(name)} in MHz", _MAX_MHZ)))
        rest = (match["rest"] or "").strip()
        if rest:
            repeat = _read_repeat(rest, at == len(text) and not text.endswith(","))
    if not instructions or text.rstrip().endswith(","):
        raise BadValue(f"an instruction is missing in {shorten(text)}")
    return instructions, repeat


def _read_repeat(text: str, is_last: bool) -> int:
    match = _REPEAT.fullmatch(text)
    if match is None:
        raise BadValue(f"expected a comma, the end of the line or a count such as x7, got {shorten(text)}")
    if not is_last:
        raise BadValue(f"{shorten(text)} repeats the whole line, so it belongs at the end; or write several lines")
    count = read_number(match["count"], f"the count in {shorten(text)}", MAX_INSTRUCTIONS)
    if count == 0:
        raise BadValue("x0 runs the line zero times; remove the line")
    return count


def _read_key(key: str | None) -> tuple[str, int | None]:
    match = _KEY.fullmatch(key) if key else None
    if match is None:
        raise BadValue(f"expected the name of an instruction as key, got {shorten(key or 'something else')}")
    return _read_name(match)


def _read_name(match: re.Match[str]) -> tuple[str, int | None]:
    name = match["name"]
    if name.startswith('"'):
        try:
            name = str(json.loads(name, strict=False))
        except ValueError:
            raise BadValue(f"{shorten(name)} is not a valid JSON string") from None
    if not 0 < len(name) <= 64 or not name.isprintable():
        raise BadValue(f"an instruction's name has 1 to 64 printable characters, got {shorten(name)}")
    stage = match["stage"]
    return name, None if stage is None else read_number(stage, f"the stage in {shorten(match.group().strip())}", 10**6)
