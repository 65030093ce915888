"""Callbacks of the Hugging Face Trainer: the power-limit optimizer, and clocks from loads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.callback_base import FrameworkCallback, LoadClocksCallback, PowerLimitCallback
from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer
from pfo_fs.training.load_clocks import WAITS_IN_BACKWARDS

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.utils.data import DataLoader
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

_CLASS = vars(object)["__class__"]
"""Reads and sets the class of an object, also of accelerate's loaders, which pretend to have another class."""


class HFCallback(FrameworkCallback):
    """A `transformers.TrainerCallback` whose metrics go along with the losses that the Trainer logs."""

    needs = "transformers: pip install 'pfo-fs[huggingface]'"

    @staticmethod
    def load_base() -> type:
        from transformers import TrainerCallback

        base: type = TrainerCallback
        return base

    def _reset(self) -> None:
        super()._reset()
        self._trainer: Trainer | None = None  # the Trainer to which the callback is attached

    def _join(self, trainer: Trainer) -> None:
        """Puts this callback before the callbacks that report.

        Raises:
            ConfigError: pfo-fs does not know this kind of Trainer, or the callback is attached already.
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
    `GlobalPowerLimitOptimizer`. The Trainer's logs get `metrics()`; evaluations and checkpoints are not measured.
    The earlier levels are restored when training ends, and when the process ends.

    `Trainer(callbacks=[...])` takes the callback, too, but the Trainer tells callbacks nothing of an exception, and
    calls the callbacks of TensorBoard and others first. So `attach` is better: with it, the earlier levels are restored
    after an exception even if the process goes on (a notebook), and TensorBoard and others report the metrics.

    Raises:
        InvalidArgument: As `GlobalPowerLimitOptimizer`.
        ConfigError: transformers is not installed. With `strict`, it also raises what `GlobalPowerLimitOptimizer`
            raises.
    """

    @wraps(GlobalPowerLimitOptimizer.__init__)  # type: ignore[misc]
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.start()

    def _reset(self) -> None:
        super()._reset()
        self._batch_size: int | None = None

    def attach(self, trainer: Trainer) -> HFGlobalPowerLimitOptimizer:
        """Adds this callback to a Trainer, before callbacks that report, and restores the levels when `train` raises.

        `trainer.train` is wrapped on this object until `close`. Returns this callback.

        Raises:
            ConfigError: With `strict`: the Trainer has no `callback_handler` and `train`, or this callback is attached
                already.
        """
        self.start()  # a copy has not started yet

        def train_and_restore(*args: object, **kwargs: object) -> object:
            try:
                return train(*args, **kwargs)
            finally:
                self.optimizer.pause()

        with self.optimizer.guard:
            self._join(trainer)
            train = trainer.train
            self._wraps.replace(trainer, "train", train_and_restore)
        return self

    def on_train_begin(self, _args: object, state: TrainerState, _control: object, **_kwargs: object) -> None:
        """Training begins, maybe again, with the smaller batches of `auto_find_batch_size`."""
        self.start()  # a copy has not started yet
        before, self._batch_size = self._batch_size, getattr(state, "train_batch_size", None)
        if before in (None, self._batch_size):
            self.optimizer.on_train_begin()
        else:
            self.optimizer.measure_again()

    def on_epoch_begin(self, *_args: object, **_kwargs: object) -> None:
        self.optimizer.on_epoch_begin()

    def on_epoch_end(self, *_args: object, **_kwargs: object) -> None:
        """An epoch ends; the measurement goes on in the next epoch."""
        self.optimizer.pause_measurement()

    def on_step_begin(self, *_args: object, **_kwargs: object) -> None:
        self.optimizer.on_step_begin()

    def on_step_end(self, _args: object, _state: object, control: TrainerControl, **_kwargs: object) -> None:
        """A step ends; an evaluation or a checkpoint may follow."""
        self.optimizer.on_step_end()
        if control.should_evaluate or control.should_save:
            self.optimizer.pause_measurement()

    def on_prediction_step(self, *_args: object, **_kwargs: object) -> None:
        """A batch was evaluated."""
        self.optimizer.pause_measurement()


class HFLoadClocks(HFCallback, LoadClocksCallback):
    """`LoadClocks` for a `transformers.Trainer` that trains with DistributedDataParallel.

        HFLoadClocks("/shared/pfo").attach(trainer)
        trainer.train()

    `attach` is a collective call of all ranks. `Trainer(callbacks=[...])` takes the callback, too. The Trainer's logs
    get `metrics()`. Clocks are the default again when training ends. The arguments are those of `LoadClocksCallback`.

    Raises:
        ConfigError: transformers is not installed.
    """

    def _reset(self) -> None:
        super()._reset()
        self._watched: list[tuple[DataLoader, type]] = []  # loaders, and the classes that they had
        self._fetched: deque[object] = deque()  # loads of batches that the Trainer has not got yet
        self._taken: list[object] = []  # loads of the batches that the Trainer has got since the last step began

    def attach(self, trainer: Trainer) -> HFLoadClocks:
        """Adds this callback to a Trainer.

        Raises:
            ConfigError: With `strict`: pfo-fs does not know this kind of Trainer, or this callback is attached already.
        """
        with self._guard:
            self._join(trainer)
            self.start(trainer.model)
        return self

    def on_train_begin(
        self,
        args: TrainingArguments,
        _state: object,
        _control: object,
        model: Module | None = None,
        train_dataloader: DataLoader | None = None,
        **_kwargs: object,
    ) -> None:
        """Training begins, maybe again; all ranks are here."""
        with self._guard:
            import transformers.trainer as module

            self._unwatch()
            self.start(model)
            self._watch(train_dataloader)
            skip = module.skip_first_batches  # makes a new loader for the first epoch of a resumed training
            self._wraps.replace(
                module, "skip_first_batches", lambda *given, **named: self._watch(skip(*given, **named))
            )
            if _waits_in_backwards(args.gradient_accumulation_steps):
                self.clocks.warn(WAITS_IN_BACKWARDS)

    def _watch(self, loader: DataLoader) -> DataLoader:
        """Makes the loader read the load of each batch while the batch is on the CPU; returns the loader."""
        from accelerate.data_loader import DataLoaderShard

        if issubclass(type(loader), DataLoaderShard):  # puts batches on the GPU, one batch ahead of the Trainer
            self._change(loader.base_dataloader, lambda: self._fetch_from(loader.skip_batches), self._fetch)
        self._change(loader, self._taken.clear, self._take)
        return loader

    def _change(self, loader: DataLoader, begin: Callable[[], object], take: Callable[[object], object]) -> None:
        """Makes a loader call `begin` before an epoch and `take` with each batch, and changes nothing else in it."""
        kind = type(loader)

        def iterate(self: DataLoader) -> Iterator[object]:
            begin()
            for batch in kind.__iter__(self):
                take(batch)
                yield batch

        try:
            _CLASS.__set__(loader, type(kind.__name__, (kind,), {"__iter__": iterate, "__module__": kind.__module__}))
        except TypeError as error:
            raise ConfigError(
                f"the batches of a {kind.__name__} cannot be seen; give the Trainer a DataLoader"
            ) from error
        self._watched.append((loader, kind))

    def _fetch_from(self, first: int) -> None:
        """An epoch begins; the Trainer does not get the batches before number `first`."""
        self._fetched.clear()
        self._left_out = first

    def _fetch(self, batch: object) -> None:
        if self._left_out:
            self._left_out -= 1
        else:
            self._fetched.append(self._load(batch))

    def _take(self, batch: object) -> None:
        self._taken.append(self._fetched.popleft() if self._fetched else self._load(batch))

    def _unwatch(self) -> None:
        self._wraps.undo()
        while self._watched:
            _CLASS.__set__(*self._watched.pop())
        self._fetched.clear()
        self._taken.clear()

    def on_step_begin(self, *_args: object, **_kwargs: object) -> None:
        """A step begins; the Trainer has taken all batches of the step."""
        self.clocks.step([*self._taken])
        self._taken.clear()

    def on_train_end(self, *_args: object, **_kwargs: object) -> None:
        """Training ends: default clocks, and loaders as before."""
        self._unwatch()
        super().on_train_end()

    def close(self) -> None:
        self._unwatch()
        super().close()


def _waits_in_backwards(micro_batches: int) -> bool:
    """Returns whether a step has several backwards and ranks wait in each: with ZeRO's stages 2 and 3, and FSDP."""
    from accelerate.state import AcceleratorState

    state = AcceleratorState()
    kind = state.distributed_type.value
    return micro_batches > 1 and (kind == "FSDP" or (kind == "DEEPSPEED" and state.deepspeed_plugin.zero_stage >= 2))
