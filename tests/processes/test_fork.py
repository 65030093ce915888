"""A process that is forked from training, such as a worker of a data loader, has no part in the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfo_fs import PFOFileOptimizer
from pfo_fs.device import shared_page
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies


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


def folder_of(opt: PFOFileOptimizer, tmp_path: Path) -> JobFolder:
    assert opt.job_id is not None
    return SharedDirectory(Files(tmp_path / "pfo")).job(opt.job_id)


@pytest.mark.parametrize("within_a_step", [False, True])
def test_a_forked_child_that_calls_the_optimizer_neither_writes_marks_nor_ends_the_job(
    opt: PFOFileOptimizer, tmp_path: Path, wait_for: Callable[..., Any], within_a_step: bool
) -> None:
    begin = opt.on_instruction_begin  # as a training loop may have kept it
    run_step(opt, begin)
    if within_a_step:
        opt.on_step_begin()
    before = [
        opt._clocks.words[word]
        for word in (shared_page.HEAD, shared_page.TARGET, shared_page.NAME_COUNT, shared_page.MEASURING)
    ]

    def child() -> None:
        for _ in range(3):
            run_step(opt, begin)
            opt._tracker.begin("another")
        opt.close("crashed", "in the child")

    assert in_child(child) == 0
    after = [
        opt._clocks.words[word]
        for word in (shared_page.HEAD, shared_page.TARGET, shared_page.NAME_COUNT, shared_page.MEASURING)
    ]
    assert after == before
    assert opt._clocks.alive()
    if within_a_step:
        opt.on_step_end()
    run_step(opt, begin)
    opt.close()
    end = wait_for(lambda: folder_of(opt, tmp_path).read(bodies.EndBody), "the end")
    assert end.reason == "finished"


def test_an_optimizer_that_a_forked_child_leaves_by_an_exception_goes_on_in_the_parent(
    opt: PFOFileOptimizer, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    def child() -> None:
        with opt:
            opt.on_step_begin()
            raise RuntimeError("in the child")

    assert in_child(child) == 1
    assert opt._clocks.alive()
    run_step(opt, opt.on_instruction_begin)
    assert opt._link.client is not None
    assert not opt._link.client.lost
    opt.close()
    assert wait_for(lambda: folder_of(opt, tmp_path).read(bodies.EndBody), "the end").reason == "finished"


def test_training_that_ends_without_a_step_says_what_is_missing(
    opt: PFOFileOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    opt.close()
    assert "training has ended without a step: call on_step_begin()" in caplog.text
