"""Callbacks that are missing or misspelt are one warning that says what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_clocks import FakeClocks

from pfo_fs.training.cuda_event_tracker import CudaEventTracker
from pfo_fs.training.instruction_tracker import InstructionTracker


def ready_event() -> Any:
    """A CUDA event that is ready at once."""
    return SimpleNamespace(record=lambda: None, query=lambda: True, elapsed_time=lambda other: 0.0)


@pytest.fixture(params=["training thread", "CUDA events"])
def tracker(request: pytest.FixtureRequest, told: list[str]) -> InstructionTracker:
    if request.param == "training thread":
        return InstructionTracker(FakeClocks(), on_wrong_marks=told.append)
    return CudaEventTracker(FakeClocks(), ready_event, on_wrong_marks=told.append)


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


@pytest.mark.parametrize(
    ("begins_step", "ends_step", "said"),
    [(True, False, "call on_step_end()"), (False, False, "call on_step_begin()"), (True, True, "")],
)
def test_steps_that_never_end_or_begin_are_told_and_an_evaluation_after_a_step_is_not(
    tracker: InstructionTracker, told: list[str], begins_step: bool, ends_step: bool, said: str
) -> None:
    for step in range(8):
        if begins_step:
            tracker.step_begin(step, -1)
        if ends_step:
            tracker.step_end()
        for _ in range(40):
            tracker.begin("forward")
            tracker.end("forward")
        if ends_step and step == 1:
            break
    assert [said in text for text in told] == [True] * bool(said)
