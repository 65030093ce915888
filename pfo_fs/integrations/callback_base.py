"""Callbacks of frameworks that are imported only when a callback is made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

from pfo_fs.errors import ConfigError


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


@lru_cache
def _with_base(kind: Hashable, load_base: Callable[[], type], install: str) -> type:
    assert isinstance(kind, type)
    try:
        base = load_base()
    except ImportError as error:
        raise ConfigError(f"{kind.__name__} needs {install}") from error
    return type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})
