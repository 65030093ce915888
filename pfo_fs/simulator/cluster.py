"""A cluster in virtual time: whole iterations of all pipelines at once, with the noise and the delays of real GPUs.

The simulation has durations and powers that jitter, durations that vary as in a trace, GPUs that draw
more power as they warm up, clocks that take time to change, blocking power (of waiting GPUs), communication between
stages, pipelines that wait for the slowest one at the end of an iteration, and temporary stragglers (slower pipelines).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import NamedTuple, Protocol

from pfo_fs.arrays import Array, np
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.ipc.messages import SwitchingReport
from pfo_fs.planner import Pipeline
from pfo_fs.simulator.nodes import NodeSettings, SimulatedNodes
from pfo_fs.simulator.truth import HighestClocks, KernelTables, Truth


@dataclass(frozen=True)
class Nuisances:
    """Noise and delays of real GPUs, which make measuring difficult.

    Attributes:
        time_jitter: Standard deviation of a duration, relative.
        power_jitter: Standard deviation of a power, relative.
        warm_up: Additional power of a warm GPU, relative.
        warm_up_s: Time constant of warming up, in s.
        switch_s: Time that a GPU continues at the old clock after another one was set, in s.
        delay_s: Communication time between two stages, in s.
        overhead_s: Time of an iteration after the last instruction of the slowest pipeline, in s.
        tick_s: Period of the energy counter, in s.
    """

    time_jitter: float = 0.005
    power_jitter: float = 0.01
    warm_up: float = 0.02
    warm_up_s: float = 600.0
    switch_s: float = 0.010
    delay_s: float = 0.0005
    overhead_s: float = 0.05
    tick_s: float = 0.1


_UNTIL_STEADY = 16
"""After twice the 8 iterations over which clock processes average, they know how long varying instructions take."""

QUIET = Nuisances(time_jitter=0.0, power_jitter=0.0, warm_up=0.0)
"""No noise: shows the true time and energy of a plan."""


class Episode(NamedTuple):
    """A pipeline whose iterations `first` to `last - 1` take `slowdown` times as long."""

    slowdown: float
    first: int
    last: int
    pipeline: int = 0


class Played(NamedTuple):
    """One iteration; arrays have a row per node of the pipeline and a column per pipeline.

    Attributes:
        starts_s, ends_s: When each instruction begins and ends, from the begin of the iteration.
        spans_s: For each pipeline, time from the begin of the iteration to the end of its last instruction.
        time_s: Time until the next iteration begins, the same for all pipelines.
        energy_j: Energy of all GPUs over that time, waiting included.
        clocks_set: For each pipeline and rank, (time in s, MHz) of each change of the lowest clock of its GPUs, from
            the begin of the iteration; empty without nodes.
        full_time_s, full_energy_j: Time and energy of the same iteration at max clocks: with the same
            variation, jitter and power drift.
    """

    starts_s: Array
    ends_s: Array
    powers_w: Array
    spans_s: Array
    time_s: float
    energy_j: float
    clocks_set: Sequence[Sequence[Sequence[tuple[float, int]]]] = ()
    full_time_s: float = 0.0
    full_energy_j: float = 0.0


class Drawn(NamedTuple):
    """The noise of one iteration: factors of durations and of powers, (nodes, pipelines), and `Cluster._caps()`."""

    times: Array
    powers: Array
    caps: Array


class Variation(Protocol):
    """Factors by which instructions take longer than the truth says, in each iteration.

    They depend on the iteration and the seed only, so that a run can be repeated, and its iterations judged in any
    order.
    """

    def factors(self, iteration: int, seed: int) -> Array:
        """Factors of an iteration: (nodes, pipelines), nodes as in `pipeline.instructions`."""

    def judged(self, iterations: int, seed: int) -> Sequence[Array]:
        """Factors of all iterations by which the plan in force after `iterations` iterations is judged."""


@dataclass
class Cluster:
    """Pipelines of equal GPUs in data parallelism.

    Attributes:
        nodes: The nodes, if changes of the clock behave as on real ones; then `nuisances.switch_s` does not count.
        knows_latencies: Whether the clock processes know from the start when clocks act.
        variation: How durations vary from iteration to iteration, beyond jitter; None: they do not.
    """

    pipeline: Pipeline
    truth: Truth
    nuisances: Nuisances = field(default_factory=Nuisances)
    pipelines: int = 1
    episodes: Sequence[Episode] = ()
    seed: int = 0
    now_s: float = 0.0
    iteration: int = 0
    nodes: NodeSettings | None = None
    knows_latencies: bool = False
    variation: Variation | None = None

    def __post_init__(self) -> None:
        ranks, clocks_mhz = len(self.pipeline.orders), self.truth.clocks_mhz
        known_mhz, seeds = clocks_mhz if self.knows_latencies else (), range(self.seed, self.seed + self.pipelines)
        self._nodes: list[SimulatedNodes] = []
        if self.nodes is not None:
            self._nodes = [SimulatedNodes(self.nodes, ranks, seed, clocks_mhz[0], known_mhz) for seed in seeds]
        self._random = np.random.default_rng(self.seed)
        self.set_truth(self.truth)

    def set_truth(self, truth: Truth) -> None:
        """Gives instructions other times and energies from now on; the clocks on offer must be the same."""
        self.truth = truth
        shape = len(self.pipeline.orders), self.pipelines
        self._highest = HighestClocks(truth.model, shape, self.seed)
        self._kernels = KernelTables(self.pipeline, truth, self.nuisances.delay_s)

    def clocks_of(self, schedules: Sequence[Mapping[int, Sequence[tuple[str, int]]]]) -> Array:
        """Returns clock numbers for `run`, as `KernelTables.clocks_of` does."""
        return self._kernels.clocks_of(schedules)

    @property
    def gpus_per_rank(self) -> int:
        """Number of GPUs that share a rank's work."""
        return 1 if self.nodes is None else self.nodes.gpus_per_rank

    def switching(self, pipeline: int, rank: int) -> SwitchingReport | None:
        """Returns what the clock process of a rank reports about changes of its clock; None without `nodes`."""
        return self._nodes[pipeline].latencies_of(rank).switching("device") if self._nodes else None

    def latency_s(self, pipeline: int, rank: int, mhz: int) -> float:
        """Returns what a clock process believes about the time from a call's return until the clock acts, in s."""
        latencies = self._nodes[pipeline].latencies_of(rank) if self._nodes else LatencyModel()
        return latencies.latency(mhz).middle_ns / 1e9

    def run(self, clocks: Array) -> Played:
        """Simulates the next iteration at the given clocks (`clocks_of`)."""
        played = self._compared(clocks, self.slowdowns())
        self.now_s += played.time_s
        self.iteration += 1
        return played

    def begin_from(self, other: Cluster) -> None:
        """Takes over what the clock processes of another cluster have learned."""
        for nodes, known in zip(self._nodes, other._nodes, strict=True):
            nodes.begin_from(known)

    def steady(self, clocks: Array, steps: Sequence[Array | float] = (1.0,)) -> list[Played]:
        """Returns iterations as they are after several at the same clocks; virtual time stays as it is.

        Args:
            steps: For each iteration, the factor of its durations; an array of (nodes, pipelines) if they differ.
        """
        for factors in islice(cycle(steps), _UNTIL_STEADY if self._nodes else 0):
            self._iterate(clocks, self._draw(factors, clocks.shape))
        return [self._compared(clocks, factors) for factors in steps]

    def noise(self, count: int, half_width: float) -> Array:
        """Returns uniform noise around zero."""
        return self._random.uniform(-half_width, half_width, count)

    def slowdowns(self) -> Array:
        """Returns the factors of durations in the next iteration: (pipelines), or (nodes, pipelines) if they vary."""
        factors = [1.0] * self.pipelines
        for slowdown, first, last, pipeline in self.episodes:
            if first <= self.iteration < last and pipeline < self.pipelines:
                factors[pipeline] = max(factors[pipeline], slowdown)
        return factors if self.variation is None else self.variation.factors(self.iteration, self.seed) * factors

    def _compared(self, clocks: Array, slowdowns: Array | Sequence[float] | float) -> Played:
        """Computes one iteration, and the same one at max clocks."""
        drawn = self._draw(slowdowns, clocks.shape)
        played = self._iterate(clocks, drawn)
        times, powers = self._kernels.times_and_powers(np.zeros_like(clocks), 0.0, drawn.caps)
        full = self._played(times * drawn.times, powers * drawn.powers)
        return played._replace(full_time_s=full.time_s, full_energy_j=full.energy_j)

    def _draw(self, slowdowns: Array | Sequence[float] | float, shape: tuple[int, int]) -> Drawn:
        odd = self.nuisances
        times, powers = np.ones(shape) * np.asarray(slowdowns), np.ones(shape)
        if odd.time_jitter:
            times = times * np.exp(odd.time_jitter * self._random.standard_normal(shape))
        if odd.power_jitter:
            powers = powers * (1 + odd.power_jitter * self._random.standard_normal(shape))
        if odd.warm_up:
            powers = powers * (1 + odd.warm_up * (1 - float(np.exp(-self.now_s / odd.warm_up_s))))
        return Drawn(times, powers, self._caps())

    def _caps(self) -> Array:
        """Returns for each rank and pipeline the number of the highest clock that its power limit leaves now."""
        return np.searchsorted(-np.array(self.truth.clocks_mhz), -self._highest.next_mhz())

    def _iterate(self, clocks: Array, drawn: Drawn) -> Played:
        """Computes one iteration, without its time and energy at max clocks; virtual time stays as it is."""
        if self._nodes:
            return self._iterate_on_nodes(clocks, drawn)
        times, powers = self._kernels.times_and_powers(clocks, self.nuisances.switch_s, drawn.caps)
        return self._played(times * drawn.times, powers * drawn.powers)

    def _played(self, times: Array, powers: Array) -> Played:
        """Returns an iteration of instructions of these durations and powers per GPU."""
        ends = self._kernels.paths.ends(times).ends_s
        spans = ends.max(axis=0)
        time_s = float(spans.max()) + self.nuisances.overhead_s
        return Played(ends - times, ends, powers, spans, time_s, self._with_waiting(times, powers, time_s))

    def _with_waiting(self, times: Array, powers: Array, time_s: float) -> float:
        """Returns the energy of all GPUs in an iteration, from what one GPU per rank does, and the power of waiting."""
        busy_j, busy_s = float((times * powers).sum()), float(times.sum())
        idle_s: float = time_s * self._kernels.num_ranks * times.shape[1] - busy_s
        return (busy_j + self.truth.blocking_power_w * idle_s) * self.gpus_per_rank

    def _iterate_on_nodes(self, clocks: Array, drawn: Drawn) -> Played:
        """Computes one iteration event by event; time passes on the nodes."""
        played = []
        for nodes, numbers, factors, caps in zip(self._nodes, clocks.T, drawn.times.T, drawn.caps.T, strict=True):
            work = self._kernels.work_under(caps) if caps.any() else self._kernels.work
            mhz = [work.clocks_mhz[number] for number in numbers]
            played.append(nodes.run(work, [mhz[order.start : order.stop] for order in work.orders], factors.tolist()))
        starts, ends, energies_j = (
            np.array(each).T
            for each in zip(*((one.starts_s, one.ends_s, one.energies_j) for one in played), strict=True)
        )
        powers = energies_j / np.maximum(ends - starts, 1e-12) / self.gpus_per_rank * drawn.powers
        spans = ends.max(axis=0)
        time_s = float(spans.max()) + self.nuisances.overhead_s
        for nodes, span_s in zip(self._nodes, spans, strict=True):
            nodes.wait(time_s - float(span_s))
        energy_j = self._with_waiting(ends - starts, powers, time_s)
        return Played(starts, ends, powers, spans, time_s, energy_j, [run.changes for run in played])


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
