"""A clock that tests move."""

from __future__ import annotations


class Clock:
    """Monotonic seconds."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now
