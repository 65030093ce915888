"""Callbacks of frameworks that are imported only when a callback is made."""

from __future__ import annotations

from functools import lru_cache
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.monitor import EnergyMonitor

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
    _options: dict[str, Any]

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
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: value for name, value in self._options.items() if not isinstance(value, EnergyMonitor)}
        return _unstarted, (type(self).__mro__[1], options)

    def close(self) -> None:
        """Undoes what the callback has set, and takes it off the trainer."""
        raise NotImplementedError

    def __enter__(self: AnyCallback) -> AnyCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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
