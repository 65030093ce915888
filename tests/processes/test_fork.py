"""A process that is forked from training, such as a worker of a data loader, has no part in the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import wait_for

from pfo_fs import PFOFileOptimizer
from pfo_fs.device import shared_page
from pfo_fs.store import Files, SharedDirectory, bodies


@pytest.fixture
def opt(make: Callable[..., PFOFileOptimizer]) -> PFOFileOptimizer:
    return make()


def run_step(opt: PFOFileOptimizer, begin: Callable[..., None]) -> None:
    opt.on_step_begin()
    begin("forward")
    opt.on_instruction_end("forward")
    opt.on_step_end()


def in_child(do: Callable[[], Any]) -> int:
    """Runs something in a forked child; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def marks_of(opt: PFOFileOptimizer) -> list[int]:
    words = shared_page.HEAD, shared_page.TARGET, shared_page.NAME_COUNT, shared_page.MEASURING
    return [opt._clocks.words[word] for word in words]


@pytest.mark.parametrize("child", ["trains", "trains within a step", "raises"])
def test_a_forked_child_that_calls_the_optimizer_neither_writes_marks_nor_ends_the_job(
    opt: PFOFileOptimizer, tmp_path: Path, child: str
) -> None:
    begin = opt.on_instruction_begin  # as a training loop may have kept it
    run_step(opt, begin)
    if child == "trains within a step":
        opt.on_step_begin()
    before = marks_of(opt)

    def do() -> None:
        with opt:
            for _ in range(3):
                run_step(opt, begin)
                opt._tracker.begin("another")
            if child == "raises":
                raise RuntimeError("in the child")
        opt.close("crashed", "in the child")

    assert in_child(do) == (child == "raises")
    assert marks_of(opt) == before
    assert opt._clocks.alive()
    assert opt._link.client is not None
    assert not opt._link.client.lost
    if child == "trains within a step":
        opt.on_step_end()
    run_step(opt, begin)
    opt.close()
    folder = SharedDirectory(Files(tmp_path / "pfo")).job(str(opt.job_id))
    assert wait_for(lambda: folder.read(bodies.EndBody), "the end").reason == "finished"


def test_training_that_ends_without_a_step_says_what_is_missing(
    opt: PFOFileOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    opt.close()
    assert "training has ended without a step: call on_step_begin()" in caplog.text
