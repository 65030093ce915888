"""How several hosts that run `pfo-fs doctor --peer` find each other in the directory, and exchange what they find.

Each host replaces one file of its own, `doctor/<random id>.json`, with a counter. A host counts as there when its
counter was seen to change, so files of earlier runs do no harm. `exchange` also makes the hosts go step by step.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pfo_fs.errors import PfoError, RecordError, StoreError
from pfo_fs.models import Count, ShortText
from pfo_fs.store import Files, Header, decode, encode, layout

_FILE = re.compile(r"[0-9a-f]{16}\.json")
_LIMIT = 64 << 10
_MOST_FILES = 200
_POLL_S = 0.02
_REPLACE_EVERY_S = 0.3


class PeersNotFound(PfoError):
    """The hosts did not all find each other in time; `too_many`: more hosts than expected were there."""

    def __init__(self, text: str, *, too_many: bool = False) -> None:
        super().__init__(text)
        self.too_many = too_many


class PeerLost(PfoError):
    """A host has stopped answering."""


class _Body(BaseModel):
    """What a host writes.

    Attributes:
        host: Its name.
        counter: Counts the replacements of the file.
        members: The ids that it has found, its own included, once they are as many as expected.
        said: What it has given to each `exchange` so far, as JSON.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    host: ShortText
    counter: Count
    members: Annotated[list[ShortText], Field(max_length=_MOST_FILES)]
    said: Annotated[list[Annotated[str, Field(max_length=16_000)]], Field(max_length=100)]


class Board:
    """This host's place among those that run the doctor in one directory.

    Args:
        files: The shared directory.
        beat: Called often, to show that no file operation hangs.

    Attributes:
        heard_s: When a value of each host was heard last, by this host's wall clock.
    """

    def __init__(self, files: Files, beat: Callable[[], None]) -> None:
        self.me = secrets.token_hex(8)
        self.members: list[str] = [self.me]
        self.hosts: dict[str, str] = {self.me: socket.gethostname()}
        self.heard_s: dict[str, float] = {}
        self._files = files
        self.beat = beat
        self._counter = 0
        self._written_s = 0.0
        self._agreed: list[str] = []
        self._said: list[str] = []
        self._seen: dict[str, tuple[int, int]] = {}  # of each file, the first counter and the newest
        files.make_folder(layout.DOCTOR)

    @property
    def session(self) -> str:
        """A name for this group of hosts, the same on all of them."""
        return hashlib.sha256(" ".join(self.members).encode()).hexdigest()[:12]

    @property
    def is_first(self) -> bool:
        """Whether this host does what one host has to do."""
        return self.members[0] == self.me

    def label(self, one: str) -> str:
        """Returns a host's name, with its id where several have the same."""
        name = self.hosts[one]
        return name if list(self.hosts.values()).count(name) == 1 else f"{name} ({one[:4]})"

    def path(self, name: str) -> Path:
        """Returns a path for a file of this group."""
        return self._files.root / layout.DOCTOR / f"{self.session}-{name}"

    def remove_files(self) -> None:
        """Removes the files of this group."""
        with suppress(OSError):
            for name in os.listdir(self._files.root / layout.DOCTOR):
                if name.startswith(f"{self.session}-"):
                    self.beat()
                    with suppress(OSError):
                        os.unlink(self._files.root / layout.DOCTOR / name)

    def find(self, hosts: int, within_s: float) -> None:
        """Finds the other hosts.

        Args:
            hosts: How many they are, this one included.
            within_s: How long to wait for them, in s.

        Raises:
            PeersNotFound: They are fewer, or more, when the time has passed.
        """
        deadline = time.monotonic() + within_s
        while True:
            found = self._read_all()
            there = sorted([self.me, *(one for one in found if self._is_there(one))])
            self._agreed = there if len(there) == hosts else []
            self._write()
            if self._agreed and all(found[one].members == there for one in there if one != self.me):
                self.members = there
                self.hosts |= {one: found[one].host for one in there if one != self.me}
                self._write(now=True)
                return
            if time.monotonic() > deadline:
                names = ", ".join(found[one].host for one in there if one != self.me) or "no other host"
                raise PeersNotFound(
                    f"{len(there)} of {hosts} hosts within {within_s:g} s; besides this one: {names}",
                    too_many=len(there) > hosts,
                )
            self.pause()

    def exchange(self, said: Any, within_s: float = 60.0, of: Sequence[str] | None = None) -> dict[str, Any]:
        """Gives a value to all hosts; returns the values that others have given in the same call of theirs.

        Args:
            said: JSON.
            within_s: How long to wait for the slowest host, in s.
            of: The hosts whose values to wait for; None: all.

        Raises:
            PeerLost: A host gave none in time.
        """
        step = len(self._said)
        self._said.append(json.dumps(said))
        self._write(now=True)
        deadline = time.monotonic() + within_s
        heard = {self.me: said}
        while silent := [one for one in (self.members if of is None else of) if one not in heard]:
            for one in silent:
                body = self._read(one)
                if body is not None and len(body.said) > step:
                    heard[one] = _value(body.said[step], self.hosts[one])
                    self.heard_s[one] = time.time()
            self._write()
            if time.monotonic() > deadline and any(one not in heard for one in silent):
                names = ", ".join(self.hosts[one] for one in silent if one not in heard)
                raise PeerLost(f"no answer from {names} within {within_s:g} s")
            self.pause()
        return heard

    def pause(self) -> None:
        """Waits a moment, and shows that this host is there."""
        self.beat()
        time.sleep(_POLL_S)

    def leave(self, within_s: float) -> None:
        """Removes this host's file, and files of runs that have ended.

        Args:
            within_s: How long to wait, in s, until the other hosts have read what this host has said.
        """
        self._said.append("null")
        deadline = time.monotonic() + within_s
        with suppress(StoreError):
            self._write(now=True)
            while time.monotonic() < deadline and not all(self._has_all(one) for one in self.members):
                self.pause()
        ended = [one for one in self._seen if not self._is_there(one)]
        for name in [self.me, *ended]:
            with suppress(StoreError):
                self._files.remove(f"{layout.DOCTOR}/{name}.json")
        with suppress(OSError):
            os.rmdir(self._files.root / layout.DOCTOR)  # fails while another host's file is in it

    def _has_all(self, one: str) -> bool:
        """Returns whether a host has everything that this host has said: it leaves too, or has left."""
        if one == self.me or f"{one}.json" not in self._files.names(layout.DOCTOR):
            return True
        body = self._read(one)
        return body is not None and len(body.said) >= len(self._said)

    def _is_there(self, one: str) -> bool:
        first, newest = self._seen.get(one, (0, 0))
        return newest > first

    def _read_all(self) -> dict[str, _Body]:
        names = [name for name in self._files.names(layout.DOCTOR) if _FILE.fullmatch(name)][:_MOST_FILES]
        found = {name[:-5]: self._read(name[:-5]) for name in names if name[:-5] != self.me}
        there = {one: body for one, body in found.items() if body is not None}
        for one, body in there.items():
            self._seen[one] = (self._seen.get(one, (body.counter, 0))[0], body.counter)
        return there

    def _read(self, one: str) -> _Body | None:
        with suppress(RecordError, StoreError):
            data = self._files.read(f"{layout.DOCTOR}/{one}.json", _LIMIT)
            return None if data is None else decode(data, "doctor", _Body)[1]
        return None

    def _write(self, *, now: bool = False) -> None:
        """Replaces this host's file, if it is time to."""
        if not now and time.monotonic() - self._written_s < _REPLACE_EVERY_S:
            return
        self._counter += 1
        body = _Body(host=self.hosts[self.me], counter=self._counter, members=self._agreed, said=self._said)
        header = Header("doctor", "", f"doctor@{self.hosts[self.me]}:{os.getpid()}", self._counter)
        self._files.publish(f"{layout.DOCTOR}/{self.me}.json", encode(header, body))
        self._written_s = time.monotonic()


def _value(text: str, host: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise PeerLost(f"{host} has written something else than this command does") from None
