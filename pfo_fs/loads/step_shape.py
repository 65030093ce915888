"""What the ranks of a pipeline run in a step, and when each has ended: arrays for many pipelines and steps at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pfo_fs.arrays import Array, np
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.pipeline import Instruction, Pipeline, pipeline_from_orders

FORWARD = "forward"
USUAL_TIMES: Mapping[str, float] = {"backward": 2.0, "forward_backward": 3.0}
"""By how many times an instruction takes as long as the forward of the same micro-batch: a backward has two products of
matrices for each one of the forward. All others that are known take about as long as a forward."""


@dataclass(frozen=True)
class StepShape:
    """The instructions of one step of a pipeline; without a pipeline, a rank's work is one instruction.

    Attributes:
        rank: The rank in the pipeline that runs each instruction, (instructions,).
        micro_batch: The micro-batch of each instruction, (instructions,).
        name: The place of each instruction's name in `names`, (instructions,).
        names: All names; the first is that to which the others are related.
    """

    rank: Array
    micro_batch: Array
    name: Array
    names: Sequence[str]
    _paths: LongestPaths

    @classmethod
    def alone(cls) -> StepShape:
        """Returns the shape of a rank without a pipeline: all its micro-batches are one instruction's."""
        return cls.of(Pipeline(((Instruction(0, FORWARD, 0),),), ()))

    @classmethod
    def of_orders(cls, orders: Sequence[Sequence[tuple[int, str, int]]]) -> StepShape:
        """Returns the shape of a pipeline whose ranks run (stage, instruction, micro-batch) in these orders.

        Raises:
            PlanError: The orders cannot run.
        """
        return cls.of(pipeline_from_orders(orders))

    @classmethod
    def of(cls, pipeline: Pipeline) -> StepShape:
        """Returns the shape of a pipeline."""
        instructions = pipeline.instructions
        names = sorted({i.name for i in instructions}, key=lambda name: (name != FORWARD, name))
        ranks = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
        micro_batches = sorted({i.microbatch for i in instructions})
        return cls(
            np.array(ranks),
            np.array([micro_batches.index(i.microbatch) for i in instructions]),
            np.array([names.index(i.name) for i in instructions]),
            names,
            LongestPaths(pipeline.topological, pipeline.edges),
        )

    @property
    def ranks(self) -> int:
        """Number of ranks of the pipeline."""
        return int(self.rank.max()) + 1

    @property
    def micro_batches(self) -> int:
        """Number of loads of a step."""
        return int(self.micro_batch.max()) + 1

    def ends_s(self, times_s: Array) -> Array:
        """Returns when each rank's work has ended, in s from the begin of the step, (ranks, columns).

        Args:
            times_s: Durations of the instructions in s, (instructions, columns).
        """
        return self.last_ends_s(self._paths.ends(times_s).ends_s)

    def critical_paths(self, times_s: Array) -> Iterator[tuple[Array, Array]]:
        """Follows what each rank's end waited for, back to the begin of the step.

        Each yields, for all ranks and columns at once, one instruction of the path to the rank's end, (ranks, columns),
        and whether there was one left, likewise.
        """
        none, columns = times_s.shape
        ends: Array = np.zeros((none + 1, columns))
        waited_for: Array = np.full((none + 1, columns), none)
        for level in self._paths.levels:
            waits = np.stack([ends[side.at] + side.delay_s for side in level.before])
            before = np.stack([side.at for side in level.before])
            waited_for[level.nodes] = before[waits.argmax(axis=0), np.arange(len(level.nodes))[:, None]]
            ends[level.nodes] = waits.max(axis=0) + times_s[level.nodes]
        node: Array = np.broadcast_to(self._lasts[:, None], (self.ranks, columns))
        while (left := node < none).any():
            yield np.where(left, node, 0), left
            node = waited_for[node, np.arange(columns)]

    def busy_s(self, times_s: Array) -> Array:
        """Returns the time of each rank's instructions together, in s, (ranks, columns)."""
        firsts = np.flatnonzero(np.append(1, np.diff(self.rank)))
        busy_s: Array = np.add.reduceat(times_s, firsts, axis=0)
        return busy_s

    def last_ends_s(self, ends_s: Array) -> Array:
        """Returns the end of each rank's last instruction, (ranks, columns), from those of all instructions."""
        last_s: Array = ends_s[self._lasts]
        return last_s

    @property
    def _lasts(self) -> Array:
        """The last instruction of each rank."""
        return np.flatnonzero(np.append(np.diff(self.rank), 1))
