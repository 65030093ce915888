"""Publishes a job's state: in `current.json`, for ranks and users, and in the log, where each cause stands once."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pfo_fs.errors import RecordError, StoreError, StoreUnavailable
from pfo_fs.store import JobFolder, bodies

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


log = logging.getLogger(__name__)

_CHECK_EVERY_S = 2.0
"""How soon a `current.json` that another user has replaced is written again, for one read."""

State = Literal["waiting", "running", "broken", "ended"]


@dataclass
class StatusPublisher:
    """Publishes the state of one coordinator's job; `message` is text about a problem, and may be empty."""

    folder: JobFolder
    still_leads: Callable[[], bool]
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self.state: State = "waiting"
        self.message = ""
        self._published: bodies.CurrentBody | None = None
        self._status_text = ""
        self._checked = -math.inf
        self._log = LogOnce(log, self.monotonic)

    def set(self, state: State, message: str) -> None:
        """Sets the job's state, and logs a new message."""
        if message and (state, message) != (self.state, self.message):
            self.log(logging.INFO if message in ("finished", "interrupted") else logging.WARNING, message)
        self.state, self.message = state, message

    def publish(self, body: bodies.CurrentBody, *, force: bool = False) -> None:
        """Writes `current.json` if it differs from what was written last, or if another coordinator has replaced it."""
        if (body == self._published and not force and self._still_there()) or not self.still_leads():
            return
        if body.status_text != self._status_text:
            self._status_text = body.status_text
            log.info("job %s: %s", self.folder.job_id, body.status_text)
        self.folder.write(body)
        self._published = body

    def _still_there(self) -> bool:
        """Checks every two seconds that what was published is still there: an older coordinator that was
        suspended before may have replaced it, or another user, whose file may name any generation."""
        now = self.monotonic()
        if now - self._checked < _CHECK_EVERY_S:
            return True
        self._checked = now
        try:
            return self.folder.read(bodies.CurrentBody) == self._published
        except StoreUnavailable:
            raise
        except (RecordError, StoreError):  # of a user who is not trusted, or no record at all
            return False

    def no_answer(self, error: StoreError | RecordError) -> None:
        """Logs that the shared directory does not answer."""
        self.log(logging.WARNING, f"the shared directory does not answer: {error.args[-1]}")

    def log(self, level: int, text: str) -> None:
        """Logs a problem that every poll may find: once, until its cause has been gone for a while (`LogOnce`)."""
        self._log.log(level, f"job {self.folder.job_id}: {text}")
