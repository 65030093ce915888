"""A search for one level on a data-parallel job whose ranks get unequal work, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from pfo_fs import power_limit as pl
from pfo_fs.device.shared_page import WORDS
from pfo_fs.device.simulated.physics import A100, GpuModel
from pfo_fs.loads.readers import from_lengths
from pfo_fs.loads.step_rows import load_of_step
from pfo_fs.power_limit.gpus import Levels
from pfo_fs.power_limit.rank_gpus import WindowReport
from pfo_fs.power_limit.ranks import spaced_clocks
from pfo_fs.power_limit.same_load import StepsReport
from pfo_fs.simulator.load_play import last_stage, loads_of
from pfo_fs.simulator.traces import read_trace
from pfo_fs.simulator.uneven_job import MODELS, drawn_steps
from pfo_fs.store.power_limit_folder import KNOBS, Knob, KnobMeasurement

Array = Any
KINDS = ("forward", "backward")
REST_S = 0.02
"""Of a mean step: the optimizer's step and what follows it, at any level."""


@dataclass(frozen=True)
class Data:
    """Steps of all ranks.

    Attributes:
        name: What they are.
        works_s: Time of forwards and backwards at the highest clock, in s, (steps, ranks, 2).
        loads: Loads of the micro-batches, by step and rank.
        noise: Relative scatter of a rank's time beyond its work; measured times have their own.
    """

    name: str
    works_s: Array
    loads: Sequence[Sequence[Any]]
    noise: float


def traced(path: Path) -> Data:
    """The last stage of a trace: each dp_rank's work as that of a data-parallel rank."""
    trace = last_stage(read_trace(path))
    instructions = trace.pipeline.instructions
    lengths_s = np.array([trace.lengths_s[i.stage, i.name] for i in instructions])
    times_s = trace.table * lengths_s[:, None]
    of_kind = [[i.name == kind for i in instructions] for kind in KINDS]
    works_s = np.stack([times_s[:, kind].sum(axis=1) for kind in of_kind], axis=-1)
    loads = loads_of(trace, "trace", 0)[..., 0].swapaxes(1, 2)
    return Data(f"trace {trace.name}", works_s, loads.tolist(), 0.0)


def drawn(ranks: int, context: int, steps: int = 300, step_s: float = 2.0) -> Data:
    """Packed documents, for a model of 8B parameters; 4 micro-batches."""
    step_of, squares = drawn_steps(ranks, 4, context, 1000, 1.5, seed=0), MODELS["8B"]
    lengths = [step_of(number) for number in range(steps)]
    works = np.array([[sum(n + squares * n * n for m in rank for n in m) for rank in step] for step in lengths])
    works_s = (works * step_s / works.max(axis=1).mean())[..., None] * np.array([1 / 3, 2 / 3])
    loads = [[[from_lengths(m) for m in rank] for rank in step] for step in lengths]
    return Data(f"documents, context {context >> 10}k, {ranks} ranks", works_s, loads, 0.01)


class Job:
    """A job on simulated GPUs: those of rank 0 and its monitor for the optimizer, and the other ranks.

    Args:
        data: The steps, of which each step of the job is one drawn at random.
        model: The GPUs.
        knob: What is set.
        seed: Another order of the steps, and other noise.
        lag: By which share of a step launches are ahead of the device.
        energy_noise: Of a rank's window, relative.
    """

    def __init__(self, data: Data, knob: Knob, model: GpuModel = A100, seed: int = 0, *, lag: float = 0.3) -> None:
        self.data, self.knob, self.model = data, knob, model
        self.levels = spaced_clocks(model.clocks_mhz, 45) if knob == "clock" else _limits(model)
        self.gpu_indices = [0]
        self.words = memoryview(bytearray(WORDS * 8)).cast("q")
        self.trouble = ""
        self.name, self.rank, self.size = model.name, 0, data.works_s.shape[1]
        self.world_size = self.size
        self.steps, self.now_s = 0, 0.0
        self._rng = np.random.default_rng([seed, 1])
        self._pace = np.exp(0.03 * self._rng.standard_normal(self.size))  # chips differ in power
        self._lag, self._device_s, self._of_step = lag, 0.0, data.works_s.max(axis=1).sum(axis=-1).mean()
        self._own = [[load_of_step(loads) for loads in step] for step in data.loads]
        self._window: list[int] = []
        self.level = self.levels[0]
        self._at = {level: _slower(model, knob, level) for level in self.levels}
        self.joules = np.zeros(self.size)

    # rank 0's monitor and GPU

    def begin_window(self, _key: str) -> None:
        self.now_s = max(self.now_s, self._device_s)  # the monitor waits for the device
        self._began_s, self._window, self.joules = self.now_s, [], np.zeros(self.size)

    def end_window(self, _key: str, cancel: bool = False) -> Any:
        self.now_s = max(self.now_s, self._device_s)
        noise = np.exp(0.003 * self._rng.standard_normal(self.size))
        self.joules *= noise
        return SimpleNamespace(time=self.now_s - self._began_s, gpu_energy={0: float(self.joules[0])})

    def bounds(self) -> Levels:
        return Levels(self.levels[-1], self.levels[0], tuple(self.levels) if self.knob == "clock" else ())

    def set_level(self, level: int) -> None:
        self.level = level

    def check(self) -> str:
        return ""

    def restore(self, _deadline_s: float | None = None) -> None:
        pass

    leave = settle = close = restore

    # the other ranks

    def all_gather(self, value: Any) -> list[Any]:
        if isinstance(value, WindowReport):
            return [
                value._replace(energy_j=float(self.joules[r]), steps=self._report(value, r)) for r in range(self.size)
            ]
        gpus, problem = value
        return [([gpu._replace(name=f"{gpu.name} {r}") for gpu in gpus], problem) for r in range(self.size)]

    def _report(self, value: WindowReport, rank: int) -> StepsReport:
        if not value.steps.given:
            return value.steps
        loads = type(value.steps.loads)("d", [x for place in self._window for x in self._own[place][rank]])
        return value.steps._replace(loads=loads)

    def from_rank_0(self, value: Any) -> Any:
        return value

    def agree(self, *_: Any) -> None:
        pass

    # training

    def train(self, optimizer: Any, with_loads: bool) -> tuple[int, int]:
        """Returns the level that is chosen, and the steps until then."""
        while not isinstance(optimizer.state, pl.Done):
            assert not isinstance(optimizer.state, pl.Off), optimizer.state
            place = int(self._rng.integers(len(self._own)))
            optimizer.on_step_begin(self.data.loads[place][0] if with_loads else None)
            self._run(place)
        return self.level, self.steps

    def _run(self, place: int) -> None:
        self.steps += 1
        self._window.append(place)
        works_s = self.data.works_s[place] * np.exp(self.data.noise * self._rng.standard_normal((self.size, 1)))
        time_s, energies_j = cost_of(works_s, self._at[self.level], self.model, REST_S * self._of_step)
        begins_s = max(self.now_s, self._device_s)
        self._device_s = begins_s + time_s
        jitter_s = 0.001 * abs(float(self._rng.standard_normal()))
        self.now_s = max(self.now_s, begins_s + (1 - self._lag) * time_s) + jitter_s
        self.joules += energies_j * self._pace

    def truth(self) -> list[KnobMeasurement]:
        """Time and energy of each level over all steps of the data."""
        rows = []
        for level in self.levels:
            found = [
                cost_of(works_s, self._at[level], self.model, REST_S * self._of_step) for works_s in self.data.works_s
            ]
            rows.append(
                KNOBS[self.knob].at(level, energy=float(sum(e.sum() for _, e in found)), time=sum(t for t, _ in found))
            )
        return rows


def _limits(model: GpuModel) -> list[int]:
    lowest, highest = map(int, model.power_limits_w)
    return list(range(highest, lowest - 1, -25))


def _slower(model: GpuModel, knob: Knob, level: int) -> tuple[Array, Array]:
    """By how many times forwards and backwards take as long at a level, and their powers."""
    top, parts = model.clocks_mhz[0], [model.coefficients(kind) for kind in KINDS]
    mhz = level if knob == "clock" else top
    limited = parts if knob == "clock" else [part.within(level, model.clocks_mhz[-1]) for part in parts]
    slower = [one.time_s(mhz) / part.time_s(top) for one, part in zip(limited, parts, strict=True)]
    return np.array(slower), np.array([one.power_w(mhz) for one in limited])


def cost_of(works_s: Array, at_level: tuple[Array, Array], model: GpuModel, rest_s: float) -> tuple[float, Array]:
    """Time of a step, and the energy of each rank."""
    slower, powers_w = at_level
    took_s = works_s * slower
    time_s = float(took_s.sum(axis=1).max()) + rest_s
    return time_s, took_s @ powers_w + (time_s - took_s.sum(axis=1)) * model.blocking_power_w


def choose(job: Job, selector: pl.OptimumSelector, search: Any, *, with_loads: bool) -> tuple[int, int]:
    """Drives the optimizer until it has chosen; returns the level, and the steps until then."""
    room = "pfo_fs.power_limit"
    with (
        patch(f"{room}.rank_gpus.gpus_of", lambda *_: [job]),
        patch(f"{room}.optimizer.RankGroup", lambda: job),
        patch(f"{room}.same_load.time", SimpleNamespace(monotonic=lambda: job.now_s)),
    ):
        optimizer = pl.GlobalPowerLimitOptimizer(job, selector, search=search, knob=job.knob, strict=True)
        try:
            return job.train(optimizer, with_loads)
        finally:
            optimizer.close()


def is_near(selector: pl.OptimumSelector, truth: Sequence[KnobMeasurement], level: int) -> bool:
    """Whether a choice costs at most 1 % more than the best; where time is bounded, it may also take 1 % longer."""
    by_level = {m.level: m for m in truth}
    best, found = by_level[selector.select(truth)], by_level[level]
    full = by_level[max(by_level)]
    if isinstance(selector, pl.ZeusCost):
        most_w = full.energy / full.time
        return selector.cost_j(found, most_w) <= 1.01 * selector.cost_j(best, most_w)
    if isinstance(selector, pl.MaxSlowdownConstraint) and found.time > 1.01 * selector.factor * full.time:
        return False
    return found.energy <= 1.01 * best.energy
