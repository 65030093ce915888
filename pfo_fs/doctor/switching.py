"""Measures what changes of the clock cost on this node: the content of the file that planner and jobs read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median
from typing import Any

import pfo_fs
from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.device.gpu.nvml import driver_version
from pfo_fs.device.simulated.gpu import simulated_node
from pfo_fs.doctor import all_reduce, calls
from pfo_fs.doctor.load import open_load
from pfo_fs.doctor.settling import chain, measure_settling, spread_targets
from pfo_fs.errors import DeviceError

_DIGITS = 6


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        calls: Calls of each GPU alone.
        targets: Clocks whose settling is measured.
        rounds: Changes to each of them.
        watch_s: How long the load runs after each change.
        rate_s: How long each rate of calls is measured.
    """

    calls: int = 200
    targets: int = 12
    rounds: int = 3
    watch_s: float = 0.5
    rate_s: float = 3.0


def measure_switching(
    specs: Sequence[str], gpus: Sequence[Gpu], extent: Extent, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Measures; the clocks are left as the last call has set them.

    Args:
        specs: The specs of the GPUs.
        gpus: The GPUs of this node, open.
        extent: How much is measured.
        say: Called with a text when a part begins.

    Returns:
        The content of the file. What could not be measured is left out, and `not_measured` says why.

    Raises:
        DeviceError: A GPU has fewer than two clocks, or a clock cannot be set.
    """
    clocks_mhz = sorted(set.intersection(*(set(gpu.supported_clocks_mhz()) for gpu in gpus)))
    if len(clocks_mhz) < 2:
        raise DeviceError(f"{gpus[0].name}: the GPUs of this node share {len(clocks_mhz)} clocks; two are needed")
    not_measured: dict[str, str] = {}
    measured = _measure_calls(gpus, clocks_mhz, extent, say, not_measured)
    measured |= _measure_settling(specs[0], gpus[0], clocks_mhz, extent, say, not_measured)
    delays: dict[float, float] = {}
    reason = all_reduce.why_not(len(gpus), specs[0].startswith("nvml:"))
    if reason:
        not_measured["all_reduce_delay"] = reason
    else:
        say("all-reduces while clocks are set ...")
        try:
            delays = all_reduce.measure_delays(gpus, clocks_mhz[-1], extent.rate_s)
            measured["all_reduce_delay"] = {f"{rate:g}": round(delay, 4) for rate, delay in delays.items()}
        except DeviceError as error:
            not_measured["all_reduce_delay"] = str(error)
    most = calls.suggested_calls_per_s(measured["calls_per_s"], delays)
    return {
        **measured,
        "max_calls_per_s": float(f"{most:.3g}"),
        "not_measured": not_measured,
        "gpu": gpus[0].name,
        "driver": _driver(specs[0]),
        "clock_backend": gpus[0].clock_backend,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "pfo_fs": pfo_fs.__version__,
    }


def _measure_calls(
    gpus: Sequence[Gpu],
    clocks_mhz: Sequence[int],
    extent: Extent,
    say: Callable[[str], None],
    not_measured: dict[str, str],
) -> dict[str, Any]:
    ends_mhz = (clocks_mhz[0], clocks_mhz[-1])
    alone_s = []
    for number, gpu in enumerate(gpus):
        say(f"calls of one GPU alone: {number + 1} of {len(gpus)} ...")
        alone_s.append(calls.durations_alone_s(gpu, ends_mhz, extent.calls))
    everything_s = [duration_s for durations_s in alone_s for duration_s in durations_s]
    call_s = median(everything_s)
    found: dict[str, Any] = {
        "call_s": {
            "median": round(call_s, _DIGITS),
            "p99": round(calls.percentile(everything_s, 0.99), _DIGITS),
        },
        "call_median_s": [round(median(durations_s), _DIGITS) for durations_s in alone_s],
        "gpus": len(gpus),
    }
    if len(gpus) > 1:
        say("calls of all GPUs at once ...")
        at_once_s = calls.durations_at_once_s(gpus, ends_mhz, max(5, extent.calls // 10))
        found["at_once_s"] = round(median(at_once_s), _DIGITS)
        found["serial"] = calls.wait_for_each_other(call_s, at_once_s, len(gpus))
    else:
        not_measured["serial"] = "it takes two GPUs or more; plans assume that calls wait for each other"
    say("as many calls as the driver serves ...")
    found["calls_per_s"] = round(calls.most_calls_per_s(gpus, ends_mhz, min(2.0, extent.rate_s)), 1)
    return found


def _measure_settling(
    spec: str,
    gpu: Gpu,
    clocks_mhz: Sequence[int],
    extent: Extent,
    say: Callable[[str], None],
    not_measured: dict[str, str],
) -> dict[str, Any]:
    order_mhz = chain(spread_targets(clocks_mhz, extent.targets), extent.rounds)
    try:
        load = open_load(spec)
    except DeviceError as error:
        not_measured["latency_s"] = not_measured["stands_still_s"] = str(error)
        return {}
    try:
        seen = measure_settling(
            gpu,
            load,
            order_mhz,
            extent.watch_s,
            lambda done: say(f"when a clock acts: change {done} of {len(order_mhz)} ..."),
        )
    finally:
        load.close()
    if seen.not_seen:
        count = len(seen.not_seen)
        not_measured["latency_s"] = (
            f"{count} of {len(order_mhz)} changes did not show within {extent.watch_s:g} s "
            f"(to {', '.join(map(str, sorted(set(seen.not_seen))))} MHz)"
        )
    found: dict[str, Any] = {
        "latency_s": {str(mhz): round(latency_s, _DIGITS) for mhz, latency_s in seen.latency_s.items()}
    }
    if seen.stood_still_s:
        found["stands_still_s"] = round(median(seen.stood_still_s), _DIGITS)
    if seen.unsteady_s is not None:
        found["late_s"] = round(seen.unsteady_s, _DIGITS)
    return found


def _driver(spec: str) -> str:
    if spec.startswith("simulated:"):
        return f"simulated ({simulated_node().name})"
    try:
        return driver_version()
    except DeviceError:
        return ""
