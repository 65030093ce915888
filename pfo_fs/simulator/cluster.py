"""A cluster in virtual time: whole iterations of all pipelines at once, with the noise and the nuisances of real GPUs.

What is played: durations and powers that jitter, a GPU that draws more as it warms up, clocks that take time to change,
blocking power while waiting, communication between stages, pipelines that wait for the slowest one at the end of an
iteration, and stragglers that come and go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pfo_fs.device.physics import GpuModel
from pfo_fs.errors import ConfigError
from pfo_fs.planner import Measurement, Pipeline, Profile
from pfo_fs.planner.columns import ends_of, levels_of


class Truth(Protocol):
    """What an instruction takes, without noise."""

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """Clocks on offer, highest first."""

    @property
    def blocking_power_w(self) -> float:
        """What a waiting GPU draws, in W."""

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock on offer."""


@dataclass(frozen=True)
class ModelTruth:
    """A preset of `device.physics`.

    Attributes:
        model: The kind of GPU.
        num_stages: Stages of the pipeline; the last one takes longer.
        slowest_mhz: Clocks below are not on offer: the models are fitted to 855 MHz and above.
    """

    model: GpuModel
    num_stages: int
    slowest_mhz: int = 210

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """Clocks on offer, highest first."""
        return tuple(mhz for mhz in self.model.clocks_mhz if mhz >= self.slowest_mhz)

    @property
    def blocking_power_w(self) -> float:
        """What a waiting GPU draws, in W."""
        return self.model.blocking_power_w

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock."""
        one = self.model.coefficients(instruction, last_stage=stage == self.num_stages - 1)
        time_s = one.time_s(mhz)
        return Measurement(mhz, time_s, time_s * one.power_w(mhz))


class ProfileTruth:
    """A measured profile, taken for the truth.

    Args:
        profile: Every instruction at every clock.
        blocking_power_w: What a waiting GPU draws, in W.

    Raises:
        ConfigError: The instructions have no clock in common.
    """

    def __init__(self, profile: Profile, blocking_power_w: float) -> None:
        tables = {kind: {m.frequency_mhz: m for m in ms} for kind, ms in profile.measurements.items()}
        common = set.intersection(*(set(table) for table in tables.values()))
        if not common:
            raise ConfigError(f"{profile.source}: no clock was measured for all instructions")
        self.clocks_mhz: tuple[int, ...] = tuple(sorted(common, reverse=True))
        self.blocking_power_w = blocking_power_w
        self._tables = tables

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock.

        Raises:
            ConfigError: The profile does not have it.
        """
        try:
            return self._tables[stage, instruction][mhz]
        except KeyError:
            raise ConfigError(f"the profile has no {instruction} of stage {stage} at {mhz} MHz") from None


@dataclass(frozen=True)
class Nuisances:
    """What makes measuring hard.

    Attributes:
        time_jitter: Standard deviation of a duration, relative.
        power_jitter: The same of a power.
        warm_up: How much more a warm GPU draws, relative.
        warm_up_s: Time constant of warming up, in s.
        switch_s: How long a GPU goes on at the old clock after another one was set, in s.
        delay_s: Communication between two stages, in s.
        overhead_s: Of an iteration, after the slowest pipeline has run dry, in s.
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


QUIET = Nuisances(time_jitter=0.0, power_jitter=0.0, warm_up=0.0)
"""The same cluster without noise: what a plan truly takes."""


class Episode(NamedTuple):
    """A pipeline that is `slowdown` times as slow for iterations `first` to `last - 1`."""

    slowdown: float
    first: int
    last: int
    pipeline: int = 0


class Played(NamedTuple):
    """One iteration; arrays have a row per node of the pipeline and a column per pipeline.

    Attributes:
        starts_s, ends_s: When instructions run, from the begin of the iteration.
        powers_w: What each draws while it runs.
        spans_s: For each pipeline, until it has run dry.
        time_s: Until the next iteration begins, the same for all.
        energy_j: Of all GPUs over that time, waiting included.
    """

    starts_s: Any
    ends_s: Any
    powers_w: Any
    spans_s: Any
    time_s: float
    energy_j: float


@dataclass
class Cluster:
    """Pipelines of equal GPUs in data parallelism.

    Attributes:
        pipeline: What each runs.
        truth: What instructions take.
        nuisances: See `Nuisances`.
        pipelines: How many there are.
        episodes: Stragglers.
        seed: Of all noise.
    """

    pipeline: Pipeline
    truth: Truth
    nuisances: Nuisances = field(default_factory=Nuisances)
    pipelines: int = 1
    episodes: Sequence[Episode] = ()
    seed: int = 0
    now_s: float = 0.0
    iteration: int = 0

    def __post_init__(self) -> None:
        import numpy as np

        self._random: Any = np.random.default_rng(self.seed)
        nodes = len(self.pipeline.instructions)
        ranks = [rank for rank, order in enumerate(self.pipeline.orders) for _ in order]
        before: list[list[tuple[int, float]]] = [[] for _ in range(nodes)]
        after: list[list[tuple[int, float]]] = [[] for _ in range(nodes)]
        for first, then, _ in self.pipeline.edges:
            delay_s = self.nuisances.delay_s if ranks[first] != ranks[then] else 0.0
            before[then].append((first, delay_s))
            after[first].append((then, delay_s))
        self._levels = levels_of(self.pipeline.topological, before, after, ranks)
        kinds = sorted({(i.stage, i.name) for i in self.pipeline.instructions})
        number = {kind: n for n, kind in enumerate(kinds)}
        self._kind: Any = np.array([number[i.stage, i.name] for i in self.pipeline.instructions])
        self._top = self.truth.clocks_mhz[0]
        self._clock_number = {mhz: n for n, mhz in enumerate(self.truth.clocks_mhz)} | {0: 0}
        table = [[self.truth.measurement(*kind, mhz) for mhz in self.truth.clocks_mhz] for kind in kinds]
        self._times: Any = np.array([[m.time_s for m in row] for row in table])
        self._powers: Any = np.array([[m.energy_j / m.time_s for m in row] for row in table])
        firsts = set(self.pipeline.first_nodes[:-1])
        self._before_in_rank: Any = np.array([node if node in firsts else node - 1 for node in range(nodes)])
        self._is_first: Any = np.array([node in firsts for node in range(nodes)])
        self.energy_j = 0.0

    def clocks_of(self, schedules: Sequence[Mapping[int, Sequence[tuple[str, int]]]]) -> Any:
        """Returns clock numbers, a row per node and a column per pipeline, for `run`.

        Args:
            schedules: For each pipeline, the (instruction, MHz) of each of its ranks; a rank without one runs fast.
        """
        import numpy as np

        columns = []
        for of_ranks in schedules:
            column: list[int] = []
            for rank, order in enumerate(self.pipeline.orders):
                requested = of_ranks.get(rank)
                mhz = [0] * len(order) if not requested else _in_force([clock for _, clock in requested])
                column += [self._clock_number[clock] for clock in mhz]
            columns.append(column)
        return np.array(columns).T

    def run(self, clocks: Any) -> Played:
        """Plays the next iteration at the given clocks (`clocks_of`)."""
        played = self.iterate(clocks, self.slowdowns())
        self.now_s += played.time_s
        self.iteration += 1
        self.energy_j += played.energy_j
        return played

    def noise(self, count: int, half_width: float) -> Any:
        """Uniform noise around zero."""
        return self._random.uniform(-half_width, half_width, count)

    def slowdowns(self) -> list[float]:
        """How many times as slow each pipeline is in the iteration to come."""
        found = [1.0] * self.pipelines
        for slowdown, first, last, pipeline in self.episodes:
            if first <= self.iteration < last and pipeline < self.pipelines:
                found[pipeline] = max(found[pipeline], slowdown)
        return found

    def iterate(self, clocks: Any, slowdowns: Sequence[float]) -> Played:
        """Computes one iteration, without letting time go on."""
        import numpy as np

        odd = self.nuisances
        kind = self._kind[:, None]
        before = np.where(self._is_first[:, None], 0, clocks[self._before_in_rank])
        times, powers = self._times[kind, clocks], self._powers[kind, clocks]
        if odd.switch_s:
            changed = clocks != before
            old_s, old_w = self._times[kind, before], self._powers[kind, before]
            late_s = np.where(changed, np.minimum(odd.switch_s, old_s), 0.0)
            rest_s = (1 - late_s / old_s) * times
            powers = (late_s * old_w + rest_s * powers) / (late_s + rest_s)
            times = late_s + rest_s
        times = times * np.array(slowdowns)
        if odd.time_jitter:
            times = times * np.exp(odd.time_jitter * self._random.standard_normal(times.shape))
        if odd.power_jitter:
            powers = powers * (1 + odd.power_jitter * self._random.standard_normal(powers.shape))
        if odd.warm_up:
            powers = powers * (1 + odd.warm_up * (1 - float(np.exp(-self.now_s / odd.warm_up_s))))
        ends = ends_of(self._levels, np.vstack([times, np.zeros((1, times.shape[1]))]))[:-1]
        spans = ends.max(axis=0)
        time_s = float(spans.max()) + odd.overhead_s
        idle_s = time_s * len(self.pipeline.orders) * times.shape[1] - float(times.sum())
        energy_j = float((times * powers).sum()) + self.truth.blocking_power_w * idle_s
        return Played(ends - times, ends, powers, spans, time_s, energy_j)


def _in_force(requested: Sequence[int]) -> list[int]:
    """0 MHz leaves the clock as it is."""
    found, last = [], 0
    for mhz in requested:
        last = mhz or last
        found.append(last)
    return found
