"""A log in which each cause stands once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

GONE_AFTER_S = 3600.0
"""A cause that has not been reported for this time is over: the next report of it is logged again."""
_MOST_CAUSES = 200
"""The oldest causes are forgotten: memory stays bounded, and a cause that is back after 200 others is said again."""


@dataclass
class LogOnce:
    """Logs a text the first time that it is reported, and again after it was not reported for `GONE_AFTER_S`."""

    logger: logging.Logger
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._reported: dict[str, float] = {}  # when each text was reported last
        self._lock = threading.Lock()

    def log(self, level: int, text: str) -> None:
        now = self.monotonic()
        with self._lock:
            last = self._reported.pop(text, None)
            self._reported[text] = now
            if len(self._reported) > _MOST_CAUSES:
                del self._reported[next(iter(self._reported))]
        if last is None or now - last > GONE_AFTER_S:
            self.logger.log(level, "%s", text)
