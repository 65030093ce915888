"""Warnings of the training process, each logged once."""

from __future__ import annotations

import logging

log = logging.getLogger("pfo_fs")


class WarnOnce:
    """Logs a warning once for each key, until the key is forgotten."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def __call__(self, text: str, key: str = "") -> bool:
        """Logs `text` unless a warning with this key (by default the text) was logged; returns whether it did."""
        first = self.is_first(key or text)
        if first:
            log.warning("%s", text)
        return first

    def is_first(self, key: str) -> bool:
        """Returns whether there was no warning with this key yet, and counts one."""
        if key in self._keys:
            return False
        self._keys.add(key)
        return True

    def forget(self, key: str) -> None:
        """Makes the next warning with this key be logged again."""
        self._keys.discard(key)
