"""Stand-ins for GPUs and monitors, and Zeus's own class on top of them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfo_fs.device.shared_page import WORDS
from pfo_fs.device.simulated.physics import GpuModel
from pfo_fs.errors import DeviceError
from pfo_fs.power_limit import GlobalPowerLimitOptimizer, PowerLimitMeasurement
from pfo_fs.power_limit.gpus import Levels


class FakeGpu:
    """As much of `KnobGpu` as the optimizer uses; keeps the requests that it got."""

    def __init__(self, lowest: float = 100, highest: float = 300, name: str = "Fake GPU-0") -> None:
        self.name, self.lowest, self.highest = name, lowest, highest
        self.levels: list[int] = []
        self.clocks = SimpleNamespace(words=memoryview(bytearray(WORDS * 8)).cast("q"))
        self.given_back = 0
        self.closed = False
        self.problem = self.trouble = ""

    def bounds(self) -> Levels:
        if self.problem:
            raise DeviceError(self.problem)
        return Levels(self.lowest, self.highest)

    def set_level(self, level: int) -> None:
        self.levels.append(level)

    def settle(self, deadline_s: float) -> None:
        pass

    def check(self) -> str:
        return self.problem

    def restore(self) -> None:
        self.given_back += 1

    def report_to(self, helper: str, rank: int, token: str) -> None:
        self.helper = helper

    def leave(self) -> None:
        self.closed = True

    def close(self, deadline_s: float) -> None:
        assert self.closed


class FakeMonitor:
    """Reports for the n-th complete window the n-th of `numbers`: (time in s, energy in J)."""

    def __init__(self, numbers: Sequence[tuple[float, float]] | Callable[[], tuple[float, float]]) -> None:
        self.gpu_indices = [0]
        self._numbers = numbers if callable(numbers) else iter(numbers).__next__
        self.open: set[str] = set()
        self.cancelled = 0

    def begin_window(self, key: str) -> None:
        assert not self.open
        self.open.add(key)

    def end_window(self, key: str, *, cancel: bool = False) -> Any:
        self.open.remove(key)
        if cancel:
            self.cancelled += 1
            return SimpleNamespace(time=0.0, gpu_energy={0: 0.0})
        time_s, energy_j = self._numbers()
        return SimpleNamespace(time=time_s, gpu_energy={0: energy_j})


def make_optimizer(
    monkeypatch: pytest.MonkeyPatch, monitor: FakeMonitor, gpu: FakeGpu | None = None, **options: Any
) -> tuple[GlobalPowerLimitOptimizer, FakeGpu]:
    gpu = gpu or FakeGpu()
    monkeypatch.setattr("pfo_fs.power_limit.rank_gpus.gpus_of", lambda *_: [gpu])
    return GlobalPowerLimitOptimizer(monitor, **options), gpu


class ZeusGpus:
    """What Zeus's class asks of its GPU layer; keeps the limits that were set, in W."""

    def __init__(self, lowest: int, highest: int) -> None:
        self._range_mw = (lowest * 1000, highest * 1000)
        self.levels: list[int] = []

    def get_power_management_limit_constraints(self, index: int) -> tuple[int, int]:
        return self._range_mw

    def set_persistence_mode(self, index: int, enabled: bool, block: bool) -> None:
        pass

    def set_power_management_limit(self, index: int, limit_mw: int) -> None:
        self.levels.append(limit_mw // 1000)


def make_zeus(
    monkeypatch: pytest.MonkeyPatch, monitor: FakeMonitor, gpu: FakeGpu, **options: Any
) -> tuple[Any, ZeusGpus]:
    power_limit = pytest.importorskip("zeus.optimizer.power_limit", reason="needs Zeus, with which it compares")
    gpus = ZeusGpus(int(gpu.lowest), int(gpu.highest))
    monkeypatch.setattr(power_limit, "get_gpus", lambda ensure_homogeneous=False: gpus)
    monkeypatch.setattr(power_limit, "atexit", SimpleNamespace(register=lambda _: None))
    return power_limit.GlobalPowerLimitOptimizer(monitor, **options), gpus


def state_of(optimizer: Any) -> tuple[str, int, int | None]:
    """Name, limit in W and steps of a state, ours or Zeus's."""
    state = optimizer.state
    for name in ("next_power_limit", "current_power_limit", "optimal_power_limit"):
        limit = getattr(state, name, None)
        if limit is not None:
            level = limit // 1000 if type(state).__module__.startswith("zeus") else limit
            return type(state).__name__, level, getattr(state, "steps", None)
    raise AssertionError(state)


def at_limit(model: GpuModel, level: int, steps: int = 40) -> PowerLimitMeasurement:
    """What a perfect measurement of forward and backward would say."""
    parts = [model.coefficients(name).within(level, model.clocks_mhz[-1]) for name in ("forward", "backward")]
    times_s = [part.time_s(model.clocks_mhz[0]) for part in parts]
    energy_j = sum(t * part.power_w(model.clocks_mhz[0]) for t, part in zip(times_s, parts, strict=True))
    return PowerLimitMeasurement(power_limit=level, energy=energy_j * steps, time=sum(times_s) * steps)


def limits_set(sim_dir: Path, name: str = "a") -> list[float]:
    """The limits that a simulated GPU was given, in W; setting the one in force at the start is left out."""
    path = sim_dir / f"{name}.log"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else iter(())
    return [line["watts"] for line in lines if line["action"] == "limit"][1:]


def steps(optimizer: GlobalPowerLimitOptimizer, count: int, work: Callable[[], None] = lambda: None) -> Iterator[int]:
    for step in range(count):
        optimizer.on_step_begin()
        work()
        optimizer.on_step_end()
        yield step
