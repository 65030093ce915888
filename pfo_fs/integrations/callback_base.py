"""Bases of the callbacks for frameworks; the framework is imported only when a callback is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, TypeVar

from pfo_fs.errors import ConfigError
from pfo_fs.guard import Guard
from pfo_fs.integrations.pipeline_marks import ObjectWraps
from pfo_fs.loads import from_batch
from pfo_fs.power_limit.monitor import EnergyMonitor
from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer
from pfo_fs.power_limit.states import check_numbers
from pfo_fs.training.load_clocks import LoadClocks

if TYPE_CHECKING:
    from torch.nn import Module

AnyCallback = TypeVar("AnyCallback", bound="FrameworkCallback")


class FrameworkCallback:
    """A callback with a framework's class among its bases; a copy is like a callback that was just made.

    Callbacks are copied before training starts (`ddp_spawn`, notebooks, Ray), also to other processes, and each copy
    serves its own process.

    Raises:
        ConfigError: The framework is not installed.
    """

    needs: ClassVar[str]
    """What to install, for the text of an error."""

    @staticmethod
    def load_base() -> type:
        """Imports the framework, and returns its class of callbacks."""
        raise NotImplementedError

    def __new__(cls: type[AnyCallback], *_args: object, **_options: object) -> AnyCallback:
        kind: type = cls  # to mypy, a type variable cannot be hashed
        try:
            base = cls.load_base()
        except ImportError as error:
            raise ConfigError(f"{cls.__name__} needs {cls.needs}") from error
        made: AnyCallback = object.__new__(_with_base(kind, base))
        return made

    def _prepare(self, *arguments: object, **options: object) -> None:
        """Keeps the arguments, without starting anything."""
        self._arguments, self._options = arguments, options
        self._wraps = ObjectWraps()
        self._reset()

    def _reset(self) -> None:
        """Sets all other attributes."""

    def __reduce__(self) -> tuple[object, ...]:
        arguments = [None if isinstance(value, EnergyMonitor) else value for value in self._arguments]
        options = {name: value for name, value in self._options.items() if not isinstance(value, EnergyMonitor)}
        return _unstarted, (type(self).__mro__[1], arguments, options)

    def metrics(self) -> dict[str, float]:
        """Returns averages over the steps since the last call."""
        raise NotImplementedError

    def close(self) -> None:
        """Undoes what the callback has set, and takes it off the trainer."""
        self._wraps.undo()

    def __enter__(self: AnyCallback) -> AnyCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PowerLimitCallback(FrameworkCallback):
    """A callback that holds a `GlobalPowerLimitOptimizer`."""

    def __init__(self, *arguments: object, **options: object) -> None:
        with suppress(TypeError):  # `GlobalPowerLimitOptimizer` refuses arguments that it does not have
            check_numbers(signature(GlobalPowerLimitOptimizer).bind(*arguments, **options).arguments)
        self._prepare(*arguments, **options)

    def _reset(self) -> None:
        super()._reset()
        self._is_started = False
        self.optimizer = GlobalPowerLimitOptimizer.nothing()

    def start(self) -> None:
        """Makes the optimizer, once; a collective call of all ranks."""
        if not self._is_started:
            self._is_started = True
            self.optimizer = GlobalPowerLimitOptimizer(*self._arguments, **self._options)  # type: ignore[arg-type]

    def metrics(self) -> dict[str, float]:
        return self.optimizer.metrics()

    def on_train_end(self, *_args: object, **_kwargs: object) -> None:
        """Training ends; the earlier levels are restored."""
        self.optimizer.pause()

    def close(self) -> None:
        """Restores the earlier levels, finishes writing, and takes the callback off the trainer."""
        super().close()
        self.optimizer.close()


class LoadClocksCallback(FrameworkCallback):
    """A callback that holds a `LoadClocks`.

    Args:
        shared_dir: The directory that all ranks, the daemon and users share.
        loads: Reads the load of a batch on the CPU, as the loader for training gives it; `pfo_fs.loads.from_batch`
            reads the batches of packing collators.
        options: Other arguments of `LoadClocks`.
    """

    def __init__(
        self, shared_dir: str | os.PathLike[str], loads: Callable[..., object] = from_batch, **options: object
    ) -> None:
        self._prepare(loads, shared_dir=shared_dir, **options)

    def _reset(self) -> None:
        super()._reset()
        self._read: Callable[..., object]
        (self._read,) = self._arguments  # type: ignore[assignment]
        self._guard = Guard(lambda _: self.close(), strict=bool(self._options.get("strict")), what="clocks from loads")
        self.clocks = LoadClocks.nothing()
        self._model: Module | None = None  # the model of `clocks`, until they are closed

    def start(self, model: Module | None) -> None:
        """Makes the `LoadClocks` of a model, unless it has them; a collective call of all ranks."""
        if model is not self._model:
            self.clocks.close()
            self.clocks, self._model = LoadClocks(model=model, **self._options), model  # type: ignore[arg-type]

    def _load(self, batch: object) -> object:
        """Reads a load before the batch is on a GPU; None, and a warning, if it cannot be read."""
        try:
            return self._read(batch)
        except Exception as error:  # noqa: BLE001  a step whose load makes no sense has no load
            self.clocks.misread(error)
            return None

    def metrics(self) -> dict[str, float]:
        return self.clocks.metrics()

    def on_train_end(self, *_args: object, **_kwargs: object) -> None:
        """Training ends: default clocks."""
        self._model = None
        self.clocks.close()

    def close(self) -> None:
        """Resets the clocks, and takes everything off the trainer."""
        super().close()
        self._model = None
        self.clocks.close()


def _unstarted(kind: type[AnyCallback], arguments: Sequence[object], options: Mapping[str, object]) -> AnyCallback:
    made = kind.__new__(kind)
    made._prepare(*arguments, **options)
    return made


@lru_cache
def _with_base(kind: type, base: type) -> type:
    return type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})
