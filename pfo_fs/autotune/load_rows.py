"""Windows in the form in which the model of durations is fitted: by micro-batch, with what clocks made of each run."""

from __future__ import annotations

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
    """What is believed of r, the time at a clock as a multiple of that at the highest one.

    Attributes:
        clocks_mhz: The clocks, rising.
        logs: Logarithm of r of each kind (row) at each clock (column).
        errors: Standard error of each.
        top_mhz: The highest clock of each kind.
    """

    clocks_mhz: Array
    logs: Array
    errors: Array
    top_mhz: Array

    def at(self, kinds: Array, mhz: Array) -> tuple[Array, Array]:
        """Returns log r and its error for kinds at clocks, arrays of one shape; between two clocks interpolated."""
        clocks = self.clocks_mhz
        high = np.clip(np.searchsorted(clocks, mhz), 1, len(clocks) - 1) if len(clocks) > 1 else np.zeros_like(kinds)
        low = np.maximum(high - 1, 0)
        width = np.maximum(clocks[high] - clocks[low], 1e-9)
        share = np.clip((mhz - clocks[low]) / width, 0.0, 1.0)
        logs = (1 - share) * self.logs[kinds, low] + share * self.logs[kinds, high]
        errors = (1 - share) * self.errors[kinds, low] + share * self.errors[kinds, high]
        return logs, errors


class Rows:
    """Windows by micro-batch: a row for each micro-batch of each iteration and pipeline, a column for each kind."""

    def __init__(self, node_at: Array, kinds: Array, windows: Sequence[Window], ratios: Ratios) -> None:
        parts: dict[str, list[Array]] = {}
        steps: list[Array] = []
        step = 0
        for number, window in enumerate(windows):
            shape = window.times_s.shape
            ratio, error = ratio_of(kinds, window, ratios)
            each = {
                "logs": np.log(window.times_s),
                "ratio_logs": np.log(ratio),
                "ratio_errors": error,
                "mhz": window.clocks_mhz,
                "ran_mhz": window.ran_mhz,
                "own_logs": ratios.at(np.broadcast_to(kinds[None, :, None], shape), window.clocks_mhz)[0],
                "at_clock": window.at_clock,
                "seen": window.or_mhz == 0,
            }
            for name, values in each.items():
                parts.setdefault(name, []).append(np.moveaxis(values[:, node_at], 3, 1).reshape(-1, node_at.shape[1]))
            count = len(parts["logs"][-1])
            parts.setdefault("pipelines", []).append(
                np.repeat(np.tile(np.array(window.pipelines), shape[0]), len(node_at))
            )
            parts.setdefault("windows", []).append(np.full(count, number))
            steps.append(step + np.repeat(np.arange(shape[0]), shape[2] * len(node_at)))
            step += shape[0]
        self.logs, self.ratio_logs, self.ratio_errors, self.mhz = (
            np.vstack(parts[name]) for name in ("logs", "ratio_logs", "ratio_errors", "mhz")
        )
        self.by_step = np.concatenate(steps)
        self.by_place = np.tile(np.arange(len(node_at)), len(self.logs) // len(node_at))
        self.seen = np.vstack(parts["seen"]) & (node_at >= 0)[self.by_place]
        # By how much longer a run would have taken at the clock of its schedule than at the one at which it ran.
        self.shifts = np.vstack(parts["own_logs"]) - self.ratio_logs
        at_clock = np.vstack(parts["at_clock"])
        self.at_clock = at_clock
        self.top_mhz = ratios.top_mhz
        self.at_top = (
            (self.mhz >= ratios.top_mhz) & (np.vstack(parts["ran_mhz"]) >= _SAME_CLOCK * ratios.top_mhz) & at_clock
        )
        self.windows = np.concatenate(parts["windows"])
        self.latest = self.windows == len(windows) - 1
        # A pipeline has a base of its own in each window: what all instructions take drifts from one to the next.
        self.pipeline_of_row = np.concatenate(parts["pipelines"])
        of_lanes = np.stack([self.windows, self.pipeline_of_row])
        lanes, self.lanes = np.unique(of_lanes, axis=1, return_inverse=True)
        self.pipeline_of_lane: list[int] = lanes[1].tolist()
        self.tells_base = (self.at_top & self.seen & self.latest[:, None]).sum(axis=0) >= TOP_RUNS_WANTED


class Effect:
    """What runs of one group have in common beyond their loads, such as those of one iteration: shrunk to what is real.

    Args:
        groups: The group of each row, from 0.

    Attributes:
        values: The effect on each row and kind.
        real: For each kind, the variance of the effects, without that of their errors.
        parameters: For each kind, how many runs' worth of freedom the effects take.
    """

    def __init__(self, groups: Array) -> None:
        self.groups = groups
        self._count = int(groups.max()) + 1
        self._of_group: Array = 0.0
        self.values: Array = np.zeros((1, 1))
        self.real: Array = None
        self.parameters: Array = 0.0

    def update(self, left: Array, weights: Array) -> None:
        """Estimates the effects anew.

        Args:
            left: What is left of each row and kind, without the effects so far.
            weights: 1 / variance of each.
        """
        total = self._sums(weights)
        means = self._sums(weights * (left + self.values)) / np.maximum(total, 1e-30)
        known = total > 0
        errors2 = np.where(known, 1 / np.maximum(total, 1e-30), 0.0)
        count = np.maximum(known.sum(axis=0), 1)
        middle = np.where(known, means, 0.0).sum(axis=0) / count
        # The variance of the groups beyond that of their errors; they have no mean, which is the base's.
        of_means = np.where(known, (means - middle) ** 2, 0.0).sum(axis=0) / np.maximum(count - 1, 1)
        real = np.maximum(of_means - errors2.sum(axis=0) / count, 1e-12)
        real = np.where(known.sum(axis=0) > 1, real, 1e-12)
        self.real = real
        shrunk = np.where(known, real / (real + errors2), 0.0)
        self._of_group, self.parameters = (means - middle) * shrunk, shrunk.sum(axis=0)
        self.values = self._of_group[self.groups]

    def _sums(self, values: Array) -> Array:
        return np.array([np.bincount(self.groups, column, self._count) for column in values.T]).T


def ratio_of(kinds: Array, window: Window, ratios: Ratios) -> tuple[Array, Array]:
    """By how much longer each instruction of a window took than at the highest clock, and the relative error of it."""
    which = np.broadcast_to(kinds[None, :, None], window.times_s.shape)
    logs, errors = ratios.at(which, window.ran_mhz)
    if window.or_mhz.any():  # it ran at either clock
        is_unsure = window.or_mhz > 0
        other_logs, other_errors = ratios.at(which, np.where(is_unsure, window.or_mhz, window.ran_mhz))
        errors = np.where(is_unsure, np.hypot(np.maximum(errors, other_errors), abs(logs - other_logs) / 2), errors)
        logs = (logs + other_logs) / 2
    return np.exp(logs), errors
