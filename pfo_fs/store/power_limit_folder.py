"""Jobs with the same load share measurements at power limits, and the limit that was chosen from them.

`layout.py` names the files. Records are immutable and no job waits for another one: a limit with which another job has
begun is only measured last, so if a job dies, the others do its share of the work.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypeVar

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

LimitW = Annotated[int, Field(gt=0, le=999_999)]
Positive = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class PowerLimitMeasurement(BaseModel):
    """Energy and time of `profile_steps` steps at one power limit; all GPUs of the job together.

    Attributes:
        power_limit: The limit of each GPU, in W.
        energy: The energy in J, summed over the GPUs.
        time: The time of the slowest GPU, in s.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    power_limit: LimitW
    energy: Positive
    time: Positive


class PowerLimitChoice(BaseModel):
    """The power limit, in W, that `selector` has chosen."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    selector: Annotated[str, Field(max_length=MAX_SELECTOR_LENGTH)]
    power_limit: LimitW


class PowerLimitUpdates(NamedTuple):
    """What is new since the last call: measurements, choices, and limits, in W, with which a job has begun."""

    measurements: list[PowerLimitMeasurement]
    choices: list[PowerLimitChoice]
    begun_w: list[int]


def folder_key(gpu_name: str, limits_w: Sequence[int], profile_steps: int, gpus: int) -> str:
    """Returns a name for what measurements must have in common to be shared.

    Args:
        gpu_name: Product name and UUID; only the product counts.
        limits_w: The limits to be measured, in W.
        profile_steps: Steps of a measurement.
        gpus: How many GPUs a job has.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu_name.rpartition(" ")[0]).strip("-")[:60] or "gpu"
    exactly = json.dumps([name, list(limits_w), profile_steps, gpus])
    return f"{name}-{gpus}x-{hashlib.sha256(exactly.encode()).hexdigest()[:12]}"


class PowerLimitFolder:
    """The folder of one kind of measurement.

    Args:
        files: The shared directory.
        key: Names what is measured; letters, digits and `._-`.

    Raises:
        StoreError: The directory refuses the folder, or the key cannot name one.
    """

    def __init__(self, files: Files, key: str) -> None:
        if not _KEY.fullmatch(key):
            raise StoreError(f"{key!r} cannot name a folder of measurements")
        self._files = files
        self._key = key
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
        measurements: list[PowerLimitMeasurement] = []
        choices: list[PowerLimitChoice] = []
        begun_w: list[int] = []
        new = [name for name in self._files.names(layout.power_limit(self._key)) if name not in self._known]
        for name in new[:_FILES_PER_LOOK]:
            if _LIMIT.fullmatch(name):
                found = self._read(name, "power-limit", PowerLimitMeasurement)
                if found is not None and name == _limit_name(found):
                    measurements.append(found)
            elif _CHOICE.fullmatch(name):
                choice = self._read(name, "power-limit-result", PowerLimitChoice)
                if choice is not None and name == _choice_name(choice.selector):
                    choices.append(choice)
            else:
                self._known.add(name)
                if begun := _BEGUN.fullmatch(name):
                    begun_w.append(int(begun[1]))
        return PowerLimitUpdates(measurements, choices, begun_w)

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

    def announce(self, limit_w: int) -> None:
        """Tells other jobs that this job measures this limit, in W.

        Raises:
            StoreError: The file cannot be written.
        """
        self._files.claim(layout.power_limit(self._key, f"{limit_w}.begun"), b"")

    def publish(self, measurement: PowerLimitMeasurement) -> None:
        """Writes a measurement, unless another job has written one of this limit.

        Raises:
            StoreError: The file cannot be written.
        """
        self._claim(_limit_name(measurement), "power-limit", measurement)

    def publish_choice(self, choice: PowerLimitChoice) -> PowerLimitChoice | None:
        """Writes a choice, unless another job has; returns the one that is there, None if it cannot be read.

        Raises:
            StoreError: The file cannot be written.
        """
        name = _choice_name(choice.selector)
        self._claim(name, "power-limit-result", choice)
        return self._read(name, "power-limit-result", PowerLimitChoice)

    def _claim(self, name: str, kind: str, body: BaseModel) -> None:
        record = encode(Header(kind, "", f"pfo-fs@{socket.gethostname()}"), body)
        self._files.claim(layout.power_limit(self._key, name), record)


def _limit_name(measurement: PowerLimitMeasurement) -> str:
    return f"{measurement.power_limit}.json"


def _choice_name(selector: str) -> str:
    return f"result-{hashlib.sha256(selector.encode()).hexdigest()[:16]}.json"
