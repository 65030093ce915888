"""System calls of the store of which a test replaces some, and what writers leave that die between them."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pfo_fs.store.file_systems import SystemCalls


class Calls(SystemCalls):
    """Real calls but for those given; a test may replace others later."""

    def __init__(self, **instead: Callable[..., Any]) -> None:
        for name, call in instead.items():
            setattr(self, name, call)


class Watched(SystemCalls):
    """Each call goes by way of `around(name, real call, *arguments, **options)`."""

    def __init__(self) -> None:
        for name in vars(SystemCalls):
            if not name.startswith("_"):
                setattr(self, name, partial(self.around, name, getattr(SystemCalls, name)))

    def around(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def refuses(
    number: int, real: Callable[..., Any] = lambda *_, **__: None, when: Callable[..., Any] = lambda *_, **__: True
) -> Callable[..., Any]:
    """A call that fails where `when` says so, and is the real one otherwise."""

    def call(*args: Any, **options: Any) -> Any:
        if when(*args, **options):
            raise OSError(number, os.strerror(number))
        return real(*args, **options)

    return call


def creates(_: str, flags: int, *__: Any, **___: Any) -> int:
    return flags & os.O_CREAT


def leave_behind(folder: Path, name: str = ".pfo-host-1-aa.tmp", age_s: float = 1e9) -> None:
    (folder / name).write_bytes(b"half")
    os.utime(folder / name, (time.time() - age_s, time.time() - age_s))
