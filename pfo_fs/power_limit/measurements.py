"""The profile: time and energy at each power limit, in a JSON file of Zeus's format:

{"measurements": [{"power_limit": W, "energy": J, "time": s}, ...]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from pfo_fs.errors import PlanError
from pfo_fs.store.power_limit_folder import PowerLimitMeasurement

__all__ = ["MAX_PROFILE_BYTES", "PowerLimitMeasurement", "parse_profile", "profile_text"]

MAX_PROFILE_BYTES = 1 << 20
_MAX_MEASUREMENTS = 10_000


class _Profile(BaseModel):
    measurements: Annotated[list[PowerLimitMeasurement], Field(min_length=1, max_length=_MAX_MEASUREMENTS)]


def parse_profile(text: str | bytes, name: str) -> list[PowerLimitMeasurement]:
    """Returns the measurements of a profile, in the order of the file.

    Args:
        text: The JSON.
        name: The file's name in errors.

    Raises:
        PlanError: The text is too large, not JSON, or not a profile; the message names the place.
    """
    if len(text) > MAX_PROFILE_BYTES:
        raise PlanError(f"{name} is larger than {MAX_PROFILE_BYTES >> 20} MiB; a profile of power limits is smaller")
    try:
        measurements = _Profile.model_validate_json(text).measurements
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "content"
        raise PlanError(
            f"{name} is not a profile of power limits: {where}: {first['msg']}; it should look like "
            f'{{"measurements": [{{"power_limit": 300, "energy": 1234.5, "time": 6.7}}]}}'
        ) from None

    seen: set[int] = set()
    for measurement in measurements:
        if measurement.power_limit in seen:
            raise PlanError(f"{name} has {measurement.power_limit} W twice; delete the entry that is wrong")
        seen.add(measurement.power_limit)
    return measurements


def profile_text(measurements: Iterable[PowerLimitMeasurement]) -> str:
    """Returns the profile's JSON, byte for byte as Zeus writes it."""
    return json.dumps({"measurements": [measurement.model_dump() for measurement in measurements]}, indent=4)
