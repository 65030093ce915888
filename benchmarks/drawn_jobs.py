"""Jobs drawn at random from a seed: what the closed loop must cope with, far beyond the jobs that it was built with.

    job = generated_job(1000)     # durations jitter
    job = varied_job(1000)        # the same job, of several pipelines, whose durations also vary as those of real jobs
    cluster = job.cluster(seed=1)

All are physically sound: an instruction takes a + b/f at clock f, and no less than a floor where memory holds it back;
power grows convexly with the clock up to the board's limit; a waiting GPU draws less than any instruction. Above the
clock at which the board reaches its limit, a higher clock changes nothing, or makes instructions a little slower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.device.simulated.physics import PRESETS, Coefficients, GpuModel
from pfo_fs.planner import Measurement, Pipeline, make_pipeline
from pfo_fs.simulator import Nuisances, SimulatedJob
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.simulator.truth import Truth

_GPUS_PER_NODE = 8
_MOST_INSTRUCTIONS = 8192
"""Of all pipelines in an iteration: more would take seconds each to simulate."""
_STEP_MHZ = 15
_JUDGED = 64
"""A plan for a job whose variation is drawn is judged by 64 further iterations; traces have 32 to 44 steps."""
_DRIFT_STEPS = 100
"""Iterations between two random values of the drift."""
_BURST_STEPS = 60
"""At most one burst begins in 60 iterations."""


@dataclass(frozen=True)
class GeneratedTruth(Truth):
    """The truth of a job whose stages may differ in length and kind.

    Attributes:
        floors: For each stage, the highest clock that still makes its instructions faster, relative to the highest.
        droop: By how much the real clock of a board at its power limit falls, per MHz that the set clock lies above it.
        roughness: Standard deviation of the time of an instruction at a clock around its smooth curve, relative. Power
            scatters by twice as much. It is the same in all iterations.
    """

    stages: Sequence[GpuModel]
    floors: Sequence[float]
    droop: float = 0.0
    roughness: float = 0.0
    seed: int = 0

    @property
    def model(self) -> GpuModel:  # type: ignore[override]
        """That of the first stage; all offer the same clocks, and wait at the same power."""
        return self.stages[0]

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock."""
        model = self.stages[stage]
        lowest_mhz, limit_w = model.clocks_mhz[-1], model.power_limits_w[1]
        curve = model.coefficients(instruction).within(limit_w, lowest_mhz)
        real_mhz = mhz if mhz <= curve.cap_mhz else max(lowest_mhz, curve.cap_mhz - self.droop * (mhz - curve.cap_mhz))
        time_s = curve.time_s(min(real_mhz, self.floors[stage] * curve.top_mhz))
        power_w = curve.power_w(mhz)  # at most that at the cap
        if self.roughness:
            chance = Random(f"{self.seed} {stage} {instruction} {mhz}")
            time_s *= math.exp(chance.gauss(0, self.roughness))
            power_w *= math.exp(chance.gauss(0, 2 * self.roughness))
        return Measurement(mhz, time_s, time_s * power_w)


def generated_job(seed: int) -> SimulatedJob:
    """Returns the job of a seed; the same one each time."""
    chance = Random(seed)
    pipeline = _pipeline(chance)
    truth = _truth(chance, pipeline.num_stages, seed)
    kinds = {(i.stage, i.name) for i in pipeline.instructions}
    times_s = {kind: truth.measurement(*kind, truth.clocks_mhz[0]).time_s for kind in kinds}
    work_s = [sum(times_s[i.stage, i.name] for i in order) for order in pipeline.orders]
    nuisances = Nuisances(
        time_jitter=chance.choice([0.0, 0.002, 0.005, 0.01, 0.02]),
        power_jitter=chance.choice([0.0, 0.005, 0.01, 0.02]),
        warm_up=chance.choice([0.0, 0.01, 0.03]),
        delay_s=min(0.05 * min(times_s.values()), _log_uniform(chance, 0.0001, 0.003)),
        overhead_s=chance.uniform(0.002, 0.06) * max(work_s),
        tick_s=chance.choice([0.02, 0.1, 0.1, 1.0]),
    )
    nodes = _nodes(chance)
    where = f"{nodes.physics.name} {nodes.gpus_per_rank}x{nodes.ranks_per_node}" if nodes else "no node"
    name = f"generated {seed}: {pipeline.name} {pipeline.num_stages}x{pipeline.num_microbatches}, {where}"
    return SimulatedJob(name, pipeline, truth, nuisances, nodes)


def varied_job(seed: int) -> SimulatedJob:
    """Returns the generated job of a seed, with 1 to 8 pipelines and variation that is drawn from the same seed."""
    job, chance = generated_job(seed), Random(f"varied {seed}")
    most = max(1, _MOST_INSTRUCTIONS // len(job.pipeline.instructions))
    pipelines = min(most, chance.choice([1, 1, 2, 4, 8]))
    variation = _variation(chance, job.pipeline, pipelines, seed)
    return replace(job, name=f"varied {job.name}, {pipelines} pipelines", pipelines=pipelines, variation=variation)


def _variation(chance: Random, pipeline: Pipeline, pipelines: int, seed: int) -> DrawnVariation:
    """Sizes reach from nothing to what production traces show: micro-batches of one length, or of very unequal ones."""

    def sometimes(share: float, value: float) -> float:
        return value if chance.random() < share else 0.0

    mixture = Mixture(1.0, chance.choice([0.0, 0.01, 0.02, 0.05, 0.15, 0.3]))
    later = Mixture(chance.uniform(0.8, 1.25), chance.choice([mixture.spread, 0.02, 0.1, 0.3]))
    return DrawnVariation(
        pipeline,
        pipelines,
        seed,
        mixture,
        later,
        changes_at=chance.randint(150, 500) if chance.random() < 0.25 else None,
        per_step=chance.choice([0.0, 0.005, 0.015]),
        per_rank=chance.choice([0.0, 0.005, 0.02]),
        own=chance.choice([0.0, 0.005, 0.01]),
        tails=sometimes(0.3, _log_uniform(chance, 0.0002, 0.005)),
        tail=chance.uniform(0.1, 2.0),
        drift=sometimes(0.3, _log_uniform(chance, 0.002, 0.02)),
        bursts=sometimes(0.3, 0.5),
        burst=chance.uniform(0.05, 0.5),
        slow_worker=sometimes(0.25, chance.uniform(0.1, 1.0)),
    )


def _pipeline(chance: Random) -> Pipeline:
    schedule = chance.choice(["1f1b", "1f1b", "1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "early-recomputation"])
    stages = chance.choice([2, 3, 4, 4, 6, 8, 8, 12, 16])
    micro_batches = round(_log_uniform(chance, 4, 256))
    if schedule not in ("interleaved", "zb-v"):
        return make_pipeline(schedule, stages, micro_batches)
    ranks = max(2, stages // 2)
    micro_batches = max(2 * ranks, micro_batches // ranks * ranks)
    return make_pipeline(schedule, 2 * ranks, micro_batches, num_ranks=ranks)


def _truth(chance: Random, num_stages: int, seed: int) -> GeneratedTruth:
    clocks_mhz = _clocks_mhz(chance)
    limit_w = chance.choice([300.0, 400.0, 500.0, 700.0])
    top_w = limit_w * chance.uniform(0.5, 1.3)
    forward_s = _log_uniform(chance, 0.003, 0.8)
    backward = chance.uniform(1.5, 2.6)
    floor = chance.choice([1.0, 1.0, chance.uniform(0.65, 1.0)])
    kernels = _kernels(chance, clocks_mhz[0], top_w)
    alike = chance.random() < 0.7
    models, floors = [], []
    for length in _lengths(chance, num_stages):
        own = kernels if alike else _kernels(chance, clocks_mhz[0], top_w)
        times_s = {"forward": forward_s * length, "backward": forward_s * length * backward}
        instructions = {name: own[name]._replace(time_ref_s=time_s) for name, time_s in times_s.items()}
        models.append(GpuModel("generated", clocks_mhz, (100.0, limit_w), 0.0, instructions, instructions))
        floors.append(floor if alike else chance.choice([1.0, chance.uniform(0.65, 1.0)]))
    least_w = min(curve.power_w(clocks_mhz[-1]) for model in models for curve in model.instructions.values())
    waiting_w = min(least_w, limit_w) * chance.uniform(0.5, 0.95)
    models = [model._replace(blocking_power_w=waiting_w) for model in models]
    droop = chance.choice([0.0, chance.uniform(0.05, 0.4)])
    return GeneratedTruth(models, floors, droop, chance.choice([0.0, 0.001, 0.002]), seed)


def _clocks_mhz(chance: Random) -> tuple[int, ...]:
    """8 to 120 clocks, in even steps."""
    top_mhz = _STEP_MHZ * chance.randint(80, 140)
    lowest_mhz = max(210.0, top_mhz * chance.uniform(0.12, 0.55))
    count = round(_log_uniform(chance, 8, 120))
    steps = (top_mhz - lowest_mhz) / (count - 1) / _STEP_MHZ
    step_mhz = max(1, round(steps) if count > 10 else int(steps)) * _STEP_MHZ
    return tuple(range(top_mhz, int(lowest_mhz) - 1, -step_mhz))[:120]


def _lengths(chance: Random, num_stages: int) -> list[float]:
    """How long each stage takes, relative."""
    kind = chance.choice(["even", "nearly even", "last", "uneven", "one dominates"])
    spread = {"even": 0.0, "nearly even": 0.03, "last": 0.01, "uneven": 0.3, "one dominates": 0.1}[kind]
    lengths = [1 + chance.uniform(-spread, spread) for _ in range(num_stages)]
    if kind == "last":
        lengths[-1] *= chance.uniform(1.03, 1.3)
    elif kind == "one dominates":
        lengths[chance.randrange(num_stages)] *= chance.uniform(1.5, 2.5)
    return lengths


def _kernels(chance: Random, top_mhz: int, top_w: float) -> Mapping[str, Coefficients]:
    """How forward and backward follow the clock, for a length of 1 s."""
    follows = chance.choice([chance.uniform(0.15, 0.5), chance.uniform(0.5, 0.8), chance.uniform(0.8, 1.0)])
    kernels = {}
    for name in ("forward", "backward"):
        a = min(1.0, max(0.1, follows * chance.uniform(0.8, 1.15)))
        floor, linear = chance.uniform(0.1, 0.25), chance.uniform(0.25, 0.55)
        knee, exponent = chance.uniform(0.55, 0.8), chance.uniform(1.1, 2.0)
        of_kind_w = top_w * chance.uniform(0.85, 1.05)
        steep_w = (1 - floor - linear) * of_kind_w / (1 - knee) ** exponent
        kernels[name] = Coefficients(top_mhz, 1.0, a, floor * of_kind_w, linear * of_kind_w, steep_w, knee, exponent)
    return kernels


def _nodes(chance: Random) -> NodeSettings | None:
    name = chance.choice(["", "none", "A100 node", "A100 node", "H100 node", "H100 node"])
    gpus = chance.choice([1, 1, 2, 4, 8])
    ranks = chance.choice([ranks for ranks in (1, 2, 4, 8) if ranks * gpus <= _GPUS_PER_NODE])
    return NodeSettings(PRESETS[name], gpus, ranks) if name else None


def _log_uniform(chance: Random, low: float, high: float) -> float:
    return math.exp(chance.uniform(math.log(low), math.log(high)))


# ---- variation from iteration to iteration


class Mixture(NamedTuple):
    """What micro-batches hold.

    Attributes:
        spread: Standard deviation of the logarithm of a micro-batch's time, the same on all ranks.
    """

    length: float = 1.0
    spread: float = 0.0


ALIKE = Mixture()
"""All micro-batches take equally long."""


@dataclass(frozen=True)
class DrawnVariation:
    """Variation that is drawn at random, in the kinds that production traces show.

    Attributes:
        seed: Seed of what belongs to the job: ranks that differ permanently. The rest also follows the run's seed.
        later_mixture: What they hold from iteration `changes_at` on.
        changes_at: None: the mixture stays.
        per_step: Standard deviation of a factor of a whole iteration.
        per_rank: Standard deviation of a factor of a rank of a pipeline, permanently.
        own: Standard deviation of a factor of each instruction.
        tails: Share of instructions that take longer by an exponentially distributed factor, of mean `tail`.
        tail: Mean additional time of these, relative.
        drift: Standard deviation of a factor of all iterations that changes over hundreds of them.
        bursts: Probability that a burst begins within 60 iterations: a rank of a pipeline is slower for 5 to 30.
        burst: Additional time in a burst, relative.
        slow_worker: Additional time of one permanently slow rank of one pipeline, relative; 0: there is none.
    """

    pipeline: Pipeline
    pipelines: int
    seed: int
    mixture: Mixture = ALIKE
    later_mixture: Mixture = ALIKE
    changes_at: int | None = None
    per_step: float = 0.0
    per_rank: float = 0.0
    own: float = 0.0
    tails: float = 0.0
    tail: float = 0.0
    drift: float = 0.0
    bursts: float = 0.0
    burst: float = 0.0
    slow_worker: float = 0.0

    def factors(self, iteration: int, seed: int) -> Array:
        """Factors of an iteration: (nodes, pipelines), nodes as in `pipeline.instructions`."""
        ranks, micro_batches = self._places
        shape = len(ranks), self.pipelines
        drawn = np.random.default_rng([self.seed, seed, iteration])
        changed = self.changes_at is not None and iteration >= self.changes_at
        length, spread = self.later_mixture if changed else self.mixture
        of_micro_batches = spread * drawn.standard_normal((max(micro_batches) + 1, self.pipelines)) - spread**2 / 2
        logs = np.log(length) + self.per_step * drawn.standard_normal() + of_micro_batches[micro_batches]
        logs = logs + self.own * drawn.standard_normal(shape)
        logs = logs + np.log1p((drawn.random(shape) < self.tails) * drawn.exponential(self.tail, shape))
        logs = logs + self.drift * self._drift(iteration, seed) + self._of_ranks[ranks]
        return np.exp(logs + np.log1p(self._bursts(iteration, seed))[ranks])

    def judged(self, iterations: int, seed: int) -> Sequence[Array]:
        """Factors of the iterations that follow."""
        return [self.factors(iteration, seed) for iteration in range(iterations, iterations + _JUDGED)]

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """For each node, its rank and its micro-batch."""
        orders = self.pipeline.orders
        ranks = [rank for rank, order in enumerate(orders) for _ in order]
        return ranks, [instruction.microbatch for order in orders for instruction in order]

    @cached_property
    def _of_ranks(self) -> Array:
        """Logarithms of the factors that permanently belong to ranks, (ranks, pipelines)."""
        drawn = np.random.default_rng([self.seed])
        shape = len(self.pipeline.orders), self.pipelines
        logs = self.per_rank * drawn.standard_normal(shape)
        logs[drawn.integers(shape[0]), drawn.integers(shape[1])] += np.log1p(self.slow_worker)
        return logs

    def _drift(self, iteration: int, seed: int) -> float:
        """A value of about standard normal size, on straight lines between random ones."""
        line, at = divmod(iteration, _DRIFT_STEPS)
        before, after = (np.random.default_rng([self.seed, seed, line + n, 1]).standard_normal() for n in (0, 1))
        return float(before + (after - before) * at / _DRIFT_STEPS)

    def _bursts(self, iteration: int, seed: int) -> Array:
        """Additional time of each rank in this iteration, relative, (ranks, pipelines)."""
        shape = len(self.pipeline.orders), self.pipelines
        additional = np.zeros(shape)
        block, at = divmod(iteration, _BURST_STEPS)
        drawn = np.random.default_rng([self.seed, seed, block, 2])
        begin, length = drawn.integers(_BURST_STEPS // 2), drawn.integers(5, _BURST_STEPS // 2 + 1)
        place = drawn.integers(shape[0]), drawn.integers(shape[1])
        if drawn.random() < self.bursts and begin <= at < begin + length:
            additional[place] = self.burst
        return additional
