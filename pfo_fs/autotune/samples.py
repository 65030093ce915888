"""What ranks have measured: time and power of each instruction at each clock, and what a change of a clock costs."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high

from pfo_fs.autotune.job_layout import Kind, RunInstruction
from pfo_fs.clock_latency import CALL_S
from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import SwitchCosts
from pfo_fs.planner.profile_csv import COLUMNS, MEASURED_COLUMNS, table_text

_LEAST_TIME_ERROR = 0.0001
_LEAST_POWER_ERROR = 0.002
"""Relative: a time has at least the first of these errors, and a power the second, even if a fit gives less."""
_MEAN_POWER_ERROR = 0.05
"""Relative: the error of an instruction's power if only the mean power of all instructions at its clock is known."""
_MIXED_POWER_ERROR = 0.1
"""The same error where an iteration had several clocks."""
_POWER_FALLS = 1.6
"""In such an iteration, power is assumed to follow clock^1.6; 1.6 is the mean slope of `clock_curves.POWER`."""
_USABLE_ERROR = 0.2
"""Relative: points with a larger error are not in the profile; a waiting power with a larger error is not used."""
_WAITING_SHARE = 0.2
"""Power of a waiting GPU as a share of that of a busy one, until a waiting GPU is measured well enough."""

_TIMING_ERROR_S = 0.0005
"""Error of the predicted end of an instruction; measured in simulations with a jitter of 0.5 %."""
_CALL_SPREAD = 0.125
"""A higher clock is requested earlier than necessary, by this share of the time of a call."""
_UNKNOWN_LATENCY_S = 0.02
"""Used until the latency of any clock is learned, in s: the longest that was published for GPUs before Hopper."""


@dataclass
class Point:
    """One kind of instruction at one clock.

    Attributes:
        count: Number of measured durations.
        time_s, power_w: Weighted means of the durations and of the powers; 0 while unknown.
        time_weight, weight: How sure `time_s` and `power_w` are: sums of 1 / (error squared) of what was added.
    """

    count: int = 0
    time_s: float = 0.0
    time_weight: float = 0.0
    weight: float = 0.0
    power_w: float = 0.0

    def add_times(self, count: int, mean_s: float, error_s: float) -> None:
        """Adds a batch of durations, by its count, its mean and the standard error of the mean."""
        weight = 1.0 / max(error_s, _LEAST_TIME_ERROR * mean_s, 1e-12) ** 2
        self.count += count
        self.time_weight += weight
        self.time_s += (mean_s - self.time_s) * weight / self.time_weight

    def add_power(self, power_w: float, error_w: float) -> None:
        """Adds a power with its standard error."""
        weight = 1.0 / max(error_w, _LEAST_POWER_ERROR * abs(power_w), 1e-9) ** 2
        self.weight += weight
        self.power_w += (power_w - self.power_w) * weight / self.weight

    @property
    def time_error(self) -> float:
        """Standard error of the duration, relative."""
        return 1.0 / math.sqrt(self.time_weight) / self.time_s if self.time_weight and self.time_s > 0 else math.inf

    @property
    def power_error(self) -> float:
        """Standard error of the power, relative."""
        return 1.0 / math.sqrt(self.weight) / self.power_w if self.weight and self.power_w > 0 else math.inf

    @property
    def energy_j(self) -> float:
        """Energy of one run, in J."""
        return self.power_w * self.time_s


@dataclass
class Samples:
    """Everything measured so far.

    Attributes:
        points: The points by kind (stage, instruction) and clock in MHz.
        waiting: Power of a waiting GPU, as a point without times.
    """

    points: dict[Kind, dict[int, Point]] = field(default_factory=dict)
    waiting: Point = field(default_factory=Point)

    @property
    def waiting_power_w(self) -> float:
        """Power of a waiting GPU, in W; 0 until it is known well enough."""
        return self.waiting.power_w if self.waiting.power_error < _USABLE_ERROR else 0.0

    def add_powers(
        self, result: ProfilingResult, ran: Sequence[RunInstruction], top_mhz: int, level: float = 1.0
    ) -> None:
        """Adds the powers that one rank measured: of its GPU while it waits, and of kinds whose time is known.

        Args:
            ran: The rank's instructions, in order, with their clocks.
            top_mhz: The clock that stands for the rank's default clock.
            level: What the GPU draws now, as a multiple of what it drew at the same clocks in the first measurements.
        """
        counts = Counter(((stage, name), mhz) for name, stage, mhz in ran)
        timed = [(kind, mhz) for kind, mhz in counts if mhz in self.timed(kind)]
        fitted = set()
        for power in result.powers:
            if not power.instruction:
                self.waiting.add_power(power.power, power.error)
            for kind, mhz in timed:
                if (kind[1], mhz) == (power.instruction, power.frequency or top_mhz) and power.power > 0:
                    fitted.add((kind, mhz))
                    self.point(kind, mhz).add_power(power.power / level, power.error / level)
        mean_w = self._mean_power_w(result) / level
        if mean_w <= 0:
            return
        if len({mhz for _, _, mhz in ran}) == 1:
            for key in timed:
                if key not in fitted:
                    self.point(*key).add_power(mean_w, _MEAN_POWER_ERROR * mean_w)
        elif timed and not fitted:
            # The energy counter may tick less often than the clock changes: only the mean power is known.
            self._add_mixed_powers({key: counts[key] for key in timed}, mean_w)

    def _add_mixed_powers(self, counts: Mapping[tuple[Kind, int], int], mean_w: float) -> None:
        """Adds powers with the mean `mean_w` that fall with the clock; `counts`: how often each kind ran at each."""
        usual_w: dict[tuple[Kind, int], float] = {}
        for kind, mhz in counts:
            curve = self.curve(kind)
            if not curve:
                return
            highest_mhz = max(curve)
            usual_w[kind, mhz] = curve[highest_mhz].power_w * min(1.0, mhz / highest_mhz) ** _POWER_FALLS
        seconds = {(kind, mhz): count * self.point(kind, mhz).time_s for (kind, mhz), count in counts.items()}
        usual_mean_w = sum(usual_w[key] * seconds[key] for key in counts) / sum(seconds.values())
        for key in counts:
            power_w = usual_w[key] * mean_w / usual_mean_w
            self.point(*key).add_power(power_w, _MIXED_POWER_ERROR * power_w)

    def _mean_power_w(self, result: ProfilingResult) -> float:
        """The power of a rank while it does not wait, from the energy of whole iterations; 0 if unknown."""
        total_s, energy_j = sum(result.iter_time), sum(result.iter_energy)
        busy_s = sum(sum(row) for rows in result.time_breakdown.values() for row in rows)
        if not 0 < busy_s <= total_s or energy_j <= 0:
            return 0.0
        waiting_w = self.waiting_power_w or _WAITING_SHARE * energy_j / busy_s
        return max(0.0, energy_j - waiting_w * (total_s - busy_s)) / busy_s

    def point(self, kind: Kind, mhz: int) -> Point:
        """Returns the point of a kind at a clock, and makes an empty one if there is none."""
        return self.points.setdefault(kind, {}).setdefault(mhz, Point())

    def curve(self, kind: Kind) -> dict[int, Point]:
        """Returns the points of a kind whose time and power are known, from the highest clock to the lowest."""
        return {mhz: point for mhz, point in self.timed(kind).items() if point.weight}

    def timed(self, kind: Kind) -> dict[int, Point]:
        """Returns the points of a kind whose time is known, from the highest clock to the lowest."""
        found = self.points.get(kind, {})
        return {mhz: found[mhz] for mhz in sorted(found, reverse=True) if mhz and found[mhz].time_s > 0}

    def csv(self) -> str:
        """Returns the text of the job's `profile.csv`: all points that are known well enough."""
        rows = [
            (*kind, mhz, p.time_s, p.energy_j, p.time_error, p.power_error, p.count, self.waiting_power_w or None)
            for kind in sorted(self.points)
            for mhz, p in self.curve(kind).items()
            if max(p.time_error, p.power_error) <= _USABLE_ERROR
        ]
        return table_text(rows, (*COLUMNS, *MEASURED_COLUMNS), digits=7)


def measured_switching(results: Sequence[ProfilingResult], infos: Sequence[RankInfo]) -> SwitchCosts | None:
    """Returns what a change of one clock costs; None if no rank tells, or the clocks of one do not follow the device.

    The time of a call is that of the slowest rank. The latency of each requested clock is the median over the ranks;
    a clock of unknown latency counts with the median of all clocks.
    """
    reports = [result.switching for result in results if result.switching is not None]
    if not reports or any(report.mode == "launch" for report in reports):
        return None
    call_s = max((report.call_s for report in reports if report.call_s is not None), default=CALL_S)
    calls, hosts = _hosts(infos, max(report.gpus for report in reports))
    latency_s = _latency_by_clock(reports, infos)
    return SwitchCosts(
        driver_time_s=call_s * calls,
        latency_s=median_high(latency_s.values()) if latency_s else _UNKNOWN_LATENCY_S,
        timing_error_s=_TIMING_ERROR_S + _CALL_SPREAD * call_s,
        calls=calls,
        hosts=hosts,
        latencies_s=latency_s,
        max_calls_per_s=min(report.max_calls_per_s or math.inf for report in reports),
    )


def _latency_by_clock(reports: Sequence[Switching], infos: Sequence[RankInfo]) -> dict[int, float]:
    """Returns the latency of each clock, as `measured_switching` says; empty if no latency is known."""
    known: dict[int, list[float]] = {}
    for report in reports:
        for mhz, seconds in report.latencies_s.items():
            known.setdefault(mhz, []).append(seconds)
    latency_s = {mhz: median_high(values) for mhz, values in known.items()}
    if not latency_s:
        return {}
    usual_s = median_high(latency_s.values())
    return {mhz: usual_s for info in infos for mhz in info.available_frequencies} | latency_s


def _hosts(infos: Sequence[RankInfo], gpus: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Returns how many ranks of a host change their clocks together, and which stages of a pipeline share a host.

    Ranks of one stage on a host change together. A host that shares a stage with a larger host is left out.
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
    """Returns each host's ranks; if one is unknown, `gpus` ranks in a row share a host, as launchers place them."""
    if not all(info.host for info in infos):
        return [list(infos[first : first + gpus]) for first in range(0, len(infos), gpus)]
    hosts: dict[str, list[RankInfo]] = {}
    for info in infos:
        hosts.setdefault(info.host, []).append(info)
    return list(hosts.values())
