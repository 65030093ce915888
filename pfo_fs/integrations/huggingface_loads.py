"""Clocks from loads in the Hugging Face Trainer; making one imports transformers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.callback_base import LoadClocksCallback, given
from pfo_fs.integrations.huggingface import HFCallback
from pfo_fs.training.load_clocks import WAITS_IN_BACKWARDS

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.utils.data import DataLoader
    from transformers import Trainer, TrainingArguments

_CLASS: Any = vars(object)["__class__"]
"""The class of an object, also of accelerate's loaders, which tell another one."""


class HFLoadClocks(HFCallback, LoadClocksCallback):
    """`LoadClocks` for a `transformers.Trainer` that trains with DistributedDataParallel.

        HFLoadClocks("/shared/pfo").attach(trainer)
        trainer.train()

    `attach` is a collective call of all ranks. `Trainer(callbacks=[...])` takes the callback, too. The Trainer's logs
    get `metrics()`. Clocks are the default again when training ends.

    Args:
        shared_dir, loads: As for `LoadClocksCallback`: the shared directory, and what reads the load of a batch (by
            default `pfo_fs.loads.from_batch`).
        options: Other arguments of `LoadClocks`.

    Raises:
        ConfigError: transformers is not installed.
    """

    def _prepare(self, *arguments: Any, **options: Any) -> None:
        super()._prepare(*arguments, **options)
        self._watched: list[tuple[DataLoader, type]] = []  # loaders, and the classes that they had
        self._fetched: deque[object] = deque()  # loads of batches that the loader has before they are on the GPU
        self._taken: list[object] = []  # those of the batches that the Trainer has got since the last step began

    def attach(self, trainer: Trainer) -> HFLoadClocks:
        """Adds this callback to a Trainer.

        Raises:
            ConfigError: With `strict`: the Trainer is none that pfo-fs knows.
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
            skip = module.skip_first_batches  # makes a new loader for the first epoch of a training that goes on
            self._wraps.replace(
                module, "skip_first_batches", lambda *given, **named: self._watch(skip(*given, **named))
            )
            if _waits_in_backwards(args.gradient_accumulation_steps):
                self.clocks.warn(WAITS_IN_BACKWARDS)

    def _watch(self, loader: DataLoader) -> DataLoader:
        """Has the load of each batch read, where it is on the CPU; returns the loader."""
        from accelerate.data_loader import DataLoaderShard

        if issubclass(type(loader), DataLoaderShard):  # puts batches on the GPU, one ahead of what the Trainer takes
            self._change(loader.base_dataloader, lambda: self._fetch_from(loader.skip_batches), self._fetch)
        self._change(loader, self._taken.clear, self._take)
        return loader

    def _change(self, loader: DataLoader, begin: Callable[[], object], take: Callable[[object], object]) -> None:
        """Makes a loader call `begin` before an epoch and `take` with each batch; in all else, it stays what it is."""
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
        """An epoch begins, whose first batches the Trainer may not get."""
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
        """A step begins, for which the Trainer has taken all its batches."""
        self.clocks.step(given([*self._taken]))
        self._taken.clear()

    def on_train_end(self, *_args: object, **_kwargs: object) -> None:
        """Training ends: default clocks, and loaders as before."""
        self._unwatch()
        super().on_train_end()

    def close(self) -> None:
        """See `LoadClocksCallback`."""
        self._unwatch()
        super().close()


def _waits_in_backwards(micro_batches: int) -> bool:
    """Returns whether ranks wait for each other in each of several backwards: ZeRO's stage 2 and 3, FSDP."""
    from accelerate.state import AcceleratorState

    state = AcceleratorState()
    kind = state.distributed_type.value
    return micro_batches > 1 and (kind == "FSDP" or (kind == "DEEPSPEED" and state.deepspeed_plugin.zero_stage >= 2))
