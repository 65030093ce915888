"""Clocks from loads in Lightning's Trainer; making one imports Lightning."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.guard import Guard
from pfo_fs.integrations.lightning import LightningCallback, log_metrics
from pfo_fs.loads import from_batch
from pfo_fs.training.load_clocks import LoadClocks


class LoaderWithLoads:
    """A data loader that fetches all micro-batches of a step before it gives the first, and keeps their loads.

    In all else, and where the trainer does not train with it, it is the loader.

    Args:
        loader: The loader.
        read: Reads the load of a batch.
        trainer: The trainer.

    Attributes:
        steps: The loads of the steps that have not begun yet, one list for each.
    """

    def __init__(self, loader: Any, read: Callable[[Any], Any], trainer: Any) -> None:
        self.__dict__.update(_loader=loader, _read=read, _trainer=trainer, steps=deque())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        batches, trainer, given = iter(self._loader), self._trainer, 0
        if trainer.train_dataloader is not self:
            yield from batches
            return
        self.steps.clear()  # an epoch may end before its last batch
        while given < trainer.num_training_batches:  # the last step of an epoch may have fewer micro-batches
            count = min(trainer.accumulate_grad_batches, trainer.num_training_batches - given)
            found = list(islice(batches, int(count)))
            if not found:
                return
            given += count
            self.steps.append([self._load(batch) for batch in found])
            yield from found

    def _load(self, batch: Any) -> Any:
        """Reads a load here, before the batch is on a GPU; the error of one that cannot be read comes in its place."""
        try:
            return self._read(batch)
        except Exception as error:  # noqa: BLE001  `LoadClocks` warns of it
            return error


class LightningLoadClocks(LightningCallback):
    """`LoadClocks` as a `lightning.Callback`, for training with `DDPStrategy`.

        Trainer(..., strategy="ddp", callbacks=[LightningLoadClocks("/shared/pfo")])

    A step is an optimizer step: with `accumulate_grad_batches`, all its micro-batches are fetched before the first one
    runs. Validation is no part of a step. The trainer's loggers get `metrics()` every `log_every_n_steps` steps. Clocks
    are the default again when training ends, also by an exception.

    Args:
        shared_dir: The directory that all ranks, the daemon and users share.
        loads: Reads the load of a batch, on the CPU, as the loader for training gives it; `pfo_fs.loads.from_batch`
            finds what packing collators give.
        options: Other arguments of `LoadClocks`, which is made when training starts.

    Attributes:
        clocks: The `LoadClocks`; None before the first training.

    Raises:
        ConfigError: Lightning is not installed.
    """

    def __init__(
        self, shared_dir: str | os.PathLike[str], loads: Callable[[Any], Any] = from_batch, **options: Any
    ) -> None:
        self._prepare({"shared_dir": shared_dir, "loads": loads, **options})

    def _prepare(self, options: dict[str, Any]) -> None:
        self._options = options
        strict = bool(options.get("strict"))
        self._guard = Guard(lambda _: self.close(), strict=strict, what="clocks from loads")
        self._steps: deque[list[Any]] | None = None
        self._left = 0  # micro-batches of the step that runs
        self._undo: Callable[[], None] | None = None
        self.clocks: LoadClocks | None = None

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        """Has the strategy make loaders that keep loads, where the trainer trains with them."""
        if stage != "fit" or self._undo is not None:
            return
        with self._guard:
            read, strategy = self._options["loads"], trainer.strategy
            process = strategy.process_dataloader
            strategy.process_dataloader = lambda loader: LoaderWithLoads(process(loader), read, trainer)
            self._undo = lambda: delattr(strategy, "process_dataloader")

    def on_train_start(self, trainer: Any, _module: Any) -> None:
        """Training starts, maybe not for the first time; all ranks are here."""
        with self._guard:
            loader = trainer.train_dataloader
            if not isinstance(loader, LoaderWithLoads):
                raise ConfigError(
                    f"LightningLoadClocks takes one loader for training, and got a {type(loader).__name__}"
                )
            options = {name: value for name, value in self._options.items() if name != "loads"}
            self._steps = loader.steps
            self.clocks = LoadClocks(model=trainer.model, **options)

    def on_train_epoch_start(self, *_args: Any) -> None:
        """An epoch starts, and a step with it."""
        self._left = 0

    def on_train_batch_start(self, *_args: Any) -> None:
        """A micro-batch begins: the first one of a step if that before it was the last one of another."""
        if self.clocks is None or self._steps is None:
            return
        if self._left == 0:
            loads = self._steps.popleft() if self._steps else []
            self._left = max(1, len(loads))
            self.clocks.step(_given(loads) if loads else None)
        self._left -= 1

    def on_train_batch_end(self, trainer: Any, *_args: Any) -> None:
        """A micro-batch ends; that of a step which is logged takes `metrics()` along."""
        if self.clocks is not None and not self._left:
            log_metrics(trainer, self.clocks.metrics)

    def on_train_end(self, *_args: Any) -> None:
        """Training ends: default clocks."""
        if self.clocks is not None:
            self.clocks.close()

    def on_exception(self, _trainer: Any, _module: Any, error: BaseException) -> None:
        """Training has failed, or was interrupted: default clocks."""
        if self.clocks is not None:
            self.clocks.__exit__(type(error), error, error.__traceback__)

    def teardown(self, *_args: Any, **_kwargs: Any) -> None:
        """The trainer ends; its strategy makes loaders as before."""
        self.close()

    def close(self) -> None:
        """Resets the clocks, and takes everything off the trainer."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
        if self.clocks is not None:
            self.clocks.close()


def _given(loads: list[Any]) -> Iterator[Any]:
    for load in loads:
        if isinstance(load, Exception):
            raise load
        yield load
