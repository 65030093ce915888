"""What the measurements share on the GPU: its name, its clock next to the host's, work that keeps it busy."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.analysis import Anchor, to_host_ns

DEVICE = 0
_ANCHOR_TRIES = 40
_MOST_CHUNKS = 3


def gpu_spec() -> str:
    """Returns the spec of CUDA device 0 as pfo-fs finds it; RuntimeError without CUDA."""
    from pfo_fs.device.gpu.find_gpu import find_gpu_spec

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    torch.cuda.set_device(DEVICE)
    return find_gpu_spec(DEVICE)


def nvml() -> tuple[Any, Any]:
    """Returns pynvml, started, and the handle of CUDA device 0."""
    import pynvml

    pynvml.nvmlInit()
    _, _, uuid = gpu_spec().partition(":")
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)


def quick() -> bool:
    """Returns whether the command was started with `--quick`."""
    return bool(os.environ.get("PFO_FS_GPU_QUICK"))


def seconds(whole: float) -> float:
    """Returns how long something is measured: a quarter of `whole` with `--quick`."""
    return whole / 4 if quick() else whole


def sleep_until(at_s: float) -> None:
    """Sleeps until a time of `time.perf_counter`."""
    time.sleep(max(0.0, at_s - time.perf_counter()))


def make_event() -> Any:
    """Returns a CUDA event that has a time."""
    return torch.cuda.Event(enable_timing=True)


class DeviceClock:
    """Converts times of CUDA events to the clock of `time.monotonic_ns`.

    Each `anchor` records an event on the idle device many times, between two readings of the host's clock, and keeps
    the try with the shortest interval; `uncertainty_us` is half of the longest interval kept. Make one at most a minute
    before its last use: CUDA returns differences of times as 32-bit floats in ms.
    """

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._origin = make_event()
        self._origin.record()
        self._anchors: list[Anchor] = []
        self.uncertainty_us = 0.0
        self.anchor()

    def anchor(self) -> None:
        """Waits for the device, and reads both clocks."""
        best: tuple[int, Any, int] | None = None
        for _ in range(_ANCHOR_TRIES):
            torch.cuda.synchronize()
            event = make_event()
            before_ns = time.monotonic_ns()
            event.record()
            event.synchronize()
            took_ns = time.monotonic_ns() - before_ns
            if best is None or took_ns < best[0]:
                best = (took_ns, event, before_ns + took_ns // 2)
        assert best is not None
        took_ns, event, host_ns = best
        self.uncertainty_us = max(self.uncertainty_us, took_ns / 2e3)
        self._anchors.append(Anchor(self._device_ns(event), host_ns))

    def _device_ns(self, event: Any) -> float:
        return float(self._origin.elapsed_time(event)) * 1e6

    def host_ns(self, event: Any) -> float:
        """Returns when the device reached an event that is complete."""
        return to_host_ns(self._device_ns(event), self._anchors)


class Load:
    """Work of one kind, put into the current stream in chunks so that a few are always waiting.

    Args:
        work: Launches one piece of work.
        chunk_ms: A chunk takes about so long.
    """

    def __init__(self, work: Callable[[], object], chunk_ms: float = 20.0) -> None:
        self.work = work
        work()
        torch.cuda.synchronize()
        self.piece_ms = self._time(5)
        self.pieces = max(1, min(200, round(chunk_ms / self.piece_ms)))
        self._waiting: deque[Any] = deque()
        self._ends: list[Any] = []

    def _time(self, pieces: int) -> float:
        begin, end = make_event(), make_event()
        begin.record()
        for _ in range(pieces):
            self.work()
        end.record()
        end.synchronize()
        return max(1e-3, float(begin.elapsed_time(end)) / pieces)

    def keep_busy(self) -> None:
        """Launches another chunk unless enough are waiting; does not wait."""
        while self._waiting and self._waiting[0].query():
            self._waiting.popleft()
        if len(self._waiting) < _MOST_CHUNKS:
            for _ in range(self.pieces):
                self.work()
            event = make_event()
            event.record()
            self._waiting.append(event)
            self._ends.append(event)

    def finish(self) -> float:
        """Waits until the device has done it all; returns the time of one piece since the call before this, in s."""
        torch.cuda.synchronize()
        ends, self._ends = self._ends, []
        self._waiting.clear()
        if len(ends) < 2:
            return self.piece_ms / 1e3
        return float(ends[0].elapsed_time(ends[-1])) / 1e3 / (len(ends) - 1) / self.pieces


def matmul(size: int, filled: float = 1.0) -> Callable[[], object]:
    """Returns a bf16 matrix product; only the share `filled` of the numbers is not 0, which lowers the power."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    if filled < 1:
        a *= torch.rand(size, size, device="cuda") < filled
        b *= torch.rand(size, size, device="cuda") < filled
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)
