"""The training process's access to the profile file and the shared directory; only making it waits for answers."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence

from pfo_fs.errors import CoordinationError, PlanError
from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc import messages as m
from pfo_fs.power_limit.measurements import KNOBS, Knob, KnobMeasurement, parse_profile, profile_text

log = logging.getLogger("pfo_fs")


class FileClient:
    """Reads and writes the files through a helper process, and keeps what that process has reported.

    After a problem, or if the helper does not answer in time, the client logs one warning, and training goes on without
    the files.

    Attributes:
        profile_path: The profile's path as it was given.
        profile: The profile as it was at the start; None if there was none.
        profile_error: What is wrong with the content of the profile; empty if nothing is, or there is no profile.
        measurements: The measurements of other jobs, by level.
        choices: The levels that other jobs have chosen, by selector.
        begun: Levels that a job has begun to measure.

    Args:
        profile_path: The profile; None for none.
        shared_dir: The shared directory; None for none.
        key: What measurements must have in common to be shared (`folder_key`); the shared directory's folder for it.
        timeout_s: The start takes at most this time.
        knob: What is set.
    """

    def __init__(
        self,
        profile_path: str | os.PathLike[str] | None,
        shared_dir: str | os.PathLike[str] | None,
        key: str,
        timeout_s: float = 15.0,
        *,
        knob: Knob = "power_limit",
    ) -> None:
        self._knob: Knob = knob
        self.profile_path = profile_path
        self.profile: Sequence[KnobMeasurement] | None = None
        self.profile_error = ""
        self.measurements: dict[int, KnobMeasurement] = {}
        self.choices: dict[str, int] = {}
        self.begun: set[int] = set()
        self._path = None if profile_path is None else os.path.abspath(os.fsdecode(profile_path))
        self._may_replace = False  # there is no file, or it is known to be a profile
        self._shares = False
        self._warned = False
        self._helper: HelperClient | None = None
        self._leaving: list[HelperClient] = []  # helpers that may still write
        if profile_path is None and shared_dir is None:
            return
        shared = None if shared_dir is None else os.path.abspath(os.fsdecode(shared_dir))
        self._start()
        if self._helper is not None:
            files = m.OpenPowerLimitFiles(profile_path=self._path, shared_dir=shared, key=key, knob=knob)
            try:
                self._open(self._helper, files, timeout_s)
            except CoordinationError as error:
                self.poll()  # an earlier message of the helper explains more
                self._warn(f"the helper process does not answer and is not used any more: {error}")
                self.leave()

    def wait_for_choice(self, selector: str, timeout_s: float = 5.0) -> None:
        """Waits until the choice that came first is known; called at the start only."""
        deadline_s = time.monotonic() + timeout_s
        while self._helper is not None and selector not in self.choices:
            found = self._helper.wait_for(m.SharedUpdates, deadline_s - time.monotonic())
            if not isinstance(found, m.SharedUpdates):
                return
            self._take(found)

    @property
    def shares(self) -> bool:
        """Whether there is a shared directory that can be used."""
        return self._shares and self._helper is not None

    def poll(self) -> None:
        """Handles the messages that the helper has sent meanwhile."""
        while self._helper is not None and (message := self._helper.poll()) is not None:
            self._take(message)
        if self._helper is not None and self._helper.lost:
            self._warn("the helper process has died")
            self.leave()

    def announce(self, level: int) -> None:
        """Announces to other jobs that this job measures this level, if there is a shared directory."""
        if self.shares:
            self.begun.add(level)
            self._send(m.LimitBegun(level=level))

    def publish(self, measurement: KnobMeasurement) -> None:
        """Shares a measurement through the helper, if there is a shared directory."""
        if self.shares:
            level, energy_j, time_s = measurement.level, measurement.energy, measurement.time
            self._send(m.LimitMeasured(level=level, energy_j=energy_j, time_s=time_s))

    def publish_choice(self, selector: str, level: int) -> None:
        """Shares a choice through the helper, if there is a shared directory."""
        if self.shares:
            self._send(m.LimitChosen(selector=selector, level=level))

    def save(self, measurements: Sequence[KnobMeasurement]) -> None:
        """Writes the profile file, if a path was given, through the helper; starts one if the last was released."""
        if self._path is not None:
            if self._helper is None:
                self._start()
            content = profile_text(measurements).encode()
            self._send(m.SaveProfile(path=self._path, content=content, replace=self._may_replace))

    def stop_sharing(self) -> None:
        """Stops sharing measurements and choices with other jobs, in both directions."""
        self._shares = False
        self.measurements.clear()
        self.choices.clear()

    def leave(self) -> None:
        """Releases the helper, which ends when it has written all that was sent to it; does not wait for its end."""
        if self._helper is not None:
            self._helper.send(m.Goodbye(reason="finished"))
            self._leaving.append(self._helper)
            self._helper = None

    def log_late_problems(self) -> None:
        """Logs problems of released helpers that are still writing; costs nothing once they have ended."""
        for leaving in list(self._leaving):
            while (message := leaving.poll()) is not None:
                if isinstance(message, m.FilesProblem):
                    self._warn(message.message)
            if leaving.lost:
                leaving.close()
                self._leaving.remove(leaving)

    def leave_when_written(self, timeout_s: float = 2.0) -> None:
        """Releases the helper, and waits until it has written all that was sent to it; no longer than `timeout_s`."""
        self.leave()
        deadline_s = time.monotonic() + timeout_s
        self.log_late_problems()
        while self._leaving and time.monotonic() < deadline_s:
            time.sleep(0.002)
            self.log_late_problems()

    def close(self, timeout_s: float = 5.0) -> None:
        """Waits until everything is written, but no longer than `timeout_s`."""
        self.leave_when_written(timeout_s)
        if self._leaving:
            self._warn("the helper process has not finished writing yet; it continues")
        while self._leaving:
            self._leaving.pop().close()

    # ---- the helper

    def _start(self) -> None:
        token = secrets.token_hex(16)
        try:
            self._helper = HelperClient(f"pfo-fs-power-limit-{token[:12]}", "", token, 0, {}, service="power_limit")
        except (OSError, CoordinationError) as error:
            self._warn(f"the helper process could not be started: {error}")

    def _open(self, helper: HelperClient, files: m.OpenPowerLimitFiles, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s

        def left_s() -> float:
            return max(0.0, deadline_s - time.monotonic())

        opened = helper.request(files, m.PowerLimitFilesOpened, left_s())
        self._shares = opened.shares
        content = b""
        while len(content) < opened.profile_bytes:
            part = helper.request(m.ReadProfile(offset=len(content)), m.ProfilePart, left_s())
            if part.offset != len(content) or not part.content:
                raise CoordinationError(f"{files.profile_path} arrives incompletely")
            content += part.content
        if opened.profile == "read":
            try:
                self.profile = parse_profile(content, str(files.profile_path))
            except PlanError as error:
                self.profile_error = str(error)
        self._may_replace = opened.profile != "unknown" and not self.profile_error
        self.poll()

    def _take(self, message: m.ToTraining) -> None:
        if isinstance(message, m.FilesProblem):
            self._warn(message.message)
        elif isinstance(message, m.SharedUpdates):
            for found in message.measurements:
                measured = KNOBS[self._knob].measurement.at(found.level, found.energy_j, found.time_s)
                self.measurements[found.level] = measured
            self.choices.update({found.selector: found.level for found in message.choices})
            self.begun.update(message.begun)

    def _send(self, message: m.Message) -> None:
        if self._helper is not None and not self._helper.send(message):
            self._warn("the helper process accepts no more messages")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("power limit: profile and shared directory: %s; training goes on", text)
