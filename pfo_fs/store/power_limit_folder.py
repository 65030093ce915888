"""Jobs with the same load share measurements at power limits, or at clocks, and the level that was chosen from them.

`layout.py` names the files. Records are immutable and no job waits for another one: a level with which another job has
begun is only measured last, so if a job dies, the others do its share of the work.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from pfo_fs.errors import RecordError, StoreError
from pfo_fs.store import layout
from pfo_fs.store.fs import Files
from pfo_fs.store.records import Header, decode, encode

log = logging.getLogger(__name__)

_KEY = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LIMIT = re.compile(r"[1-9]\d{0,5}\.json")
_BEGUN = re.compile(r"([1-9]\d{0,5})\.begun")
_CHOICE = re.compile(r"result-[0-9a-f]{16}\.json")
_RECORD_BYTES = 65_536
_FILES_PER_LOOK = 2000
"""A folder with more new files than this, which only a fault or an attack makes, is read in several calls."""

MAX_SELECTOR_LENGTH = 1000

Body = TypeVar("Body", bound=BaseModel)

Knob: TypeAlias = Literal["power_limit", "clock"]
"""What the optimizer sets on all GPUs; a value of it is a level: a power limit in W, or a clock in MHz."""

Level = Annotated[int, Field(gt=0, le=999_999)]
MOST_MEASURED = 1e15
"""No energy in J and no time in s is larger."""
Positive = Annotated[float, Field(gt=0, le=MOST_MEASURED, allow_inf_nan=False)]


class PowerLimitMeasurement(BaseModel):
    """Energy and time of `profile_steps` steps at one power limit; all GPUs of the job together.

    Attributes:
        power_limit: The limit of each GPU, in W.
        energy: The energy in J, summed over the GPUs.
        time: The time of the slowest GPU, in s.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    power_limit: Level
    energy: Positive
    time: Positive

    @property
    def level(self) -> int:
        """The power limit, in W."""
        return self.power_limit

    @classmethod
    def at(cls, level: int, energy: float, time: float) -> PowerLimitMeasurement:
        """Returns the measurement of one power limit, in W."""
        return cls(power_limit=level, energy=energy, time=time)


class ClockMeasurement(BaseModel):
    """Energy and time of `profile_steps` steps at one clock; all GPUs of the job together.

    Attributes:
        clock: The clock of each GPU, in MHz.
        energy: The energy in J, summed over the GPUs.
        time: The time of the slowest GPU, in s.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    clock: Level
    energy: Positive
    time: Positive

    @property
    def level(self) -> int:
        """The clock, in MHz."""
        return self.clock

    @classmethod
    def at(cls, level: int, energy: float, time: float) -> ClockMeasurement:
        """Returns the measurement of one clock, in MHz."""
        return cls(clock=level, energy=energy, time=time)


KnobMeasurement: TypeAlias = PowerLimitMeasurement | ClockMeasurement


class PowerLimitChoice(BaseModel):
    """The power limit, in W, that `selector` has chosen."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    selector: Annotated[str, Field(max_length=MAX_SELECTOR_LENGTH)]
    power_limit: Level

    @property
    def level(self) -> int:
        """The power limit, in W."""
        return self.power_limit


class ClockChoice(BaseModel):
    """The clock, in MHz, that `selector` has chosen."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    selector: Annotated[str, Field(max_length=MAX_SELECTOR_LENGTH)]
    clock: Level

    @property
    def level(self) -> int:
        """The clock, in MHz."""
        return self.clock


KnobChoice: TypeAlias = PowerLimitChoice | ClockChoice


class KnobRecords(NamedTuple):
    """How the records of one knob look.

    Attributes:
        unit: The unit of a level.
        kind: The kind of a measurement in a record's header.
        measurement: The body of a measurement.
        choice_kind: The kind of a choice in a record's header.
        choice: The body of a choice.
    """

    unit: str
    kind: str
    measurement: type[PowerLimitMeasurement] | type[ClockMeasurement]
    choice_kind: str
    choice: type[PowerLimitChoice] | type[ClockChoice]

    def chosen(self, selector: str, level: int) -> KnobChoice:
        """Returns the record of a choice."""
        if self.choice is ClockChoice:
            return ClockChoice(selector=selector, clock=level)
        return PowerLimitChoice(selector=selector, power_limit=level)


KNOBS: Mapping[Knob, KnobRecords] = {
    "power_limit": KnobRecords("W", "power-limit", PowerLimitMeasurement, "power-limit-result", PowerLimitChoice),
    "clock": KnobRecords("MHz", "clock", ClockMeasurement, "clock-result", ClockChoice),
}


class PowerLimitUpdates(NamedTuple):
    """What is new since the last call: measurements, choices, and levels with which a job has begun."""

    measurements: Sequence[KnobMeasurement]
    choices: Sequence[KnobChoice]
    begun: Sequence[int]


def folder_key(gpu_name: str, levels: Sequence[int], profile_steps: int, gpus: int, knob: Knob = "power_limit") -> str:
    """Returns a name for what measurements must have in common to be shared.

    Args:
        gpu_name: Product name and UUID; only the product counts.
        levels: The levels to be measured.
        profile_steps: Steps of a measurement.
        gpus: How many GPUs a job has.
        knob: What is set; folders of power limits are named as before there were other knobs.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu_name.rpartition(" ")[0]).strip("-")[:60] or "gpu"
    exactly = json.dumps([name, list(levels), profile_steps, gpus, *([] if knob == "power_limit" else [knob])])
    kind = "" if knob == "power_limit" else f"{knob}-"
    return f"{name}-{kind}{gpus}x-{hashlib.sha256(exactly.encode()).hexdigest()[:12]}"


class PowerLimitFolder:
    """The folder of one kind of measurement.

    Args:
        files: The shared directory.
        key: Names what is measured; letters, digits and `._-`.
        knob: What is set; records of another knob are ignored.

    Raises:
        StoreError: The directory refuses the folder, or the key cannot name one.
    """

    def __init__(self, files: Files, key: str, knob: Knob = "power_limit") -> None:
        if not _KEY.fullmatch(key):
            raise StoreError(f"{key!r} cannot name a folder of measurements")
        self._files = files
        self._key = key
        self._records = KNOBS[knob]
        self._known: set[str] = set()
        files.make_folder(layout.POWER_LIMIT)
        files.make_folder(layout.power_limit(key))

    def updates(self) -> PowerLimitUpdates:
        """Returns what has come since the last call.

        Files that are not records of this kind are ignored; files that cannot be read now are read again at the next
        call.

        Raises:
            StoreError: The directory gives no answer.
        """
        measurements: list[KnobMeasurement] = []
        choices: list[KnobChoice] = []
        begun: list[int] = []
        new = [name for name in self._files.names(layout.power_limit(self._key)) if name not in self._known]
        for name in new[:_FILES_PER_LOOK]:
            if _LIMIT.fullmatch(name):
                found = self._read_measurement(name)
                if found is not None and name == _limit_name(found):
                    measurements.append(found)
            elif _CHOICE.fullmatch(name):
                choice = self._read_choice(name)
                if choice is not None and name == _choice_name(choice.selector):
                    choices.append(choice)
            else:
                self._known.add(name)
                if match := _BEGUN.fullmatch(name):
                    begun.append(int(match[1]))
        return PowerLimitUpdates(measurements, choices, begun)

    def _read_measurement(self, name: str) -> KnobMeasurement | None:
        return self._read(name, self._records.kind, self._records.measurement)

    def _read_choice(self, name: str) -> KnobChoice | None:
        return self._read(name, self._records.choice_kind, self._records.choice)

    def _read(self, name: str, kind: str, model: type[Body]) -> Body | None:
        try:
            data = self._files.read(layout.power_limit(self._key, name), _RECORD_BYTES)
        except StoreError as error:
            log.debug("%s cannot be read: %s", name, error)
            return None
        if data is None:
            return None
        self._known.add(name)  # records are complete when their name appears, so a bad one stays bad
        try:
            return decode(data, kind, model)[1]
        except RecordError:
            return None

    def announce(self, level: int) -> None:
        """Tells other jobs that this job measures this level.

        Raises:
            StoreError: The file cannot be written.
        """
        self._files.claim(layout.power_limit(self._key, f"{level}.begun"), b"")

    def publish(self, measurement: KnobMeasurement) -> None:
        """Writes a measurement, unless another job has written one of this level.

        Raises:
            StoreError: The file cannot be written.
        """
        self._claim(_limit_name(measurement), self._records.kind, measurement)

    def publish_choice(self, selector: str, level: int) -> KnobChoice | None:
        """Writes a choice, unless another job has; returns the one that is there, None if it cannot be read.

        Raises:
            StoreError: The file cannot be written.
        """
        name = _choice_name(selector)
        self._claim(name, self._records.choice_kind, self._records.chosen(selector, level))
        return self._read_choice(name)

    def _claim(self, name: str, kind: str, body: BaseModel) -> None:
        record = encode(Header(kind, "", f"pfo-fs@{socket.gethostname()}"), body)
        self._files.claim(layout.power_limit(self._key, name), record)


def _limit_name(measurement: KnobMeasurement) -> str:
    return f"{measurement.level}.json"


def _choice_name(selector: str) -> str:
    return f"result-{hashlib.sha256(selector.encode()).hexdigest()[:16]}.json"
