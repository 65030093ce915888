"""Where training is in its schedule; callbacks that are missing or misspelt are one warning that says what to do."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_clocks import FakeClocks
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device import shared_page
from pfo_fs.errors import InstructionMismatch
from pfo_fs.training.cuda_event_tracker import CudaEventTracker
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.turns import Turn

F, B = "forward", "backward"


class Tracker(InstructionTracker):
    """A tracker with its clock process, which keeps what people are told."""

    def __init__(self, clocks: FakeClocks | None = None, **options: Any) -> None:
        self.clocks, self.told = clocks or FakeClocks(), list[tuple[Any, ...]]()
        super().__init__(self.clocks, **{"on_mismatch": lambda *what: self.told.append(what), **options})

    def run(self, *names: str, step: int = 0, number: int = 0, **term: Any) -> None:
        self.step_begin(step, number, **term)
        for name in names:
            self.begin(name)
            self.end(name)
        self.step_end()


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


Plan = list[tuple[str, int]]
PLANS = st.lists(
    st.tuples(st.sampled_from([F, B]), st.sampled_from([0, 900, 1005, 1200, 2**63, -5])), min_size=1, max_size=5
)
STEPS = st.lists(
    st.tuples(st.none() | PLANS, st.booleans(), st.sampled_from(["", "", "cut", "more", "other"])), max_size=7
)


def clocks_of(plan: Plan) -> list[int]:
    """The clock of each instruction: 0 MHz leaves it alone, and one that is out of range is the default."""
    clocks_mhz = [0]
    for _, mhz in plan:
        clocks_mhz.append(clocks_mhz[-1] if mhz == 0 else mhz if 0 < mhz <= 60_000 else 0)
    return clocks_mhz[1:]


def follow(tracker: Tracker, steps: Any, now_mhz: Callable[[], int]) -> None:
    """Runs steps, and checks clock, marks and what is told against a simple model of a schedule.

    Args:
        steps: Of each, the schedule that comes (None: the last one stays), whether this rank follows it, and in which
            way training runs another order.
        now_mhz: Returns the clock that is requested.
    """
    plan: Plan = []
    kinds: set[str] = set()
    for step, (new, follows, change) in enumerate(steps):
        if new is not None:
            plan, kinds = new, set()
            tracker.set_schedule(plan, in_turns=True)
        names = [name for name, _ in plan] or [F, B]
        names = {"cut": names[:-1], "more": [*names, F], "other": [*names[:-1], "wait"]}.get(change, names)
        tracker.step_begin(step, step, turn=Turn(follows))
        tracker.told.clear()
        for place, name in enumerate(names):
            tracker.begin(name)
            as_planned = names[: place + 1] == [planned for planned, _ in plan[: place + 1]]
            assert now_mhz() == (clocks_of(plan)[place] if as_planned and follows else 0)
            tracker.end(name)
        tracker.step_end()
        assert now_mhz() == 0
        kind = {"cut": "left over", "more": "ran out", "other": "another"}.get(change, "") if plan else ""
        assert len(tracker.told) == (kind not in kinds and kind != "")  # once for each schedule
        kinds.add(kind)
        marks = tracker.clocks.marks()
        inner = [shared_page.BEGIN, shared_page.END] * len(names) + [shared_page.LAST_END] * bool(names)
        kept = [shared_page.STEP_BEGIN, shared_page.NUMBER, *inner, shared_page.STEP_END]
        assert [code & 0xFF for _, code in marks] == kept
        assert (marks[0][1] >> 8, marks[1][0], marks[-1][1] >> 8) == (step, step, shared_page.STRAYED if kind else 0)


@given(STEPS)
def test_each_instruction_gets_its_clock_until_training_strays_and_no_mark_is_missing(steps: Any) -> None:
    tracker = Tracker()
    follow(tracker, steps, lambda: tracker.clocks.target)


@pytest.mark.parametrize(("in_turns", "count"), [(True, 150), (False, 20)])
def test_a_schedule_is_measured_until_its_last_step_in_turns_or_ten_times_as_long_as_it_takes(
    in_turns: bool, count: int
) -> None:
    tracker = Tracker(profile_steps=1)
    tracker.set_schedule([(F, 900)], in_turns=in_turns)
    measured = []
    for step in range(200):
        tracker.run(F, step=step, **({"until": 150, "turn": Turn(step % 2 == 0)} if in_turns else {}))
        measured.append(shared_page.BEGIN in tracker.clocks.kinds())
    assert measured == [True] * count + [False] * (200 - count)


def test_the_doorbell_rings_only_for_a_change_and_only_for_a_sleeper(tracker: Tracker) -> None:
    tracker.clocks.words[shared_page.MEASURED_NUMBER] = 0
    tracker.set_schedule([(F, 900), (F, 900), (B, 1200)])
    tracker.step_begin(0, 0)
    tracker.clocks.words[shared_page.SLEEPING] = 1
    tracker.begin(F)
    assert tracker.clocks.rings == 1
    tracker.clocks.words[shared_page.SLEEPING] = 1
    tracker.begin(F)
    assert tracker.clocks.rings == 1
    tracker.clocks.words[shared_page.SLEEPING] = 0
    tracker.begin(B)
    assert tracker.clocks.rings == 1


def test_a_wrong_stage_is_a_mismatch_only_where_both_sides_name_one(tracker: Tracker) -> None:
    tracker.set_schedule([(F, 900), (F, 1200)], stages=[0, 2])
    tracker.step_begin(0, 0)
    tracker.begin(F)
    tracker.begin(F, stage=2)
    tracker.step_end()
    assert tracker.told == []
    tracker.step_begin(1, 0)
    tracker.begin(F, stage=2)
    assert tracker.told == [(0, "'forward' of stage 0", "'forward' of stage 2")]
    tracker.step_end()
    tracker.set_schedule([(F, 900)])
    tracker.step_begin(2, 1)
    tracker.begin(F, stage=7)
    tracker.step_end()
    assert len(tracker.told) == 1


def test_strict_raises_from_begin_and_from_step_end_with_clocks_released() -> None:
    def strict(position: int, expected: str, got: str) -> None:
        raise InstructionMismatch(f"{position} {expected} {got}")

    tracker = Tracker(on_mismatch=strict)
    tracker.set_schedule([(F, 900), (B, 1200)])
    tracker.step_begin(0, 0)
    tracker.begin(F)
    with pytest.raises(InstructionMismatch):
        tracker.begin(F)
    assert tracker.clocks.target == 0
    tracker.step_end()
    tracker.step_begin(1, 0)
    tracker.begin(F)
    with pytest.raises(InstructionMismatch):
        tracker.step_end()
    assert tracker.clocks.target == 0


def test_instructions_between_steps_are_ignored(tracker: Tracker) -> None:
    tracker.set_schedule([(F, 900)])
    tracker.run(F)
    before = tracker.clocks.words[shared_page.HEAD]
    tracker.begin(F)
    tracker.end(F)
    tracker.step_end()
    assert (tracker.told, tracker.clocks.target, tracker.clocks.words[shared_page.HEAD]) == ([], 0, before)


def test_without_a_schedule_the_order_of_the_first_complete_step_is_kept_and_handed_out_once(tracker: Tracker) -> None:
    tracker.step_begin(0, -1)
    tracker.begin(F)
    tracker.step_begin(1, -1)  # the first one was left by an exception
    tracker.begin(F, stage=1)
    tracker.end(F)
    tracker.begin("optimizer")
    assert tracker.observed_order is tracker.take_new_order() is None
    tracker.step_end()
    assert tracker.take_new_order() == [(F, 1), ("optimizer", None)]
    tracker.run(F, F, F, step=2, number=-1)
    assert tracker.observed_order == [(F, 1), ("optimizer", None)]
    assert tracker.take_new_order() is None
    assert (tracker.told, tracker.clocks.target) == ([], 0)


def test_instructions_are_marked_until_the_clock_process_has_its_result(tracker: Tracker) -> None:
    tracker.set_schedule([(F, 900), (B, 1200)])
    for number, is_marked in ((3, True), (3, False), (4, True)):
        tracker.run(F, B, number=number)
        instructions = [shared_page.BEGIN, shared_page.END] * 2 * is_marked
        ends = [shared_page.LAST_END, shared_page.STEP_END]
        assert tracker.clocks.kinds() == [shared_page.STEP_BEGIN, shared_page.NUMBER, *instructions, *ends]
        assert tracker.clocks.words[shared_page.MEASURING] == is_marked
        tracker.clocks.words[shared_page.MEASURED_NUMBER] = number
    tracker.run(number=4)
    assert tracker.clocks.marks()[-1][1] >> 8 & shared_page.UNMARKED


@pytest.mark.parametrize("number", [2**63, 2**200, -(2**100)])
def test_a_number_that_no_word_can_hold_is_clamped_and_not_raised(tracker: Tracker, number: int) -> None:
    tracker.run(F, step=2**60, number=number)
    marks = tracker.clocks.marks()
    assert marks[0][1] >> 8 == shared_page.MAX_STEP
    assert marks[1][1] == shared_page.NUMBER
    assert -1 <= marks[1][0] < 2**63


@pytest.mark.parametrize("name", [None, 3, b"forward", ["forward"], float("nan"), "\ud800"], ids=repr)
def test_a_name_that_is_no_name_is_another_instruction(tracker: Tracker, name: Any) -> None:
    tracker.set_schedule([(F, 900)])
    for step in range(3):
        tracker.run(F, name, step=step)
    assert [expected for _, expected, _ in tracker.told] == ["the end of the step"]


def test_steps_of_another_order_than_was_told_run_at_default_clocks_and_are_neither_measured_nor_warned_of(
    tracker: Tracker,
) -> None:
    tracker.expect_order([(F, None), (B, None)])
    assert tracker.take_new_order() is None, "it was known beforehand"
    tracker.set_schedule([(F, 900), (B, 900)])
    tracker.other_order = True
    for step in range(100):
        tracker.run(F, F, B, B, step=step)
        assert tracker.clocks.target == 0
        assert not tracker.clocks.words[shared_page.MEASURING]
    tracker.other_order = False
    tracker.step_begin(100, 0)
    tracker.begin(F)
    assert tracker.clocks.target == 900
    assert tracker.clocks.words[shared_page.MEASURING]
    assert tracker.told == []


def test_a_schedule_of_the_order_before_is_not_followed_after_a_new_order_was_told(tracker: Tracker) -> None:
    tracker.expect_order([(F, None), (B, None)])
    tracker.set_schedule([(F, 900), (B, 900)])
    tracker.expect_order([(F, None), (F, None), (B, None), (B, None)])
    tracker.run(F, F, B, B)
    tracker.set_schedule([(F, 1005), (B, 1005)])  # it was under way
    tracker.run(F, F, B, B)
    tracker.set_schedule([(F, 900), (F, 900), (B, 1200), (B, 1200)])
    tracker.step_begin(1, 1)
    tracker.begin(F)
    assert tracker.clocks.target == 900
    assert tracker.told == []


# ---- callbacks that are missing or misspelt


@pytest.fixture(params=["training thread", "CUDA events"])
def marked(request: pytest.FixtureRequest, told: list[str]) -> InstructionTracker:
    if request.param == "training thread":
        return InstructionTracker(FakeClocks(), on_wrong_marks=told.append)
    ready: Any = SimpleNamespace(record=lambda: None, query=lambda: True, elapsed_time=lambda other: 0.0)
    return CudaEventTracker(FakeClocks(), lambda: ready, on_wrong_marks=told.append)


def call(marked: InstructionTracker, calls: str, steps: int) -> None:
    """Makes calls in each step; F+ is three begins of an instruction, F- three ends, and F three of both in turn."""
    for step in range(steps):
        for what in calls.split():
            if what == "begin":
                marked.step_begin(step, -1)
            elif what == "end":
                marked.step_end()
            else:
                for _ in range(3):
                    if "-" not in what:
                        marked.begin(what[0])
                    if "+" not in what:
                        marked.end(what[0])


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ("begin end", "no instruction was marked in 3 steps: call on_instruction_begin(name)"),
        ("begin F+ end", "'F' began 3 times and ended 0 times"),
        ("begin F+ X- end", "'F' began 3 times and ended 0 times"),
        ("begin F- end", "no instruction was marked in 3 steps"),
        ("begin F+ B+ F- F- end", "'F' began 3 times and ended 6 times"),
        ("begin F", "on_step_begin was called 3 times"),
        ("F " * 12, "instructions are marked but steps are not"),
    ],
)
def test_wrong_marks_are_told_once_after_a_few_steps(
    marked: InstructionTracker, told: list[str], calls: str, said: str
) -> None:
    call(marked, calls, 2)
    assert told == []
    call(marked, calls, 8)
    assert [said in text for text in told] == [True]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ("begin F F+ end", "'F' began 6 times and ended 3 times"),
        ("begin F end end", "on_step_end was called 3 times without on_step_begin"),
        ("F begin F end", "outside of a step, before each of 10 steps"),
        ("begin begin F end", "on_step_begin was called 3 times"),
        ("begin F end", ""),
    ],
)
def test_calls_that_go_wrong_after_right_steps_are_told_too(
    marked: InstructionTracker, told: list[str], calls: str, said: str
) -> None:
    call(marked, "begin F end", 8)
    call(marked, calls, 16)
    assert [said in text for text in told] == [True] * bool(said)


@pytest.mark.parametrize(
    ("calls", "steps"), [("begin F+ end", 1), ("begin end" + " F" * 13, 2)], ids=["a lost end", "evaluations"]
)
def test_what_goes_wrong_once_and_an_evaluation_after_a_step_are_no_warning(
    marked: InstructionTracker, told: list[str], calls: str, steps: int
) -> None:
    call(marked, calls, steps)
    call(marked, "begin F end", 8)
    assert told == []
