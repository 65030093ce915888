"""The clock of the file server, and those of several hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from pfo_fs.doctor.catalogue_directory import PEER_CLOCKS, SERVER_CLOCK
from pfo_fs.doctor.directory.names import own_name, write_new
from pfo_fs.doctor.lines import Check

_OFF_S = 5.0


def check_server_clock(root: Path) -> Check:
    """Compares the time of a new file with this host's clock."""
    with own_name(root) as path:
        before_s = time.time()
        made_s = write_new(path, b"1").st_mtime
        after_s = time.time()
    return judge_server_clock(before_s, made_s, after_s)


def judge_server_clock(before_s: float, made_s: float, after_s: float) -> Check:
    """Returns the line; the file was made between two times of this host's clock, all in s since 1970."""
    ahead_s = made_s - (before_s + after_s) / 2
    unsure_s = (after_s - before_s) / 2 + 1.0  # some file systems keep whole seconds
    return SERVER_CLOCK.check("off" if abs(ahead_s) > _OFF_S + unsure_s else "ok", _shown(ahead_s, unsure_s))


def judge_host_clocks(ahead_s: Mapping[str, float], unsure_s: float) -> Check:
    """Returns the line; `ahead_s`: how far each host's clock is ahead of the first host's, known within `unsure_s`."""
    worst_s = max(ahead_s.values(), key=abs, default=0.0)
    text = ", ".join(f"{host} {_shown(by_s, unsure_s)}" for host, by_s in ahead_s.items())
    return PEER_CLOCKS.check("off" if abs(worst_s) > _OFF_S + unsure_s else "ok", text)


def _shown(ahead_s: float, unsure_s: float) -> str:
    if abs(ahead_s) <= unsure_s:
        return f"the same within {unsure_s:.1f} s"
    return f"{abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'} (within {unsure_s:.1f} s)"
