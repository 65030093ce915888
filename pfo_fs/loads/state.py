"""What is shown of the last step of a running job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfo_fs.arrays import np

if TYPE_CHECKING:
    from pfo_fs.loads_known import LastLoadStep

LEAST_BALANCED = 0.02
"""Balanced batches are worth a word where steps would be shorter by this share."""
SHOWN_LANES = 32
"""Most lanes of a step that are shown: a picture of more has no room for names, and records stay small."""


def last_step(step: int, mhz: Any, work_s: Any, full_s: Any) -> LastLoadStep | None:
    """Returns what is shown of a step; None if something is not known.

    Args:
        mhz: The clock of each lane.
        work_s, full_s: How long it worked, and would have at the highest clock, in s.
    """
    from pfo_fs.loads_known import LastLoadStep

    if not np.isfinite(mhz + work_s + full_s).all():
        return None
    order = np.argsort(-full_s, kind="stable")
    lanes = order.tolist()
    if len(order) > SHOWN_LANES:
        chosen = order[np.linspace(0, len(order) - 1, SHOWN_LANES - 1).round().astype(int)]
        # The lane that ended last is not always the one with most work: it is shown in any case.
        lanes = [lane for lane in lanes if lane in {*chosen.tolist(), int(np.argmax(work_s))}]
    seconds = [[float(f"{values[lane]:.4g}") for lane in lanes] for values in (work_s, full_s)]
    clocks = [round(float(mhz[lane])) for lane in lanes]
    return LastLoadStep.model_construct(
        step=step, lanes=len(order), lane=lanes, mhz=clocks, work_s=seconds[0], full_s=seconds[1]
    )
