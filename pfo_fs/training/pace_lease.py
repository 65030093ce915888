"""Limits how long a rank follows the pace of a straggler without a message from its scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable


class PaceLease:
    """A time limit that the scheduler renews. The lease of a schedule that was made without a straggler never ends.

    Args:
        monotonic: Returns the time, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until_s = math.inf

    def renew(self, lease_s: float) -> None:
        """Renews the lease: the schedule in force holds for `lease_s` seconds from now; 0: without an end."""
        self._until_s = self._monotonic() + lease_s if lease_s else math.inf

    def has_just_ended(self) -> bool:
        """Returns whether the lease has ended; true once for each lease."""
        if self._until_s == math.inf or self._monotonic() < self._until_s:
            return False
        self._until_s = math.inf
        return True
