"""Calls methods when this process ends or forks, without keeping their objects alive."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from pfo_fs.ipc.optional_calls import after_fork_in_child

_in_children: set[WeakMethod[Any]] = set()


def at_process_end(method: Callable[[BaseException | None], object]) -> None:
    """Calls a method when this process ends, with the exception that ends it, or None.

    A process that `multiprocessing` has started runs no `atexit`, but finalizers of its own.
    """
    weak = WeakMethod(method)

    def end(error: BaseException | None) -> None:
        alive = weak()
        if alive is not None:
            alive(error)

    atexit.register(lambda: end(getattr(sys, "last_value", None)))
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, lambda: end(sys.exc_info()[1]), exitpriority=0)


def in_forked_children(method: Callable[[], object]) -> None:
    """Calls a method in each child that this process forks."""
    _in_children.add(WeakMethod(method, _in_children.discard))


def _tell_child() -> None:
    for weak in list(_in_children):
        alive = weak()
        if alive is not None:
            alive()


after_fork_in_child(_tell_child)
