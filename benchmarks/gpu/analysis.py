"""What the measurements mean: functions of numbers, without a GPU. Tests in tests/gpu."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from statistics import fmean, linear_regression, median
from typing import NamedTuple

from pfo_fs.planner import make_pipeline

# ---- numbers


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below or at which `share` (0 to 1) of the values lie; NaN without values."""
    ranked = sorted(values)
    if not ranked:
        return math.nan
    return ranked[min(len(ranked) - 1, max(0, math.ceil(share * len(ranked)) - 1))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns mean, median, 95th and 99th percentile and maximum."""
    return {
        "mean": fmean(values) if values else math.nan,
        "median": median(values) if values else math.nan,
        "p95": percentile(values, 0.95),
        "p99": percentile(values, 0.99),
        "max": max(values, default=math.nan),
    }


class Anchor(NamedTuple):
    """A moment that is known on both clocks."""

    device_ns: float
    host_ns: float
    """On the clock of `time.monotonic_ns`."""


def to_host_ns(device_ns: float, anchors: Sequence[Anchor]) -> float:
    """Converts a time on the device's clock, by the line through the first and the last anchor.

    With one anchor, or anchors that are less than 10 ms apart, both clocks count as equally fast.
    """
    first, last = anchors[0], anchors[-1]
    apart_ns = last.device_ns - first.device_ns
    speed = (last.host_ns - first.host_ns) / apart_ns if apart_ns >= 10e6 else 1.0
    return first.host_ns + (device_ns - first.device_ns) * speed


# ---- the energy counter


class Tick(NamedTuple):
    """A change of the counter."""

    at_s: float
    """In the middle of the first reading that showed it."""
    late_s: float
    """It can have happened earlier by this time: since the middle of the reading before."""
    energy_mj: int


def period_ms(ticks: Sequence[Tick]) -> float:
    """Returns the mean time between ticks; two that came between readings count as two."""
    apart_s = [late.at_s - early.at_s for early, late in itertools.pairwise(ticks)]
    typical_s = median(apart_s)
    return sum(apart_s) / sum(max(1, round(apart / typical_s)) for apart in apart_s) * 1e3


def step_mj(ticks: Sequence[Tick]) -> int:
    """Returns the largest number of which all changes of the counter are multiples."""
    return math.gcd(*(late.energy_mj - early.energy_mj for early, late in itertools.pairwise(ticks)))


def mean_power_w(ticks: Sequence[Tick]) -> float:
    """Returns the mean power: the slope of the line through all ticks, which the first and the last one move least.

    Raises:
        ValueError: There are fewer than three.
    """
    if len(ticks) < 3:
        raise ValueError(f"the energy counter ticked {len(ticks)} times; power needs 3 ticks")
    times_s, energies_j = [tick.at_s for tick in ticks], [tick.energy_mj / 1e3 for tick in ticks]
    return linear_regression(times_s, energies_j).slope


def tick_powers_w(ticks: Sequence[Tick]) -> list[float]:
    """Returns the mean power of each interval between two ticks."""
    return [
        (late.energy_mj - early.energy_mj) / 1e3 / (late.at_s - early.at_s) for early, late in itertools.pairwise(ticks)
    ]


# ---- clocks at instruction boundaries


class Step(NamedTuple):
    """One step as it ran: all times on the host's clock, in ns."""

    begin_ns: float
    """Before the first call of the step."""
    end_ns: float
    """After the device has finished the step and the clock process has had time to follow."""
    begins_ns: Sequence[float]
    """When the device began each instruction."""
    ends_ns: Sequence[float]
    """When the device ended each instruction."""


class Boundaries(NamedTuple):
    """How far the changes of the clock were from the boundaries of the instructions that they were for.

    A boundary lasts from the end of one instruction to the begin of the next one: while the device waits, each time is
    as good as another. A change before it is early, one after it is late. A clock that is there when the step begins is
    in time for the first instruction.
    """

    boundaries: int
    missed: int
    """Boundaries whose clock was never set: the next one overtook it."""
    error_ms: dict[str, float]
    """How early or late the changes were that were made; never negative."""
    up_mean_ms: float
    """The same of changes to higher clocks, with a sign: above 0 is late, which costs time."""
    down_mean_ms: float
    """The same of changes to lower clocks: below 0 is early, which costs time."""
    wrong_share: float
    """The share of the instructions' time in which another clock was set."""


def boundary_errors(
    steps: Sequence[Step], clocks_mhz: Sequence[int], changes: Sequence[tuple[float, int]]
) -> Boundaries:
    """Compares when clocks were set with when the device began the instructions that they were for.

    Args:
        steps: The steps, in the order of time.
        clocks_mhz: The clock of each instruction of a step, each of them only once, so that a change shows which
            instruction it is for.
        changes: (time in ns on the host's clock at which it acts, MHz) of each change, in the order of time.

    Raises:
        ValueError: Two instructions have the same clock, or a step has not one begin per instruction.
    """
    if len(set(clocks_mhz)) != len(clocks_mhz):
        raise ValueError("two instructions have the same clock, so that changes cannot be told apart")
    times = [at_ns for at_ns, _ in changes]
    ups_ms: list[float] = []
    downs_ms: list[float] = []
    wrong_ns = total_ns = 0.0
    for step in steps:
        if not len(step.begins_ns) == len(step.ends_ns) == len(clocks_mhz):
            raise ValueError(f"a step has {len(step.begins_ns)} begins for {len(clocks_mhz)} instructions")
        first = bisect_right(times, step.begin_ns)
        inside = changes[first : bisect_right(times, step.end_ns)]
        if first and changes[first - 1][1] == clocks_mhz[0]:
            inside = [(step.begin_ns, clocks_mhz[0]), *inside]
        set_ns: dict[int, float] = {}
        for at_ns, mhz in inside:
            set_ns.setdefault(mhz, at_ns)
        before_ns, before_mhz = step.begin_ns, math.inf  # between steps the clock is the highest
        for mhz, began_ns, ended_ns in zip(clocks_mhz, step.begins_ns, step.ends_ns, strict=True):
            if mhz in set_ns:
                off_ns = max(0.0, set_ns[mhz] - began_ns) + min(0.0, set_ns[mhz] - before_ns)
                (ups_ms if mhz > before_mhz else downs_ms).append(off_ns / 1e6)
            total_ns += ended_ns - began_ns
            wrong_ns += _time_at_others(mhz, began_ns, ended_ns, inside)
            before_ns, before_mhz = ended_ns, mhz
    made = len(ups_ms) + len(downs_ms)
    return Boundaries(
        boundaries=len(steps) * len(clocks_mhz),
        missed=len(steps) * len(clocks_mhz) - made,
        error_ms=spread([abs(off_ms) for off_ms in ups_ms + downs_ms]),
        up_mean_ms=fmean(ups_ms) if ups_ms else math.nan,
        down_mean_ms=fmean(downs_ms) if downs_ms else math.nan,
        wrong_share=wrong_ns / total_ns if total_ns else math.nan,
    )


def _time_at_others(mhz: int, began_ns: float, ended_ns: float, changes: Sequence[tuple[float, int]]) -> float:
    """Returns how long between two times another clock than `mhz` was set, in ns."""
    now_mhz = next((clock for at_ns, clock in reversed(changes) if at_ns <= began_ns), None)
    wrong_ns, since_ns = 0.0, began_ns
    for at_ns, clock in [*((at, clock) for at, clock in changes if began_ns < at < ended_ns), (ended_ns, 0)]:
        if now_mhz != mhz:
            wrong_ns += max(0.0, at_ns - since_ns)
        now_mhz, since_ns = clock, at_ns
    return wrong_ns


def extra_cost(iterations_s: Sequence[float], without_s: Sequence[float]) -> float:
    """Returns how much longer the median iteration is than the median one without marks, as a share."""
    return median(iterations_s) / median(without_s) - 1


# ---- the order of a pipeline, and clocks that can be told apart


def launch_order(stages: int, microbatches: int) -> list[tuple[int, str, int]]:
    """Returns (stage, instruction, micro-batch) in an order in which one thread can launch 1F1B for all stages."""
    pipeline = make_pipeline("1f1b", stages, microbatches)
    nodes = (pipeline.instructions[number] for number in pipeline.topological)
    return [(one.stage, one.name, one.microbatch) for one in nodes]


def alternating_clocks(supported_mhz: Sequence[int], count: int) -> list[int]:
    """Returns `count` different clocks, by turns a high and a low one.

    Raises:
        ValueError: The GPU has fewer clocks.
    """
    ranked = sorted(set(supported_mhz), reverse=True)
    if len(ranked) < count:
        raise ValueError(f"{count} different clocks are needed; the GPU has {len(ranked)}")
    chosen = [ranked[i * len(ranked) // count] for i in range(count)]
    half = (count + 1) // 2
    high, low = chosen[:half], chosen[half:]
    return [low[i // 2] if i % 2 else high[i // 2] for i in range(count)]
