"""What the programs of these tests share: an optimizer that records what the adapter calls, and a file of facts."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pfo_fs.errors import PfoError
from pfo_fs.store import Files, SharedDirectory, bodies
from pfo_fs.training import optimizer


class RecordingOptimizer(optimizer.PFOFileOptimizer):
    """Records the instructions of each step, and calls that come in the wrong place.

    Attributes:
        steps: Of each step, (name, stage) of its instructions.
        errors: What was called in the wrong place.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.steps: list[list[tuple[str, int | None]]] = []
        self.errors: list[str] = []
        self.in_step = False
        self.running: str | None = None
        begin, end = self.on_instruction_begin, self.on_instruction_end

        def record_begin(name: str, *, stage: int | None = None) -> None:
            if not self.in_step or self.running is not None:
                self.errors.append(f"{name} begins {f'inside {self.running}' if self.in_step else 'outside a step'}")
            else:
                self.steps[-1].append((name, stage))
            self.running = name
            begin(name, stage=stage)

        def record_end(name: str) -> None:
            if self.running != name:
                self.errors.append(f"{name} ends while {self.running} runs")
            self.running = None
            end(name)

        self.__dict__.update(on_instruction_begin=record_begin, on_instruction_end=record_end)

    def on_step_begin(self) -> None:
        if self.in_step:
            self.errors.append("a step begins in a step")
        self.in_step, self.running = True, None
        self.steps.append([])
        super().on_step_begin()

    def on_step_end(self) -> None:
        if not self.in_step:
            self.errors.append("a step ends that did not begin")
        self.in_step = False
        super().on_step_end()


optimizer.PFOFileOptimizer = RecordingOptimizer  # type: ignore[misc]  # what adapters make


def given() -> dict[str, Any]:
    """What the test gives the program."""
    return {"shared_dir": os.environ["PFO_FS_SHARED_DIR"], **json.loads(sys.argv[1])}


def run_cases(run_case: Callable[..., dict[str, Any]]) -> None:
    """Runs the cases that the test gives, all on the same ranks, and tells what each saw, or why it was refused.

    To start processes and to import a framework takes longer than to train.
    """
    found = {}
    for name, options in given()["cases"].items():
        try:
            found[name] = run_case(**options)
        except PfoError as error:
            found[name] = {"refused": f"{type(error).__name__}: {error}"}
        dist.barrier()
    Path(f"{given()['shared_dir']}.{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def order_in_directory(rank: int, job_id: str) -> Any:
    """A rank's order as a scheduler finds it in the shared directory; None if it does not come."""
    job = SharedDirectory(Files(given()["shared_dir"])).job(job_id)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        body = job.read(bodies.OrderBody, rank=rank)
        if body is not None:
            return body.instructions
        time.sleep(0.02)
    return None


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    """Tells whether tensors are equal, bit by bit."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
