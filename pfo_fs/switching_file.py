"""What clock changes cost on a node, as it was measured there: the file that `pfo-fs doctor --switching` writes.

Planner and clock processes read it, so it lies where all rooms may import it.
"""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfo_fs.errors import PlanError, first_problem
from pfo_fs.models import Megahertz, ShortText
from pfo_fs.user_files import read_user_file

VARIABLE = "PFO_FS_SWITCHING_FILE"
"""The environment variable that gives the clock processes of a job their starting values."""
MAX_SWITCHING_BYTES = 2**20
_MAX_CLOCKS = 4096

_ShortSeconds = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]


class CallTime(BaseModel):
    """How long a driver call takes, in s: its median, and the time that 99 % of the calls keep to."""

    model_config = ConfigDict(frozen=True)

    median: _ShortSeconds
    p99: _ShortSeconds = 0.0


class MeasuredSwitching(BaseModel):
    """What clock changes cost on a node. Unknown keys are ignored.

    Attributes:
        call_s: How long the call of one GPU takes.
        latency_s: For each clock in MHz, the time in s from the return of a call until the clock acts.
        gpus: Number of GPUs of the node; None: not known.
        max_calls_per_s: The most calls per second that jobs may make, for all GPUs of the node; None: not known.
        gpu, clock_backend, date, pfo_fs: On what, in which way, when and by which release it was measured.
        not_measured: Why it is not known when clocks act; empty if it is.
    """

    model_config = ConfigDict(frozen=True)

    call_s: CallTime
    latency_s: dict[Megahertz, _ShortSeconds] = Field(default={}, max_length=_MAX_CLOCKS)
    gpus: Annotated[int, Field(ge=1, le=1024)] | None = None
    max_calls_per_s: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    gpu: ShortText = ""
    clock_backend: ShortText = ""
    date: ShortText = ""
    pfo_fs: ShortText = ""
    not_measured: ShortText = ""


def read_switching(path: str | os.PathLike[str]) -> MeasuredSwitching:
    """Reads a file of measured costs of clock changes.

    Raises:
        PlanError: The file cannot be read, is too large, or a value is missing or out of range; the message names the
            key.
    """
    content = read_user_file(path, MAX_SWITCHING_BYTES, "what pfo-fs doctor --switching wrote")
    try:
        return MeasuredSwitching.model_validate_json(content)
    except ValidationError as error:
        where, wrong = first_problem(error)
        place = where or "the document"
        raise PlanError(f"{path}: {place} {wrong}; measure again with pfo-fs doctor --switching") from None


def given_switching() -> MeasuredSwitching | None:
    """Returns what `PFO_FS_SWITCHING_FILE` names; None if the variable is not set.

    Raises:
        PlanError: As `read_switching`.
    """
    path = os.environ.get(VARIABLE)
    return read_switching(path) if path else None
