"""What hosts that run `pfo-fs doctor DIR --peer N` at the same time see of each other in the directory.

Each host does the same: it makes names, and replaces one file of its own, `doctor/<random id>.json`, with the time and
with what it has seen of the other hosts so far. When the files of all hosts are complete, each host
compares them by the same rules, so all hosts print the same lines.
"""

from __future__ import annotations

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
_SEEN_WITHIN_S = 70.0
"""NFS caches names for 60 s."""
_SILENT_S = 120.0
_SLOW_S, _BROKEN_S = 2.0, 65.0
_NAMES, _COMPLETE, _COMPARED = 3, 4, 5
"""The phases of a host: in three of them it makes a name; then its file is complete; then it has compared the files. It
tells its phase in its file and by a new name."""

_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_Times = Annotated[list[_Seconds], Field(max_length=_COMPARED)]


class Seen(BaseModel):
    """What a host has seen of another one. Times of two hosts are subtracted, whose clocks may differ.

    Attributes:
        least_s: The shortest time until a replaced file was seen; None: that was never seen.
        most_s: The longest time for which an old file was still seen.
        new_s: When each new name was seen.
    """

    least_s: _Seconds | None = None
    most_s: _Seconds = 0.0
    new_s: _Times = []


class Report(BaseModel):
    """What a host writes.

    Attributes:
        written_s: The time of this replacement, by the host's clock.
        members: The ids of all hosts, once it has found as many as it expects.
        made_s: When it has made the new name for each phase.
        seen: What it has seen of each other host.
    """

    model_config = ConfigDict(extra="ignore")

    host: ShortText
    counter: Count = 0
    written_s: _Seconds = 0.0
    members: Annotated[list[ShortText], Field(max_length=_MOST_HOSTS)] = []
    phase: Count = 0
    made_s: _Times = []
    seen: Annotated[dict[ShortText, Seen], Field(max_length=_MOST_FILES)] = {}


class HostsMissing(PfoError):
    """Not all hosts are there; `outcome` is that of the line about other hosts."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Hosts:
    """This host among those that run the command in one directory.

    Args:
        beat: Called often, to show that no file operation hangs.
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
        self._looked_s: dict[str, float] = {}  # when each file was read last, by the clock of this host
        self._changed_s: dict[str, float] = {}  # when its counter was another one, in s of `time.monotonic`
        self._replaced_s = 0.0
        self._ended: list[str] = []  # hosts whose files do not change
        files.make_folder(layout.DOCTOR)

    def _path(self, name: str, of: str = "") -> Path:
        return self._files.root / layout.DOCTOR / f"{of or self.me}-{name}"

    def replace(self) -> None:
        self.mine.counter += 1
        self.mine.written_s = time.time()
        header = Header("doctor", "", f"doctor@{self.mine.host}:{os.getpid()}")
        self._files.publish(f"{layout.DOCTOR}/{self.me}.json", encode(header, self.mine))
        self._replaced_s = time.monotonic()

    def look(self, ids: Sequence[str]) -> None:
        """Waits a moment, replaces this host's file from time to time, and reads those of other hosts."""
        self._beat()
        time.sleep(_POLL_S)
        if time.monotonic() - self._replaced_s > _REPLACE_EVERY_S:
            self.replace()
        for member in ids:
            new_s = self.mine.seen.setdefault(member, Seen()).new_s
            # A client may remember for long that a name was not there.
            if (
                self.mine.phase < _COMPLETE
                and len(new_s) < _NAMES
                and os.path.exists(self._path(f"phase-{len(new_s) + 1}", member))
            ):
                new_s.append(time.time())
            with suppress(RecordError, StoreError):
                data = self._files.read(f"{layout.DOCTOR}/{member}.json", _LIMIT)
                if data is not None:
                    self._saw(member, decode(data, "doctor", Report)[1])

    def _saw(self, member: str, report: Report) -> None:
        now_s, before = time.time(), self.others.get(member)
        if before is None:
            self._first[member] = report.counter
        elif report.counter > before.counter and self.mine.phase < _COMPLETE:  # then all must read the same
            seen = self.mine.seen[member]
            late_s = now_s - report.written_s
            seen.least_s = late_s if seen.least_s is None else min(seen.least_s, late_s)
            follows = report.counter == before.counter + 1
            newer_s = report.written_s if follows else before.written_s + _REPLACE_EVERY_S
            seen.most_s = max(seen.most_s, self._looked_s[member] - newer_s)
        if before is None or report.counter != before.counter:
            self._changed_s[member] = time.monotonic()
        self.others[member], self._looked_s[member] = report, now_s

    def _is_there(self, member: str) -> bool:
        return self.others[member].counter > self._first[member]

    def leave(self) -> None:
        """Removes the files of this host, and of runs that were killed."""
        folder = self._files.root / layout.DOCTOR
        with suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith((self.me, *self._ended)):
                    self._beat()
                    with suppress(OSError):
                        os.unlink(folder / name)
            os.rmdir(folder)  # fails while another host's file is in it

    def find(self, hosts: int, within_s: float) -> None:
        """Finds the other hosts: so many, with this one, within this time.

        Raises:
            HostsMissing: They are fewer, or more, when the time has passed.
        """
        deadline = time.monotonic() + within_s
        while True:
            names = [name[:-5] for name in self._files.names(layout.DOCTOR) if _FILE.fullmatch(name)]
            self.look([member for member in names if member != self.me][:_MOST_FILES])
            there = sorted([self.me, *filter(self._is_there, self.others)])
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
        """Says that this host has done something, and waits until all others have done it, too.

        Raises:
            HostsMissing: A host has stopped.
        """
        self.mine.phase = phase
        self.mine.made_s.append(time.time())
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
        """Returns whether a host has done something: its file says so, and its name was seen, or was not in time."""
        if phase == _COMPARED and f"{member}.json" not in self._files.names(layout.DOCTOR):
            return True  # it has removed its files
        new_s = self.mine.seen.get(member, Seen()).new_s
        seen = len(new_s) >= min(phase, _NAMES) or time.monotonic() - began_s > _SEEN_WITHIN_S
        return self.others[member].phase >= phase and seen

    def reports(self) -> dict[str, Report]:
        """Tests everything between the hosts; returns what all of them have written.

        Raises:
            HostsMissing: A host has stopped.
        """
        for phase in range(1, _COMPLETE + 1):
            self._reach(phase)
        found = {self.me: self.mine.model_copy(deep=True), **self.others}
        self._silent_s = 10.0
        with suppress(HostsMissing, StoreError):
            self._reach(_COMPARED)  # so that the others can still read this host's file
        return found


# ---- what all files say together


def judge(reports: Mapping[str, Report]) -> list[Check]:
    """Returns the lines about the hosts; `reports`: what each host has written, by its id."""
    names = [report.host for report in reports.values()]
    labels = {
        member: report.host if names.count(report.host) == 1 else f"{report.host} ({member[:4]})"
        for member, report in reports.items()
    }
    return [
        line("other hosts", "found", ", ".join(labels[member] for member in sorted(reports))),
        _judge_delay({labels[member]: _delay_s(reports, member) for member in sorted(reports)}),
    ]


def _ahead_s(reports: Mapping[str, Report], member: str, other: str) -> float:
    """Returns how far the clock of a host is ahead of another one's, in s; files travel as fast in both directions."""
    there_s = reports[other].seen.get(member, Seen()).least_s
    back_s = reports[member].seen.get(other, Seen()).least_s
    if there_s is None or back_s is None:
        return 0.0
    return (there_s - back_s) / 2


def _delay_s(reports: Mapping[str, Report], host: str) -> dict[str, float]:
    """Returns how late a host has seen what the others have written, at most, for each kind of change."""
    found = {"replaced file": 0.0, "new name": 0.0}
    for other, report in reports.items():
        if other != host:
            seen, ahead_s = reports[host].seen.get(other, Seen()), _ahead_s(reports, other, host)
            late_s = [at_s - made_s - ahead_s for at_s, made_s in zip(seen.new_s, report.made_s, strict=False)]
            replaced_s = max(seen.most_s - ahead_s, 0.0) if seen.least_s is not None else _SEEN_WITHIN_S
            new_s = max(late_s) if len(late_s) == _NAMES else _SEEN_WITHIN_S
            found = {
                "replaced file": max(found["replaced file"], replaced_s),
                "new name": max(found["new name"], new_s),
            }
    return found


def _judge_delay(delays: Mapping[str, Mapping[str, float]]) -> Check:
    worst_s = max(delay_s for kinds in delays.values() for delay_s in kinds.values())
    outcome = "ok" if worst_s <= _SLOW_S else "slow" if worst_s < _BROKEN_S else "broken"
    text = "; ".join(
        f"{host}: " + ", ".join(f"{kind} {delay_s:.2f} s" for kind, delay_s in kinds.items())
        for host, kinds in delays.items()
    )
    return line("change seen by other hosts", outcome, f"{text} (the longest of several)")
