"""`sudo nvidia-smi`, for users whom the operator's sudoers file permits exactly these commands.

Each call starts two processes, which takes tens of milliseconds: good for a clock per stage or a few changes a step.
"""

import grp
import os
import shutil
import subprocess
from contextlib import suppress

from pfo_fs.device.gpu.interface import CALL_WITHIN_S, GpuPlace
from pfo_fs.errors import DeviceError, DevicePermissionError

GROUP = "gpuclocks"
"""`auto` calls sudo only for members of this group, since a call that sudo refuses is logged and mailed."""

_REFUSED = (1, 4)
"""Exit statuses that mean a missing permission: 1 of sudo, 4 of nvidia-smi."""


class SudoBackend:
    """Sets the clocks of one GPU by `sudo -n nvidia-smi`.

    Args:
        asked: Whether the user asked for this way by name; otherwise only members of `gpuclocks` use it.
    """

    def __init__(self, place: GpuPlace, *, asked: bool, within_s: float | None = None) -> None:
        self._uuid = place.uuid
        self._asked = asked
        self._within_s = CALL_WITHIN_S if within_s is None else within_s
        self._running: subprocess.Popen[bytes] | None = None

    def why_not(self) -> str:
        """Asks sudo whether it permits the command; returns why it does not, or ''."""
        for program in ("sudo", "nvidia-smi"):
            if shutil.which(program) is None:
                return f"the program {program} is not installed here"
        if not self._asked and not _in_group():
            return f"this user is not in the group {GROUP}; members, and users who ask for 'sudo' by name, can use it"
        reason = ""
        for options in (("-rgc",), ("-pl", "1.00")):  # sites may permit power limits alone
            try:
                self._run(
                    "asking sudo for the permission", ["sudo", "-n", "-l", "nvidia-smi", *self._arguments(*options)]
                )
                return ""
            except DeviceError as error:
                reason = reason or str(error)
                if not isinstance(error, DevicePermissionError):
                    break
        return reason

    def lock_clock_mhz(self, mhz: int) -> None:
        self._change(f"locking it at {mhz} MHz", "-lgc", f"{mhz},{mhz}")

    def reset_clocks(self) -> None:
        self._change("unlocking its clocks", "-rgc")

    def set_power_limit_w(self, limit_w: float) -> None:
        self._change(f"setting a power limit of {limit_w:g} W", "-pl", f"{limit_w:.2f}")

    def close(self) -> None:
        """Looks whether a command that was given up has ended; if it has not, it runs on."""
        if self._running is not None:
            with suppress(subprocess.TimeoutExpired):
                self._running.communicate(timeout=0)

    def _arguments(self, *options: str) -> list[str]:
        return ["-i", self._uuid, *options]

    def _change(self, what: str, *options: str) -> None:
        self._run(f"GPU {self._uuid}, {what}", ["sudo", "-n", "nvidia-smi", *self._arguments(*options)])

    def _run(self, what: str, command: list[str]) -> None:
        self._wait_for_the_one_before(what)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise DevicePermissionError(f"{what}: {command[0]} cannot be started ({error})") from None
        try:
            output, _ = process.communicate(timeout=self._within_s)
        except subprocess.TimeoutExpired:
            self._running = process  # not killed: sudo would end and leave nvidia-smi, which belongs to root
            raise DeviceError(f"{what}: {' '.join(command)} did not end within {self._within_s:g} s") from None
        if process.returncode:
            text = " ".join(output[:1000].decode("utf-8", "replace").split())[:300]
            problem = f"{what}: {' '.join(command)} failed with {process.returncode} ({text or 'without a text'})"
            if process.returncode in _REFUSED:
                raise DevicePermissionError(f"{problem}; the operator's sudoers file must permit it without a password")
            raise DeviceError(problem)

    def _wait_for_the_one_before(self, what: str) -> None:
        """Waits for a command that was given up: of two commands at once, either could end first."""
        process = self._running
        if process is None:
            return
        try:
            process.communicate(timeout=self._within_s)
        except subprocess.TimeoutExpired:
            raise DeviceError(f"{what}: the command before it still runs (process {process.pid})") from None
        self._running = None


def _in_group() -> bool:
    try:
        return grp.getgrnam(GROUP).gr_gid in (os.getegid(), *os.getgroups())
    except KeyError:
        return False
