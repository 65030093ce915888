"""What the ranks of a pipeline run in a step, and when each has ended: arrays for many pipelines and steps at once.

Also loads as durations themselves show them, where training code tells none: one number for each micro-batch.
"""

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


def by_micro_batch(times_s: Array, kinds: Array, micro_batches: Array) -> Array:
    """Returns durations by micro-batch: (steps, micro-batches, pipelines, kinds).

    Args:
        times_s: Durations, (steps, instructions, pipelines).
        kinds: The number of each instruction's kind, (instructions,).
        micro_batches: The number of its micro-batch; each micro-batch has one instruction of each kind.
    """
    table: Array = np.ones((len(times_s), int(max(micro_batches)) + 1, times_s.shape[2], int(max(kinds)) + 1))
    for node, (kind, micro_batch) in enumerate(zip(kinds, micro_batches, strict=True)):
        table[:, micro_batch, :, kind] = times_s[:, node]
    return table


def shown_loads(table: Array, shown: int | None = None) -> tuple[Array, float]:
    """Returns the load of each micro-batch, and how much durations of a micro-batch vary together.

    A load is the first principal component of the micro-batch's durations; 1 in the mean.

    Args:
        table: As of `by_micro_batch`, relative to the mean of each kind.
        shown: So many of the first steps show the direction of the component; None: all.

    Returns:
        (steps, micro-batches, pipelines), and the share of the variance that the component has beyond the one part
        of `kinds` that it has where all kinds vary on their own: 1 if all vary together, 0 if none do.
    """
    count = table.shape[-1]
    rows = table[:shown].reshape(-1, count)
    mean = rows.mean(axis=0)
    _, sizes, directions = np.linalg.svd(rows - mean, full_matrices=False)
    direction = directions[0] * np.sign(directions[0].sum())
    total = float((sizes**2).sum())
    share = float(sizes[0] ** 2) / total if total else 0.0
    together = (share - 1 / count) / (1 - 1 / count) if count > 1 else 0.0
    return 1 + (table - mean) @ direction / direction.sum(), together
