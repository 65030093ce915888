"""Part `neighbours`: by how much work in another stream of the same GPU changes the duration of an instruction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.cuda import Load, gpu_spec, make_event, matmul, nvml, seconds
from benchmarks.gpu.energy_reader import EnergyReader
from benchmarks.gpu.load_fits import standard_error

TURN_S = 1.2
TURNS = 3
PIECE_MS = 8.0
ALL_REDUCE_BLOCKS = 24
MEBIBYTES = 512


def measure() -> Iterator[dict[str, Any]]:
    """Runs each kind of work alone and beside each kind of neighbour, by turns."""
    gpu_spec()
    works = {"matrix products 4096": matmul(4096), "layer norm and gelu": _pointwise()}
    neighbours = _neighbours()
    for what, work in works.items():
        pieces = max(1, round(PIECE_MS / Load(work).piece_ms))
        alone: list[float] = []
        beside: dict[str, list[float]] = {name: [] for name in neighbours}
        more: dict[str, tuple[float, int]] = {}
        with EnergyReader() as reader:
            for _ in range(TURNS):
                for name, neighbour in [("alone", None), *neighbours.items()]:
                    took, power_w, clock_mhz = _turn(reader, work, pieces, neighbour)
                    (beside[name] if neighbour else alone).extend(took)
                    more[name] = (power_w, clock_mhz)
        base, base_error = median(alone), standard_error(alone) / median(alone)
        yield {
            "what": f"{what}, alone",
            "ms": base,
            "error": base_error,
            "power_w": more["alone"][0],
            "clock_mhz": more["alone"][1],
        }
        for name, took in beside.items():
            error = ((standard_error(took) / median(took)) ** 2 + base_error**2) ** 0.5
            yield {
                "what": f"{what}, beside {name}",
                "longer_by": median(took) / base - 1,
                "error": error,
                "power_w": more[name][0],
                "clock_mhz": more[name][1],
            }


def _pointwise() -> Callable[[], object]:
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (8192,)))


def _neighbours() -> dict[str, Callable[[], object]]:
    """Returns work for the other stream; each call takes some 0.2 to 10 ms."""
    size = MEBIBYTES * 2**18
    source, target = torch.randn(size, device="cuda"), torch.empty(size, device="cuda")
    part = size // 4
    host = torch.empty(part, pin_memory=True)
    found: dict[str, Callable[[], object]] = {
        "copies on the device": lambda: target.copy_(source),
        "copies from the host": lambda: target[:part].copy_(host, non_blocking=True),
        "copies to the host": lambda: host.copy_(source[:part], non_blocking=True),
    }
    with suppress(ImportError):  # without Triton there is no kernel of few blocks
        found[f"sums in {ALL_REDUCE_BLOCKS} blocks (as an all-reduce)"] = _few_blocks(source, target)
    for neighbour in found.values():  # Triton compiles at the first call
        neighbour()
    torch.cuda.synchronize()
    return found


def _few_blocks(source: Any, target: Any) -> Callable[[], object]:
    """Returns target += source by few thread blocks, as a collective occupies few multiprocessors."""
    from benchmarks.gpu.few_blocks import add

    return lambda: add[(ALL_REDUCE_BLOCKS,)](target, source, source.numel() // 8, 8192, num_warps=16)


def _turn(
    reader: EnergyReader, work: Callable[[], object], pieces: int, neighbour: Callable[[], object] | None
) -> tuple[list[float], float, int]:
    """Returns times in ms of instructions of so many pieces, power in W, and the SM clock at the end in MHz."""
    beside = torch.cuda.Stream()
    took: list[float] = []
    began_s = time.perf_counter()
    until_s = began_s + max(0.6, seconds(TURN_S))
    pending: list[Any] = []
    spans: list[tuple[Any, Any]] = []
    while time.perf_counter() < until_s:
        with torch.cuda.stream(beside):
            while neighbour and len(pending) < 6:
                neighbour()
                pending.append(make_event())
                pending[-1].record()
        begin, end = make_event(), make_event()
        begin.record()
        for _ in range(pieces):
            work()
        end.record()
        spans.append((begin, end))
        while len(spans) > 2 and not spans[-2][1].query():
            pending = [event for event in pending if not event.query()]
            with torch.cuda.stream(beside):
                while neighbour and len(pending) < 6:
                    neighbour()
                    pending.append(make_event())
                    pending[-1].record()
            time.sleep(0.0002)
    pynvml, handle = nvml()
    clock_mhz = int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    ended_s = time.perf_counter()
    torch.cuda.synchronize()
    took = [float(begin.elapsed_time(end)) for begin, end in spans[len(spans) // 5 : -2]]
    return took, reader.power_w(began_s + 0.12, ended_s), clock_mhz
