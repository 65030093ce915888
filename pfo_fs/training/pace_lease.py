"""For how long a rank may follow the pace of a straggler without a sign of its scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable


class PaceLease:
    """Ends when the scheduler has not renewed it in time. A schedule made for no straggler has a lease without an end.

    Args:
        monotonic: The clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until_s = math.inf

    def renew(self, lease_s: float) -> None:
        """The scheduler has reported: the schedule in force holds for `lease_s` more seconds; 0: without an end."""
        self._until_s = self._monotonic() + lease_s if lease_s else math.inf

    def has_just_ended(self) -> bool:
        """Whether the lease has ended; true once for each lease."""
        if self._until_s == math.inf or self._monotonic() < self._until_s:
            return False
        self._until_s = math.inf
        return True
