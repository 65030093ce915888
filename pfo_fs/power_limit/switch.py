"""This rank's look at the switch of the shared directory: `pfo-fs off --all` holds power-limit optimizers too."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from pfo_fs.errors import CoordinationError
from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc import messages as m

log = logging.getLogger("pfo_fs")

_REVIVE_EVERY_S = 10.0
_FIRST_ANSWER_S = 3.0
"""A job that starts switched off sets no level; if the file system does not answer in this time, training starts."""


class Switch:
    """Asks one helper process per host, which reads the switch; no call waits after the start.

    Args:
        shared_dir: The shared directory; None: there is no switch.
        token: The same on all ranks of the job, which share the helper of their host by it.
        rank: This rank.
    """

    def __init__(self, shared_dir: str | None, token: str, rank: int) -> None:
        self._rank = rank
        self._helper: HelperClient | None = None
        self._revive_at_s = 0.0
        self._first: bool | None = None
        if shared_dir is None:
            return
        self._watch = m.WatchSwitch(shared_dir=shared_dir)
        with suppress(OSError, CoordinationError):  # then nothing can be switched off; the helper's own link says why
            address = f"pfo-fs-switch-{token[:12]}"
            self._helper = HelperClient(address, "", token, rank, {}, deadline_s=5.0, service="power_limit")
            self._helper.send(self._watch)
            first = self._helper.wait_for(m.ClocksHeld, _FIRST_ANSWER_S)
            self._first = bool(first.why) if isinstance(first, m.ClocksHeld) else None

    def poll(self) -> bool | None:
        """Returns whether the job is switched off, if that has changed; otherwise None."""
        helper, off, self._first = self._helper, self._first, None
        if helper is None:
            return None
        while (message := helper.poll()) is not None:
            if isinstance(message, m.ClocksHeld):
                off = bool(message.why)
        now_s = time.monotonic()
        if helper.lost and now_s >= self._revive_at_s:
            self._revive_at_s = now_s + _REVIVE_EVERY_S
            with suppress(OSError):
                helper.revive([self._watch])
        if off and self._rank == 0:
            log.warning("power limit: switched off: what was set before holds until `pfo-fs on --all`")
        return off

    def close(self) -> None:
        """Ends the connection, and with the last one of this host the helper."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None
