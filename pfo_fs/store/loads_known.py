"""What rank 0's progress record says of clocks from loads."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pfo_fs.models import Count, Megahertz, Seconds, StepNumber, Text

_MOST_LANES = 64
"""More than twice as many as are written."""


class LastLoadStep(BaseModel):
    """Some of the `lanes` (data-parallel ranks) of a step: clock, time of the own work, and at the max clock."""

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
    """What is known of clocks from loads after `steps`; all relative, with standard errors. None: not known yet.

    `explained`: the share of the variance of the ranks' times that loads explain; `saved`: energy; `late`: time that
    the clocks cost; `balanced`: by how much shorter steps would be with batches of equal work; `last`: the last step;
    `time_s`, `energy_j`: time of all steps, and the energy of all GPUs in them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    text: Text = ""
    steps: Count = 0
    explained: Annotated[float, Field(ge=0, le=1)] | None = None
    saved: Annotated[float, Field(ge=-1e6, le=1)] | None = None
    saved_error: Annotated[float, Field(ge=0, le=1e6)] | None = None
    late: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    late_error: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    balanced: Annotated[float, Field(ge=0, le=1)] = 0.0
    time_s: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    energy_j: Annotated[float, Field(ge=0, le=1e18)] = 0.0
    last: LastLoadStep | None = None
