"""When ranks have ended their work at given loads and clocks, learned from the steps so far.

Each instruction takes

    (a + b . load [+ c load^2]) * times(name) * pace(pipeline) * (1 + s * (highest clock / clock - 1))

with a, b and c of its rank in the pipeline. Only loads of one number get the square; a vector may hold one itself.
times(name) is 1 for a forward; s is between 0 (work waits for memory) and 1 (it follows the clock). A worker that is
permanently slow has another pace, which does not count as work. The order of the instructions, and which waits for
which, give the ends (`StepShape`).

All is learned from the ends of the ranks alone, so that no instruction needs a mark: least squares over the latest
steps (Gauss-Newton: a pipeline's end is a maximum of sums of durations, so nearly linear in what is learned), the paces
in turn with the rest. Without a pipeline, it is a linear fit. An end that was not measured is NaN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pfo_fs.arrays import Array, np
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.pipeline import Instruction, Pipeline, pipeline_from_orders

_STEPS = 60
"""The latest 60 steps count: data changes within hundreds of steps."""
_MOST_TIMES = 500_000
"""At most this many durations are in a fit (about a second): in larger jobs every second, third, ... step counts."""
_FIRST_ROUNDS, _ROUNDS = 8, 3
"""Coefficients and paces are estimated in turn: 8 rounds from the start, 3 from the last fit. More rounds change them
by less than their errors (on the trace `se`, 20 and 10 rounds save as much)."""
_USUAL_S, _RUNS, _ASSUMED = 0.9, 30, 0.1
"""Before s is measured, it is taken to be 0.9, which weighs as much as 30 runs at a clock that takes a tenth longer."""
_ALIKE, _NEAR, _SCATTER = 0.3, 0.5, 0.02
"""Until the ends of a pipeline tell otherwise, its ranks are taken to have equal work within 30 %, and times(name) is
taken to be the usual one within 0.5; each weighs as much as one end that is known to 2 %."""
_ODD = 0.02
"""This share of the ends, those that are furthest off, does not count: they may hold a checkpoint or the like."""
_STALLED = 2.0
"""Slow workers of measured jobs take up to 1.4 times as long; what takes more than twice as long has stalled."""
_LEAST = 1e-3
"""Every instruction is taken to last for at least this share of the mean duration."""
_LEARNED = "_coefficients", "pace", "_scale", "_mean_s", "residual", "explained"
_FORWARD = "forward"
_USUAL_TIMES: Mapping[str, float] = {"backward": 2.0, "forward_backward": 3.0}
"""How many times as long as the forward of the same micro-batch an instruction takes: a backward has two products of
matrices for each one of the forward. All other known instructions take about as long as a forward."""


@dataclass(frozen=True)
class StepShape:
    """The instructions of one step of a pipeline; without a pipeline, a rank's work is one instruction.

    Attributes:
        rank: The rank in the pipeline that runs each instruction, (instructions,).
        micro_batch: The micro-batch of each instruction, (instructions,).
        name: The place of each instruction's name in `names`, (instructions,).
        names: All names; times(name) is relative to the first one.
    """

    rank: Array
    micro_batch: Array
    name: Array
    names: Sequence[str]
    _paths: LongestPaths

    @classmethod
    def alone(cls) -> StepShape:
        """Returns the shape of a rank without a pipeline: one instruction runs all its micro-batches."""
        return cls.of(Pipeline(((Instruction(0, _FORWARD, 0),),), ()))

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
        names = sorted({i.name for i in instructions}, key=lambda name: (name != _FORWARD, name))
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
            times_s: Durations of the instructions, (instructions, columns).
        """
        return self.last_ends_s(self._paths.ends(times_s).ends_s)

    def last_ends_s(self, ends_s: Array) -> Array:
        """Returns the end of each rank's last instruction, (ranks, columns), from those of all instructions."""
        last_s: Array = ends_s[self._lasts]
        return last_s

    def critical_paths(self, times_s: Array) -> Iterator[tuple[Array, Array]]:
        """Follows what each rank's end waited for, back to the begin of the step.

        Yields the last instruction of each path, then the one before it, and so on, (ranks, columns); and whether the
        path had an instruction left.
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

    @property
    def _lasts(self) -> Array:
        """The last instruction of each rank."""
        return np.flatnonzero(np.append(np.diff(self.rank), 1))


class LoadDurations:
    """The model of durations.

    Attributes:
        residual: Standard deviation of what loads do not explain of the ranks' ends, relative to their mean; infinite
            before the first fit.
        explained: The share of the variance of ends that loads explain.
        pace: How many times as long as the others each pipeline takes, (pipelines,).
        count: Number of steps with an end, since the beginning or the last `forget`.
    """

    def __init__(self, shape: StepShape) -> None:
        self._shape = shape
        self._usual_times = [_USUAL_TIMES.get(name, 1.0) for name in shape.names[1:]]
        self._steps: deque[tuple[Array, Array, Array]] = deque(maxlen=_STEPS)
        self.forget()

    @property
    def features(self) -> int:
        """Number of numbers in a load; 0 before the first step."""
        return int(np.shape(self._steps[-1][0] if self._steps else self._scale)[-1])

    @property
    def slope(self) -> float:
        """The share of work's time that follows the clock: s."""
        return float(self._coefficients[-1]) if len(self._coefficients) else _USUAL_S

    def forget(self) -> None:
        """Forgets all steps: loads are of another form now."""
        self._steps.clear()
        self.count = 0
        self._coefficients: Array = np.zeros(0)  # weights of each rank, times of names, s
        self.pace: Array = np.ones(1)
        self._scale: Array = np.zeros(0)  # of each feature
        self._mean_s = 1.0  # of an instruction
        self.residual, self.explained = float("inf"), 0.0

    @property
    def learned(self) -> dict[str, list[float]]:
        """What was learned, for `begin_from`; empty before the first fit."""
        names = _LEARNED if len(self._coefficients) else ()
        return {name: [float(f"{value:.6g}") for value in np.ravel(getattr(self, name))] for name in names}

    def begin_from(self, learned: Mapping[str, Sequence[float]], pipelines: int) -> None:
        """Begins from what an earlier start of the job has learned, unless that had other ranks or instructions."""
        coefficients, pace, scale, *numbers = (np.array(learned.get(name, ())) for name in _LEARNED)
        size = self._shape.ranks * (len(scale) + 1 + (len(scale) == 1)) + len(self._shape.names)
        given = len(coefficients), len(pace), *map(len, numbers)
        if not len(scale) or given != (size, pipelines, 1, 1, 1):
            return
        mean_s, residual, explained = (float(number[0]) for number in numbers)
        if min(mean_s, residual, pace.min(), scale.min()) > 0 and 0 <= explained <= 1:
            self._coefficients, self.pace, self._scale = coefficients, pace, scale
            self._mean_s, self.residual, self.explained = mean_s, residual, explained

    def add(self, loads: Array, ends_s: Array, slower: Array) -> None:
        """Adds a step.

        Args:
            loads, ends_s: As for `LoadChoice.learn`.
            slower: Highest clock over the clock in force, less 1, (pipelines,).
        """
        self._steps.append((loads, ends_s, slower))
        self.count += bool(np.isfinite(ends_s).any())

    def fit(self) -> None:
        """Fits the model to the latest steps, one at least."""
        pipelines = self._steps[-1][1].shape[1]
        every = -(-len(self._steps) * pipelines * len(self._shape.rank) // _MOST_TIMES)
        steps = list(self._steps)[::-every]
        loads, ends_s = (np.concatenate([step[part] for step in steps], axis=1) for part in (0, 1))
        slower, pipeline = np.concatenate([step[2] for step in steps]), np.tile(np.arange(pipelines), len(steps))
        known = np.isfinite(ends_s)
        if not known.any():
            self.residual = float("inf")
            return
        mean_s = float(ends_s[known].mean())
        is_first = not len(self._coefficients)
        if is_first:
            self._begin(loads, mean_s)
        if self.pace.shape != (pipelines,):
            self.pace = np.ones(pipelines)
        basis, usual = self._basis(loads), known
        rows, aims = self._assumed(mean_s)
        for _ in range(_FIRST_ROUNDS if is_first else _ROUNDS):
            # Pipelines with less work have lower clocks, so coefficients and s are estimated together.
            pace = self.pace[pipeline]
            due_s = self._ends_s(basis, slower, pace)
            slopes = self._slopes_s(basis, slower, pace)
            left: Array = np.append((ends_s - due_s)[usual], aims - rows @ self._coefficients)
            slopes = np.vstack([slopes[usual], rows])
            change = np.linalg.lstsq(slopes.T @ slopes, slopes.T @ left, rcond=None)[0]  # few numbers, so quick
            self._coefficients = self._coefficients + change
            self._coefficients[-1] = np.clip(self._coefficients[-1], 0.0, 1.0)
            due_s = self._ends_s(basis, slower, pace)
            took_s, expected_s = (
                np.bincount(pipeline, np.where(usual, times_s, 0.0).sum(axis=0), pipelines)
                for times_s in (ends_s, due_s)
            )
            self.pace = self.pace * np.where(expected_s > 0, took_s, 1.0) / np.where(expected_s > 0, expected_s, 1.0)
            due_s = self._ends_s(basis, slower, self.pace[pipeline])
            off = np.where(known, ends_s / due_s - 1, np.inf)
            usual = (np.abs(off) <= np.quantile(np.abs(off[known]), 1 - _ODD)) & (off <= _STALLED - 1)
        full_s = ends_s / (due_s / self._ends_s(basis, 0.0 * slower, self.pace[pipeline]))
        varies = float(np.std(full_s[usual] / full_s[usual].mean()))
        self.residual = float(np.std((ends_s - due_s)[usual])) / mean_s
        self.explained = max(0.0, 1 - (self.residual / max(varies, 1e-12)) ** 2)

    def _begin(self, loads: Array, mean_s: float) -> None:
        """Takes the work to be proportional to the load, before anything is known."""
        self._scale = np.maximum(np.abs(loads).mean(axis=(0, 1)), 1e-12)
        basis = self._basis(loads)
        size, features = basis.shape[-1], loads.shape[-1]
        weights: Array = np.zeros((self._shape.ranks, size))
        weights[:, 1 : 1 + features] = 1 / features
        self._coefficients = np.concatenate([weights.ravel(), self._usual_times, [_USUAL_S]])
        self._mean_s = 1.0
        self._mean_s = mean_s / float(self._ends_s(basis, np.zeros(loads.shape[1]), 1.0).mean())

    def _assumed(self, mean_s: float) -> tuple[Array, Array]:
        """Rows of least squares and their right-hand sides, for what is assumed until it is measured."""
        ranks, names, count = self._shape.ranks, len(self._shape.names) - 1, len(self._coefficients)
        size = (count - 1 - names) // ranks
        rows: Array = np.eye(count)
        alike: Array = np.kron(np.eye(ranks) - 1 / ranks, np.eye(size))  # each rank's work less the mean of all
        rows[: ranks * size, : ranks * size] = alike
        aims: Array = np.concatenate([np.zeros(ranks * size), self._usual_times, [_USUAL_S]])
        counts = np.array([_SCATTER / _ALIKE, _SCATTER / _NEAR, _RUNS**0.5 * _ASSUMED])
        weigh = np.repeat(counts, [ranks * size, names, 1]) * mean_s
        return rows * weigh[:, None], aims * weigh

    def _slopes_s(self, basis: Array, slower: Array, pace: Array) -> Array:
        """Derivatives of ranks' ends by coefficients, (ranks, columns, coefficients): summed along critical paths."""
        shape, size, columns = self._shape, basis.shape[-1], np.arange(basis.shape[1])
        weights, times = self._parts()
        scale = self._mean_s * (1 + self._coefficients[-1] * slower) * pace
        durations_s = self._times_s(basis, slower, pace)
        slopes: Array = np.zeros((shape.ranks, len(columns), len(self._coefficients)))
        rows = np.arange(shape.ranks)[:, None]
        for node, left in shape.critical_paths(durations_s):
            rank, name = shape.rank[node], shape.name[node]
            inputs = basis[shape.micro_batch[node], columns] * (left * scale)[..., None]
            of_rank = rank[..., None] * size + np.arange(size)
            slopes[rows[..., None], columns[:, None], of_rank] += inputs * times[name][..., None]
            of_name = np.where(name > 0, weights.size + name - 1, 0)
            slopes[rows, columns, of_name] += np.where(name > 0, (inputs * weights[rank]).sum(axis=-1), 0.0)
            slopes[rows, columns, -1] += (
                left * durations_s[node, columns] * slower / (1 + self._coefficients[-1] * slower)
            )
        return slopes

    def _parts(self) -> tuple[Array, Array]:
        """The weights of each rank, (ranks, functions of the load), and times(name)."""
        first = len(self._coefficients) - len(self._shape.names)
        return self._coefficients[:first].reshape(self._shape.ranks, -1), np.append(1.0, self._coefficients[first:-1])

    def _ends_s(self, basis: Array, slower: Array | float, pace: Array | float) -> Array:
        """When ranks end, (ranks, columns)."""
        return self._shape.ends_s(self._times_s(basis, slower, pace))

    def _times_s(self, basis: Array, slower: Array | float, pace: Array | float) -> Array:
        """Durations of the instructions, (instructions, columns)."""
        shape, (weights, times) = self._shape, self._parts()
        work = np.einsum("mcf,rf->rmc", basis, weights)[shape.rank, shape.micro_batch] * times[shape.name][:, None]
        times_s: Array = np.maximum(work, _LEAST) * self._mean_s * (1 + self._coefficients[-1] * slower) * pace
        return times_s

    def ends_s(self, loads: Array, slower: Array | float = 0.0) -> Array:
        """Returns when each rank is expected to end, in s, (ranks, pipelines); only after `fit`.

        Args:
            loads: As for `add`.
            slower: Highest clock over the clock, less 1: one number, or (pipelines,).
        """
        return self._ends_s(self._basis(loads), slower, self.pace)

    def busy(self, loads: Array, slower: Array | float = 0.0) -> Array:
        """Returns for which share of the time until its end each rank works, (ranks, pipelines); only after `fit`."""
        times_s = self._times_s(self._basis(loads), slower, self.pace)
        return self._shape.busy_s(times_s) / self._shape.ends_s(times_s)

    def _basis(self, loads: Array) -> Array:
        """The functions of the load: (micro-batches, columns, functions)."""
        scaled = loads / self._scale
        parts = [np.ones_like(scaled[..., :1]), scaled]
        return np.concatenate([*parts, scaled**2] if scaled.shape[-1] == 1 else parts, axis=-1)
