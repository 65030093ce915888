"""Clocks that were set for measuring, and for which nobody comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pfo_fs import PFOFileOptimizer
from pfo_fs.device import page


@pytest.fixture
def opt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PFOFileOptimizer]:
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path / "sim"))
    place = {f"{kind}_{what}": int(what == "degree") for kind in ("dp", "pp", "tp") for what in ("rank", "degree")}
    with PFOFileOptimizer(tmp_path / "pfo", rank=0, world_size=1, local_rank=0, coordination="local", **place) as opt:
        assert opt._helper is not None
        opt._helper.close()
        opt._helper = None  # what is told here, the tests tell
        assert step_mhz(opt) == 0
        yield opt


def step_mhz(opt: PFOFileOptimizer) -> int:
    """Runs a step; returns the clock of its instruction."""
    opt.on_step_begin()
    opt.on_instruction_begin("forward")
    mhz = opt._clocks.words[page.TARGET]
    opt.on_instruction_end("forward")
    opt.on_step_end()
    return mhz


def schedule(number: int, start_step: int = 0, steps: int = 0) -> dict[str, Any]:
    clocks = {"frequencies": [["forward", 900]], "stages": None}
    return {"type": "schedule", "number": number, "start_step": start_step, "steps": steps, **clocks}


def test_a_schedule_that_holds_for_some_steps_ends_by_itself_on_the_rank(
    opt: PFOFileOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    opt._handle(schedule(50, start_step=3, steps=3))
    seen = [step_mhz(opt) for _ in range(8)]
    opt._handle(schedule(51, start_step=10))
    seen += [step_mhz(opt) for _ in range(4)]
    assert seen == [0, 0, 900, 900, 900, 0, 0, 0, 0, 900, 900, 900]
    assert caplog.text.count("nothing new has come for 3 steps") == 1


def test_the_pace_of_a_straggler_is_kept_only_as_long_as_somebody_follows_it(
    opt: PFOFileOptimizer, caplog: pytest.LogCaptureFixture, wait_for: Callable[..., Any]
) -> None:
    opt._handle(schedule(50))
    opt._handle({"type": "hold", "lease_s": 0.2})
    assert step_mhz(opt) == 900
    wait_for(lambda: step_mhz(opt) == 0, what="the end of the hold")
    assert step_mhz(opt) == 0
    assert caplog.text.count("no word from whoever follows the straggler") == 1
    opt._handle({"type": "hold", "lease_s": 60.0})
    assert step_mhz(opt) == 900
    opt._handle({"type": "hold", "lease_s": 0})
    assert step_mhz(opt) == 900, "other schedules stay for ever"


def test_a_directory_that_answers_again_does_not_bring_the_pace_of_a_straggler_back(opt: PFOFileOptimizer) -> None:
    opt._handle(schedule(50))
    assert step_mhz(opt) == 900
    opt._handle({"type": "hold", "lease_s": 1e-9})
    opt._handle({"type": "release"})
    assert step_mhz(opt) == 0
    opt._handle({"type": "resume"})
    assert step_mhz(opt) == 0
    opt._handle({"type": "hold", "lease_s": 60.0})
    assert step_mhz(opt) == 900


def test_a_clock_process_that_dies_is_told_to_the_helper_once(
    opt: PFOFileOptimizer, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., Any]
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(opt, "_tell", told.append)
    assert opt._clocks.pid is not None
    os.kill(opt._clocks.pid, signal.SIGKILL)
    wait_for(lambda: (step_mhz(opt), [message for message in told if message["type"] == "problem"])[1])
    for _ in range(3):
        step_mhz(opt)
    (problem,) = [message for message in told if message["type"] == "problem"]
    assert "rank 0: there is no clock process any more" in problem["message"]
