"""What a coordinator says: `current.json` for the ranks and for people, and the log."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from pfo_fs.store import JobFolder, bodies

log = logging.getLogger(__name__)

_CHECK_EVERY_S = 2.0
_LOG_AGAIN_S = 60.0


class StatusPublisher:
    """Speaks for one coordinator.

    Args:
        folder: The job.
        still_leads: Asked before anything is written.
        monotonic: The clock.
    """

    def __init__(self, folder: JobFolder, still_leads: Callable[[], bool], monotonic: Callable[[], float]) -> None:
        self._folder = folder
        self._still_leads = still_leads
        self._monotonic = monotonic
        self._said: bodies.CurrentBody | None = None
        self._status_text = ""
        self._checked = -math.inf
        self._logged: dict[str, float] = {}  # what was logged lately, and when

    def say(self, body: bodies.CurrentBody, *, force: bool = False) -> None:
        """Writes `current.json` if there is something new to say, or somebody has written over it.

        Raises:
            StoreError: It cannot be written.
        """
        if (body == self._said and not force and self._still_said(body.generation)) or not self._still_leads():
            return
        if body.status_text != self._status_text:
            self._status_text = body.status_text
            log.info("job %s: %s", self._folder.job_id, body.status_text)
        self._folder.write_current(body)
        self._said = body

    def _still_said(self, generation: int) -> bool:
        """Looks, now and then, whether an older coordinator that woke up has written over what was said."""
        now = self._monotonic()
        if now - self._checked < _CHECK_EVERY_S:
            return True
        self._checked = now
        current = self._folder.read_current()
        return current == self._said or (current is not None and current.generation > generation)

    def log(self, level: int, text: str) -> None:
        """Logs what may be said at every look at most once in a while."""
        now = self._monotonic()
        self._logged = {known: at for known, at in self._logged.items() if now - at < _LOG_AGAIN_S}
        if text not in self._logged:
            self._logged[text] = now
            log.log(level, "job %s: %s", self._folder.job_id, text)
