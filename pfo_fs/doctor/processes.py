"""Starts the two processes beside training as training does, and says what keeps them from running."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import time

from pfo_fs.device import ClockProcess
from pfo_fs.doctor.lines import Check, line
from pfo_fs.errors import PfoError
from pfo_fs.helper.client import HelperClient

_WITHIN_S = 30.0


def check_processes(spec: str) -> list[Check]:
    """Starts a clock process, which sets nothing, for a GPU or `none`, and a helper in an empty directory."""
    return [check_clock_process(spec), check_helper()]


def check_clock_process(spec: str) -> Check:
    """Starts a clock process and ends it."""
    began_s = time.monotonic()
    clocks = ClockProcess(spec, leave_clocks=True, tries_only=True, start_timeout_s=_WITHIN_S)
    try:
        message = clocks.message
        if clocks.lost:
            return line("clock process", "no", message)
        return line("clock process", "ok", _ready(began_s))
    finally:
        clocks.close()


def check_helper() -> Check:
    """Starts a helper, which ends when its only client has gone."""
    began_s = time.monotonic()
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="pfo-fs-doctor-", ignore_cleanup_errors=True) as folder:
        try:
            client = HelperClient(f"pfo-fs-doctor-{token[:12]}", folder, token, 0, {})
        except (OSError, PfoError) as error:
            return line("helper process", "no", f"it could not be started: {error}")
        client.close()
        assert client.process is not None
        try:
            code = client.process.wait(_WITHIN_S)
        except subprocess.TimeoutExpired:
            client.process.kill()
            return line("helper process", "no", f"it has not ended within {_WITHIN_S:g} s{client.how_it_ended()}")
    if code:
        return line("helper process", "no", f"it ended at its start{client.how_it_ended()}")
    return line("helper process", "ok", _ready(began_s))


def _ready(began_s: float) -> str:
    return f"starts and ends within {time.monotonic() - began_s:.1f} s"
