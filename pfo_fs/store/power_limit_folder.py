"""Jobs with the same load share measurements at power limits, or at clocks; each chooses from them by itself.

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
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from pfo_fs.errors import RecordError, StoreError
from pfo_fs.store import layout
from pfo_fs.store.fs import Files
from pfo_fs.store.record_folder import RecordFolder

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

_KEY = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LIMIT = re.compile(r"[1-9]\d{0,5}\.json")
_BEGUN = re.compile(r"([1-9]\d{0,5})\.begun")
_RECORD_BYTES = 65_536
_FILES_PER_LOOK = 2000
"""A folder with more new files than this, which only a fault or an attack makes, is read in several calls."""

MAX_PROFILE_BYTES = 160 << 10
"""A profile goes from the helper to training in one message; this is room for a thousand levels."""
MOST_MEASURED = 1e15
"""No energy in J and no time in s is larger."""

Knob: TypeAlias = Literal["power_limit", "clock"]
"""What the optimizer sets on all GPUs; a value of it is a level: a power limit in W, or a clock in MHz."""

Level = Annotated[int, Field(gt=0, le=999_999)]
Positive = Annotated[float, Field(gt=0, le=MOST_MEASURED, allow_inf_nan=False)]


class KnobMeasurement(BaseModel):
    """Energy and time of `profile_steps` steps at one level, which has the knob's name; all GPUs of the job together.

    Attributes:
        knob: What was set.
        unit: The unit of a level.
        kind: The kind in a record's header.
        energy: The energy in J, summed over the GPUs.
        time: The time of the slowest GPU, in s.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    knob: ClassVar[Knob]
    unit: ClassVar[str]
    kind: ClassVar[str]

    energy: Positive
    time: Positive

    @property
    def level(self) -> int:
        """The power limit in W, or the clock in MHz."""
        return int(getattr(self, self.knob))

    @classmethod
    def at(cls, level: int, energy: float, time: float) -> Self:
        """Returns the measurement of a level."""
        return cls.model_validate({cls.knob: level, "energy": energy, "time": time})


class PowerLimitMeasurement(KnobMeasurement):
    """What was measured at one power limit of each GPU, in W."""

    knob, unit, kind = "power_limit", "W", "power-limit"
    power_limit: Level


class ClockMeasurement(KnobMeasurement):
    """What was measured at one clock of each GPU, in MHz."""

    knob, unit, kind = "clock", "MHz", "clock"
    clock: Level


KNOBS: Mapping[Knob, type[KnobMeasurement]] = {"power_limit": PowerLimitMeasurement, "clock": ClockMeasurement}


class PowerLimitUpdates(NamedTuple):
    """What is new since the last call: measurements, and levels with which a job has begun."""

    measurements: list[KnobMeasurement]
    begun: list[int]


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
        self._folder = RecordFolder(files, layout.power_limit(key), f"pfo-fs@{socket.gethostname()}")
        self._measured = KNOBS[knob]
        self._known: set[str] = set()
        files.make_folder(layout.POWER_LIMIT)
        files.make_folder(self._folder.path)

    def updates(self) -> PowerLimitUpdates:
        """Returns what has come since the last call.

        Files that are not records of this kind are ignored; files that cannot be read now are read again at the next
        call.

        Raises:
            StoreError: The directory gives no answer.
        """
        found = PowerLimitUpdates([], [])
        new = [name for name in self._folder.files.names(self._folder.path) if name not in self._known]
        for name in new[:_FILES_PER_LOOK]:
            if _LIMIT.fullmatch(name):
                measured = self._read(name)
                if measured is not None and name == f"{measured.level}.json":
                    found.measurements.append(measured)
            else:
                self._known.add(name)
                if match := _BEGUN.fullmatch(name):
                    found.begun.append(int(match[1]))
        return found

    def _read(self, name: str) -> KnobMeasurement | None:
        try:
            found = self._folder.read(self._measured.kind, self._measured, name, _RECORD_BYTES)
        except StoreError as error:
            log.debug("%s cannot be read: %s", name, error)
            return None
        except RecordError:
            self._known.add(name)  # records are complete when their name appears, so a bad one stays bad
            return None
        if found is not None:
            self._known.add(name)
        return found

    def announce(self, level: int) -> None:
        """Tells other jobs that this job measures this level.

        Raises:
            StoreError: The file cannot be written.
        """
        self._folder.files.claim(f"{self._folder.path}/{level}.begun", b"")

    def publish(self, measurement: KnobMeasurement) -> None:
        """Writes a measurement, unless another job has written one of this level.

        Raises:
            StoreError: The file cannot be written.
        """
        self._folder.claim(measurement.kind, measurement, f"{measurement.level}.json")
