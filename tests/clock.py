"""Clocks that tests move."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


class Clock:
    """Monotonic seconds."""

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
