"""An error of pfo-fs while training runs is one warning; the clock goes to its default, and training goes on. A process
that is forked from training, such as a worker of a data loader, has no part in the job."""

import copy
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_helper import FakeClient
from running import wait_for

from pfo_fs import PFOFileOptimizer
from pfo_fs.device import shared_page
from pfo_fs.errors import InstructionMismatch
from pfo_fs.ipc.messages import ProblemSeen
from pfo_fs.store import Files, SharedDirectory, bodies
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.schedule_feed import ScheduleFeed

Make = Callable[..., PFOFileOptimizer]


def train(opt: PFOFileOptimizer, steps: int = 3, begin: Callable[..., None] | None = None) -> None:
    for _ in range(steps):
        opt.on_step_begin()
        for name in ("forward", "backward"):
            (begin or opt.on_instruction_begin)(name)
            opt.on_instruction_end(name)
        opt.on_step_end()
        opt.metrics()


@pytest.mark.parametrize(
    ("kind", "method", "error"),
    [
        (ScheduleFeed, "step_begin", OSError("no")),
        (InstructionTracker, "step_end", MemoryError()),
        (InstructionTracker, "_begin_slowly", RecursionError()),
    ],
)
def test_an_error_in_a_callback_is_one_warning_and_the_clock_is_free(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: Any, method: str, error: Any
) -> None:
    opt = make()
    train(opt)
    monkeypatch.setattr(kind, method, Mock(side_effect=error))
    if method == "_begin_slowly":
        opt.on_step_begin()
        opt.on_instruction_begin("an unknown one")
    train(opt)
    opt.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"pfo-fs is off in this process, and training goes on: {type(error).__name__}: {error} "
        "(`pfo-fs doctor` checks this host)"
    ]


def test_calls_in_a_wrong_order_do_not_end_training(make: Make) -> None:
    opt = make()
    for _ in range(3):
        opt.on_step_end()
        opt.on_instruction_end("forward")
        opt.on_instruction_begin("backward")
        opt.on_step_begin()
        opt.on_step_begin()
        opt.on_step_end()
    train(opt)


def test_with_strict_calls_in_a_wrong_order_are_the_error_itself(make: Make) -> None:
    opt = make(strict=True)
    opt.on_step_end()
    opt.on_step_end()
    with pytest.raises(InstructionMismatch, match="on_step_end was called 3 times"):
        opt.on_step_end()


CLOSES_FILES = """
import os, sys
from pfo_fs import PFOFileOptimizer

with PFOFileOptimizer(sys.argv[1], pp_degree=1, coordination="local", wait_for_schedule_s=0.0) as opt:
    for step in range(6):
        opt.on_step_begin()
        for name in ("forward", "backward"):
            opt.on_instruction_begin(name)
            opt.on_instruction_end(name)
        opt.on_step_end()
        if step == 2:
            os.closerange(3, 256)
            files = [open("/dev/null", "wb") for _ in range(20)] if sys.argv[2] == "reopens" else []
print("trained")
"""


@pytest.mark.parametrize("then", ["", "reopens"])
def test_a_program_that_closes_all_its_files_trains_on(tmp_path: Path, make: Make, then: str) -> None:
    command = [sys.executable, "-c", CLOSES_FILES, str(tmp_path / "pfo"), then]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_copy_of_an_optimizer_does_nothing(make: Make) -> None:
    opt = make()
    train(opt)
    before = opt._clocks.words[shared_page.HEAD]
    for other in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        train(other)
        other.expect_order([("forward", None)])
        with other:
            pass
        assert (other.follows, other.job_id, other.metrics(), other.switching) == (False, None, {}, "launch")
    assert opt._clocks.words[shared_page.HEAD] == before
    train(opt)
    assert opt._clocks.alive()


def test_the_death_of_a_clock_process_is_reported_to_the_helper_once(make: Make) -> None:
    opt, client = make(), FakeClient()
    opt._link.close()
    opt._link.client = client
    train(opt)
    os.kill(opt._clocks.pid, signal.SIGKILL)

    def problems() -> list[ProblemSeen]:
        return [message for message in client.sent if isinstance(message, ProblemSeen)]

    wait_for(lambda: (train(opt), problems())[1])
    train(opt)
    (problem,) = problems()
    assert "rank 0: there is no clock process any more" in problem.message


# ---- forked children


def marks_of(opt: PFOFileOptimizer) -> list[int]:
    words = shared_page.HEAD, shared_page.TARGET, shared_page.NAME_COUNT, shared_page.MEASURING
    return [opt._clocks.words[word] for word in words]


@pytest.mark.parametrize("child", ["trains", "trains within a step", "raises"])
def test_a_forked_child_neither_writes_marks_nor_ends_a_job(make: Make, tmp_path: Path, child: str) -> None:
    opt = make()
    begin = opt.on_instruction_begin  # as a training loop may have kept it
    train(opt, 1, begin)
    if child == "trains within a step":
        opt.on_step_begin()
    before = marks_of(opt)

    pid = os.fork()
    if pid == 0:
        try:
            assert opt.metrics() == {}
            with opt:
                for _ in range(3):
                    train(opt, 1, begin)
                    opt._tracker.begin("another")
                if child == "raises":
                    raise RuntimeError("in the child")
            opt.close("crashed", "in the child")
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (child == "raises")
    assert marks_of(opt) == before
    assert opt._clocks.alive()
    assert not opt._link.client.lost
    if child == "trains within a step":
        opt.on_step_end()
    train(opt, 1, begin)
    opt.close()
    folder = SharedDirectory(Files(tmp_path / "pfo")).job(str(opt.job_id))
    assert wait_for(lambda: folder.read(bodies.EndBody), "the end").reason == "finished"


def test_training_without_a_step_says_what_is_missing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    make().close()
    assert "training has ended without a step: call on_step_begin()" in caplog.text
