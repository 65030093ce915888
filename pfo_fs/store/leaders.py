"""Finds the leading daemon: the newest generation in `leaders/` whose record is valid."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from pfo_fs.errors import RecordError, StoreError, StoreUnavailable
from pfo_fs.store import layout
from pfo_fs.store.bodies import LeaderBody
from pfo_fs.store.records import RecordFolder

log = logging.getLogger(__name__)

_MOST_READS = 32
_TRIES = 3
"""A record is read this many times before it counts as bad, because a stale read may return an older content."""
_AGAIN_EVERY = 16
"""A bad record is read again at every 16th poll: it may have been refused for a reason that has passed, such as an
NFS server that did not know its owner for a while, and then its daemon leads."""


@dataclass
class Leaders:
    """The generations of daemons: each daemon that becomes the leader claims the next number.

    A file name alone proves nothing: any member of the directory's group can put `leaders/999999999.json` there. A
    generation counts only if its record is valid and says the same number, and if no more than 1,000 numbers are
    missing below it. Names of bad records are skipped when a daemon claims the next generation.
    """

    records: RecordFolder

    def __post_init__(self) -> None:
        self._valid: set[int] = set()
        self._bad_reads: dict[int, int] = {}
        self._polls = 0

    def poll(self) -> tuple[int, int]:
        """Returns the newest generation that a daemon has claimed (0 before the first), and the next free number.

        Both come from one listing: a daemon that finds the newest leader dead must not claim a number above that of
        another daemon that has replaced the leader meanwhile. The next free number is above all names that are there.

        A call costs one listing, and up to 32 reads of records that were not checked before.

        Raises:
            StoreUnavailable: The file system gave no answer.
        """
        self._polls += 1
        most_bad_reads = _TRIES if self._polls % _AGAIN_EVERY else math.inf
        reads = 0
        listed = layout.without_jumps(self.records.numbers(LeaderBody))
        next_free = max(listed, default=0) + 1
        for generation in reversed(listed):
            bad_reads = self._bad_reads.get(generation, 0)
            if generation not in self._valid and reads < _MOST_READS and bad_reads < most_bad_reads:
                reads += 1
                self._judge(generation)
            if generation in self._valid:
                return generation, next_free
        return 0, next_free

    def claim(self, body: LeaderBody) -> bool:
        """Becomes the leader of `body.generation`; False if another daemon has."""
        claimed = self.records.write(body)
        if claimed:
            self._valid.add(body.generation)
        return claimed

    def _judge(self, generation: int) -> None:
        try:
            if self.records.read(LeaderBody, generation=generation) is not None:
                self._valid.add(generation)
                return
            problem = "it is not there any more"
        except StoreUnavailable:
            raise
        except (RecordError, StoreError) as error:
            problem = str(error.args[-1])
        self._bad_reads[generation] = self._bad_reads.get(generation, 0) + 1
        if self._bad_reads[generation] == _TRIES:
            log.warning("leaders/%d.json is ignored: %s", generation, problem)
