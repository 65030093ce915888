"""What training tells its clock process at its start, and what the clock process answers when it is ready."""

from __future__ import annotations

from typing import NamedTuple

DRY_RUN_NS = 5_000_000
"""In a dry run, where no clock acts, each is taken to act so long after its call."""


class ClockOptions(NamedTuple):
    """What a clock process is told at its start, beside its GPU.

    Attributes:
        report_to: Abstract socket address of the host's helper, without the leading NUL; None to send no reports.
        profile_s: More steps make a result until they have lasted for this time, in s; but at most 8 times as many.
        leave_clocks: Neither set nor reset clocks, for jobs that use only power limits and energy.
        tries_only: Put nothing back that an ended process has left: `pfo-fs doctor` tries whether the process runs.
        clock_backend: The way to set clocks; `PFO_FS_CLOCK_BACKEND`, or `auto`, if empty.
        max_clock_calls_per_s: Most calls per second of all GPUs of the host that set clocks while clocks follow the
            device; if None, `PFO_FS_MAX_CLOCK_CALLS_PER_S`, or what the driver has room for.
    """

    rank: int = 0
    report_to: str | None = None
    token: str = ""
    profile_steps: int = 5
    profile_s: float = 0.0
    leave_clocks: bool = False
    tries_only: bool = False
    clock_backend: str = ""
    max_clock_calls_per_s: float | None = None
    tp_degree: int = 1


class ClockInfo(NamedTuple):
    """The first message of a clock process, sent when it is ready.

    Attributes:
        gpu_name: `none` if there is no GPU.
        clocks_mhz: Graphics clocks that can be set, highest first.
        message: Why clocks cannot be set; empty if they can.
    """

    gpu_name: str
    gpu_uuid: str
    clocks_mhz: list[int]
    message: str
    clock_backend: str = "none"
