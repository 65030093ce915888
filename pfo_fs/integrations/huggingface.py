"""The power-limit optimizer as a callback of the Hugging Face Trainer; making one imports transformers."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.callback_base import FrameworkCallback, PowerLimitCallback
from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState


class HFCallback(FrameworkCallback):
    """A `transformers.TrainerCallback` whose metrics go along with the losses that the Trainer logs."""

    needs = "transformers: pip install 'pfo-fs[huggingface]'"

    @staticmethod
    def load_base() -> type:
        """See `FrameworkCallback`."""
        from transformers import TrainerCallback

        base: type = TrainerCallback
        return base

    def _prepare(self, *arguments: Any, **options: Any) -> None:
        super()._prepare(*arguments, **options)
        self._trainer: Trainer | None = None  # the Trainer to which the callback is attached

    def _join(self, trainer: Trainer) -> None:
        """Puts this callback before those that report.

        Raises:
            ConfigError: The Trainer is none that pfo-fs knows, or not the first one.
        """
        callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", None)
        if not isinstance(callbacks, list) or not callable(getattr(trainer, "train", None)):
            raise ConfigError(f"a {type(trainer).__name__} is no transformers.Trainer that pfo-fs knows")
        if self._trainer is not None:
            raise ConfigError("this callback is attached to a Trainer already; make one for each Trainer")
        if self in callbacks:
            callbacks.remove(self)
        # The first callback decides about evaluations and checkpoints.
        callbacks.insert(1, self)
        self._trainer = trainer

    def close(self) -> None:
        """See `FrameworkCallback`."""
        trainer, self._trainer = self._trainer, None
        super().close()
        if trainer is not None:  # a new list: the Trainer may be going through the old one
            handler = trainer.callback_handler
            handler.callbacks = [callback for callback in handler.callbacks if callback is not self]

    def on_log(
        self,
        _args: object,
        state: TrainerState,
        _control: object,
        logs: dict[str, float] | None = None,
        **_kwargs: object,
    ) -> None:
        """The Trainer logs a loss; `metrics()` goes along."""
        if logs is not None and "loss" in logs:
            metrics = self.metrics()
            logs.update(metrics)
            if state.log_history:
                state.log_history[-1].update(metrics)


class HFGlobalPowerLimitOptimizer(HFCallback, PowerLimitCallback):
    """`GlobalPowerLimitOptimizer` as a `transformers.TrainerCallback`.

        HFGlobalPowerLimitOptimizer(optimum_selector=MaxSlowdownConstraint(1.05)).attach(trainer)

    Make the `TrainingArguments` first: they set up `torch.distributed`. The arguments are those of
    `GlobalPowerLimitOptimizer`. The Trainer's logs get `metrics()`; evaluations and checkpoints are left out of what is
    measured. The earlier levels are restored when training ends, and when the process ends.

    `Trainer(callbacks=[...])` takes the callback, too, but the Trainer tells callbacks nothing of an exception, and
    calls those of TensorBoard and others first. So `attach` is better: with it, the earlier levels are restored after
    an exception in a process that goes on (a notebook), and metrics are in what is reported.

    Raises:
        InvalidArgument: As `GlobalPowerLimitOptimizer`.
        ConfigError: transformers is not installed. With `strict`, it also raises what `GlobalPowerLimitOptimizer`
            raises.
    """

    @wraps(GlobalPowerLimitOptimizer.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        self._take(args, options)
        self.start()

    def _prepare(self, *arguments: Any, **options: Any) -> None:
        super()._prepare(*arguments, **options)
        self._batch_size: int | None = None

    def attach(self, trainer: Trainer) -> HFGlobalPowerLimitOptimizer:
        """Adds this callback to a Trainer, before those that report, and restores the levels when `train` raises.

        `trainer.train` is wrapped on this object until `close`. Returns this callback.

        Raises:
            ConfigError: With `strict`: the Trainer has no `callback_handler` and `train`, or this callback is attached
                already.
        """
        self.start()  # of a copy
        with self.optimizer.guard:
            self._attach(trainer)
        return self

    def _attach(self, trainer: Trainer) -> None:
        self._join(trainer)
        train = trainer.train

        def train_and_restore(*args: object, **kwargs: object) -> object:
            try:
                return train(*args, **kwargs)
            finally:
                self.optimizer.pause()

        self._wraps.replace(trainer, "train", train_and_restore)

    def on_train_begin(self, _args: object, state: TrainerState, _control: object, **_kwargs: object) -> None:
        """Training begins, maybe again, with the smaller batches of `auto_find_batch_size`."""
        self.start()  # of a copy
        before, self._batch_size = self._batch_size, getattr(state, "train_batch_size", None)
        if before in (None, self._batch_size):
            self.optimizer.on_train_begin()
        else:
            self.optimizer.measure_again()

    def on_epoch_begin(self, *_args: object, **_kwargs: object) -> None:
        """An epoch begins."""
        self.optimizer.on_epoch_begin()

    def on_epoch_end(self, *_args: object, **_kwargs: object) -> None:
        """An epoch ends; what is being measured goes on in the next one."""
        self.optimizer.pause_measurement()

    def on_step_begin(self, *_args: object, **_kwargs: object) -> None:
        """A step begins."""
        self.optimizer.on_step_begin()

    def on_step_end(self, _args: object, _state: object, control: TrainerControl, **_kwargs: object) -> None:
        """A step ends; an evaluation or a checkpoint may follow."""
        self.optimizer.on_step_end()
        if control.should_evaluate or control.should_save:
            self.optimizer.pause_measurement()

    def on_prediction_step(self, *_args: object, **_kwargs: object) -> None:
        """A batch was evaluated."""
        self.optimizer.pause_measurement()
