"""Clocks from loads in the Hugging Face Trainer; making one imports transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.callback_base import LoadClocksCallback
from pfo_fs.integrations.huggingface import HFCallback

_KEY = "pfo_fs_load"
"""Under this key a batch brings its load from the worker of the data loader."""


class WithLoad:
    """A data collator whose batches bring their loads, read before they are on a GPU; the same otherwise."""

    def __init__(self, collate: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
        self.collate, self.read = collate, read

    def __call__(self, features: Any) -> Any:
        """Returns the batch with its load; without one, where none can be read."""
        batch = self.collate(features)
        try:
            batch[_KEY] = tuple(map(float, self.read(batch)))
        except Exception:  # noqa: BLE001  a step without a load has default clocks, and one warning says so
            batch[_KEY] = ()
        return batch


class HFLoadClocks(HFCallback, LoadClocksCallback):
    """`LoadClocks` for a `transformers.Trainer` that trains with DistributedDataParallel.

        HFLoadClocks("/shared/pfo").attach(trainer)
        trainer.train()

    `attach` is a collective call of all ranks. The Trainer's logs get `metrics()`. Clocks are the default again when
    training ends.

    Args:
        shared_dir, loads: As for `LoadClocksCallback`: the shared directory, and what reads the load of a batch (by
            default `pfo_fs.loads.from_batch`).
        options: Other arguments of `LoadClocks`.

    Raises:
        ConfigError: transformers is not installed.
    """

    def _prepare(self, options: dict[str, Any]) -> None:
        super()._prepare(options)
        self._loads: list[Any] | None = None

    def attach(self, trainer: Any) -> HFLoadClocks:
        """Adds this callback to a Trainer; its loader for training and `get_batch_samples` are wrapped until `close`.

        Raises:
            ConfigError: With `strict`: the Trainer is none that pfo-fs knows.
        """
        with self._guard:
            if not callable(getattr(trainer, "get_batch_samples", None)):
                raise ConfigError(f"a {type(trainer).__name__} is no transformers.Trainer (4.46 or later)")
            make_loader, take = trainer.get_train_dataloader, trainer.get_batch_samples

            def train_loader(*args: Any, **kwargs: Any) -> Any:
                collate = trainer.data_collator
                # Of this loader only: evaluations have their own.
                trainer.data_collator = WithLoad(collate, self._options["loads"])
                try:
                    return make_loader(*args, **kwargs)
                finally:
                    trainer.data_collator = collate

            self._wraps.replace(trainer, "get_train_dataloader", train_loader)
            self._wraps.replace(trainer, "get_batch_samples", lambda *args, **kwargs: self._took(take(*args, **kwargs)))
            trainer.add_callback(self)
            self._trainer = trainer
            self.start(trainer.model)
        return self

    def _took(self, found: Any) -> Any:
        """Keeps the loads of the micro-batches of the next step, and takes them off the batches."""
        loads = [batch.pop(_KEY, ()) if isinstance(batch, dict) or hasattr(batch, "pop") else () for batch in found[0]]
        self._loads = loads if all(loads) else None
        return found

    def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """A step begins."""
        loads, self._loads = self._loads, None
        self.clocks.step(loads)
