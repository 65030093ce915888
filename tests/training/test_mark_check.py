"""Callbacks that are missing or misspelt are one warning that says what to do."""

from __future__ import annotations

import pytest
from test_instruction_tracker import FakeClocks

from pfo_fs.device import shared_page
from pfo_fs.training.cuda_event_tracker import CudaEventTracker
from pfo_fs.training.instruction_tracker import InstructionTracker


class FakeEvent:
    """A CUDA event that is ready at once."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: FakeEvent) -> float:
        return 0.0


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture(params=["training thread", "CUDA events"])
def tracker(request: pytest.FixtureRequest, told: list[str]) -> InstructionTracker:
    if request.param == "training thread":
        return InstructionTracker(FakeClocks(), on_wrong_marks=told.append)
    return CudaEventTracker(FakeClocks(), FakeEvent, on_wrong_marks=told.append)


def run(tracker: InstructionTracker, begins: list[str], ends: list[str], steps: int = 8) -> None:
    for step in range(steps):
        tracker.step_begin(step, -1)
        for name in begins:
            tracker.begin(name)
        for name in ends:
            tracker.end(name)
        tracker.step_end()


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        ([], [], "no instruction was marked in 3 steps: call on_instruction_begin(name)"),
        (["forward"], [], "'forward' began 3 times and ended 0 times"),
        (["forward"], ["foward"], "'forward' began 3 times and ended 0 times"),
        ([], ["forward"], "no instruction was marked in 3 steps"),
        (["forward", "backward"], ["forward", "forward"], "'forward' began 3 times and ended 6 times"),
    ],
)
def test_wrong_marks_are_told_once_after_a_few_steps(
    tracker: InstructionTracker, told: list[str], begins: list[str], ends: list[str], said: str
) -> None:
    run(tracker, begins * 3, ends * 3, steps=2)
    assert told == []
    run(tracker, begins * 3, ends * 3)
    assert len(told) == 1
    assert said in told[0]


def test_a_single_step_with_an_end_that_was_lost_is_no_warning(tracker: InstructionTracker, told: list[str]) -> None:
    run(tracker, ["forward"], [], steps=1)
    run(tracker, ["forward"], ["forward"])
    assert told == []


def test_steps_that_never_end_are_told(tracker: InstructionTracker, told: list[str]) -> None:
    for step in range(8):
        tracker.step_begin(step, -1)
        tracker.begin("forward")
        tracker.end("forward")
    assert len(told) == 1
    assert "call on_step_end()" in told[0]


def test_instructions_without_any_step_are_told(tracker: InstructionTracker, told: list[str]) -> None:
    for _ in range(300):
        tracker.begin("forward")
        tracker.end("forward")
    assert len(told) == 1
    assert "call on_step_begin()" in told[0]


def test_an_evaluation_between_steps_is_no_warning(tracker: InstructionTracker, told: list[str]) -> None:
    tracker.step_begin(0, -1)
    tracker.step_end()
    for _ in range(300):
        tracker.begin("forward")
        tracker.end("forward")
    assert told == []


def test_a_step_with_more_marks_than_the_ring_holds_is_still_judged(told: list[str]) -> None:
    tracker = InstructionTracker(FakeClocks(), on_wrong_marks=told.append)
    for step in range(5):
        tracker.step_begin(step, -1)
        for _ in range(shared_page.RING_MARKS):
            tracker.begin("forward")
            tracker.end("forward")
        tracker.step_end()
    assert told == []
