"""Callbacks of Lightning's Trainer: the power-limit optimizer, and clocks from loads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.callback_base import FrameworkCallback, LoadClocksCallback, PowerLimitCallback

if TYPE_CHECKING:
    from lightning import Trainer
    from torch.utils.data import DataLoader


class LightningCallback(FrameworkCallback):
    """A `lightning.Callback`."""

    needs = "Lightning: pip install 'pfo-fs[lightning]'"

    @staticmethod
    def load_base() -> type:
        try:
            from lightning import Callback
        except ImportError:
            from pytorch_lightning import Callback
        base: type = Callback
        return base

    def _log_metrics(self, trainer: Trainer) -> None:
        """Gives `metrics()` to the trainer's loggers, after a step that is logged."""
        if trainer.loggers and (every := trainer.log_every_n_steps) and trainer.global_step % every == 0:
            metrics = self.metrics()
            for logger in trainer.loggers if metrics else ():
                logger.log_metrics(metrics, step=trainer.global_step)


class LightningPowerLimitOptimizer(LightningCallback, PowerLimitCallback):
    """`GlobalPowerLimitOptimizer` as a `lightning.Callback`.

        Trainer(..., callbacks=[LightningPowerLimitOptimizer(optimum_selector=MaxSlowdownConstraint(1.05))])

    A step is an optimizer step, whatever the number of micro-batches. Validation is not measured. The trainer's
    loggers get `metrics()` every `log_every_n_steps` steps. The earlier levels are restored when training ends, also by
    an exception, and when the process ends.

    Args:
        args, options: Arguments of `GlobalPowerLimitOptimizer`, which is made when training is set up: only then can
            ranks exchange messages.

    Raises:
        InvalidArgument: As `GlobalPowerLimitOptimizer`.
        ConfigError: Lightning is not installed.
    """

    def _reset(self) -> None:
        super()._reset()
        self._step = -1  # `global_step` at the begin of the step that runs

    def setup(self, _trainer: object, _module: object, stage: str) -> None:
        """The process group exists now."""
        if stage == "fit":
            self.start()

    def on_train_start(self, *_args: object) -> None:
        """Training begins, maybe not for the first time."""
        self._step = -1

    def on_train_batch_start(self, trainer: Trainer, *_args: object) -> None:
        """A micro-batch begins: the first of a step if there was an optimizer step since the last micro-batch."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self.optimizer.on_step_begin()

    def on_train_batch_end(self, trainer: Trainer, *_args: object) -> None:
        """A micro-batch ends: the last one of a step if there was an optimizer step."""
        if trainer.global_step != self._step:
            self.optimizer.on_step_end()
            self._log_metrics(trainer)

    def on_train_epoch_end(self, *_args: object) -> None:
        """An epoch ends; the measurement goes on in the next epoch."""
        self.optimizer.pause_measurement()

    def on_validation_start(self, *_args: object) -> None:
        """Validation begins; it is not measured."""
        self.optimizer.pause_measurement()

    def on_validation_end(self, *_args: object) -> None:
        self.optimizer.resume_measurement()

    def on_exception(self, *_args: object) -> None:
        """Training has failed, or was interrupted; the earlier levels are restored."""
        self.on_train_end()


class LoaderWithLoads:
    """A data loader that fetches all micro-batches of a step before it gives the first, and keeps their loads.

    In all else, and if the trainer does not train with it, it behaves as the loader that it wraps.
    """

    _loader: DataLoader
    _read: Callable[[object], object]
    _trainer: Trainer
    _steps: deque[list[object]]

    def __init__(
        self, loader: DataLoader, read: Callable[[object], object], trainer: Trainer, steps: deque[list[object]]
    ) -> None:
        self.__dict__.update(_loader=loader, _read=read, _trainer=trainer, _steps=steps)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_loader"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._loader, name, value)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[object]:
        batches, trainer, given = iter(self._loader), self._trainer, 0
        if trainer.train_dataloader is not self:
            yield from batches
            return
        self._steps.clear()  # the epoch before may have ended before its last batch
        while given < trainer.num_training_batches:  # the last step of an epoch may have fewer micro-batches
            count = min(trainer.accumulate_grad_batches, trainer.num_training_batches - given)
            step = list(islice(batches, int(count)))
            if not step:
                return
            given += count
            self._steps.append([self._read(batch) for batch in step])
            yield from step


class LightningLoadClocks(LightningCallback, LoadClocksCallback):
    """`LoadClocks` as a `lightning.Callback`, for training with `DDPStrategy`.

        Trainer(..., strategy="ddp", callbacks=[LightningLoadClocks("/shared/pfo")])

    A step is an optimizer step: with `accumulate_grad_batches`, all its micro-batches are fetched before the first one
    runs. Validation is no part of a step. The trainer's loggers get `metrics()` every `log_every_n_steps` steps. Clocks
    are the default again when training ends, also by an exception. `LoadClocks` is made when training starts. The
    arguments are those of `LoadClocksCallback`.

    Raises:
        ConfigError: Lightning is not installed.
    """

    def _reset(self) -> None:
        super()._reset()
        self._steps: deque[list[object]] = deque()
        self._left = 0  # micro-batches of the present step that have not begun
        self._is_set_up = False

    def setup(self, trainer: Trainer, _module: object, stage: str) -> None:
        """Makes the strategy return loaders that keep loads if the trainer trains with them."""
        if stage != "fit" or self._is_set_up:
            return
        with self._guard:
            self._is_set_up = True
            process = trainer.strategy.process_dataloader
            self._wraps.replace(
                trainer.strategy,
                "process_dataloader",
                lambda loader: LoaderWithLoads(process(loader), self._load, trainer, self._steps),
            )

    def on_train_start(self, trainer: Trainer, _module: object) -> None:
        """Training starts, maybe not for the first time; all ranks are here."""
        with self._guard:
            loader = trainer.train_dataloader
            if not isinstance(loader, LoaderWithLoads):
                raise ConfigError(
                    f"LightningLoadClocks takes one loader for training, and got a {type(loader).__name__}"
                )
            self.start(trainer.model)

    def on_train_epoch_start(self, *_args: object) -> None:
        """An epoch starts, and a step with it."""
        self._left = 0

    def on_train_batch_start(self, *_args: object) -> None:
        """A micro-batch begins: the first of a step if the micro-batch before it was the last of a step."""
        if self._left == 0:
            loads = self._steps.popleft() if self._steps else []
            self._left = max(1, len(loads))
            self.clocks.step(loads or None)
        self._left -= 1

    def on_train_batch_end(self, trainer: Trainer, *_args: object) -> None:
        """A micro-batch ends; if its step ends too and is logged, `metrics()` are logged with it."""
        if not self._left:
            self._log_metrics(trainer)

    def on_exception(self, _trainer: object, _module: object, error: BaseException) -> None:
        """Training has failed, or was interrupted: default clocks."""
        self._model = None
        self.clocks.__exit__(type(error), error, error.__traceback__)

    def teardown(self, *_args: object, **_kwargs: object) -> None:
        """The trainer ends; its strategy makes loaders as before."""
        self.close()

    def close(self) -> None:
        self._is_set_up = False
        super().close()
