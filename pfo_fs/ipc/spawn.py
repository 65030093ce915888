"""Starts the processes beside training, always by exec, since a process that uses CUDA must not fork without exec."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_ARGUMENTS = "PFO_FS_PROCESS_ARGUMENTS"

_started: list[subprocess.Popen[bytes]] = []
"""Processes that outlive this one on purpose: the interpreter warns of a running process that no variable holds."""


def start_process(
    module: str, arguments: Mapping[str, Any], *, pass_fds: Sequence[int] = (), keep_stderr: bool = True
) -> subprocess.Popen[bytes]:
    """Starts `python -m module` in a session of its own, so that a launcher's signals do not reach it.

    Args:
        module: A module of this package with a `main` that calls `given_arguments`.
        arguments: Values for the process; they must be JSON.
        pass_fds: File descriptors that it inherits.
        keep_stderr: Whether the process shares this process's standard error. A process that may hang in a file system
            must not, because it would keep a launcher's pipe open.

    Raises:
        OSError: The process cannot be started.
    """
    import subprocess  # imported late: started processes need only `given_arguments`

    package = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH", "")
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        env={
            **os.environ,
            _ARGUMENTS: json.dumps(dict(arguments)),
            "PYTHONPATH": f"{package}{os.pathsep}{path}" if path else package,
        },
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if keep_stderr else subprocess.DEVNULL,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
    _started.append(process)
    for earlier in list(_started):
        if earlier.poll() is not None:
            with suppress(ValueError):  # another thread removes it at the same time
                _started.remove(earlier)
    return process


def _leave_behind() -> None:
    for process in _started:
        if process.poll() is None:
            process.returncode = 0  # it runs on without this process, so the interpreter must not warn


atexit.register(_leave_behind)


def given_arguments() -> dict[str, Any]:
    """Returns the arguments of `start_process`, in the process that it started."""
    arguments: dict[str, Any] = json.loads(os.environ.pop(_ARGUMENTS))
    return arguments
