"""What `tools/peers` puts into another project's tests, so that they run with pfo-fs; one function for each project."""

from __future__ import annotations

import os
from functools import wraps
from types import SimpleNamespace
from typing import Any


class _ZeusGpu:
    """A GPU of Zeus's, which the test watches, in the form that pfo-fs's power-limit optimizer uses."""

    problem = trouble = ""

    def __init__(self, index: int) -> None:
        from zeus.device import get_gpus

        from pfo_fs.device.shared_page import WORDS

        self._gpus, self._index, self.name = get_gpus(), index, f"GPU-{index}"
        self.clocks = SimpleNamespace(words=memoryview(bytearray(WORDS * 8)).cast("q"))

    def bounds(self) -> Any:
        from pfo_fs.power_limit.gpus import Levels

        lowest_mw, highest_mw = self._gpus.get_power_management_limit_constraints(self._index)
        return Levels(lowest_mw / 1000, highest_mw / 1000)

    def set_level(self, level: int) -> None:
        self._gpus.set_power_management_limit(self._index, level * 1000)

    def check(self) -> str:
        return ""

    def __getattr__(self, name: str) -> Any:  # settle, restore, leave, close
        return lambda *_: None


class _Helper:
    """A helper without a process of its own: the tests make thousands of optimizers, and close none."""

    process, lost = None, False

    def __init__(self, *_: Any) -> None:
        self._told: list[Any] = []

    def request(self, message: Any, *_: Any) -> Any:
        self.send(message)
        return self._told.pop()

    def send(self, message: Any) -> bool:
        from pfo_fs.helper.power_limit_files import Asked, carry_out

        self._told += carry_out(message) if isinstance(message, Asked) else []
        return True

    def wait_for(self, *_: Any) -> Any:
        return self._told.pop() if self._told else None

    poll = wait_for

    def close(self) -> None: ...


def zeus() -> None:
    """pfo-fs's class sets the limits of Zeus's GPUs."""
    from pfo_fs.power_limit import file_client, rank_gpus

    rank_gpus.gpus_of = lambda monitor, _: [_ZeusGpu(index) for index in monitor.gpu_indices]
    file_client.HelperClient = _Helper


def torch() -> None:
    """`pfo_fs.attach` at the first step of each schedule."""
    from torch.distributed.pipelining import schedules

    import pfo_fs

    def wrap(kind: Any) -> None:
        step = kind.step

        @wraps(step)
        def attach_and_step(self: Any, *arguments: Any, **options: Any) -> Any:
            if "_peers" in self.__dict__:
                return step(self, *arguments, **options)
            self._peers = None
            self._peers = pfo_fs.attach(self, os.environ["PEERS_SHARED_DIR"])
            return self.step(*arguments, **options)

        kind.step = attach_and_step

    for kind in vars(schedules).values():
        if isinstance(kind, type) and issubclass(kind, schedules._PipelineSchedule) and "step" in vars(kind):
            wrap(kind)


def _around(kind: Any, method: str, enter: Any) -> None:
    """Makes a trainer's method run within what `enter(trainer)` returns."""
    original = getattr(kind, method)

    @wraps(original)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(self, "_peers", False):
            return original(self, *arguments, **options)
        self._peers = True
        leave = enter(self)
        try:
            return original(self, *arguments, **options)
        finally:
            leave()
            self._peers = False

    setattr(kind, method, run)


_OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 0, "profile_steps": 1, "pl_step": 100}


def lightning() -> None:
    """The callback is among the trainer's while it fits."""
    from lightning.pytorch import Trainer

    from pfo_fs.integrations.lightning import LightningPowerLimitOptimizer

    def enter(trainer: Any) -> Any:
        callback: Any = LightningPowerLimitOptimizer(**_OPTIONS)
        callback.metrics = dict  # what it would log; tests count the calls of loggers
        trainer.callbacks.insert(0, callback)

        def leave() -> None:
            if callback in trainer.callbacks:
                trainer.callbacks.remove(callback)
            callback.close()

        return leave

    _around(Trainer, "fit", enter)


def transformers() -> None:
    """The callback is attached to the Trainer while it trains."""
    from transformers import Trainer

    from pfo_fs import HFGlobalPowerLimitOptimizer

    _around(Trainer, "train", lambda trainer: HFGlobalPowerLimitOptimizer(**_OPTIONS).attach(trainer).close)
