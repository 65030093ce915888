"""What the helper is told when the clock process of a rank is gone."""

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
    ProblemSeen,
)


@pytest.fixture
def opt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PFOFileOptimizer]:
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path / "sim"))
    place = {f"{kind}_{what}": int(what == "degree") for kind in ("dp", "pp", "tp") for what in ("rank", "degree")}
    with PFOFileOptimizer(
        tmp_path / "pfo", rank=0, world_size=1, coordination="local", switching="launch", **place
    ) as opt:
        opt._link.close()
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
