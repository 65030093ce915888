"""What a person types, and what is said when it is wrong."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_jobs import problems_of

from pfo_fs.errors import PlanError
from pfo_fs.models import Straggler, Target
from pfo_fs.schedule_yaml import ScheduleProblems, parse_schedule_yaml
from pfo_fs.schedule_yaml.clock_entries import ClockByName, InstructionList, SameClock

EXAMPLE = """\
# everything optional; ranks win over stages, stages over all
all: 1200                 # a single number: all instructions of all ranks
stages:
  0: 1410                 # a single number for all of this stage
  1: {forward: 1200, backward: 1110}     # one clock per instruction name
  2:                      # instruction by instruction, runs on one line
    - forward 885 x7
    - backward 870, forward 885 x4     # a group repeated 4 times
    - backward 870 x8
ranks:
  5: 1305
"""


# ---- what is understood


def test_the_example_is_understood() -> None:
    document = parse_schedule_yaml(EXAMPLE)
    assert document.for_all == SameClock(1200, 2)
    assert [(s.first, s.last, type(s.entry)) for s in document.stages] == [
        (0, 0, SameClock),
        (1, 1, ClockByName),
        (2, 2, InstructionList),
    ]
    assert [(s.first, s.entry) for s in document.ranks] == [(5, SameClock(1305, 11))]


def test_windows_line_ends_and_a_byte_order_mark_are_understood() -> None:
    assert parse_schedule_yaml(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode()) == parse_schedule_yaml(EXAMPLE)


F, B = ("f", None, 885), ("b", None, 870)


@pytest.mark.parametrize(
    ("text", "instructions"),
    [
        ("[f 885 x3]", [F, F, F]),
        ("[f 885, b 870]", [F, B]),
        ("['b 870, f 885 x2']", [B, F, B, F]),
        *((f"['{line}']", [F, F]) for line in ("f 885 x2", "f 885 X2", "f 885 ×2", "f  885   x2", "f 885 x2 ")),
        ("[forward@4 885, forward@0 900]", [("forward", 4, 885), ("forward", 0, 900)]),
        ("""['"my op, \\u00e9@2" 885']""", [("my op, é@2", None, 885)]),  # a name as in JSON
        ("[]", []),
    ],
)
def test_lists_are_read_line_by_line_and_a_count_repeats_the_line(text: str, instructions: list[Any]) -> None:
    entry = parse_schedule_yaml(f"all: {text}").for_all
    assert isinstance(entry, InstructionList)
    assert entry.frequencies == [(name, mhz) for name, _, mhz in instructions]
    assert (entry.stages or [None] * len(instructions)) == [stage for _, stage, _ in instructions]


@pytest.mark.parametrize(
    ("key", "ranges"),
    [
        ("0-3", [(0, 3)]),
        ("'0,2,5'", [(0, 0), (2, 2), (5, 5)]),
        ("0, 2-4 ,7", [(0, 0), (2, 4), (7, 7)]),
        ("3", [(3, 3)]),
    ],
)
def test_a_key_may_be_a_range(key: str, ranges: list[tuple[int, int]]) -> None:
    document = parse_schedule_yaml(f"ranks:\n  {key}: 1200")
    assert [(s.first, s.last) for s in document.ranks] == ranges


def test_a_section_whose_lines_are_all_commented_out_says_nothing() -> None:
    assert parse_schedule_yaml("all: 900\nstages:\n#  0: 3\nranks: {}").stages == ()


# ---- what is wrong, with its line


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("all: 1\n\nstagse:\n  0: 1\n", 3, "unknown key 'stagse'; did you mean 'stages'?"),
        ("all: 1\nzzz: 1\n", 2, "known are all, stages, ranks"),
        ("all: 1\nall: 2\n", 2, "the key 'all' is given twice, first in line 1"),
        ("stages:\n  1: 3\n  0-2: 4\n", 3, "stage 1 is given twice, first in line 2"),
        ("ranks:\n  '1,1': 3\n", 2, "rank 1 is given twice, first in line 2"),
        ("all: {f: 1, f: 2}\n", 1, "all: 'f' is given twice"),
        ("all: 12.5\n", 1, "a clock in MHz is a whole number, got '12.5'"),
        ("all: 1_200\n", 1, "a whole number, got '1_200'"),
        ("all: 010\n", 1, "leave out the leading zeros"),
        ("all: ١٢\n", 1, "a whole number, got '١٢'"),
        ("all: 60001\n", 1, "at most 60,000, got '60001'"),
        ("all: " + "9" * 5000, 1, "at most 60,000"),
        ("stages:\n  0: ~\n", 2, "stage 0: there is no value; write 0 to leave the clocks alone"),
        ("stages: 1200\n", 1, "'stages' has a line per stage, such as `0: 1200`; got '1200'"),
        ("stages:\n  first: 1\n", 2, "a stage is a whole number, got 'first'"),
        ("stages:\n  3-1: 1\n", 2, "the range ends before it begins"),
        ("stages:\n  0-: 1\n", 2, "'0-' is not a stage; write 3, 0-3 or \"0,2,5\""),
        ("ranks:\n  0-99999999999: 1\n", 2, "a rank is at most 1,000,000"),
        ("ranks:\n  ? [1]\n  : 1\n", 2, "expected the number of a rank as key"),
        ("all: forward 885 x7\n", 1, "instructions are written as a list, each line with `- ` before it"),
        ("all:\n  - forward: 885\n", 2, "no colon between name and clock"),
        ("all:\n  - f 1\n  - [f, 1]\n", 3, "expected e.g. `forward 885 x7`, got a list of 2"),
        ("all:\n  -\n", 2, "an instruction is missing"),
        ("all:\n  - f 1,\n", 2, "an instruction is missing in 'f 1,'"),
        ("all:\n  - f 1 7\n", 2, "expected a comma, the end of the line or a count such as x7, got '7'"),
        ("all:\n  - f 1 x7, b 2\n", 2, "'x7' repeats the whole line, so it belongs at the end"),
        ("all:\n  - f 1 x0\n", 2, "x0 runs the line zero times"),
        ("all:\n  - f 1 x9999999999\n", 2, "the count in 'x9999999999' is at most 65,535"),
        ("all:\n  - f 1 x65535\n  - f 1\n", 3, "more than 65,535 instructions in one iteration"),
        ("all:\n  - f@1 3\n  - f 3\n", 2, "give `name@stage` for all instructions of the list or for none"),
        ("all:\n  - f@x 3\n", 2, "the stage in 'f@x 3' is a whole number"),
        ("all:\n  - '\"\\q\" 3'\n", 2, "is not a valid JSON string"),
        ("all:\n  - '\"a\\u001b\" 3'\n", 2, "name has 1 to 64 printable characters"),
        ("all:\n  - " + "f" * 65 + " 3\n", 2, "name has 1 to 64 printable characters"),
        ("all: {forward: [1]}\n", 1, "'forward' has one clock in MHz, got a list of 1"),
        ("all: {? [a] : 1}\n", 1, "expected the name of an instruction as key"),
        ("all: 1\nturns: 3\n", 2, "turns is a list of up to 1,024, as [1, 2, 3, 0]"),
        ("all: 1\nturns: [" + "1, " * 1025 + "]\n", 2, "got a list of 1025"),
        ("all: 1\nturns: [1,\n  4]\n", 3, "a turn is at most 3, got '4'"),
        ("all: 1\nturns: [1, [2]]\n", 2, "a turn is a whole number, got 'a list of 1'"),
        ("all: 1\nuntil: soon\n", 2, "until is a whole number, got 'soon'"),
        ("all: 1\nuntil: 10000000000\n", 2, "until is at most 1,000,000,000"),
        ("target: 1.05\n", 1, "a target looks like {slowdown: 1.05}"),
        ("target: {slowdown: 1.05, power: 3}\n", 1, "exactly one of slowdown, deadline"),
        ("target: {slowdown: 0.9}\n", 1, "slowdown must be at least 1, not '0.9'"),
        ("target: {slowdown: fast}\n", 1, "slowdown must be a number, not 'fast'"),
        ("target: {slowdown: 1.1, slowdwon: 1}\n", 1, "did you mean 'slowdown'?"),
        ("target: {power: .inf}\n", 1, "power"),
        ("target: {slowdown: 3}\n", 1, "at most 2 is taken"),
        ("straggler: {slowdown: 5}\n", 1, "at most 4 is taken"),
        ("straggler: {pipeline: 3}\n", 1, "slowdown is missing"),
        ("straggler: {slowdown: 1.2, pipeline: [1]}\n", 1, "'pipeline' takes one number"),
        ("straggler: {slowdown: 1.2, pipeline: -1}\n", 1, "pipeline must be at least 0"),
        ("turns: [3]\n", 1, "turns needs clocks; set some by all, stages or ranks, too"),
        ("all: 1\ntarget: {slowdown: 1.1}\n", 2, "target is for the scheduler, and does nothing while this file sets"),
        ("1200\n", 1, "expected the keys all, stages, ranks, turns, until, target, straggler, got '1200'"),
        ("", 1, "the file is empty"),
        ("all: 1\nranks: &a {0: 1}\nstages: *a\n", 2, "anchors (&a)"),
        ("all: 1\nstages: *a\n", 2, "aliases (*a)"),
        ("all: 1\nranks: !!python/object/apply:os.system ['touch /tmp/x']\n", 2, "tags ("),
        ("all: 1\n---\nall: 2\n", 2, "a second document begins here"),
        ("all: " + "[" * 100 + "]" * 100, 1, "nested more than 8 levels deep"),
        ("all:\n" + "".join("  " * i + "-\n" for i in range(1, 100)), 9, "nested more than 8 levels deep"),
        ("all: 'abc\n", 2, "is not YAML: found unexpected end of stream"),
        ("all: 1\n  ranks: 3\n", 2, "is not YAML: mapping values are not allowed here"),
        ("stages:\n  0: 1\n\t1: 2\n", 3, "indent with spaces, not tabs"),
        ('all: 1\nranks: "\\UFFFFFFFF"\n', 2, "is not the code of a character"),
        ('all: 1\nranks: "x\\udfff"\n', 2, "half of a character"),
        ("all: 1\nranks: \x07\n", 2, "a character that YAML does not allow (#x0007)"),
        (b"all: 1\nranks: \xff\xfe\n", 2, "byte 0xff is not UTF-8"),
        (b"all: 1\n\0\0\0\0", 2, "a NUL byte"),
        ("#" * 262_145, 1, "the file has 262,145 bytes; at most 262,144 are allowed"),
        ("é" * 200_000, 1, "the file has 400,000 bytes"),
        ("all: '\ud800'\n", 1, "a character that YAML does not allow"),
    ],
)
def test_a_mistake_or_an_attack_is_reported_with_its_line_and_reason(text: str | bytes, line: int, reason: str) -> None:
    ((found_line, found),) = problems_of(text)
    assert reason in found
    assert found_line == line


def test_all_mistakes_are_reported_at_once_in_the_order_of_lines() -> None:
    text = "ranks:\n  0: fast\n  x: 3\nrnaks: 3\nall: {f: 1.5, g: no}\n"
    assert [line for line, _ in problems_of(text)] == [2, 3, 4, 5, 5]


def test_very_many_mistakes_are_counted() -> None:
    problems = problems_of("".join(f"k{i}: 1\n" for i in range(200)))
    assert len(problems) == 51
    assert problems[-1] == (51, "and 150 more problems")


# ---- hostile


SIZE = 256 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "[" * SIZE,
        "- " * (SIZE // 2),
        ":" * SIZE,
        "\n" * SIZE,
        "all: [" + "f 1," * 30_000 + "]",
        "all: {" + "a," * 50_000 + "}",
        "all: ['f 1 a" + " " * 200_000 + "b']",
        "ranks:\n  ? '1" + " " * 200_000 + "b'\n  : 3",
        "ranks:\n  ? '1 -" + " " * 200_000 + "2 b'\n  : 3",
        "all: ['" + " " * 200_000 + "b']",
        "all: ['" + '"' + "\\\\" * 2000 + "']",
        "all: ['f 1, " + "f 1, " * 800 + "f']",
        "all: {'" + "f@" * 100_000 + "': 1}",
        "ranks:\n  ? '" + "1," * 100_000 + "1'\n  : 3",
        "ranks:\n" + "".join(f" {i}: [f 1 x65535]\n" for i in range(4000)),
    ],
    ids=lambda text: text[:12].replace("\n", " "),
)
def test_no_file_keeps_the_parser_busy_without_bounds(text: str) -> None:
    """A pattern that backtracks would take hours on these."""
    with contextlib.suppress(PlanError):
        parse_schedule_yaml(text)


def test_the_instructions_of_all_lists_together_are_bounded() -> None:
    problems = problems_of("ranks:\n" + "".join(f"  {i}: [f 1 x65535]\n" for i in range(7)))
    assert problems == [(8, "rank 6: up to this line, the document has more than 400,000 instructions")]


# ---- anything


words = st.sampled_from(["all", "stages", "ranks", "0", "0-3", "1,2", "forward", "f 1 x3", "b 1, f 2 x2", "~", "1200"])
trees = st.recursive(
    words | st.integers().map(str) | st.text("ab 0x,@-\"'", max_size=8).map(repr),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: "[" + ", ".join(items) + "]")
        | st.lists(st.tuples(words, inner), max_size=4).map(
            lambda items: "{" + ", ".join(f"{key!r}: {value}" for key, value in items) + "}"
        )
    ),
    max_leaves=12,
)
documents = st.lists(st.tuples(st.sampled_from(["all", "stages", "ranks", "al"]), trees), max_size=4).map(
    lambda items: "".join(f"{key}: {value}\n" for key, value in items)
)
like_yaml = st.text("al:stgesrnk\n -,[]{}0123x'\"#&*!|>%@?\t\\fowd", max_size=120)


@settings(max_examples=250)
@given(documents | like_yaml | st.binary(max_size=300))
def test_nothing_raises_anything_but_plan_error(text: str | bytes) -> None:
    with contextlib.suppress(PlanError):
        parse_schedule_yaml(text)


# ---- words to the scheduler


def test_a_target_and_a_straggler_leave_the_clocks_to_the_scheduler() -> None:
    document = parse_schedule_yaml("target: {power: 18000}\nstraggler: {slowdown: 1.2, pipeline: 3}\n")
    assert document.target == Target(power=18000)
    assert document.straggler == Straggler(slowdown=1.2, pipeline=3)
    assert not document.has_clocks
    assert parse_schedule_yaml("straggler: {slowdown: 3}").straggler == Straggler(slowdown=3)


def test_a_small_file_of_very_many_values_is_refused_before_they_are_all_built() -> None:
    with pytest.raises(ScheduleProblems, match="more than 50,000 keys and values"):
        parse_schedule_yaml("all: [" + "1," * 60_000 + "1]")


def test_clocks_can_be_followed_in_turns_and_until_a_step() -> None:
    document = parse_schedule_yaml("all: 1200\nturns: [1, 2,\n  3, 0]\nuntil: 500\n")
    assert (document.turns, document.until, document.until_line) == ((1, 2, 3, 0), 500, 4)
    assert document.has_clocks
    document.check_until(499)
    with pytest.raises(ScheduleProblems, match=r"line 4: until: ranks can follow this file from step 500 on only"):
        document.check_until(500)
