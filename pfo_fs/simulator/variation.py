"""How the durations of a simulated job vary from iteration to iteration, as those of real jobs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from pfo_fs.arrays import Array, np
from pfo_fs.planner import Pipeline

_JUDGED = 64
"""A plan for a job whose variation is drawn is judged by 64 further iterations; traces have 32 to 44 steps."""
_DRIFT_STEPS = 100
"""Iterations between two random values of the drift."""
_BURST_STEPS = 60
"""At most one burst begins in 60 iterations."""


class Variation(Protocol):
    """Factors by which instructions take longer than the truth says, in each iteration.

    They depend on the iteration and the seed only, so that a run can be repeated, and its iterations judged in any
    order.
    """

    def factors(self, iteration: int, seed: int) -> Array:
        """Factors of an iteration: (nodes, pipelines), nodes as in `pipeline.instructions`."""

    def judged(self, iterations: int, seed: int) -> Sequence[Array]:
        """Factors of all iterations by which the plan in force after `iterations` iterations is judged."""


class Mixture(NamedTuple):
    """What micro-batches hold.

    Attributes:
        length: Mean time of a micro-batch, relative.
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
        seed: Seed of what belongs to the job: ranks that differ for good. The rest also follows the run's seed.
        later_mixture: What they hold from iteration `changes_at` on.
        changes_at: None: the mixture stays.
        per_step: Standard deviation of a factor of a whole iteration.
        per_rank: Standard deviation of a factor of a rank of a pipeline, for good.
        own: Standard deviation of a factor of each instruction.
        tails: Share of instructions that take longer by an exponentially distributed factor, of mean `tail`.
        tail: Mean additional time of these, relative.
        drift: Standard deviation of a factor of all iterations that changes over hundreds of them.
        bursts: Probability that a burst begins within 60 iterations: a rank of a pipeline is slower for 5 to 30.
        burst: Additional time in a burst, relative.
        slow_worker: Additional time of one rank of one pipeline for good, relative; 0: there is none.
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
        """Logarithms of the factors that belong to ranks for good, (ranks, pipelines)."""
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
