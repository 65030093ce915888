"""The true time and energy of instructions on the simulated GPUs, and tables of them for whole iterations."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pfo_fs.arrays import Array, np
from pfo_fs.device.simulated.physics import GpuModel
from pfo_fs.planner import Measurement, Pipeline
from pfo_fs.planner.longest_paths import LongestPaths, neighbours
from pfo_fs.simulator.nodes import Work


class Truth(ABC):
    """The true time and energy of each instruction at each clock, without noise; `model` gives the rest.

    Attributes:
        slowest_mhz: No lower clock is on offer. (Below 855 MHz the models extrapolate.)
    """

    model: GpuModel
    slowest_mhz: int = 0

    @property
    def gpu_name(self) -> str:
        """The name of the GPUs."""
        return f"simulated {self.model.name}"

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """Clocks on offer, highest first."""
        return tuple(mhz for mhz in self.model.clocks_mhz if mhz >= self.slowest_mhz)

    @property
    def blocking_power_w(self) -> float:
        """The power of a waiting GPU, in W."""
        return self.model.blocking_power_w

    @abstractmethod
    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock on offer."""


@dataclass(frozen=True)
class ModelTruth(Truth):
    """The times and powers of a GPU model itself; the last of `num_stages` stages takes longer."""

    model: GpuModel
    num_stages: int
    slowest_mhz: int = 210

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock."""
        of_kind = self.model.coefficients(instruction, last_stage=stage == self.num_stages - 1)
        time_s = of_kind.time_s(mhz)
        return Measurement(mhz, time_s, time_s * of_kind.power_w(mhz))


_KEEPS = 0.9
"""In the next iteration, a wandering highest clock has this share of its distance from the mean, and noise."""


class HighestClocks:
    """The highest clock that each GPU's power limit leaves; on some kinds of GPU it wanders (`GpuModel.caps_mhz`)."""

    def __init__(self, model: GpuModel, shape: tuple[int, ...], seed: int) -> None:
        low_mhz, high_mhz = model.caps_mhz or (model.clocks_mhz[0],) * 2
        self._middle_mhz, self._half_mhz = (low_mhz + high_mhz) / 2, (high_mhz - low_mhz) / 2
        self._random = np.random.default_rng(seed)
        self._away: Array = self._random.standard_normal(shape)

    def next_mhz(self) -> Array:
        """Returns the highest clocks of the next iteration, in MHz."""
        drawn = self._random.standard_normal(self._away.shape)
        self._away = _KEEPS * self._away + (1 - _KEEPS**2) ** 0.5 * drawn
        highest_mhz: Array = self._middle_mhz + self._half_mhz * np.clip(self._away / 2, -1, 1)  # two deviations
        return highest_mhz


class KernelTables:
    """Tables of a pipeline's instructions, which do not change: times, powers and dependencies.

    Nodes are numbered as in `pipeline.instructions`, clocks as in `truth.clocks_mhz` (0 is the highest).

    Attributes:
        paths: The longest paths; each dependency between two ranks adds `delay_s`.
        work: The same tables, in the form that simulated nodes need.
    """

    def __init__(self, pipeline: Pipeline, truth: Truth, delay_s: float) -> None:
        self._orders = pipeline.orders
        self.num_ranks = len(pipeline.orders)
        nodes = len(pipeline.instructions)
        ranks = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
        edges = [(first, then, delay_s * (ranks[first] != ranks[then])) for first, then, _ in pipeline.edges]
        self.paths = LongestPaths(pipeline.topological, edges)
        kinds = sorted({(i.stage, i.name) for i in pipeline.instructions})
        number = {kind: n for n, kind in enumerate(kinds)}
        self._kind: Array = np.array([number[i.stage, i.name] for i in pipeline.instructions])
        self._clock_number = {mhz: n for n, mhz in enumerate(truth.clocks_mhz)} | {0: 0}
        table = [[truth.measurement(*kind, mhz) for mhz in truth.clocks_mhz] for kind in kinds]
        self._times: Array = np.array([[m.time_s for m in row] for row in table])
        self._powers: Array = np.array([[m.energy_j / m.time_s for m in row] for row in table])
        self._firsts = list(pipeline.first_nodes[:-1])
        between_ranks = [edge for edge in edges if ranks[edge[0]] != ranks[edge[1]]]
        self.work = Work(
            [range(first, end) for first, end in pairwise(pipeline.first_nodes)],
            neighbours(nodes, between_ranks)[1],
            self._times[self._kind].tolist(),
            self._powers[self._kind].tolist(),
            truth.clocks_mhz,
            self._kind.tolist(),
            ranks,
        )

    def clocks_of(self, schedules: Sequence[Mapping[int, Sequence[tuple[str, int]]]]) -> Array:
        """Returns the number of the clock of each node (row) in each pipeline (column).

        Args:
            schedules: Of each pipeline, each rank's (instruction, MHz); a rank that has none runs at the highest clock.
        """
        columns = []
        for of_ranks in schedules:
            column: list[int] = []
            for rank, order in enumerate(self._orders):
                requested = of_ranks.get(rank)
                mhz = [0] * len(order) if not requested else _in_force([clock for _, clock in requested])
                column += [self._clock_number[clock] for clock in mhz]
            columns.append(column)
        return np.array(columns).T

    def times_and_powers(self, clocks: Array, switch_s: float, caps: Array) -> tuple[Array, Array]:
        """Returns the durations in s and the mean powers in W of all instructions at the given clocks.

        For `switch_s` after a clock was set, a GPU continues at the old one; an iteration begins at the highest clock.

        Args:
            caps: For each rank and pipeline, the number of the highest clock that its power limit leaves. It makes
                instructions longer; the power is that of the clock that was set (a GPU at its limit draws the limit).
        """
        kind, caps = self._kind[:, None], caps[self.work.rank_of]
        times, powers = self._times[kind, np.maximum(clocks, caps)], self._powers[kind, clocks]
        if not switch_s:
            return times, powers
        before = np.roll(clocks, 1, axis=0)
        before[self._firsts] = 0
        changed = clocks != before
        old_s, old_w = self._times[kind, np.maximum(before, caps)], self._powers[kind, before]
        late_s = np.where(changed, np.minimum(switch_s, old_s), 0.0)
        rest_s = (1 - late_s / old_s) * times
        powers = (late_s * old_w + rest_s * powers) / (late_s + rest_s)
        return late_s + rest_s, powers

    def work_under(self, caps: Array) -> Work:
        """Returns `work` for a pipeline whose ranks have these caps: a number per rank, as in `times_and_powers`."""
        numbers = np.maximum(np.arange(self._times.shape[1]), caps[self.work.rank_of][:, None])
        return self.work._replace(times_s=np.take_along_axis(self._times[self._kind], numbers, axis=1).tolist())


def _in_force(requested: Sequence[int]) -> list[int]:
    """Returns the clock at each instruction, in MHz: a request of 0 keeps the clock (0 before any other request)."""
    in_force, last = [], 0
    for mhz in requested:
        last = mhz or last
        in_force.append(last)
    return in_force
