"""What a clock change costs in this job, from what its clock processes measured: the costs that its plans count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import SwitchCosts

_TIMING_ERROR_S = 0.0005
"""Error of the predicted end of an instruction; measured in simulations with a jitter of 0.5 %."""
_CALL_SPREAD = 0.125
"""A change up is requested this share of a call earlier than necessary."""
_UNKNOWN_CALL_S = 0.005
"""Before a call was made: one of an A800 takes 4 to 5 ms."""
_UNKNOWN_LATENCY_S = 0.02
"""Before any clock's latency is learned: the longest that was published of GPUs before Hopper."""


def measured_switching(results: Sequence[ProfilingResult], infos: Sequence[RankInfo]) -> SwitchCosts | None:
    """Returns what a change of one rank costs; None if clocks do not follow the device on all ranks.

    The slowest rank counts. The latency depends on the clock that is requested; clocks of unknown latency count with
    the median of the known.
    """
    reports = [result.switching for result in results if result.switching is not None]
    if not reports or any(report.mode == "launch" for report in reports):
        return None
    call_s = max((report.call_s for report in reports if report.call_s is not None), default=_UNKNOWN_CALL_S)
    calls, hosts = _hosts(infos, max(report.gpus for report in reports))
    latency_s = _latency_by_clock(reports, infos)
    return SwitchCosts(
        driver_time_s=call_s * calls,
        latency_s=_middle(latency_s.values()) if latency_s else _UNKNOWN_LATENCY_S,
        timing_error_s=_TIMING_ERROR_S + _CALL_SPREAD * call_s,
        calls=calls,
        hosts=hosts,
        latencies_s=latency_s,
        max_calls_per_s=min(report.max_calls_per_s or math.inf for report in reports),
    )


def _latency_by_clock(reports: Sequence[Switching], infos: Sequence[RankInfo]) -> dict[int, float]:
    """The latency of each clock: the median over the ranks that know it; empty if none is known."""
    known: dict[int, list[float]] = {}
    for report in reports:
        for mhz, seconds in report.latencies_s.items():
            known.setdefault(mhz, []).append(seconds)
    latency_s = {mhz: _middle(values) for mhz, values in known.items()}
    if not latency_s:
        return {}
    usual_s = _middle(latency_s.values())
    return {mhz: usual_s for info in infos for mhz in info.available_frequencies} | latency_s


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _hosts(infos: Sequence[RankInfo], gpus: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Returns how many ranks of a host change their clocks together, and which stages of a pipeline share a host.

    Ranks of the same stage on one host, in tensor or data parallelism, change their clocks at the same time.
    """
    together, stages = 1, set()
    for of_host in _by_host(infos, gpus):
        together = max(together, *Counter(info.pp_rank for info in of_host).values())
        pipeline = min(info.dp_rank for info in of_host)
        stages.add(tuple(sorted({info.pp_rank for info in of_host if info.dp_rank == pipeline})))
    seen: set[int] = set()
    hosts = []
    for host in sorted(stages, key=lambda host: (-len(host), host)):
        if not seen & set(host):
            seen |= set(host)
            hosts.append(host)
    return together, tuple(hosts)


def _by_host(infos: Sequence[RankInfo], gpus: int) -> list[list[RankInfo]]:
    """The ranks of each host; if one is not known, hosts have `gpus` ranks in their order, as launchers place them."""
    if not all(info.host for info in infos):
        return [list(infos[first : first + gpus]) for first in range(0, len(infos), gpus)]
    hosts: dict[str, list[RankInfo]] = {}
    for info in infos:
        hosts.setdefault(info.host, []).append(info)
    return list(hosts.values())
