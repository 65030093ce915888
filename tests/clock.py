"""Clocks that tests move."""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def replace_time(patch: pytest.MonkeyPatch, package: str, **functions: Callable[..., Any]) -> None:
    """Gives the loaded modules of a package other functions of `time`; the rest of the process keeps its own."""
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith(f"{package}."):
            for function, replacement in functions.items():
                if vars(module).get(function) is getattr(time, function):
                    patch.setattr(module, function, replacement)
            if vars(module).get("time") is time:
                patch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))


class VirtualTime:
    """The time of a package: it passes where that sleeps, and by 1 us whenever that looks at it."""

    def __init__(self, patch: pytest.MonkeyPatch, package: str) -> None:
        self.now_ns = 10**9
        replace_time(patch, package, monotonic_ns=self.look, monotonic=lambda: self.look() / 1e9, sleep=self.sleep)

    def look(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += max(1000, round(seconds * 1e9))
