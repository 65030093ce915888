"""Calls methods when this process ends or forks, without keeping their objects alive."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

from pfo_fs.ipc.optional_calls import after_fork_in_child

_in_children: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def at_process_end(method: Callable[[BaseException | None], object]) -> None:
    """Calls a method when this process ends, with the exception that ends it, or None.

    A process that `multiprocessing` has started runs no `atexit`, but finalizers of its own.
    """
    assert isinstance(method, MethodType)
    weak, function = ref(method.__self__), method.__func__

    def end(error: BaseException | None) -> None:
        alive = weak()
        if alive is not None:
            function(alive, error)

    atexit.register(lambda: end(getattr(sys, "last_value", None)))
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, lambda: end(sys.exc_info()[1]), exitpriority=0)


def in_forked_children(method: Callable[[], object]) -> None:
    """Calls a method in each child that this process forks; one method of an object."""
    assert isinstance(method, MethodType)
    _in_children[method.__self__] = method.__func__


def _tell_child() -> None:
    for thing, function in list(_in_children.items()):
        function(thing)


after_fork_in_child(_tell_child)
