"""The end of this process: calls methods at it, and in forked children, without keeping their objects alive."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

from pfo_fs.ipc.optional_calls import after_fork_in_child

_in_children: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def at_process_end(method: Callable[[BaseException | None], object]) -> None:
    """Calls a method when this process ends, with the exception that ends it, or None.

    A process that `multiprocessing` has started runs finalizers of its own, and no `atexit` before Python 3.13.
    """
    assert isinstance(method, MethodType)
    weak, function, bootstrap = ref(method.__self__), method.__func__, _frame_of("_bootstrap")

    def end() -> None:
        alive = weak()
        if alive is not None:
            function(alive, sys.exc_info()[1] or getattr(sys, "last_value", None) or _exit_of(bootstrap))

    atexit.register(end)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=0)


def _frame_of(function: str) -> FrameType | None:
    """Returns the frame of a function that has called this one, through others; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame


def _exit_of(bootstrap: FrameType | None) -> SystemExit | None:
    """Returns how what `multiprocessing` runs has ended: from Python 3.13 on, its exception is gone by then."""
    exit_code = bootstrap.f_locals.get("exitcode") if bootstrap is not None else None
    return SystemExit(exit_code) if exit_code else None


def in_forked_children(method: Callable[[], object]) -> None:
    """Calls a method in each child that this process forks; one method of an object."""
    assert isinstance(method, MethodType)
    _in_children[method.__self__] = method.__func__


def _tell_child() -> None:
    for thing, function in list(_in_children.items()):
        function(thing)


after_fork_in_child(_tell_child)


def how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Returns reason and message of the end of training, for the job's record."""
    if error is None:
        return "finished", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return ("crashed", f"exit code {error.code}") if error.code else ("finished", "")
    text = " ".join(str(error).split())
    return "crashed", f"{type(error).__name__}{': ' if text else ''}{text}"[:300]
