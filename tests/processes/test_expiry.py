"""Clocks end at their default when the process that would change them is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_helper import FakeClient

from pfo_fs import PFOFileOptimizer
from pfo_fs.device import shared_page
from pfo_fs.ipc.messages import (
    ClocksHeld,
    NewSchedule,
    PaceLeaseRenewed,
    ProblemSeen,
    RankPlan,
    ToTraining,
)


@pytest.fixture
def opt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PFOFileOptimizer]:
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path / "sim"))
    place = {f"{kind}_{what}": int(what == "degree") for kind in ("dp", "pp", "tp") for what in ("rank", "degree")}
    with PFOFileOptimizer(
        tmp_path / "pfo", rank=0, world_size=1, local_rank=0, coordination="local", switching="launch", **place
    ) as opt:
        opt._link.close()
        opt._feed.at_once = False
        opt._link.client = FakeClient()  # what the helper sends, the tests send
        assert step_mhz(opt) == 0
        yield opt


def step_mhz(opt: PFOFileOptimizer) -> int:
    """Runs a step; returns the clock of its instruction."""
    opt.on_step_begin()
    opt.on_instruction_begin("forward")
    mhz = opt._clocks.words[shared_page.TARGET]
    opt.on_instruction_end("forward")
    opt.on_step_end()
    return mhz


def hear(opt: PFOFileOptimizer, message: ToTraining) -> None:
    opt._link.put_back(message)


def schedule(number: int, start_step: int = 0, steps: int = 0) -> NewSchedule:
    plan = RankPlan([("forward", 900)])
    return NewSchedule(number=number, start_step=start_step, steps=steps, plans=[plan], ranks={0: 0})


def test_a_schedule_that_holds_for_some_steps_ends_by_itself_on_the_rank(
    opt: PFOFileOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    hear(opt, schedule(50, start_step=3, steps=3))
    seen = [step_mhz(opt) for _ in range(8)]
    hear(opt, schedule(51, start_step=10))
    seen += [step_mhz(opt) for _ in range(4)]
    assert seen == [0, 0, 900, 900, 900, 0, 0, 0, 0, 900, 900, 900]
    assert caplog.text.count("no new schedule has come for 3 steps") == 1


def test_a_plan_for_a_straggler_ends_when_its_lease_is_not_renewed(
    opt: PFOFileOptimizer, caplog: pytest.LogCaptureFixture, wait_for: Callable[..., Any]
) -> None:
    hear(opt, schedule(50))
    hear(opt, PaceLeaseRenewed(lease_s=0.2))
    assert step_mhz(opt) == 900
    wait_for(lambda: step_mhz(opt) == 0, what="the end of the lease")
    assert step_mhz(opt) == 0
    assert caplog.text.count("the scheduler has not reported") == 1
    hear(opt, PaceLeaseRenewed(lease_s=60.0))
    assert step_mhz(opt) == 900
    hear(opt, PaceLeaseRenewed(lease_s=0))
    assert step_mhz(opt) == 900, "other schedules stay for ever"


def test_a_directory_that_answers_again_does_not_bring_a_stragglers_plan_back(opt: PFOFileOptimizer) -> None:
    hear(opt, schedule(50))
    assert step_mhz(opt) == 900
    hear(opt, PaceLeaseRenewed(lease_s=1e-9))
    hear(opt, ClocksHeld(why="lost"))
    assert step_mhz(opt) == 0
    hear(opt, ClocksHeld())
    assert step_mhz(opt) == 0
    hear(opt, PaceLeaseRenewed(lease_s=60.0))
    assert step_mhz(opt) == 900


def test_the_death_of_a_clock_process_is_reported_to_the_helper_once(
    opt: PFOFileOptimizer, wait_for: Callable[..., Any]
) -> None:
    client = opt._link.client
    assert isinstance(client, FakeClient)
    assert opt._clocks.pid is not None
    os.kill(opt._clocks.pid, signal.SIGKILL)

    def problems() -> list[ProblemSeen]:
        return [message for message in client.sent if isinstance(message, ProblemSeen)]

    wait_for(lambda: (step_mhz(opt), problems())[1])
    for _ in range(3):
        step_mhz(opt)
    (problem,) = problems()
    assert "rank 0: there is no clock process any more" in problem.message
