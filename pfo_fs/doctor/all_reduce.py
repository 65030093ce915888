"""How much longer an all-reduce of NCCL takes while clocks are being set, at several rates of calls.

Users report that calls at 20 per second delay NCCL, whatever the clock is (NVIDIA/nccl#1551). So the calls here set the
same clock again and again. The all-reduces run in processes of their own, one per GPU; the first one writes a line for
each of its measurements into a file. This module is both sides.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.errors import DeviceError
from pfo_fs.ipc.spawn import Child, start_process

RATES_PER_S = (0, 5, 20, 50)
_START_WITHIN_S = 120.0
_MEASURED = "measured"
_AT_ONCE = 10
_NUMBERS = 4 * 2**20
_NUMBERS_ON_CPU = 2**14
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LEAST_MEASUREMENTS = 3
_WARM_UP = 5


class Measured(NamedTuple):
    """Some all-reduces, one after the other.

    Attributes:
        ended_s: Their end, in s of `time.monotonic`.
        took_s: Duration of one.
    """

    ended_s: float
    took_s: float


def why_not(gpus: int, real: bool) -> str:
    """Returns why all-reduces cannot be measured here; empty if they can."""
    if not real:
        return "simulated GPUs have no NCCL"
    if gpus < 2:
        return "it takes two GPUs or more"
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available() or not dist.is_available() or not dist.is_nccl_available():
        return "this torch has no CUDA device or no NCCL"
    if torch.cuda.device_count() < gpus:
        return f"torch sees {torch.cuda.device_count()} of {gpus} GPUs"
    return ""


def delays_of(measured: Sequence[Measured], windows: Sequence[tuple[float, float, float]]) -> dict[float, float]:
    """Returns, for each rate of calls, the share by which an all-reduce took longer than without calls.

    Args:
        measured: All all-reduces.
        windows: (rate, begin, end) in s; those of rate 0 are what the others are compared with.

    Raises:
        DeviceError: Too few all-reduces were seen in a window.
    """
    times: dict[float, list[float]] = {}
    for rate, begin_s, end_s in windows:
        times.setdefault(rate, []).extend(m.took_s for m in measured if begin_s < m.ended_s <= end_s)
    for rate, values in times.items():
        if len(values) < _LEAST_MEASUREMENTS:
            raise DeviceError(f"too few all-reduces ended while {rate:g} calls per second were made")
    return {rate: mean(values) / mean(times[0]) - 1 for rate, values in times.items()}


def measure_delays(
    gpus: Sequence[Gpu], mhz: int, seconds: float, backend: str = "nccl", rates_per_s: Sequence[float] = RATES_PER_S
) -> dict[float, float]:
    """Runs all-reduces over all GPUs, and sets clocks meanwhile.

    Args:
        gpus: The GPUs.
        mhz: The clock that all calls set.
        seconds: How long each rate is measured.
        backend: The backend of `torch.distributed`; `gloo` runs on the CPU.
        rates_per_s: Calls per second of the whole node; 0 must be among them.

    Returns:
        For each rate, the share by which an all-reduce took longer than without calls.

    Raises:
        DeviceError: The processes failed, or a clock cannot be set.
    """
    most_s = (len(rates_per_s) + 1) * (seconds + 1) + _START_WITHIN_S
    with TemporaryDirectory() as folder, ExitStack() as stack:
        given = {"backend": backend, "ranks": len(gpus), "folder": folder, "seconds": most_s}
        ranks: list[Child] = []
        stack.callback(_end, ranks)
        ranks.extend(start_process(__name__, {**given, "rank": rank}) for rank in range(len(gpus)))
        deadline_s = time.monotonic() + _START_WITHIN_S
        while len(_measured(folder)) < _WARM_UP and _all_run(ranks) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        for gpu in gpus:
            gpu.lock_clock_mhz(mhz)
        rates = (*rates_per_s, 0) if _measured(folder) else ()  # without calls at both ends, as GPUs get warmer
        windows = [_call_at(rate, gpus, mhz, seconds) for rate in rates]
        measured = _measured(folder)
        if not measured or not _all_run(ranks):
            raise DeviceError(f"the all-reduces have failed{''.join(rank.how_it_ended() for rank in ranks)}")
    return delays_of(measured, windows)


def _measured(folder: str) -> list[Measured]:
    """What the first rank has written so far; it writes a line at once."""
    path = Path(folder) / _MEASURED
    rows = (line.split() for line in path.read_text().split("\n")[:-1]) if path.exists() else ()
    return [Measured(float(ended_s), float(took_s)) for ended_s, took_s in rows]


def _all_run(ranks: Sequence[Child]) -> bool:
    return all(process.poll() is None for process in ranks)


def _end(ranks: Sequence[Child]) -> None:
    for process in ranks:
        process.kill()
    for process in ranks:
        process.wait()


def _call_at(rate: float, gpus: Sequence[Gpu], mhz: int, seconds: float) -> tuple[float, float, float]:
    """Makes calls at this rate over all GPUs in turn; returns the window."""
    began_s = time.monotonic()
    if not rate:
        time.sleep(seconds)
        return rate, began_s, time.monotonic()
    for count, gpu in enumerate(cycle(gpus)):
        due_s = began_s + count / rate
        if due_s >= began_s + seconds:
            break
        time.sleep(max(0.0, due_s - time.monotonic()))
        gpu.lock_clock_mhz(mhz)
    return rate, began_s, time.monotonic()


def main(given: dict[str, Any]) -> int:
    """Runs one rank of the all-reduces until its time is over, or the process that started it has ended."""
    import torch
    import torch.distributed as dist

    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    torch.set_num_threads(1)
    rank, deadline_s = given["rank"], time.monotonic() + given["seconds"]
    cuda = given["backend"] == "nccl"
    if cuda:
        torch.cuda.set_device(rank)
    store = dist.FileStore(os.path.join(given["folder"], "store"), given["ranks"])
    dist.init_process_group(given["backend"], store=store, rank=rank, world_size=given["ranks"])
    tensor = torch.zeros(_NUMBERS if cuda else _NUMBERS_ON_CPU, device="cuda" if cuda else "cpu")
    first = True
    while time.monotonic() < deadline_s:
        began_s = time.monotonic()
        for _ in range(_AT_ONCE):
            dist.all_reduce(tensor)
        if cuda:
            torch.cuda.synchronize()
        ended_s = time.monotonic()
        if rank == 0 and not first:
            with open(os.path.join(given["folder"], _MEASURED), "a") as file:
                file.write(f"{ended_s} {(ended_s - began_s) / _AT_ONCE}\n")
        first = False
    return 0
