"""Part `loads`: time, power and energy of a packed attention block against the load of its batch.

A batch is sequences of unequal lengths, packed one behind the other. Linear layers take time by tokens, attention by
the squares of lengths. First all batches run forwards and backwards in another order each round, as in training; then
some of them one after the other for a second each, so that the energy counter shows their power.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch.nn.functional import gelu

from benchmarks.gpu.cuda import Load, gpu_spec, make_event, seconds
from benchmarks.gpu.energy_reader import EnergyReader
from benchmarks.gpu.load_fits import Batch, all_formulas, draw_batches, scatter

WIDTH = 4096
HEADS = 32
BATCHES = 48
STEADY = 16
MIXED_S = 16.0
STEADY_S = 1.0
ROUNDS_AT_LEAST = 3


class Block(torch.nn.Module):
    """One layer of a transformer over packed sequences: causal attention within each of them."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.project = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.attend = packed_attention()

    def forward(self, x: Any, offsets: Any, longest: int) -> Any:
        """Returns the block's output for x: tokens x width; sequence i is at offsets[i] to offsets[i + 1]."""
        parts = self.qkv(self.norm1(x)).view(x.shape[0], 3, self.heads, -1)
        q, k, v = parts[:, 0].contiguous(), parts[:, 1].contiguous(), parts[:, 2].contiguous()
        x = x + self.project(self.attend(q, k, v, offsets, longest).reshape(x.shape))
        return x + self.down(gelu(self.up(self.norm2(x))))


def packed_attention() -> Callable[..., Any]:
    """Returns torch's causal attention over packed sequences; its arguments differ between releases."""
    from torch.nn.attention.varlen import varlen_attn

    causal: dict[str, Any] = {"window_size": (-1, 0)}
    if "is_causal" in inspect.signature(varlen_attn).parameters:
        causal = {"is_causal": True}
    return lambda q, k, v, offsets, longest: varlen_attn(q, k, v, offsets, offsets, longest, longest, **causal)


class _Inputs:
    """A batch on the device, and the passes over it."""

    def __init__(self, batch: Batch, run: Callable[..., Any], weights: list[Any]) -> None:
        self.batch = batch
        self._run = run
        self._weights = weights
        self._x = torch.randn(batch.tokens, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        self._gradient = torch.randn(batch.tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
        ends = torch.tensor([0, *batch.lengths]).cumsum(0)
        self._offsets = ends.to(device="cuda", dtype=torch.int32)

    def forward(self) -> Any:
        """Launches the forward pass."""
        return self._run(self._x, self._offsets, max(self.batch.lengths))

    def backward(self, output: Any, again: bool = False) -> None:
        """Launches the backward pass; with `again` it can be repeated."""
        torch.autograd.grad(output, [self._x, *self._weights], self._gradient, retain_graph=again)


def measure() -> Iterator[dict[str, Any]]:
    """Measures the block as written, then compiled."""
    gpu_spec()
    torch.manual_seed(0)
    batches = draw_batches(BATCHES)
    block = Block().to(device="cuda", dtype=torch.bfloat16)
    tokens, squares = [batch.tokens for batch in batches], [batch.squares for batch in batches]
    yield {"what": "batches", "count": len(batches), "tokens": _range(tokens), "squares": _range(squares)}
    yield from _variant("eager", block, batches, list(block.parameters()))
    import torch._functorch.config as config

    config.donated_buffer = False  # a backward pass is repeated
    compiled = torch.compile(block, dynamic=True)
    yield from _variant("compiled", compiled, batches, list(block.parameters()))


def _range(values: list[int]) -> dict[str, float]:
    return {"min": min(values), "median": median(values), "max": max(values)}


def _variant(name: str, run: Callable[..., Any], batches: list[Batch], weights: list[Any]) -> Iterator[dict[str, Any]]:
    inputs = [_Inputs(batch, run, weights) for batch in batches]
    began_s = time.perf_counter()
    for one in inputs[:4]:
        one.backward(one.forward())
    torch.cuda.synchronize()
    yield {"what": f"{name}: first passes", "seconds": time.perf_counter() - began_s}
    for kind, samples in _mixed(inputs).items():
        times = [median(one) for one in samples]
        yield {
            "what": f"{name}: time of a {kind}, batches in random order",
            "rounds": len(samples[0]),
            "ms": _range([1e3 * value for value in times]),  # type: ignore[misc]
            "scatter_of_runs": scatter(samples),
            "unexplained": all_formulas(batches, times),
            "raw": [[b.tokens, b.squares, value] for b, value in zip(batches, times, strict=True)],
        }
    yield from _steady(name, inputs[:STEADY])


def _mixed(inputs: list[_Inputs]) -> dict[str, list[list[float]]]:
    """Returns the times in s of each batch's passes, in rounds of random order; the first round does not count."""
    rng = random.Random(1)
    found: dict[str, list[list[float]]] = {kind: [[] for _ in inputs] for kind in ("forward", "backward")}
    rounds, until_s = 0, time.perf_counter() + seconds(MIXED_S)
    while time.perf_counter() < until_s or rounds <= ROUNDS_AT_LEAST:
        order = rng.sample(range(len(inputs)), len(inputs))
        ran = []
        for i in order:
            events = [make_event() for _ in range(3)]
            events[0].record()
            output = inputs[i].forward()
            events[1].record()
            inputs[i].backward(output)
            events[2].record()
            ran.append((i, events))
        torch.cuda.synchronize()
        if rounds:
            for i, (begin, middle, end) in ran:
                found["forward"][i].append(float(begin.elapsed_time(middle)) / 1e3)
                found["backward"][i].append(float(middle.elapsed_time(end)) / 1e3)
        rounds += 1
    return found


def _steady(name: str, inputs: list[_Inputs]) -> Iterator[dict[str, Any]]:
    batches = [one.batch for one in inputs]
    for kind in ("forward", "backward"):
        times, powers, clocks = [], [], []
        with EnergyReader() as reader:
            for one in inputs:
                time_s, power_w, clock_mhz = _one_steady(reader, one, kind)
                times.append(time_s)
                powers.append(power_w)
                clocks.append(clock_mhz)
        energies = [time_s * power_w for time_s, power_w in zip(times, powers, strict=True)]
        yield {
            "what": f"{name}: {kind}s of one batch, one after the other",
            "power_w": _range(powers),  # type: ignore[arg-type]
            "clock_mhz": _range(clocks),
            "unexplained_power": all_formulas(batches, powers),
            "unexplained_energy": all_formulas(batches, energies),
            "unexplained_time": all_formulas(batches, times),
            "raw": [[b.tokens, b.squares, *row] for b, *row in zip(batches, times, powers, clocks, strict=True)],
        }


def _one_steady(reader: EnergyReader, inputs: _Inputs, kind: str) -> tuple[float, float, int]:
    """Returns time in s of a pass, power in W and SM clock in MHz at the end."""
    output = inputs.forward()
    torch.cuda.synchronize()
    load = Load(inputs.forward if kind == "forward" else lambda: inputs.backward(output, again=True), chunk_ms=30)
    began_s = time.perf_counter()
    until_s = began_s + max(0.6, seconds(STEADY_S))
    while time.perf_counter() < until_s:
        load.keep_busy()
        time.sleep(0.001)
    pynvml = reader.pynvml
    clock_mhz = int(pynvml.nvmlDeviceGetClockInfo(reader.handle, pynvml.NVML_CLOCK_SM))
    ended_s = time.perf_counter()
    time_s = load.finish()
    return time_s, reader.power_w(began_s + 0.12, ended_s), clock_mhz  # a tick covers the 100 ms before it
