"""Where training is in its schedule."""

from __future__ import annotations

from typing import Any

import pytest

from pfo_fs.device import shared_page
from pfo_fs.device.shared_page import MarkReader, SharedPage
from pfo_fs.errors import InstructionMismatch
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.turns import Turn

F, B = "forward", "backward"


class FakeClocks:
    """A clock process that remembers what it was asked for."""

    def __init__(self) -> None:
        self.page = SharedPage.create()
        self.words = self.page.words
        self.name_id = self.page.name_id
        self.rings = 0
        self.reader = MarkReader(self.words)

    def ring_doorbell(self) -> None:
        self.words[shared_page.SLEEPING] = 0
        self.rings += 1

    def check(self) -> bool:
        pass

    @property
    def target(self) -> int:
        return int(self.words[shared_page.TARGET])

    def kinds(self) -> list[int]:
        return [code & 0xFF for _, code in self.reader.read(everything=True) or []]


class Told(list[tuple[int, str, str]]):
    def __call__(self, position: int, expected: str, got: str) -> None:
        self.append((position, expected, got))


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def tracker(clocks: FakeClocks, told: Told) -> InstructionTracker:
    return InstructionTracker(clocks, on_mismatch=told)


def run(tracker: InstructionTracker, *names: str, step: int = 0, number: int = 0, **term: Any) -> None:
    tracker.step_begin(step, number, **term)
    for name in names:
        tracker.begin(name)
        tracker.end(name)
    tracker.step_end()


@pytest.mark.parametrize(
    ("clocks_mhz", "seen_mhz"),
    [
        ([900, 900, 0, 1200], [900, 900, 900, 1200]),  # 0 MHz leaves the clock alone
        ([0, 900], [0, 900]),
        ([900, 2**63, 900, -5, 60_001, 60_000], [900, 0, 900, 0, 0, 60_000]),  # what is out of range is the default
    ],
)
def test_each_instruction_gets_its_clock_and_the_end_of_the_step_the_top(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told, clocks_mhz: list[int], seen_mhz: list[int]
) -> None:
    tracker.set_schedule([(F, mhz) for mhz in clocks_mhz])
    tracker.step_begin(0, 0)
    seen = []
    for _ in clocks_mhz:
        tracker.begin(F)
        seen.append(clocks.target)
        tracker.end(F)
    tracker.step_end()
    assert seen == seen_mhz
    assert clocks.target == 0
    assert told == []


def test_a_step_without_a_turn_has_the_same_marks_at_default_clocks(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    tracker.set_schedule([(F, 900), (B, 1200)], in_turns=True)
    marks, seen = [], []
    for step, has_turn in enumerate([True, False, True]):
        tracker.step_begin(step, 0, until=9, turn=Turn(has_turn))
        for name in (F, B):
            tracker.begin(name)
            seen.append(clocks.target)
            tracker.end(name)
        tracker.step_end()
        marks.append(clocks.kinds())
    assert seen == [900, 1200, 0, 0, 900, 1200]
    assert marks[0] == marks[1] == marks[2]
    assert told == []


def test_a_schedule_is_measured_until_its_last_step_in_turns(tracker: InstructionTracker, clocks: FakeClocks) -> None:
    tracker.set_schedule([(F, 900)], in_turns=True)
    measured = []
    for step in range(200):
        run(tracker, F, step=step, until=150, turn=Turn(step % 2 == 0))
        measured.append(shared_page.BEGIN in clocks.kinds())
    assert measured == [True] * 150 + [False] * 50


def test_the_doorbell_rings_only_for_a_change_and_only_for_a_sleeper(
    tracker: InstructionTracker, clocks: FakeClocks
) -> None:
    clocks.words[shared_page.MEASURED_NUMBER] = 0
    tracker.set_schedule([(F, 900), (F, 900), (B, 1200)])
    tracker.step_begin(0, 0)
    clocks.words[shared_page.SLEEPING] = 1
    tracker.begin(F)
    assert clocks.rings == 1
    clocks.words[shared_page.SLEEPING] = 1
    tracker.begin(F)
    assert clocks.rings == 1
    clocks.words[shared_page.SLEEPING] = 0
    tracker.begin(B)
    assert clocks.rings == 1


def test_a_wrong_name_releases_the_clock_for_the_step_and_is_told_once(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    tracker.set_schedule([(F, 900), (B, 1200), (F, 900)])
    for step in range(3):
        tracker.step_begin(step, 0)
        tracker.begin(F)
        assert clocks.target == 900  # in step again
        tracker.begin("wait")
        assert clocks.target == 0
        tracker.begin(F)
        assert clocks.target == 0
        tracker.step_end()
    assert told == [(1, "'backward'", "'wait'")]
    tracker.set_schedule([(F, 900), (B, 1200), (F, 900)])
    run(tracker, F, F)
    assert told[1:] == [(1, "'backward'", "'forward'")]  # once per schedule


def test_a_list_that_runs_out_and_instructions_left_over_are_told_apart(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    tracker.set_schedule([(F, 900), (B, 1200)])
    run(tracker, F, B, F)
    run(tracker, F)
    run(tracker, F, B)
    assert told == [(2, "the end of the step", "'forward'"), (1, "'backward'", "the end of the step")]


def test_a_wrong_stage_is_a_mismatch_only_where_both_sides_name_one(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    tracker.set_schedule([(F, 900), (F, 1200)], stages=[0, 2])
    tracker.step_begin(0, 0)
    tracker.begin(F)
    tracker.begin(F, stage=2)
    tracker.step_end()
    assert told == []
    tracker.step_begin(1, 0)
    tracker.begin(F, stage=2)
    assert told == [(0, "'forward' of stage 0", "'forward' of stage 2")]
    tracker.step_end()
    tracker.set_schedule([(F, 900)])
    tracker.step_begin(2, 1)
    tracker.begin(F, stage=7)
    tracker.step_end()
    assert len(told) == 1


def test_strict_raises_from_begin_and_from_step_end_with_clocks_released(clocks: FakeClocks) -> None:
    def strict(position: int, expected: str, got: str) -> None:
        raise InstructionMismatch(f"{position} {expected} {got}")

    tracker = InstructionTracker(clocks, on_mismatch=strict)
    tracker.set_schedule([(F, 900), (B, 1200)])
    tracker.step_begin(0, 0)
    tracker.begin(F)
    with pytest.raises(InstructionMismatch):
        tracker.begin(F)
    assert clocks.target == 0
    tracker.step_end()
    tracker.step_begin(1, 0)
    tracker.begin(F)
    with pytest.raises(InstructionMismatch):
        tracker.step_end()
    assert clocks.target == 0


def test_instructions_between_steps_are_ignored(tracker: InstructionTracker, clocks: FakeClocks, told: Told) -> None:
    tracker.set_schedule([(F, 900)])
    run(tracker, F)
    before = clocks.words[shared_page.HEAD]
    tracker.begin(F)
    tracker.end(F)
    tracker.step_end()
    assert (told, clocks.target, clocks.words[shared_page.HEAD]) == ([], 0, before)


def test_without_a_schedule_the_order_of_the_first_complete_step_is_kept(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    tracker.step_begin(0, -1)
    tracker.begin(F)
    tracker.step_begin(1, -1)  # the first one was left by an exception
    tracker.begin(F, stage=1)
    tracker.end(F)
    tracker.begin("optimizer")
    assert tracker.observed_order is None
    tracker.step_end()
    assert tracker.observed_order == [(F, 1), ("optimizer", None)]
    run(tracker, F, F, F, step=2, number=-1)
    assert tracker.observed_order == [(F, 1), ("optimizer", None)]
    assert (told, clocks.target) == ([], 0)


def test_instructions_are_marked_until_the_clock_process_has_its_result(
    tracker: InstructionTracker, clocks: FakeClocks
) -> None:
    tracker.set_schedule([(F, 900), (B, 1200)])
    run(tracker, F, B, number=3)
    step = [
        shared_page.STEP_BEGIN,
        shared_page.NUMBER,
        shared_page.BEGIN,
        shared_page.END,
        shared_page.BEGIN,
        shared_page.END,
        shared_page.LAST_END,
        shared_page.STEP_END,
    ]
    assert clocks.kinds() == step
    clocks.words[shared_page.MEASURED_NUMBER] = 3
    run(tracker, F, B, number=3)
    assert clocks.kinds() == [shared_page.STEP_BEGIN, shared_page.NUMBER, shared_page.LAST_END, shared_page.STEP_END]
    assert clocks.words[shared_page.MEASURING] == 0
    tracker.step_begin(8, 3)
    tracker.step_end()
    assert (clocks.reader.read(everything=True) or [])[-1][1] >> 8 & shared_page.UNMARKED
    run(tracker, F, B, number=4)
    assert clocks.kinds() == step


def test_marking_ends_after_many_steps_if_the_clock_process_never_has_a_result(clocks: FakeClocks) -> None:
    tracker = InstructionTracker(clocks, profile_steps=1)
    tracker.set_schedule([(F, 900)])
    for step in range(25):
        run(tracker, F, step=step)
    assert clocks.kinds().count(shared_page.BEGIN) == 20


def test_a_step_that_strayed_is_marked_so(tracker: InstructionTracker, clocks: FakeClocks) -> None:
    tracker.set_schedule([(F, 900)])
    run(tracker, B)
    marks = clocks.reader.read(everything=True) or []
    assert marks[-1][1] == shared_page.STEP_END | shared_page.STRAYED << 8
    assert marks[0][1] >> 8 == 0
    run(tracker, F, step=5, number=9)
    marks = clocks.reader.read(everything=True) or []
    assert (marks[0][1], marks[1]) == (shared_page.STEP_BEGIN | 5 << 8, (9, shared_page.NUMBER))
    assert marks[-1][1] == shared_page.STEP_END


@pytest.mark.parametrize("number", [2**63, 2**200, -(2**100)])
def test_a_number_that_no_word_can_hold_is_clamped_and_not_raised(
    tracker: InstructionTracker, clocks: FakeClocks, number: int
) -> None:
    run(tracker, F, step=2**60, number=number)
    marks = clocks.reader.read(everything=True) or []
    assert marks[0][1] >> 8 == shared_page.MAX_STEP
    assert marks[1][1] == shared_page.NUMBER
    assert -1 <= marks[1][0] < 2**63


def test_a_list_of_many_names_is_followed_and_its_names_beyond_the_table_share_one_place(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    names = [f"name {i}" for i in range(65_535)]
    tracker.set_schedule([(name, 900) for name in names])
    run(tracker, *names)
    assert told == []
    assert clocks.words[shared_page.NAME_COUNT] == shared_page.MAX_NAMES


@pytest.mark.parametrize("known", [False, True])
def test_the_order_is_handed_out_once_and_not_if_it_was_known_beforehand(
    tracker: InstructionTracker, known: bool
) -> None:
    if known:
        tracker.expect_order([(F, None), (B, None)])
    assert tracker.take_new_order() is None
    run(tracker, F, B)
    assert tracker.observed_order == [(F, None), (B, None)]
    assert tracker.take_new_order() == (None if known else [(F, None), (B, None)])
    assert tracker.take_new_order() is None


def test_a_tracker_that_is_disconnected_writes_nothing_more(tracker: InstructionTracker, clocks: FakeClocks) -> None:
    tracker.set_schedule([(F, 900), (B, 1200)])
    tracker.step_begin(0, 0)
    tracker.begin(F)
    before = bytes(clocks.words)
    tracker.disconnect()
    tracker.begin(B)
    tracker.end(B)
    tracker.step_end()
    run(tracker, F, B, step=1)
    assert bytes(clocks.words) == before


@pytest.mark.parametrize("name", [None, 3, b"forward", ["forward"], float("nan"), "\ud800"], ids=repr)
def test_a_name_that_is_no_name_is_another_instruction(tracker: InstructionTracker, told: Told, name: Any) -> None:
    tracker.set_schedule([(F, 900)])
    for step in range(3):
        tracker.step_begin(step, 0)
        tracker.begin(F)
        tracker.end(F)
        tracker.begin(name)
        tracker.end(name)
        tracker.step_end()
    assert [expected for _, expected, _ in told] == ["the end of the step"]


def test_steps_of_another_order_than_was_told_run_at_default_clocks_and_are_neither_measured_nor_warned_of(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    tracker.expect_order([(F, None), (B, None)])
    tracker.set_schedule([(F, 900), (B, 900)])
    tracker.other_order = True
    for step in range(100):
        run(tracker, F, F, B, B, step=step)
        assert clocks.target == 0
        assert not clocks.words[shared_page.MEASURING]
    tracker.other_order = False
    tracker.step_begin(100, 0)
    tracker.begin(F)
    assert clocks.target == 900
    assert clocks.words[shared_page.MEASURING]
    assert told == []


def test_a_schedule_of_the_order_before_is_not_followed_after_a_new_order_was_told(
    tracker: InstructionTracker, clocks: FakeClocks, told: Told
) -> None:
    tracker.expect_order([(F, None), (B, None)])
    tracker.set_schedule([(F, 900), (B, 900)])
    tracker.expect_order([(F, None), (F, None), (B, None), (B, None)])
    run(tracker, F, F, B, B)
    tracker.set_schedule([(F, 1005), (B, 1005)])  # it was under way
    run(tracker, F, F, B, B)
    tracker.set_schedule([(F, 900), (F, 900), (B, 1200), (B, 1200)])
    tracker.step_begin(1, 1)
    tracker.begin(F)
    assert clocks.target == 900
    assert told == []
