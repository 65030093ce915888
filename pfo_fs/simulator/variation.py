"""How the durations of a simulated job vary from iteration to iteration, as those of real jobs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

from pfo_fs.arrays import Array, np
from pfo_fs.errors import PlanError
from pfo_fs.planner import Pipeline
from pfo_fs.user_files import csv_table

_JUDGED = 64
"""A plan for a job whose variation is drawn is judged by 64 further iterations; traces have 32 to 44 steps."""
_DRIFT_STEPS = 100
"""Iterations between two random values of the drift."""
_BURST_STEPS = 60
"""At most one burst begins in 60 iterations."""
_WARM_UP = 10
"""The first iterations of a run compile and allocate: those of published runs take up to ten times as long."""
_FACTORS = 0.01, 100.0
"""Steps of published runs take 0.95 to 15 times as long as their median; beyond these limits is another unit."""
_TIMES_S = 1e-6, 1e6
"""No iteration is shorter or longer."""


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


@dataclass(frozen=True)
class StepFactors:
    """Variation of whole steps, as that of a real run, beside what varies within steps.

    A job that is longer than the run reads it forwards, then backwards, and so on: neighbours stay neighbours.

    Attributes:
        of_steps: A factor of each step, common to all ranks.
    """

    of_steps: Sequence[float]
    within: Variation

    def factors(self, iteration: int, seed: int) -> Array:
        """Factors of an iteration: (nodes, pipelines)."""
        return self.within.factors(iteration, seed) * self._factor(iteration)

    def judged(self, iterations: int, seed: int) -> Sequence[Array]:
        """Factors of the iterations that judge a plan without step factors, times those of the steps that follow."""
        within = self.within.judged(iterations, seed)
        return [factors * self._factor(iterations + place) for place, factors in enumerate(within)]

    def _factor(self, iteration: int) -> float:
        place = iteration % (2 * len(self.of_steps))
        return self.of_steps[min(place, 2 * len(self.of_steps) - 1 - place)]


def read_step_factors(path: Path, run: str | None = None) -> tuple[list[float], str]:
    """Reads factors of steps: a column `factor`, or `iteration_time_s`, which is divided by the run's median.

    Args:
        run: The name in the column `run`; where there is a column `file` too, `run/file`, or `run` for its first file.
            None: the first run of the file.

    Returns:
        The factors, of times without those of the warm-up; and the run's name, which is empty without such columns.

    Raises:
        PlanError: The file cannot be read, has no such run, or a step that cannot be true; the message names the row.
    """
    rows: dict[str, list[tuple[int, float]]] = {}
    with csv_table(path, (), "a table of factors", optional=("run", "file", "factor", "iteration_time_s")) as table:
        if ("factor" in table.names) == ("iteration_time_s" in table.names):
            raise PlanError(f"{path}: needs one of the columns factor and iteration_time_s", line=1)
        *_, column = table.names
        for *names, cell in table:
            value = table.number(column, cell, *(_FACTORS if column == "factor" else _TIMES_S))
            rows.setdefault("/".join(names), []).append((table.line, value))
    name = next((name for name in rows if run is None or name == run or name.startswith(f"{run}/")), None)
    if name is None:
        raise PlanError(f"{path}: has no rows{f' of run {run}' if run else ''}; runs: {', '.join(rows)[:2000] or '-'}")
    if column == "factor":
        return [factor for _, factor in rows[name]], name
    if len(rows[name]) <= _WARM_UP:
        raise PlanError(f"{path}: run {name!r} has {len(rows[name])} rows, and the first {_WARM_UP} are its warm-up")
    usual_s = median(time_s for _, time_s in rows[name][_WARM_UP:])
    for line, time_s in rows[name][_WARM_UP:]:
        if not _FACTORS[0] <= time_s / usual_s <= _FACTORS[1]:
            text = f"{time_s:g} s is not from {_FACTORS[0]:g} to {_FACTORS[1]:g} times the median of {usual_s:g} s"
            raise PlanError(f"{path}: row {line}: {text}", line=line)
    return [time_s / usual_s for _, time_s in rows[name][_WARM_UP:]], name
