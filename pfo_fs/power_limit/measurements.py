"""What was measured at each power limit, and the JSON file it is kept in, which is Zeus's:

{"measurements": [{"power_limit": W, "energy": J, "time": s}, ...]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfo_fs.errors import PlanError

MAX_PROFILE_BYTES = 1 << 20
_MAX_MEASUREMENTS = 10_000

Positive = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class PowerLimitMeasurement(BaseModel):
    """Energy and time of `profile_steps` steps at one power limit; all GPUs of the job together.

    Attributes:
        power_limit: The limit of each GPU, in W.
        energy: In J, summed over the GPUs.
        time: In s, of the slowest GPU.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    power_limit: Annotated[int, Field(gt=0, le=999_999)]
    energy: Positive
    time: Positive


class _Profile(BaseModel):
    measurements: Annotated[list[PowerLimitMeasurement], Field(min_length=1, max_length=_MAX_MEASUREMENTS)]


def parse_profile(text: str | bytes, name: str) -> list[PowerLimitMeasurement]:
    """Returns the measurements of a profile, in the order of the file.

    Args:
        text: The JSON.
        name: What to call the file in errors.

    Raises:
        PlanError: It is too large, no JSON, or no profile; the message says where.
    """
    if len(text) > MAX_PROFILE_BYTES:
        raise PlanError(f"{name} is larger than {MAX_PROFILE_BYTES >> 20} MiB; that is no profile of power limits")
    try:
        measurements = _Profile.model_validate_json(text).measurements
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "content"
        raise PlanError(
            f"{name} is no profile of power limits: {where}: {first['msg']}; it should look like "
            f'{{"measurements": [{{"power_limit": 300, "energy": 1234.5, "time": 6.7}}]}}'
        ) from None

    seen: set[int] = set()
    for measurement in measurements:
        if measurement.power_limit in seen:
            raise PlanError(f"{name} has {measurement.power_limit} W twice; which of them counts?")
        seen.add(measurement.power_limit)
    return measurements


def profile_text(measurements: Iterable[PowerLimitMeasurement]) -> str:
    """Returns the profile's JSON, letter by letter as Zeus writes it."""
    return json.dumps({"measurements": [measurement.model_dump() for measurement in measurements]}, indent=4)
