"""Loads as durations themselves show them, where training code tells none: one number for each micro-batch."""

from __future__ import annotations

from pfo_fs.arrays import Array, np


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
