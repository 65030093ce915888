"""What an instruction tracker needs of a clock process, and a replacement where there is none."""

from __future__ import annotations

from typing import Protocol


class Clocks(Protocol):
    """What the tracker needs of a clock process."""

    words: memoryview

    def ring_doorbell(self) -> None:
        """Wakes the clock process."""

    def name_id(self, name: str) -> int:
        """Returns the number of an instruction's name."""

    def check(self) -> bool:
        """Warns if the clock process has died."""


class NoClocks:
    """Replaces the clock process in a forked child, which has none."""

    def __init__(self, words: memoryview) -> None:
        self.words = words

    def ring_doorbell(self) -> None:
        """Does nothing."""

    def name_id(self, name: str) -> int:
        """Returns the same number for each name."""
        return 0

    def check(self) -> bool:
        """Returns False: there is nothing to check."""
        return False
