"""What a clock change costs in this job, from what its clock processes measured: the costs that its plans count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import Profile, SwitchCosts

_LATE_S = 0.0005
"""Error of the predicted end of an instruction; measured in simulations with a jitter of 0.5 %."""
_CALL_SPREAD = 0.125
"""A change up is requested this share of a call earlier than necessary."""
_QUICK_S, _LATE_SHARE = 0.005, 0.25
"""Clocks that act within this time, or this share of an instruction's duration, are never left out."""
UNKNOWN_COSTS = SwitchCosts(stands_still_s=0.001)
"""Where clocks do not follow the device, a change is priced as if the GPU stood still for 1 ms: this price gave the
best plans in simulations with clocks that act 10 ms after the callback."""


class MeasuredSwitching(NamedTuple):
    """What changes cost, and which clocks are worth changing to.

    Attributes:
        costs: What a change of one rank costs.
        slow_mhz: Clocks that act so late that plans do without them.
        learns: Whether clocks follow the device, so that clock processes learn when each clock acts.
    """

    costs: SwitchCosts
    slow_mhz: frozenset[int] = frozenset()
    learns: bool = False


def measured_switching(results: Sequence[ProfilingResult], infos: Sequence[RankInfo]) -> MeasuredSwitching | None:
    """Returns what a change of one rank costs; None if no rank has reported it.

    Ranks are taken to lie on hosts in the order of their numbers, as launchers place them. The slowest rank counts.
    The latency depends on the clock that is requested: plans leave out the clocks that act late, since the others are
    near enough to each other.

    Args:
        results: The results of a window.
        infos: All ranks of the job.
    """
    reports = [result.switching for result in results if result.switching is not None]
    measured = [report for report in reports if report.call_s is not None]
    if not reports:
        return None
    if not measured or any(report.mode == "launch" for report in reports):
        return MeasuredSwitching(UNKNOWN_COSTS)
    call_s = max(report.call_s or 0.0 for report in measured)
    calls, hosts = _hosts(infos, max(report.gpus for report in measured))
    latency_s = _latency_by_clock(measured)
    limit_s = max(_QUICK_S, _LATE_SHARE * _mean_instruction_s(results))
    costs = SwitchCosts(
        driver_time_s=call_s * calls,
        latency_s=_middle(seconds for seconds in latency_s.values() if seconds <= limit_s),
        late_s=_LATE_S + _CALL_SPREAD * call_s,
        calls=calls,
        hosts=hosts,
        max_calls_per_s=min((report.max_calls_per_s or math.inf for report in measured), default=math.inf),
    )
    slow_mhz = frozenset(mhz for mhz, seconds in latency_s.items() if seconds > limit_s)
    return MeasuredSwitching(costs, slow_mhz, learns=True)


def without_slow_clocks(profile: Profile, slow_mhz: frozenset[int]) -> Profile:
    """Returns the profile without these clocks; the highest clock of each instruction always stays."""
    table = {}
    for kind, rows in profile.measurements.items():
        top = max(row.frequency_mhz for row in rows)
        table[kind] = [row for row in rows if row.frequency_mhz == top or row.frequency_mhz not in slow_mhz]
    return Profile(table, profile.source)


def _latency_by_clock(reports: Sequence[Switching]) -> dict[int, float]:
    """The latency of each clock: the median over the ranks that know it."""
    known: dict[int, list[float]] = {}
    for report in reports:
        for mhz, seconds in report.latencies_s.items():
            known.setdefault(mhz, []).append(seconds)
    return {mhz: _middle(values) for mhz, values in known.items()}


def _mean_instruction_s(results: Sequence[ProfilingResult]) -> float:
    durations = [
        seconds
        for result in results
        for iterations in result.time_breakdown.values()
        for iteration in iterations
        for seconds in iteration
    ]
    return fmean(durations) if durations else 0.0


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


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
    for host in sorted(stages, key=lambda host: (-len(host), host)):
        if not seen & set(host):
            seen |= set(host)
            hosts.append(host)
    return together, tuple(hosts)
