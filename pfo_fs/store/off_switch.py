"""The switch that turns pfo-fs off, for one job or for all: the names in `off/`.

A switch is a name, `all` or a job's id, whatever kind of file has this name. Its content, if it has any, is for people,
and no process reads it to decide anything. So an empty, damaged, foreign or planted file counts like a good one, and
`touch off/all` does the same as the command. A listing is one operation for both names, and an NFS client asks the
server for it. Of a single name, the client remembers for half a minute that it was not there.
"""

import errno
import getpass
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pfo_fs.errors import StoreError, plain_text
from pfo_fs.store import layout
from pfo_fs.store.file_systems import FULL
from pfo_fs.store.fs import Files

_COUNTS_AS_OFF = (errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)
"""A file, a link, or a folder that may not be read, in the place of `off/`: a user has turned something off there.
Unless the folders around it refuse too: then the directory gives no answer, as with an expired Kerberos ticket."""
_MOST_BYTES = 4096


@dataclass(frozen=True)
class SwitchedOff:
    """What is off now: the names in `off/`, and whether that folder is there, which is made with the directory."""

    names: frozenset[str] = frozenset()
    is_there: bool = True

    @property
    def everything(self) -> bool:
        """Whether all jobs are off."""
        return layout.EVERY_JOB in self.names

    def covers(self, job_id: str) -> bool:
        """Whether this job is off, by itself or with all others."""
        return self.everything or job_id in self.names


@dataclass
class OffSwitch:
    """Reads and sets the switch."""

    files: Files

    def read(self) -> SwitchedOff:
        """Returns what is off now."""
        try:
            names = self.files.names_if_there(layout.OFF)
        except StoreError as error:
            if error.errno not in _COUNTS_AS_OFF:
                raise
            for folder in ("", layout.JOBS):  # raises where `off/` is not the only one that refuses
                self.files.names(folder)
            return SwitchedOff(frozenset({layout.EVERY_JOB}))
        return SwitchedOff(frozenset(names or ()), names is not None)

    def turn_off(self, name: str, why: str = "") -> None:
        """Turns a job, or all of them (`layout.EVERY_JOB`), off; a switch that is there already stays as it is."""
        switched = self.read()
        if name in switched.names:
            return
        if not switched.is_there:
            self.files.make_folder(layout.OFF)
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        text = f"off since {stamp}, by {_user()} on {socket.gethostname()}{f': {why}' if why else ''}\n"
        path, data = layout.off(name), plain_text(text, keep_lines=True).encode("utf-8", "replace")
        # A full file system may have room for an empty file, or at least for another name of the spare one.
        ways: Sequence[Callable[[], object]] = (
            lambda: self.files.claim(path, data),
            lambda: self.files.make_name(path),
            lambda: self.files.move(layout.off(layout.SPARE), path),
        )
        for way in ways:
            try:
                way()
                return
            except StoreError as error:
                if error.errno not in FULL or way is ways[-1]:
                    raise

    def turn_on(self, name: str) -> bool:
        """Removes a switch; returns whether there was one.

        Raises:
            StoreError: It cannot be removed: it belongs to another user, for example, or was not made by pfo-fs.
        """
        if name not in self.read().names:
            return False
        if layout.SPARE in self.files.all_names(layout.OFF):
            self.files.remove(layout.off(name))
        else:
            self.files.move(layout.off(name), layout.off(layout.SPARE))
        return True

    def about(self, name: str) -> str:
        """Returns what the switch says about who turned it, and when; empty if it says nothing that can be read."""
        try:
            text = (self.files.read(layout.off(name), _MOST_BYTES) or b"").decode("utf-8", "replace")
        except StoreError:
            return ""
        return plain_text(text.strip(), 300)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "an unknown user"
