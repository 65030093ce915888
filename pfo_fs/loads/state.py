"""What is known of clocks from loads in a running job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pfo_fs.arrays import np
from pfo_fs.loads.energies import Saving

LEAST_BALANCED = 0.02
"""Balanced batches are worth a word where steps would be shorter by this share."""
SHOWN_LANES = 32
"""Most lanes of a step that are shown: a picture of more has no room for names, and records stay small."""


@dataclass(frozen=True)
class LastStep:
    """The last step of which all ranks have told the end: its lanes by falling work, evenly chosen if there are more.

    Attributes:
        lanes: Number of all lanes.
        lane: The lane of each row.
        mhz: Its clock.
        work_s: The time of its own work.
        full_s: The same at the highest clock.
    """

    step: int
    lanes: int
    lane: Sequence[int]
    mhz: Sequence[int]
    work_s: Sequence[float]
    full_s: Sequence[float]


def last_step(step: int, mhz: Any, work_s: Any, full_s: Any) -> LastStep | None:
    """Returns what is shown of a step; None if something is not known.

    Args:
        mhz: The clock of each lane.
        work_s, full_s: How long it worked, and would have at the highest clock, in s.
    """
    if not np.isfinite(mhz + work_s + full_s).all():
        return None
    order = np.argsort(-full_s, kind="stable")
    lanes = order.tolist()
    if len(order) > SHOWN_LANES:
        chosen = order[np.linspace(0, len(order) - 1, SHOWN_LANES - 1).round().astype(int)]
        # The lane that ended last is not always the one with most work: it is shown in any case.
        lanes = [lane for lane in lanes if lane in {*chosen.tolist(), int(np.argmax(work_s))}]
    seconds = [[float(f"{values[lane]:.4g}") for lane in lanes] for values in (work_s, full_s)]
    return LastStep(step, len(order), lanes, [round(float(mhz[lane])) for lane in lanes], *seconds)


@dataclass(frozen=True)
class LoadsState:
    """What is known, for people and programs.

    Attributes:
        steps: Number of steps that were learned from.
        explained: The share of the variance of the ranks' times that loads explain; None before it is known.
        margin: Relative: by how much before the last rank the others end.
        late, late_error: Time that steps lost, relative to all time, and its standard error.
        saving: Energy saved; None while it is not known.
        balanced: By how much shorter steps would be if all ranks had the mean of their work.
        last: The last step; None before there was one.
        time_s, energy_j: Time of all steps so far, and the energy of all GPUs in them.
        problem: Why clocks stay at their default in some or all steps, if something should be changed in training.
    """

    steps: int
    explained: float | None
    margin: float
    late: float
    late_error: float
    saving: Saving | None
    balanced: float
    text: str
    last: LastStep | None = None
    time_s: float = 0.0
    energy_j: float = 0.0
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the figures for the job's status."""
        known = {name: value for name, value in asdict(self).items() if name not in ("saving", "margin", "problem")}
        saving = self.saving
        return {**known, "saved": saving and saving.share, "saved_error": saving and saving.error}
