"""What training tells its clock process at its start, and what the clock process answers when it is ready."""

from typing import NamedTuple

DRY_RUN_NS = 5_000_000
"""In a dry run no clock acts; each clock is taken to act this long after its call."""


class ClockOptions(NamedTuple):
    """What a clock process is told at its start, beside its GPU.

    Attributes:
        report_to: Abstract socket address of the host's helper, without the leading NUL; None to send no reports.
        profile_s: Steps are added to a result until they have lasted this long, in s; at most 8 times `profile_steps`.
        leave_clocks: Neither set nor reset clocks, for jobs that use only power limits and energy.
        tries_only: Leave what an ended process has set, since `pfo-fs doctor` only tries whether a clock process runs.
        clock_backend: The way to set clocks; if empty, what `PFO_FS_CLOCK_BACKEND` says, or else `auto`.
        max_clock_calls_per_s: The most calls per second that set clocks while clocks follow the device, for all GPUs of
            the host together; if None, `PFO_FS_MAX_CLOCK_CALLS_PER_S`, or else what the driver has room for.
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
