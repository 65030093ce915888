"""The power-limit optimizer as a callback of Lightning's Trainer; making one imports Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfo_fs.integrations.callback_base import FrameworkCallback, PowerLimitCallback

if TYPE_CHECKING:
    from lightning import Trainer


class LightningCallback(FrameworkCallback):
    """A `lightning.Callback`."""

    needs = "Lightning: pip install 'pfo-fs[lightning]'"

    @staticmethod
    def load_base() -> type:
        """See `FrameworkCallback`."""
        try:
            from lightning import Callback
        except ImportError:
            from pytorch_lightning import Callback
        base: type = Callback
        return base

    def _log_metrics(self, trainer: Trainer) -> None:
        """Gives `metrics()` to the trainer's loggers, after a step that is logged."""
        if trainer.loggers and trainer.global_step % trainer.log_every_n_steps == 0:
            metrics = self.metrics()
            for logger in trainer.loggers if metrics else ():
                logger.log_metrics(metrics, step=trainer.global_step)


class LightningPowerLimitOptimizer(LightningCallback, PowerLimitCallback):
    """`GlobalPowerLimitOptimizer` as a `lightning.Callback`.

        Trainer(..., callbacks=[LightningPowerLimitOptimizer(optimum_selector=MaxSlowdownConstraint(1.05))])

    A step is an optimizer step, whatever the number of micro-batches. Validation is left out of what is measured. The
    trainer's loggers get `metrics()` every `log_every_n_steps` steps. The earlier levels are restored when training
    ends, also by an exception, and when the process ends.

    Args:
        args, options: Arguments of `GlobalPowerLimitOptimizer`. It is made when training is set up, because ranks
            can exchange messages only then.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer`; before the first training, one that does nothing.

    Raises:
        InvalidArgument: As `GlobalPowerLimitOptimizer`.
        ConfigError: Lightning is not installed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._take(args, options)

    def _prepare(self, *arguments: Any, **options: Any) -> None:
        super()._prepare(*arguments, **options)
        self._step = -1  # `global_step` at the begin of the step that runs

    def setup(self, _trainer: object, _module: object, stage: str) -> None:
        """The process group exists now."""
        if stage == "fit":
            self.start()

    def on_train_start(self, *_args: object) -> None:
        """Training begins, maybe not for the first time."""
        self._step = -1

    def on_train_batch_start(self, trainer: Trainer, *_args: object) -> None:
        """A micro-batch begins: the first one of a step if there was an optimizer step since the last one."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self.optimizer.on_step_begin()

    def on_train_batch_end(self, trainer: Trainer, *_args: object) -> None:
        """A micro-batch ends: the last one of a step if there was an optimizer step."""
        if trainer.global_step != self._step:
            self.optimizer.on_step_end()
            self._log_metrics(trainer)

    def on_train_epoch_end(self, *_args: object) -> None:
        """An epoch ends; what is being measured goes on in the next one."""
        self.optimizer.pause_measurement()

    def on_validation_start(self, *_args: object) -> None:
        """Validation begins; it is not measured."""
        self.optimizer.pause_measurement()

    def on_validation_end(self, *_args: object) -> None:
        """Validation ends."""
        self.optimizer.resume_measurement()

    def on_exception(self, *_args: object) -> None:
        """Training has failed, or was interrupted; the earlier levels are restored."""
        self.on_train_end()
