"""What hosts that run `pfo-fs doctor DIR --peer N` at the same time see of each other in the directory.

Each host makes new, empty files, and replaces one file of its own, `doctor/<random id>.json`, that says what the host
has seen of the other hosts so far. A host notes, by its own clock, when it made a change and when it read that another
host had seen the change: the time between is twice the delay. When the files of all hosts are complete, each host
compares them by the same rules, so all hosts print the same lines.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pfo_fs.doctor.directory.names import write_new
from pfo_fs.doctor.lines import Check, line
from pfo_fs.errors import PfoError, RecordError, StoreError
from pfo_fs.models import Count, ShortText
from pfo_fs.store import Files, Header, decode, encode, layout

_FILE = re.compile(r"[0-9a-f]{16}\.json")
_LIMIT = 64 << 10
_MOST_HOSTS, _MOST_FILES = 64, 200
_POLL_S, _REPLACE_EVERY_S = 0.02, 0.3
_MOST_UNSEEN = 1000  # replacements whose times are remembered
_SEEN_WITHIN_S = 70.0
"""A host waits at most this time, in s, for other hosts to see a new name: NFS caches names for 60 s."""
_SILENT_S = 120.0
_SLOW_S, _BROKEN_S = 2.0, 65.0  # a delay above the first is "slow", from the second on "broken"
_NAMES, _COMPLETE, _COMPARED = 3, 4, 5
"""The phases of a host. It tells each phase in its file and by a new name; the names of phases 1 to 3 are timed. In
phase 4 its file is complete, in phase 5 it has read those of all hosts."""

_REPLACED, _NEW = "replaced file", "new name"


class Seen(BaseModel):
    """What a host has seen of another host: the counter in that host's file, and how many of its three names."""

    counter: Count = 0
    names: Count = 0


class Report(BaseModel):
    """What a host writes into its file.

    Attributes:
        members: The ids of all hosts, once the host has found as many hosts as it expects.
        delays_s: For each kind of change, the longest time in s until another host has seen a change.
    """

    model_config = ConfigDict(extra="ignore")

    host: ShortText
    counter: Count = 0
    members: Annotated[list[ShortText], Field(max_length=_MOST_HOSTS)] = []
    phase: Count = 0
    seen: Annotated[dict[ShortText, Seen], Field(max_length=_MOST_FILES)] = {}
    delays_s: Annotated[dict[ShortText, Annotated[float, Field(allow_inf_nan=False)]], Field(max_length=2)] = {}


class HostsMissing(PfoError):
    """There are too few hosts or too many, or a host has stopped; `outcome`: the result that doctor shows."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Hosts:
    """This host among those that run the command in one directory.

    Args:
        beat: Called often; when the calls stop, a file operation hangs.
        silent_s: A host whose file does not change for this time, in s, has stopped.

    Attributes:
        others: What each other host has written last, by id.
    """

    def __init__(self, files: Files, beat: Callable[[], None], silent_s: float = _SILENT_S) -> None:
        self.me = secrets.token_hex(8)
        self.mine = Report(host=socket.gethostname())
        self.others: dict[str, Report] = {}
        self._files, self._beat, self._silent_s = files, beat, silent_s
        self._first: dict[str, int] = {}  # the counter that each file had at first
        self._changed_s: dict[str, float] = {}  # when each counter last changed, in s of `time.monotonic`
        self._made_s: dict[tuple[str, int], float] = {}  # when each change was made, by its kind and number
        self._known: dict[tuple[str, str], int] = {}  # the last change of each kind that each host has seen
        self._ended: list[str] = []  # hosts whose files do not change
        files.make_folder(layout.DOCTOR)

    def _path(self, name: str, of: str = "") -> Path:
        return self._files.root / layout.DOCTOR / f"{of or self.me}-{name}"

    def replace(self) -> None:
        self.mine.counter += 1
        self._made_s[_REPLACED, self.mine.counter] = time.monotonic()
        self._made_s.pop((_REPLACED, self.mine.counter - _MOST_UNSEEN), None)
        header = Header("doctor", "", f"doctor@{self.mine.host}:{os.getpid()}")
        self._files.publish(f"{layout.DOCTOR}/{self.me}.json", encode(header, self.mine))

    def look(self, ids: Sequence[str]) -> None:
        """Waits a moment, replaces this host's file from time to time, and reads the files of other hosts."""
        self._beat()
        time.sleep(_POLL_S)
        if time.monotonic() - self._made_s.get((_REPLACED, self.mine.counter), 0.0) > _REPLACE_EVERY_S:
            self.replace()
        for member in ids:
            seen = self.mine.seen.setdefault(member, Seen())
            # No name is looked for early: a client may cache for a long time that it is missing.
            if seen.names < _NAMES and os.path.exists(self._path(f"phase-{seen.names + 1}", member)):
                seen.names += 1
            with suppress(RecordError, StoreError):
                data = self._files.read(f"{layout.DOCTOR}/{member}.json", _LIMIT)
                if data is not None:
                    self._saw(member, decode(data, "doctor", Report)[1])

    def _saw(self, member: str, report: Report) -> None:
        before = self.others.get(member)
        if before is None:
            self._first[member] = report.counter
        if before is None or report.counter != before.counter:
            self._changed_s[member] = time.monotonic()
        self.others[member] = report
        self.mine.seen[member].counter = report.counter
        if self.me in report.seen and self.mine.phase < _COMPLETE:  # in later phases the delays must not change
            self._was_seen(member, _REPLACED, report.seen[self.me].counter)
            self._was_seen(member, _NEW, report.seen[self.me].names)

    def _was_seen(self, member: str, kind: str, number: int) -> None:
        """Notes that a host has seen this change and all before it. The counter in its first report is not timed."""
        last = self._known.get((member, kind), 0 if kind == _NEW else number)
        self._known[member, kind] = max(last, number)
        if number > last and (kind, last + 1) in self._made_s:
            delay_s = (time.monotonic() - self._made_s[kind, last + 1]) / 2
            self.mine.delays_s[kind] = max(delay_s, self.mine.delays_s.get(kind, 0.0))

    def leave(self) -> None:
        """Removes the files of this host, and of hosts that have stopped (their command was killed)."""
        folder = self._files.root / layout.DOCTOR
        with suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith((self.me, *self._ended)):
                    self._beat()
                    with suppress(OSError):
                        os.unlink(folder / name)
            os.rmdir(folder)  # fails while another host's file is in it

    def find(self, hosts: int, within_s: float) -> None:
        """Waits at most `within_s` until `hosts` hosts are there, this one included.

        Raises:
            HostsMissing: There are fewer or more hosts when the time has passed.
        """
        deadline = time.monotonic() + within_s
        while True:
            names = [name[:-5] for name in self._files.names(layout.DOCTOR) if _FILE.fullmatch(name)]
            self.look([member for member in names if member != self.me][:_MOST_FILES])
            alive = [member for member, report in self.others.items() if report.counter > self._first[member]]
            there = sorted([self.me, *alive])
            self.mine.members = there if len(there) == hosts else []
            found = {member: self.others[member] for member in there if member != self.me}
            self._ended = [*(self.others.keys() - found.keys())]
            if self.mine.members and all(report.members == there for report in found.values()):
                self.others = found
                return
            if time.monotonic() > deadline:
                known = ", ".join(report.host for report in found.values()) or "no other host"
                text = f"{len(there)} of {hosts} hosts within {within_s:g} s; besides this one: {known}"
                raise HostsMissing("too-many" if len(there) > hosts else "missing", text)

    def _reach(self, phase: int) -> None:
        """Announces that this host has reached a phase, and waits until all other hosts have reached it.

        Raises:
            HostsMissing: A host has stopped.
        """
        self.mine.phase = phase
        self._made_s[_NEW, phase] = time.monotonic()
        write_new(self._path(f"phase-{phase}"), b"")
        self.replace()
        began_s = time.monotonic()
        while slower := [member for member in self.others if not self._has_reached(member, phase, began_s)]:
            silent = [member for member in slower if time.monotonic() - self._changed_s[member] > self._silent_s]
            if silent:
                names = ", ".join(self.others[member].host for member in silent)
                raise HostsMissing("lost", f"nothing new from {names} for {self._silent_s:g} s")
            self.look(list(self.others))

    def _has_reached(self, member: str, phase: int, began_s: float) -> bool:
        """Returns whether a host has reached a phase, and has seen this host's names or had the time to do so."""
        if phase == _COMPARED and f"{member}.json" not in self._files.names(layout.DOCTOR):
            return True  # it has removed its files
        names = self._known.get((member, _NEW), 0)
        seen = names >= min(phase, _NAMES) or time.monotonic() - began_s > _SEEN_WITHIN_S
        return self.others[member].phase >= phase and seen

    def reports(self) -> dict[str, Report]:
        """Goes through the phases with the other hosts; returns what each host has written, by its id.

        Raises:
            HostsMissing: A host has stopped.
        """
        for phase in range(1, _COMPLETE):
            self._reach(phase)
        if any(self._known.get((member, _NEW), 0) < _NAMES for member in self.others):
            self.mine.delays_s[_NEW] = _SEEN_WITHIN_S
        self._reach(_COMPLETE)
        found = {self.me: self.mine.model_copy(deep=True), **self.others}
        self._silent_s = 10.0
        with suppress(HostsMissing, StoreError):
            self._reach(_COMPARED)  # so that other hosts can still read this host's file
        return found


# ---- what all files say together


def judge(reports: Mapping[str, Report]) -> list[Check]:
    """Returns the lines about the hosts; `reports`: what each host has written, by its id."""
    names = [report.host for report in reports.values()]
    labels = {
        member: report.host if names.count(report.host) == 1 else f"{report.host} ({member[:4]})"
        for member, report in reports.items()
    }
    delays = {
        labels[member]: {kind: reports[member].delays_s.get(kind, _SEEN_WITHIN_S) for kind in (_REPLACED, _NEW)}
        for member in sorted(reports)
    }
    worst_s = max(delay_s for kinds in delays.values() for delay_s in kinds.values())
    outcome = "ok" if worst_s <= _SLOW_S else "slow" if worst_s < _BROKEN_S else "broken"
    text = "; ".join(
        f"{host}: " + ", ".join(f"{kind} {delay_s:.2f} s" for kind, delay_s in kinds.items())
        for host, kinds in delays.items()
    )
    return [
        line("other hosts", "found", ", ".join(delays)),
        line("change seen by other hosts", outcome, f"{text} (the longest of several)"),
    ]
