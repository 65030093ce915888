"""Callbacks of frameworks that are imported only when a callback is made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.monitor import EnergyMonitor


def made_with_base(kind: type, load_base: Callable[[], type], install: str) -> Any:
    """Returns a new, uninitialised object of `kind` with a framework's class among its bases.

    Args:
        kind: The class.
        load_base: Imports the framework, and returns its class.
        install: What to install where that fails, for the error.

    Raises:
        ConfigError: The framework is not installed.
    """
    return object.__new__(_with_base(kind, load_base, install))


class CopiedUnstarted:
    """A callback whose copies, also in other processes, are those of a user who has just made one.

    Callbacks are copied before training starts (`ddp_spawn`, notebooks, Ray), and measure the GPU of their own process.
    """

    _options: dict[str, Any]

    def _prepare(self, options: dict[str, Any]) -> None:
        """Sets all attributes, without starting anything."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        options = {name: value for name, value in self._options.items() if not isinstance(value, EnergyMonitor)}
        return _unstarted, (type(self).__mro__[1], options)


def _unstarted(kind: type[CopiedUnstarted], options: dict[str, Any]) -> CopiedUnstarted:
    made = kind.__new__(kind)
    made._prepare(options)
    return made


@lru_cache
def _with_base(kind: Hashable, load_base: Callable[[], type], install: str) -> type:
    assert isinstance(kind, type)
    try:
        base = load_base()
    except ImportError as error:
        raise ConfigError(f"{kind.__name__} needs {install}") from error
    return type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})
