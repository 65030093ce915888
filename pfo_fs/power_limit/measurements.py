"""The profile: time and energy at each level, in a JSON file. For power limits, its format is Zeus's:

{"measurements": [{"power_limit": W, "energy": J, "time": s}, ...]}

For clocks, it has `"clock": MHz` instead of `"power_limit": W`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfo_fs.errors import PlanError, first_problem
from pfo_fs.ipc.messages import MAX_PROFILE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Self

_MAX_MEASUREMENTS = 10_000
MOST_MEASURED = 1e15
"""The largest energy in J, and the largest time in s."""

Knob: TypeAlias = Literal["power_limit", "clock"]
"""What the optimizer sets on all GPUs; a value of it is a level: a power limit in W, or a clock in MHz."""

Level = Annotated[int, Field(gt=0, le=999_999)]
Positive = Annotated[float, Field(gt=0, le=MOST_MEASURED, allow_inf_nan=False)]


class KnobMeasurement(BaseModel):
    """What `profile_steps` steps take at one level, in J on all GPUs, and in s on the slowest one.

    The level's field has the knob's name.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    knob: ClassVar[Knob]
    unit: ClassVar[str]

    energy: Positive
    time: Positive

    @property
    def level(self) -> int:
        return int(getattr(self, self.knob))

    @classmethod
    def at(cls, level: int, energy: float, time: float) -> Self:
        return cls.model_validate({cls.knob: level, "energy": energy, "time": time})


class PowerLimitMeasurement(KnobMeasurement):
    knob, unit = "power_limit", "W"
    power_limit: Level


class ClockMeasurement(KnobMeasurement):
    knob, unit = "clock", "MHz"
    clock: Level


KNOBS: Mapping[Knob, type[KnobMeasurement]] = {"power_limit": PowerLimitMeasurement, "clock": ClockMeasurement}


class _PowerLimits(BaseModel):
    measurements: Annotated[list[PowerLimitMeasurement], Field(min_length=1, max_length=_MAX_MEASUREMENTS)]


class _Clocks(BaseModel):
    measurements: Annotated[list[ClockMeasurement], Field(min_length=1, max_length=_MAX_MEASUREMENTS)]


def parse_profile(text: str | bytes, name: str) -> Sequence[KnobMeasurement]:
    """Returns the measurements of a profile, in the order of the file.

    Raises:
        PlanError: The text is too large, not JSON, or not a profile; the message names the place.
    """
    if len(text) > MAX_PROFILE_BYTES:
        raise PlanError(f"{name} is larger than {MAX_PROFILE_BYTES >> 10} KiB; a profile is smaller")
    measurements: Sequence[KnobMeasurement]
    try:
        measurements = _PowerLimits.model_validate_json(text).measurements
    except ValidationError as error:
        with suppress(ValidationError):
            return _checked(_Clocks.model_validate_json(text).measurements, name)
        where, wrong = first_problem(error)
        problem = f"{where} {wrong}" if where else f"content {wrong.partition(':')[0]}"
        raise PlanError(
            f"{name} is not a profile of power limits: {problem}; it should look like "
            f'{{"measurements": [{{"power_limit": 300, "energy": 1234.5, "time": 6.7}}]}}'
        ) from None
    return _checked(measurements, name)


def _checked(measurements: Sequence[KnobMeasurement], name: str) -> Sequence[KnobMeasurement]:
    unit = measurements[0].unit
    seen: set[int] = set()
    for measurement in measurements:
        if measurement.level in seen:
            raise PlanError(f"{name} has {measurement.level} {unit} twice; delete the entry that is wrong")
        seen.add(measurement.level)
    return measurements


def saving(measurements: Sequence[KnobMeasurement], level: int) -> float | None:
    """Returns the share of energy that `level` saves against the highest level measured; None if it is not known."""
    energies_j = {measurement.level: measurement.energy for measurement in measurements}
    if level not in energies_j:
        return None
    return 1 - energies_j[level] / energies_j[max(energies_j)]


def profile_text(measurements: Iterable[KnobMeasurement]) -> str:
    """Returns the profile's JSON; for power limits, byte for byte as Zeus writes it."""
    rows = [{m.knob: m.level, "energy": m.energy, "time": m.time} for m in measurements]
    return json.dumps({"measurements": rows}, indent=4)
