"""What is known of clocks from loads in a running job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pfo_fs.loads.energies import Saving

LEAST_BALANCED = 0.02
"""Balanced batches are worth a word where steps would be shorter by this share."""


@dataclass(frozen=True)
class LoadsState:
    """What is known, for people and programs.

    Attributes:
        steps: Number of steps that were learned from.
        explained: The share of the variance of the ranks' times that loads explain; None before it is known.
        residual: Relative: what they leave unexplained of a rank's time.
        margin: Relative: by how much before the last rank the others end.
        lowered: Number of steps with a lower clock.
        late, late_error: Time that steps lost, relative to all time, and its standard error.
        saving: Energy saved; None while it is not known.
        balanced: By how much shorter steps would be if all ranks had the mean of their work.
        text: The same in words.
    """

    steps: int
    explained: float | None
    residual: float
    margin: float
    lowered: int
    late: float
    late_error: float
    saving: Saving | None
    balanced: float
    text: str

    def as_json(self) -> dict[str, Any]:
        """Returns the figures for the job's status."""
        saved = None if self.saving is None else self.saving.share
        error = None if self.saving is None else self.saving.error
        known = {"text": self.text, "steps": self.steps, "explained": self.explained, "balanced": self.balanced}
        return {**known, "saved": saved, "saved_error": error, "late": self.late, "late_error": self.late_error}
