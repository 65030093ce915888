"""What rank 0's progress record says of clocks from loads."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pfo_fs.models import Count, Text


class LoadsKnown(BaseModel):
    """What is known of clocks from loads after `steps`; all relative, with standard errors. None: not known yet.

    `explained`: the share of the variance of the ranks' times that loads explain; `saved`: energy; `late`: time that
    the clocks cost; `balanced`: by how much shorter steps would be with batches of equal work.
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
