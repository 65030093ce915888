"""Callbacks of frameworks that are imported only when a callback is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from inspect import Parameter, signature
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from pfo_fs.errors import ConfigError
from pfo_fs.guard import Guard
from pfo_fs.integrations.pipeline_marks import ObjectWraps
from pfo_fs.loads import from_batch
from pfo_fs.power_limit.monitor import EnergyMonitor
from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer
from pfo_fs.power_limit.options import check_numbers
from pfo_fs.training.load_clocks import LoadClocks

AnyCallback = TypeVar("AnyCallback", bound="FrameworkCallback")


class FrameworkCallback:
    """A callback with a framework's class among its bases, whose copies are those of a user who has just made one.

    Callbacks are copied before training starts (`ddp_spawn`, notebooks, Ray), also to other processes, and each copy
    serves its own process.

    Raises:
        ConfigError: The framework is not installed.
    """

    needs: ClassVar[str]
    """What to install, for an error."""

    @staticmethod
    def load_base() -> type:
        """Imports the framework, and returns its class of callbacks."""
        raise NotImplementedError

    def __new__(cls: type[AnyCallback], *_args: Any, **_options: Any) -> AnyCallback:
        kind: Any = cls
        made: AnyCallback = object.__new__(_with_base(kind))
        return made

    def _prepare(self, options: dict[str, Any]) -> None:
        """Sets all attributes, without starting anything."""
        self._options = options
        self._wraps = ObjectWraps()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: value for name, value in self._options.items() if not isinstance(value, EnergyMonitor)}
        return _unstarted, (type(self).__mro__[1], options)

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
    """A callback that holds a `GlobalPowerLimitOptimizer`.

    Attributes:
        optimizer: The optimizer; before it is started, one that does nothing.
    """

    def _take(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Prepares for the arguments of a `GlobalPowerLimitOptimizer`, which tells what is wrong with those left."""
        names = [
            name
            for name, one in signature(GlobalPowerLimitOptimizer).parameters.items()
            if one.kind is Parameter.POSITIONAL_OR_KEYWORD
        ]
        names += [f"argument {number + 1}" for number in range(len(names), len(arguments))]
        given = dict(zip(names, arguments, strict=False)) | options
        check_numbers(given)
        self._prepare(given)

    def _prepare(self, options: dict[str, Any]) -> None:
        super()._prepare(options)
        self._is_started = False
        self.optimizer = GlobalPowerLimitOptimizer.nothing()

    def start(self) -> None:
        """Makes the optimizer, once; a collective call of all ranks."""
        if not self._is_started:
            self._is_started = True
            self.optimizer = GlobalPowerLimitOptimizer(**self._options)

    def metrics(self) -> dict[str, float]:
        """See `GlobalPowerLimitOptimizer`."""
        return self.optimizer.metrics()

    def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Training ends; the earlier levels are restored."""
        self.optimizer.pause()

    def close(self) -> None:
        """Restores the earlier levels and finishes writing; what was attached is taken off."""
        super().close()
        self.optimizer.close()


class LoadClocksCallback(FrameworkCallback):
    """A callback that holds a `LoadClocks`.

    Args:
        shared_dir: The directory that all ranks, the daemon and users share.
        loads: Reads the load of a batch, on the CPU, as the loader for training gives it; `pfo_fs.loads.from_batch`
            finds what packing collators give.
        options: Other arguments of `LoadClocks`.

    Attributes:
        clocks: The `LoadClocks`; before it is started, one that does nothing.
    """

    def __init__(
        self, shared_dir: str | os.PathLike[str], loads: Callable[[Any], Any] = from_batch, **options: Any
    ) -> None:
        self._prepare({"shared_dir": shared_dir, "loads": loads, **options})

    def _prepare(self, options: dict[str, Any]) -> None:
        super()._prepare(options)
        strict = bool(options.get("strict"))
        self._guard = Guard(lambda _: self.close(), strict=strict, what="clocks from loads")
        self.clocks = LoadClocks.nothing()
        self._model: Any = None  # that of `clocks`, until they are closed

    def start(self, model: Any) -> None:
        """Makes the `LoadClocks` of a model, if there is none; a collective call of all ranks."""
        if model is not self._model:
            self.clocks.close()
            options = {name: value for name, value in self._options.items() if name != "loads"}
            self.clocks, self._model = LoadClocks(model=model, **options), model

    def _load(self, batch: Any) -> Any:
        """Reads a load before the batch is on a GPU; the error of one that cannot be read comes in its place."""
        try:
            return self._options["loads"](batch)
        except Exception as error:  # noqa: BLE001  `LoadClocks` warns of it
            return error

    def metrics(self) -> dict[str, float]:
        """See `LoadClocks`."""
        return self.clocks.metrics()

    def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Training ends: default clocks."""
        self._model = None
        self.clocks.close()

    def close(self) -> None:
        """Resets the clocks, and takes everything off the trainer."""
        super().close()
        self._model = None
        self.clocks.close()


def given(loads: Iterable[Any]) -> Iterator[Any]:
    """Returns the loads of a step for `LoadClocks.step`, and raises the error of one that could not be read."""
    for load in loads:
        if isinstance(load, Exception):
            raise load
        yield load


def _unstarted(kind: type[FrameworkCallback], options: dict[str, Any]) -> FrameworkCallback:
    made = kind.__new__(kind)
    made._prepare(options)
    return made


@lru_cache
def _with_base(kind: Any) -> type:
    try:
        base = kind.load_base()
    except ImportError as error:
        raise ConfigError(f"{kind.__name__} needs {kind.needs}") from error
    return type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})
