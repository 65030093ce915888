"""Windows by micro-batch, with the effect of clocks on runs: what the model of durations is fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.windows import Window

_SAME_CLOCK = 0.999
"""A run tells of the highest clock if its mean clock was at least this share of it."""
TOP_RUNS_WANTED = 3
"""From this many settled runs at the highest clock on, only these tell an instruction's base."""


@dataclass(frozen=True)
class Ratios:
    """What is believed of r, the time at a clock as a multiple of the time at the highest clock.

    Attributes:
        clocks_mhz: The clocks, rising.
        logs, errors: Logarithm of r of each kind (row) at each clock (column), and its standard error.
        top_mhz: The highest clock of each kind, in MHz.
    """

    clocks_mhz: Array
    logs: Array
    errors: Array
    top_mhz: Array

    def at(self, kinds: Array, mhz: Array) -> tuple[Array, Array]:
        """Returns log r and its error for kinds at clocks (arrays that broadcast), interpolated between clocks."""
        clocks = self.clocks_mhz
        high = np.clip(np.searchsorted(clocks, mhz), 1, len(clocks) - 1) if len(clocks) > 1 else np.zeros_like(kinds)
        low = np.maximum(high - 1, 0)
        width = np.maximum(clocks[high] - clocks[low], 1e-9)
        share = np.clip((mhz - clocks[low]) / width, 0.0, 1.0)
        logs = (1 - share) * self.logs[kinds, low] + share * self.logs[kinds, high]
        errors = (1 - share) * self.errors[kinds, low] + share * self.errors[kinds, high]
        return logs, errors


class Rows:
    """Windows by micro-batch: a row for each micro-batch of each iteration and pipeline, a column for each kind.

    `node_at` is the node of each micro-batch and kind, -1 where there is none; `kinds` the kind of each node.
    """

    def __init__(self, node_at: Array, kinds: Array, windows: Sequence[Window], ratios: Ratios) -> None:
        batches = len(node_at)
        tables: list[list[Array]] = []
        for window in windows:
            ratio_logs, ratio_errors = ratio_of(kinds, window, ratios)
            own_logs = ratios.at(kinds[:, None], window.clocks_mhz)[0]
            runs = np.log(window.times_s), ratio_logs, ratio_errors, own_logs
            told = window.clocks_mhz, window.ran_mhz, window.at_clock, window.or_mhz == 0
            by_batch = (np.moveaxis(values[:, node_at], 3, 1).reshape(-1, node_at.shape[1]) for values in runs + told)
            tables.append(list(by_batch))
        self.logs, self.ratio_logs, self.ratio_errors, own_logs, self.mhz, ran_mhz, self.at_clock, known = (
            np.vstack(of_windows) for of_windows in zip(*tables, strict=True)
        )
        pipelines_of_step = np.concatenate([np.full(each.iterations, len(each.pipelines)) for each in windows])
        self.by_step: Array = np.repeat(np.arange(len(pipelines_of_step)), pipelines_of_step * batches)
        self.by_place = np.tile(np.arange(batches), len(self.logs) // batches)
        self.seen = known & (node_at >= 0)[self.by_place]
        # Logarithm of the time of a run at its schedule's clock, over that at the clock at which it ran.
        self.shifts = own_logs - self.ratio_logs
        self.top_mhz = ratios.top_mhz
        self.at_top = (self.mhz >= self.top_mhz) & (ran_mhz >= _SAME_CLOCK * self.top_mhz) & self.at_clock
        self.windows: Array = np.repeat(np.arange(len(windows)), [len(of_window[0]) for of_window in tables])
        self.latest = self.windows == len(windows) - 1
        # A pipeline has a base of its own in each window, because durations drift from one window to the next.
        pipelines = [np.tile(np.repeat(np.array(each.pipelines), batches), each.iterations) for each in windows]
        self.pipeline_of_row = np.concatenate(pipelines)
        of_lanes = np.stack([self.windows, self.pipeline_of_row])
        lanes, self.lanes = np.unique(of_lanes, axis=1, return_inverse=True)
        self.pipeline_of_lane: list[int] = lanes[1].tolist()
        self.tells_base = (self.at_top & self.seen & self.latest[:, None]).sum(axis=0) >= TOP_RUNS_WANTED


class Effect:
    """What the runs of a group (such as an iteration) have in common beyond their loads, shrunk to what is real.

    Attributes:
        values: The effect on each row and kind.
        real: For each kind, the variance of the effects, without that of their errors.
        parameters: For each kind, how many degrees of freedom the effects take.
    """

    def __init__(self, groups: Array) -> None:
        self.groups = groups
        self._count = int(groups.max()) + 1
        self.values: Array = np.zeros((1, 1))
        self.real: Array = None
        self.parameters: Array = 0.0

    def update(self, left: Array, weights: Array) -> None:
        """Estimates the effects anew from what is left of each row and kind; `weights`: 1 / variance of each."""
        total = self._sums(weights)
        means = self._sums(weights * (left + self.values)) / np.maximum(total, 1e-30)
        known = total > 0
        errors2 = np.where(known, 1 / np.maximum(total, 1e-30), 0.0)
        count = np.maximum(known.sum(axis=0), 1)
        middle = np.where(known, means, 0.0).sum(axis=0) / count
        # The variance of the groups beyond that of their errors. Their mean is 0, since the base holds it.
        of_means = np.where(known, (means - middle) ** 2, 0.0).sum(axis=0) / np.maximum(count - 1, 1)
        real = np.maximum(of_means - errors2.sum(axis=0) / count, 1e-12)
        self.real = np.where(known.sum(axis=0) > 1, real, 1e-12)
        shrunk = np.where(known, self.real / (self.real + errors2), 0.0)
        self.parameters = shrunk.sum(axis=0)
        self.values = ((means - middle) * shrunk)[self.groups]

    def _sums(self, values: Array) -> Array:
        return np.array([np.bincount(self.groups, column, self._count) for column in values.T]).T


def ratio_of(kinds: Array, window: Window, ratios: Ratios) -> tuple[Array, Array]:
    """Log r of each instruction of a window at the clock at which it ran, and its error."""
    which = kinds[:, None]
    logs, errors = ratios.at(which, window.ran_mhz)
    if window.or_mhz.any():  # it ran at either clock
        is_unsure = window.or_mhz > 0
        other_logs, other_errors = ratios.at(which, np.where(is_unsure, window.or_mhz, window.ran_mhz))
        errors = np.where(is_unsure, np.hypot(np.maximum(errors, other_errors), abs(logs - other_logs) / 2), errors)
        logs = (logs + other_logs) / 2
    return logs, errors
