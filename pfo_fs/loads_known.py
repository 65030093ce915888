"""What is known of clocks from loads. The process that decides sends it, through training and helper, to reports.

The sender makes these objects without validation (`model_construct`), so that no value can end training; the receiver
validates them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pfo_fs.models import Count, Megahertz, Seconds, StepNumber, Text

LEAST_BALANCED = 0.02
"""Balanced batches are mentioned if they would make steps shorter by this share."""
_MOST_LANES = 64
"""The most lanes that are read: twice as many as are written."""


class LastLoadStep(BaseModel):
    """The last step: its lanes (data-parallel ranks) by falling work; of many lanes, some, evenly chosen.

    Attributes:
        lanes: Number of all lanes.
        work_s: The time of each lane's own work, in s.
        full_s: That time at the highest clock, in s.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    step: StepNumber
    lanes: Count
    lane: Annotated[list[Count], Field(min_length=1, max_length=_MOST_LANES)]
    mhz: Annotated[list[Megahertz], Field(max_length=_MOST_LANES)]
    work_s: Annotated[list[Seconds], Field(max_length=_MOST_LANES)]
    full_s: Annotated[list[Seconds], Field(max_length=_MOST_LANES)]

    @model_validator(mode="after")
    def _have_one_length(self) -> LastLoadStep:
        if not len(self.lane) == len(self.mhz) == len(self.work_s) == len(self.full_s):
            raise ValueError("lane, mhz, work_s and full_s have different lengths")
        return self


class LoadsKnown(BaseModel):
    """What is known of clocks from loads; `margin`, `saved`, `late` and `balanced` are relative. None: not known yet.

    Attributes:
        text: What is known, in words.
        problem: Why clocks stay at their default in some or all steps, if something should be changed in training.
        steps: Number of steps that were learned from.
        explained: The share of the variance of the ranks' times that loads explain.
        margin: By how much earlier than the last rank the others end.
        saved, saved_error: Energy saved, measured against control steps, and its standard error.
        late, late_error: Time that clocks cost, measured against control steps, and its standard error.
        controls: Number of control steps.
        balanced: By how much shorter steps would be with batches of equal work.
        time_s, energy_j: Time of all steps so far, in s, and the energy of all GPUs in them, in J.
        last: The last step of which all ranks have told the end.
        learned: How durations follow from loads, for the next start of the job; see `LoadDurations.learned`.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    text: Text = ""
    problem: Text = ""
    steps: Count = 0
    explained: Annotated[float, Field(ge=0, le=1)] | None = None
    margin: Annotated[float, Field(ge=-1, le=1e6)] = 0.0
    saved: Annotated[float, Field(ge=-1e6, le=1)] | None = None
    saved_error: Annotated[float, Field(ge=0, le=1e6)] | None = None
    late: Annotated[float, Field(gt=-1, le=1e6)] | None = None
    late_error: Annotated[float, Field(ge=0, le=1e6)] | None = None
    controls: Count = 0
    balanced: Annotated[float, Field(ge=0, le=1)] = 0.0
    time_s: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    energy_j: Annotated[float, Field(ge=0, le=1e18)] = 0.0
    last: LastLoadStep | None = None
    learned: dict[str, list[float]] = {}
