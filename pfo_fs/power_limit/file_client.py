"""A rank's connection to its host's helper: the profile (rank 0), and the switch (all ranks).

Only making it, and `save` and `close`, wait for the helper, for a limited time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from pfo_fs.errors import CoordinationError, PlanError
from pfo_fs.guard import WarnOnce
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages as m
from pfo_fs.power_limit.measurements import KnobMeasurement, parse_profile, profile_text

log = logging.getLogger("pfo_fs")

_FIRST_LOOK_S = 3.0
"""A job that starts switched off sets no level; if the file system does not answer in this time, training starts."""


class FileClient:
    """Reads and writes the files through the helper process, and keeps what that process has reported.

    After a problem, or if the helper does not answer in time, the client logs one warning, and training goes on without
    the files.

    Args:
        profile_path: The profile; None for none, as on all ranks but 0.
        shared_dir: The directory with the switch; None for none.
        token: The job's secret, the same on all ranks; those of a host share a helper by it.
        rank: This rank.
        timeout_s: The profile is read in at most this time.

    Attributes:
        profile_path: The profile's path as it was given.
        profile: The profile as it was at the start; None if there was none.
        profile_error: What is wrong with the content of the profile; empty if nothing is, or there is no profile.
        helper: The address of this host's helper; empty if there is none.
        is_off: Whether all jobs of the shared directory are switched off.
    """

    def __init__(
        self,
        profile_path: str | os.PathLike[str] | None,
        shared_dir: str | os.PathLike[str] | None,
        token: str,
        rank: int = 0,
        *,
        timeout_s: float = 15.0,
    ) -> None:
        self.profile_path = profile_path
        self.profile: Sequence[KnobMeasurement] | None = None
        self.profile_error = ""
        self.is_off = False
        self._rank = rank
        self._path = None if profile_path is None else os.path.abspath(os.fsdecode(profile_path))
        self._may_replace = False  # there is no file, or it is known to be a profile
        self._unsaved = 0  # requests to write the profile that have no answer yet
        self._warn = WarnOnce(logging.WARNING if rank == 0 else logging.DEBUG)
        self._link = HelperLink(self._warn, log_line=self._log_line)
        self.helper = ""
        if profile_path is None and shared_dir is None:
            return
        self.helper = f"pfo-fs-power-limit-{token[:12]}"
        shared = "" if shared_dir is None else os.path.abspath(os.fsdecode(shared_dir))
        try:
            self._link.client = helper = HelperClient(self.helper, shared, token, rank, {})
            if self._path is not None:
                self._read_profile(helper.request(m.ReadProfile(path=self._path), m.ProfileRead, timeout_s))
            self.poll()
        except (OSError, CoordinationError) as error:
            self.poll()  # an earlier message of the helper explains more
            self._problem(f"the helper process does not answer: {error}")
        if shared_dir is not None:
            if rank == 0:  # another host must not make a directory where a file system is not mounted
                self._link.send(m.MakeDirectory())
            self._link.send_kept(m.WatchSwitch())
            self._wait_for(m.ClocksHeld, _FIRST_LOOK_S)

    def poll(self) -> None:
        """Handles the messages that the helper has sent meanwhile; some microseconds if there are none."""
        for message in self._link.poll():
            self._take(message)
        if self._link.deaths:  # the next helper knows nothing of the files
            self._unsaved = 0

    def save(self, measurements: Sequence[KnobMeasurement], timeout_s: float = 2.0) -> None:
        """Writes the profile file, if a path was given; waits for that, but no longer than `timeout_s`."""
        if self._path is not None and self._link.client is not None:
            content = profile_text(measurements).encode()
            self._unsaved += 1
            save = m.SaveProfile(path=self._path, content=content, replace=self._may_replace)
            if not self._link.send(save) and not self._link.client.lost:
                self._problem("the helper process accepts no more messages")
            self._wait_until_saved(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends the connection; waits until the profile is written, but no longer than `timeout_s`."""
        self._wait_until_saved(timeout_s)
        self.poll()
        if self._unsaved:
            self._problem("the helper process has not finished writing yet; it continues")
        self.leave()

    def leave(self) -> None:
        """Ends the connection without waiting; the helper still writes what was sent to it."""
        self._link.send(m.Goodbye(reason="finished"))
        self._link.close()

    # ---- the helper

    def _read_profile(self, read: m.ProfileRead) -> None:
        if read.profile == "read":
            try:
                self.profile = parse_profile(read.content, str(self._path))
            except PlanError as error:
                self.profile_error = str(error)
        self._may_replace = read.profile != "unknown" and not self.profile_error

    def _wait_for(self, kind: type[m.ProfileSaved | m.ClocksHeld], timeout_s: float) -> bool:
        """Handles the next message of a kind; returns False if none comes in time."""
        client = self._link.client
        message = None if client is None else client.wait_for(kind, timeout_s)
        if isinstance(message, kind):
            self._take(message)
            return True
        return False

    def _wait_until_saved(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self._unsaved and self._wait_for(m.ProfileSaved, deadline_s - time.monotonic()):
            pass

    def _take(self, message: m.ToTraining) -> None:
        match message:
            case m.ProfileSaved():
                self._unsaved -= 1
            case m.ClocksHeld(why=why):
                if why and not self.is_off and self._rank == 0:
                    log.warning("power limit: switched off: what was set before holds until `pfo-fs on --all`")
                self.is_off = bool(why)

    def _log_line(self, level: int, text: str) -> None:
        if level >= logging.WARNING:
            self._problem(text)

    def _problem(self, text: str) -> None:
        self._warn(f"power limit: profile and shared directory: {text}; training goes on", "files")
