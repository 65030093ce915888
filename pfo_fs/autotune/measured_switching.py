"""What a clock change costs in this job, from what its clock processes measured: the costs that its plans count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pfo_fs.models import ProfilingResult, RankInfo
from pfo_fs.planner import SwitchCosts

_LATE_S = 0.0005
"""Error of the predicted end of an instruction; measured in simulations with a jitter of 0.5 %."""
_CALL_SPREAD = 0.125
"""A change up is requested this share of a call earlier than necessary."""
UNKNOWN_COSTS = SwitchCosts(stands_still_s=0.001)
"""Where clocks do not follow the device, a change is priced as if the GPU stood still for 1 ms: this price gave the
best plans in simulations with clocks that act 10 ms after the callback."""


def switch_costs_of(results: Sequence[ProfilingResult], infos: Sequence[RankInfo]) -> SwitchCosts | None:
    """Returns what a change of one rank costs; None if no rank has reported it.

    Ranks are taken to lie on hosts in the order of their numbers, as launchers place them. The slowest rank counts.

    Args:
        results: The results of a window.
        infos: All ranks of the job.
    """
    reports = [result.switching for result in results if result.switching is not None]
    measured = [report for report in reports if report.call_s is not None]
    if not reports:
        return None
    if not measured or any(report.mode == "launch" for report in reports):
        return UNKNOWN_COSTS
    call_s = max(_seconds(report.call_s) for report in measured)
    calls, hosts = _hosts(infos, max(report.gpus for report in measured))
    latest_s = max(_seconds(report.latency_s) for report in measured)
    return SwitchCosts(
        driver_time_s=call_s * calls,
        latency_s=latest_s,
        late_s=_LATE_S + _CALL_SPREAD * call_s,
        calls=calls,
        hosts=hosts,
    )


def _hosts(infos: Sequence[RankInfo], gpus: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Returns how many ranks of a host change their clocks together, and which stages of a pipeline share a host.

    Ranks of the same stage on one host, in tensor or data parallelism, change their clocks at the same time.
    """
    together, stages = 1, set()
    for first in range(0, len(infos), gpus):
        of_host = infos[first : first + gpus]
        together = max(together, *Counter(info.pp_rank for info in of_host).values())
        pipeline = min(info.dp_rank for info in of_host)
        stages.add(tuple(sorted({info.pp_rank for info in of_host if info.dp_rank == pipeline})))
    seen: set[int] = set()
    hosts = []
    for host in sorted(stages, key=len, reverse=True):
        if not seen & set(host):
            seen |= set(host)
            hosts.append(host)
    return together, tuple(hosts)


def _seconds(value: float | None) -> float:
    return value or 0.0
