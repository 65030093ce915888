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
from dataclasses import dataclass, field, replace
from random import Random

from pfo_fs.device.simulated.physics import PRESETS, Coefficients, GpuModel
from pfo_fs.planner import Measurement, Pipeline, make_pipeline
from pfo_fs.simulator.cluster import Cluster, Nuisances
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.simulator.truth import Truth
from pfo_fs.simulator.variation import DrawnVariation, Mixture, StepFactors, Variation

_GPUS_PER_NODE = 8
_MOST_INSTRUCTIONS = 8192
"""Of all pipelines in an iteration: more would take seconds each to simulate."""
_STEP_MHZ = 15


@dataclass(frozen=True)
class SimulatedJob:
    """A job for the simulator.

    Attributes:
        pipeline: The instructions that each pipeline runs, without delays.
        nodes: The nodes; None: a clock acts `nuisances.switch_s` after the instruction has begun.
        variation: How durations vary from iteration to iteration, beyond jitter; None: they do not.
    """

    name: str
    pipeline: Pipeline
    truth: Truth
    nuisances: Nuisances = field(default_factory=Nuisances)
    nodes: NodeSettings | None = None
    pipelines: int = 1
    variation: Variation | None = None

    def cluster(self, seed: int = 0) -> Cluster:
        """Returns a cluster that runs the job; the seed is that of the noise, and of what the variation draws."""
        return Cluster(
            self.pipeline,
            self.truth,
            self.nuisances,
            self.pipelines,
            seed=seed,
            nodes=self.nodes,
            variation=self.variation,
        )

    def with_step_factors(self, of_steps: Sequence[float]) -> SimulatedJob:
        """Returns the job with a further factor of all durations in each step (`read_step_factors`)."""
        within = self.variation or DrawnVariation(self.pipeline, self.pipelines, seed=0)
        return replace(self, variation=StepFactors(of_steps, within))


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
