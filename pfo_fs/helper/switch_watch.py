"""Decides when to look whether pfo-fs was switched off here, or the directory removed, and what follows from that."""

from __future__ import annotations

import math
import random
from typing import Literal, TypeAlias

from pfo_fs.helper.operations import SwitchFound

_LOCAL_S, _REMOTE_S = 1.0, 5.0
"""Seconds between two looks at the switch, on a file system of this host and of another one."""
_RANKS_PER_S = 2000.0
"""In large jobs, the hosts of about 2,000 ranks look in a second."""
_THOROUGH_EVERY = 6
"""At every sixth look, also whether the job's folder is still there."""
_GONE_AFTER_LOOKS = 3
_GONE_AFTER_S = 3.0
"""Something counts as removed after three looks over three seconds, because one listing may be old."""
_LOOK_AGAIN_S = 1.5
"""What seems to be removed is looked at again soon: three looks take the three seconds above."""

Why: TypeAlias = Literal["", "off", "removed"]


class SwitchWatch:
    """Follows the switch for the ranks of one host.

    Args:
        jitter: Spreads the looks of many hosts.

    Attributes:
        why: Why the ranks of this host must keep default clocks; empty: they need not.
        is_known: Whether the switch has been read.
    """

    def __init__(self, jitter: random.Random) -> None:
        self.why: Why = ""
        self.is_known = False
        self._jitter = jitter
        self._next_s = math.inf
        self._is_looking = False
        self._looks = 0
        self._gone_since_s: float | None = None
        self._gone_looks = 0

    def start(self) -> None:
        """Has the switch looked at from now on: the directory is known."""
        self._next_s = min(self._next_s, 0.0)

    def due_s(self) -> float:
        """Returns when to look next; never before `start` and while a look is under way."""
        return math.inf if self._is_looking else self._next_s

    def looking(self) -> bool:
        """Notes that a look is under way; returns whether it must be thorough."""
        self._is_looking = True
        self._looks += 1
        return self._looks % _THOROUGH_EVERY == 0 or self._gone_since_s is not None

    def looked(self, found: object, now_s: float, local_mount: bool, *, highest_rank: int, asked_s: float) -> None:
        """Uses the answer.

        Args:
            found: A `SwitchFound`; otherwise the directory gives no answer, and everything stays as it is.
            now_s: Monotonic time.
            local_mount: Whether all changes in the directory are made by this host.
            highest_rank: Of this host: the hosts of a large job look more rarely.
            asked_s: The coordinator asks for no more than one poll in this time.
        """
        self._is_looking = False
        pause_s = max(_LOCAL_S if local_mount else _REMOTE_S, highest_rank / _RANKS_PER_S, asked_s)
        if isinstance(found, SwitchFound):
            self.learn(found, now_s)
            if self._gone_since_s is not None and self.why != "removed":
                pause_s = _LOOK_AGAIN_S
        self._next_s = now_s + pause_s * self._jitter.uniform(0.8, 1.2)

    def learn(self, found: SwitchFound, now_s: float) -> None:
        """Uses what was found, by a look or by another operation."""
        self.is_known = True
        if not found.gone:
            self._gone_since_s, self._gone_looks = None, 0
            self.why = "off" if found.off else ""
            return
        self._gone_since_s = now_s if self._gone_since_s is None else self._gone_since_s
        self._gone_looks += 1
        if self._gone_looks >= _GONE_AFTER_LOOKS and now_s - self._gone_since_s >= _GONE_AFTER_S:
            self.why = "removed"
