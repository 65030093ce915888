"""What a clock change costs in this job, from what its clock processes measured: the costs that its plans count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import Profile, SwitchCosts

_LATE_S = 0.0005
"""Error of the predicted end of an instruction; measured in simulations with a jitter of 0.5 %."""
_CALL_SPREAD = 0.125
"""A change up is requested this share of a call earlier than necessary."""
_QUICK_S, _LATE_SHARE = 0.005, 0.25
"""Clocks that act within this time, or this share of an instruction's duration, are quick."""
UNKNOWN_COSTS = SwitchCosts(stands_still_s=0.001)
"""Before a change was made, and where clocks do not follow the device but do not act late either, a change is priced as
if the GPU stood still for 1 ms."""
_DRIVER_SHARE = 0.5
"""Plans count this share of the time that a driver needs for a change and of that until it acts. With all of them, a
rank would keep each clock until all its GPUs have it; but clock processes make what fits of a shorter run: a GPU's
newest request wins, and a change down is left out where the next one is due. There are never more calls than fit."""
_UNKNOWN_LATENCY_S = 0.02
"""Before any clock's latency is learned: the longest that was published of GPUs before Hopper."""
_LEAST_LATE_S = 0.001
"""Clocks that act sooner after the begin of an instruction are in time: training launches instructions ahead."""


class ClockOffer(NamedTuple):
    """Clocks that a plan may use.

    Attributes:
        left_out_mhz: The clocks that it may not use.
        latency_s: How late the others act after a call returns, in s: of the quick clocks the median, with slower ones
            the slowest.
    """

    left_out_mhz: frozenset[int] = frozenset()
    latency_s: float = 0.0


class MeasuredSwitching(NamedTuple):
    """What changes cost, and which clocks are worth changing to.

    Attributes:
        costs: What a change of one rank costs, with the quick clocks alone.
        offers: The quick clocks, then more and more of the slow ones. With slow clocks a plan can change less often,
            since each of its clocks must act before the next change; but where the quick clocks are few, it saves more.
    """

    costs: SwitchCosts
    offers: tuple[ClockOffer, ...] = (ClockOffer(),)

    @property
    def slow_mhz(self) -> frozenset[int]:
        """The clocks that are not quick."""
        return self.offers[0].left_out_mhz


def measured_switching(results: Sequence[ProfilingResult], infos: Sequence[RankInfo]) -> MeasuredSwitching | None:
    """Returns what a change of one rank costs; None if no rank has reported it, or clocks do not follow the device.

    The slowest rank counts.
    The latency depends on the clock that is requested. Clocks of unknown latency count with the median of the known.

    Args:
        results: The results of a window.
        infos: All ranks of the job.
    """
    reports = [result.switching for result in results if result.switching is not None]
    measured = [report for report in reports if report.call_s is not None]
    if not reports:
        return None
    if any(report.mode == "launch" for report in reports):
        return None
    if not measured:
        return MeasuredSwitching(UNKNOWN_COSTS)
    call_s = max(report.call_s or 0.0 for report in measured)
    calls, hosts = _hosts(infos, max(report.gpus for report in measured))
    latency_s = _latency_by_clock(measured, infos)
    limit_s = max(_QUICK_S, _LATE_SHARE * _mean_instruction_s(results))
    costs = SwitchCosts(
        driver_time_s=call_s * calls,
        latency_s=_middle(latency_s.values()) if latency_s else _UNKNOWN_LATENCY_S,
        late_s=_LATE_S + _CALL_SPREAD * call_s,
        calls=calls,
        hosts=hosts,
        latencies_s=latency_s,
        max_calls_per_s=min((report.max_calls_per_s or math.inf for report in measured), default=math.inf),
    )
    return MeasuredSwitching(costs, _offers(latency_s, limit_s, costs.latency_s))


def _offers(latency_s: Mapping[int, float], limit_s: float, quick_s: float) -> tuple[ClockOffer, ...]:
    """The quick clocks; these and half of the slow ones; all clocks."""
    slow_s = sorted(seconds for seconds in latency_s.values() if seconds > limit_s)
    limits_s = dict.fromkeys([slow_s[(len(slow_s) - 1) // 2], slow_s[-1]]) if slow_s else {}

    def slower_than(most_s: float) -> frozenset[int]:
        return frozenset(mhz for mhz, seconds in latency_s.items() if seconds > most_s)

    return ClockOffer(slower_than(limit_s), quick_s), *(ClockOffer(slower_than(each), each) for each in limits_s)


def counted(costs: SwitchCosts) -> SwitchCosts:
    """Returns the costs of changes that plans count, from those that were measured."""
    return replace(
        costs,
        driver_time_s=_DRIVER_SHARE * costs.driver_time_s,
        latency_s=_DRIVER_SHARE * costs.latency_s,
        latencies_s={mhz: _DRIVER_SHARE * seconds for mhz, seconds in costs.latencies_s.items()},
    )


def late_switching(latency_s: float) -> MeasuredSwitching:
    """Returns what a change costs where no clock process sees the device.

    Args:
        latency_s: How long after the begin of an instruction its clock acts, in s.
    """
    return MeasuredSwitching(SwitchCosts(acts_late_s=latency_s) if latency_s >= _LEAST_LATE_S else UNKNOWN_COSTS)


def without_slow_clocks(profile: Profile, slow_mhz: frozenset[int]) -> Profile:
    """Returns the profile without these clocks; the highest clock of each instruction always stays."""
    table = {}
    for kind, rows in profile.measurements.items():
        top = max(row.frequency_mhz for row in rows)
        table[kind] = [row for row in rows if row.frequency_mhz == top or row.frequency_mhz not in slow_mhz]
    return Profile(table, profile.source)


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
    """Returns the ranks of each host.

    Where a host is not known (an older release registered the rank), ranks are taken to lie on hosts of so many GPUs in
    the order of their numbers, as launchers place them.
    """
    if not all(info.host for info in infos):
        return [list(infos[first : first + gpus]) for first in range(0, len(infos), gpus)]
    hosts: dict[str, list[RankInfo]] = {}
    for info in infos:
        hosts.setdefault(info.host, []).append(info)
    return list(hosts.values())
