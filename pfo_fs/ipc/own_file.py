"""Descriptors of this package in a program that closes all that it finds, and uses their numbers for its own files."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from pfo_fs.ipc import held_calls


class OwnFile:
    """A descriptor that is closed only while it is still that of the file for which it was opened."""

    def __init__(self, fd: int) -> None:
        self._fd, self._file, self._marked = fd, os.fstat(fd), held_calls.mark(fd)

    def seems_open(self) -> bool:
        """Returns what `is_open` does, in less than a microsecond and with the interpreter lock: by a mark."""
        return held_calls.has_mark(self._fd, self._marked)

    def is_open(self) -> bool:
        """Returns whether the descriptor is still that of the file."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._fd), self._file)
        return False

    def close(self) -> None:
        """Closes the file, unless the program has."""
        if self.is_open():
            os.close(self._fd)

    def close_socket(self, of_file: socket.socket) -> None:
        """Closes the object with this descriptor, and the descriptor unless the program has."""
        if of_file.fileno() >= 0:
            of_file.detach()
            self.close()
