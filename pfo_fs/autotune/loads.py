"""What varies: the model of measured durations.

    log duration = base(kind, pipeline) + sensitivity(kind) * load(micro-batch, pipeline, iteration)
                   + log r(kind, clock) + noise(kind)

A kind is an instruction of a stage. Micro-batches differ in their work (lengths of sequences, images, routing). All
instructions of a micro-batch share its load, so each of them tells the load of the others. A job without variation is
the case sensitivity = 0, and a rank that is permanently slow has another base. r is the time at a clock, as a multiple
of that at the highest clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.load_rows import TOP_RUNS_WANTED, Effect, Ratios, Rows, ratio_of
from pfo_fs.autotune.windows import Window, kinds_of
from pfo_fs.planner import Pipeline

_ROUNDS = 12
"""Loads and sensitivities are estimated in turn; after this many rounds they change by less than their errors."""
_FIRST_SHARE = 0.7
"""This share of the standard deviation of a kind, half of its variance, is taken to be due to loads before anything is
estimated."""
_FREEDOM = 4.0
"""Degrees of freedom of Student's distribution of the noise: a few runs are paused by something else."""
_LEAST_FREE = 0.2
"""At least this share of all runs tells of noise, however many parameters were fitted to them."""
_UNLIKE_NORMAL = (_FREEDOM + 3) / (_FREEDOM + 1)
"""A mean of such noise has this many times the variance that it has if the noise is normal (Fisher information)."""
_LEAST_NOISE = 0.0003
"""Relative: no instruction's duration is taken to repeat more exactly than this."""
_LOAD_ERROR = 0.01
"""Relative: loads explain the mean duration of some iterations with about this error."""
_NEARER = 0.25
"""A new clock has acted if durations are off those at it by at most this share of what the two clocks differ by."""
_UNSURE_SHIFT = 0.5
"""Relative: how far the difference between two neighbouring clocks may be from what is believed of it."""
_NOTHING_KNOWN = 1.0
"""Weight of a ratio before it is measured, 1 / variance of its logarithm: it is between 1/3 and 3."""
_LEVEL_DRIFT = 0.003
"""Relative: all durations of a kind drift by about this from one window to the next; if only other windows tell its
base, this is the error of the base."""


@dataclass(frozen=True)
class Found:
    """What windows tell of one kind at one clock.

    Attributes:
        count: Number of runs.
        time_s: Duration of the kind at that clock and an ordinary load, in s.
        error: Relative standard error of `time_s`; at lower clocks, of its ratio to that at the highest clock.
    """

    kind: tuple[int, str]
    mhz: int
    count: int
    time_s: float
    error: float
    is_highest: bool = False


class LoadModel:
    """The model of a job's durations.

    Attributes:
        kinds: The kinds of instructions, (stage, instruction), sorted.
        kind_of_node: The number of each node's kind.
        sensitivities: For each kind, the standard deviation of its log duration that loads explain.
        noises: For each kind, the standard deviation that is left.
        bases: For each pipeline, the log duration of each kind at the highest clock and an ordinary load, mean over the
            windows.
        first_bases: The same of an ordinary pipeline in the first window; ratios times these make `Found.time_s`.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.kinds, self.kind_of_node = kinds_of(pipeline)
        micro_batches = sorted({i.microbatch for i in pipeline.instructions})
        place = {number: row for row, number in enumerate(micro_batches)}
        self.node_at: Array = np.full((len(micro_batches), len(self.kinds)), -1)
        for node, instruction in enumerate(pipeline.instructions):
            self.node_at[place[instruction.microbatch], self.kind_of_node[node]] = node
        self.sensitivities: Array = np.zeros(len(self.kinds))
        self.noises: Array = np.full(len(self.kinds), 0.01)
        self.bases: dict[int, Array] = {}
        self.first_bases: Array = None
        self._explained: dict[int, Array] = {}

    def fit(self, windows: Sequence[Window], ratios: Ratios) -> list[Found]:
        """Fits the model to the latest windows, and returns what the last one tells of each kind and clock.

        `ratios` are what was believed before the last window; pipelines of the windows may differ.
        """
        rows = Rows(self.node_at, self.kind_of_node, windows, ratios)
        cells = _Cells(rows)
        of_step, of_place = Effect(rows.by_step), Effect(rows.by_place)
        gain, noise = self.sensitivities, np.maximum(self.noises, _LEAST_NOISE)
        load: Array = np.zeros(len(rows.logs))
        robust: Array = np.ones_like(rows.logs)
        for round_ in range(_ROUNDS):
            full = rows.logs - rows.ratio_logs
            others = of_step.values + of_place.values
            bases = self._bases(full - load[:, None] * gain - others, rows, robust)
            base = bases[rows.lanes]
            rest = np.where(rows.seen, full - base - others, 0.0)
            if not gain.any():
                gain = _FIRST_SHARE * np.sqrt((rest**2).sum(axis=0) / np.maximum(rows.seen.sum(axis=0), 1))
            weights = np.where(rows.seen, robust / (noise**2 + rows.ratio_errors**2), 0.0)
            load_variance = 1.0 / (1.0 + (weights * gain**2).sum(axis=1))
            load = (weights * gain * rest).sum(axis=1) * load_variance
            # The scale of loads is free: their variance is 1, so that sensitivities are standard deviations.
            surely = weights * (rows.ratio_errors <= 2 * noise)
            total = (surely * (load**2 + load_variance)[:, None]).sum(axis=0)
            gain = np.where(total > 0, (surely * load[:, None] * rest).sum(axis=0) / np.maximum(total, 1e-30), 0.0)
            spread = float(np.sqrt((load**2 + load_variance).mean()))
            gain, load, load_variance = gain * spread, load / spread, load_variance / spread**2
            left = rest - load[:, None] * gain
            squares = np.where(surely > 0, robust * (left**2 + load_variance[:, None] * gain**2), 0.0)
            count = (surely > 0).sum(axis=0)
            free = np.maximum(count - 2 - of_step.parameters - of_place.parameters, _LEAST_FREE * count)
            noise = np.sqrt(np.maximum(squares.sum(axis=0) / np.maximum(free, 1), _LEAST_NOISE**2))
            robust = (_FREEDOM + 1) / (_FREEDOM + left**2 / (noise**2 + rows.ratio_errors**2))
            of_step.update(left, surely)
            of_place.update(left, np.where(rows.at_top, weights, 0.0))
            if round_ >= 2:
                cells.update(rows, rows.logs - base, of_place.values, gain, weights, surely, load, of_step)
        self.sensitivities, self.noises = gain, noise
        of_lane = np.array(rows.pipeline_of_lane)
        self.bases |= {pipeline: bases[of_lane == pipeline].mean(axis=0) for pipeline in rows.pipeline_of_lane}
        if self.first_bases is None:
            self.first_bases = np.median(bases, axis=0)
        self._explained = self._by_window(windows, base + load[:, None] * gain + others)
        return self._found(rows, cells)

    def _by_window(self, windows: Sequence[Window], values: Array) -> dict[int, Array]:
        """Values of rows and kinds for each window, by its id, in its shape: iterations, nodes, pipelines."""
        batches, kinds = np.nonzero(self.node_at >= 0)
        place = batches[np.argsort(self.node_at[batches, kinds])]  # of each node
        found, begin = {}, 0
        for window in windows:
            shape = window.iterations, len(window.pipelines), len(self.node_at)
            by_batch = values[begin : begin + math.prod(shape)].reshape(*shape, -1)
            found[id(window)] = np.moveaxis(by_batch[:, :, place, self.kind_of_node], 1, 2)
            begin += math.prod(shape)
        return found

    def _bases(self, full: Array, rows: Rows, robust: Array) -> Array:
        """The base of each kind, by lane: from runs at the highest clock alone where there are enough of them."""
        found = []
        for lane, pipeline in enumerate(rows.pipeline_of_lane):
            mine = (rows.lanes == lane)[:, None] & rows.seen
            top = mine & rows.at_top
            # Without turns, all runs of a window may be at low clocks: then those of other windows tell the base.
            others = (rows.pipeline_of_row == pipeline)[:, None] & rows.seen & rows.at_top
            use = mine
            for better in (others, top):
                use = np.where(better.sum(axis=0) >= TOP_RUNS_WANTED, better, use)
            weights = use * robust / (1e-6 + rows.ratio_errors**2)
            total = weights.sum(axis=0)
            mean = (weights * np.where(use, full, 0.0)).sum(axis=0) / np.maximum(total, 1e-30)
            found.append(np.where(total > 0, mean, self.bases.get(pipeline, np.zeros_like(mean))))
        return np.array(found)

    def _found(self, rows: Rows, cells: _Cells) -> list[Found]:
        found, top_s = [], np.exp(self.first_bases).tolist()
        counts = (rows.at_top & rows.seen & rows.latest[:, None]).sum(axis=0).tolist()
        for number, (kind, count) in enumerate(zip(self.kinds, counts, strict=True)):
            if count:
                mhz, error = round(float(rows.top_mhz[number])), float(self.noises[number]) / count**0.5
                found.append(Found(kind, mhz, count, top_s[number], error, is_highest=True))
        for (number, mhz), (count, log, error) in sorted(cells.known.items()):
            found.append(Found(self.kinds[number], mhz, count, top_s[number] * float(np.exp(log)), error))
        return found

    def at_max_clocks_s(self, window: Window, ratios: Ratios) -> Array:
        """Returns what the instructions of a window would have taken at the highest clock, in s.

        That is the measured duration divided by r. If it is unknown whether a new clock has acted, it counts as acting
        if the durations then agree with what the model explains; else their mean is set to that. The differences
        between iterations always stay, since they make the longest of several paths longer.
        """
        ratio_logs, error = ratio_of(self.kind_of_node, window, ratios)
        logs: Array = np.log(window.times_s) - ratio_logs
        explained = self._explained[id(window)]
        variance = (self.noises[self.kind_of_node] ** 2)[:, None] / len(logs) + _LOAD_ERROR**2
        acted = np.log(window.times_s) - ratios.at(self.kind_of_node[:, None], window.ran_mhz)[0]
        apart = 2 * np.abs(acted - logs).mean(axis=0)  # by how much the two clocks differ
        has_acted = (window.or_mhz > 0) & (np.abs((acted - explained).mean(axis=0)) <= _NEARER * apart)
        unknown = np.where(window.at_clock | has_acted, 0.0, error**2 / (error**2 + variance))
        logs = np.where(has_acted, acted, logs)
        return np.exp(logs - unknown * (logs - explained).mean(axis=0))


class _Cells:
    """The ratios of the latest window's clocks, estimated together with its loads, and changed in `rows`.

    Attributes:
        known: For each (number of the kind, MHz): number of runs, log r, its standard error.
    """

    def __init__(self, rows: Rows) -> None:
        self.known: dict[tuple[int, int], tuple[int, float, float]] = {}
        self._cells: list[tuple[tuple[int, int], Array, float, float]] = []
        wanted = rows.at_clock & rows.latest[:, None] & rows.seen & (rows.mhz < rows.top_mhz)
        for number in range(rows.mhz.shape[1]):
            for clock in np.unique(rows.mhz[wanted[:, number], number]).tolist():
                at = np.flatnonzero(wanted[:, number] & (rows.mhz[:, number] == clock))
                before = float((rows.ratio_logs + rows.shifts)[at, number].mean())
                self._cells.append(((number, round(clock)), at, before, float(rows.ratio_errors[at, number].mean())))

    def update(
        self,
        rows: Rows,
        above: Array,
        of_place: Array,
        gain: Array,
        weights: Array,
        surely: Array,
        load: Array,
        of_step: Effect,
    ) -> None:
        """Estimates all ratios at once with what iterations have in common; loads are integrated out.

        Everything is linear in the logarithms, so this is one least-squares problem. The effects of iterations and
        loads are uncertain, too: only other runs of the same iterations tell them. So are the bases: only the runs of
        this window tell them.

        Args:
            above: Log duration above the base of each run, the ratio included.
            of_place: What the place in the iteration explains of that.
            gain, weights: Sensitivities of the kinds, and 1 / variance of each run.
            surely: The weights of runs at clocks that are known well; 0 for other runs, since an error in their clock's
                ratio is common to many runs, so that together they tell little.
            load: The loads as estimated before.
            of_step: What the runs of one iteration have in common beyond their loads.
        """
        if not self._cells:
            return
        latest, weights_now, shifts = rows.latest, weights[rows.latest], rows.shifts[rows.latest]
        steps, step = np.unique(rows.by_step[latest], return_inverse=True)
        kinds, cells = len(gain), len(self._cells)
        in_cell = np.full(rows.logs.shape, -1)
        for number, (key, at, _, _) in enumerate(self._cells):
            in_cell[at, key[0]] = number
        in_cell = in_cell[latest]
        # What the runs at one clock have in common is asked for here: their errors are those of noise alone.
        noise2 = np.maximum(1 / np.maximum(weights_now, 1e-30) - rows.ratio_errors[latest] ** 2, _LEAST_NOISE**2)
        noise2 = noise2 + (_UNSURE_SHIFT * shifts) ** 2
        weight = np.where(weights_now > 0, np.where(in_cell >= 0, 1 / noise2, surely[latest]), 0.0)
        off = np.where(in_cell >= 0, shifts, -rows.ratio_logs[latest])
        seen = above[latest] + off - of_place[latest]
        shared = _shared_by_steps(load, (weights * gain**2).sum(axis=1), rows.by_step)
        first_load = cells + len(steps) * kinds
        first_base = first_load + len(steps)
        size = first_base + kinds
        matrix, right = np.zeros((size, size)), np.zeros(size)
        # The parameters of each run, and its share of them: its cell, its iteration's effect and load, its base.
        number, kind, whole = step[:, None], np.arange(kinds), np.ones_like(weight)
        own = [np.maximum(in_cell, 0), cells + number * kinds + kind, first_load + number, first_base + kind]
        places = np.stack([np.broadcast_to(column, weight.shape) for column in own])
        shares = np.stack([in_cell >= 0, whole, whole * gain, whole])
        # The inverse of the covariance of a row's runs is diag(weight) - scale * pull pull^T: they share a load.
        pull = weight * gain
        scale = (1 - shared) / (1 + (1 - shared) * (pull * gain).sum(axis=1))
        told = weight * seen - pull * (scale * (pull * seen).sum(axis=1))[:, None]
        for k in range(kinds):
            np.add.at(right, places[..., k], shares[..., k] * told[:, k])
            for other in range(kinds):
                value = (weight[:, k] if k == other else 0.0) - pull[:, k] * pull[:, other] * scale
                at = places[:, None, :, k], places[None, ..., other]
                np.add.at(matrix, at, shares[:, None, :, k] * shares[None, ..., other] * value)
        prior = np.concatenate(
            [
                np.full(cells, _NOTHING_KNOWN),
                np.tile(1 / of_step.real, len(steps)),
                np.full(len(steps), 1 / max(shared, 1e-9)),
                np.where(rows.tells_base, _NOTHING_KNOWN, 1 / _LEVEL_DRIFT**2),
            ]
        )
        covariance = np.linalg.inv(matrix + np.diag(prior))
        found, variance = covariance @ right, np.diag(covariance)
        for number, (key, at, before, prior_error) in enumerate(self._cells):
            mean, error2 = float(found[number]), _UNLIKE_NORMAL * float(variance[number])
            self.known[key] = len(at), mean, error2**0.5
            beforehand = 1 / max(prior_error, 1e-6) ** 2
            now = (mean / error2 + before * beforehand) / (1 / error2 + beforehand)
            rows.ratio_logs[at, key[0]] = now - rows.shifts[at, key[0]]
            rows.ratio_errors[at, key[0]] = (1 / error2 + beforehand) ** -0.5


def _shared_by_steps(load: Array, information: Array, by_step: Array) -> float:
    """The share of the loads' variance, 1, that the micro-batches of an iteration have in common.

    All windows tell it, each as far as its loads are known: where all instructions ran at clocks that are hardly known
    yet, loads were taken to be about 0. `information` is 1 / variance of what a row's durations alone tell of its load.
    """
    rows = np.bincount(by_step)
    means = np.bincount(by_step, load) / rows
    known = np.bincount(by_step, information / (1 + information)) / rows
    return float(np.clip((means**2).sum() / np.maximum(known.sum(), 1e-9), 0.0, 0.95))
