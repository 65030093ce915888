"""What jobs with the same load share: measurements, and the choice that came of them.

`store/layout.py` names the files. Records are immutable and no job waits for another one: a limit that another job has
begun with is only chosen last, so a job that dies leaves nothing behind but its share of the work.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from pfo_fs.errors import RecordError, StoreError
from pfo_fs.power_limit.measurements import PowerLimitMeasurement
from pfo_fs.store import Files, layout
from pfo_fs.store.records import Header, decode, encode

log = logging.getLogger(__name__)

_KEY = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LIMIT = re.compile(r"[1-9]\d{0,5}\.json")
_BEGUN = re.compile(r"([1-9]\d{0,5})\.begun")
_RESULT = re.compile(r"result-[0-9a-f]{16}\.json")
_RECORD_BYTES = 65_536

MAX_SELECTOR_LENGTH = 1000

Body = TypeVar("Body", bound=BaseModel)


def folder_key(gpu_name: str, limits_w: Sequence[int], profile_steps: int, gpus: int) -> str:
    """Names what measurements must have in common to be shared.

    Args:
        gpu_name: Product name and UUID; only the former counts.
        limits_w: The limits in question.
        profile_steps: Steps of a measurement.
        gpus: How many GPUs a job has.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu_name.rpartition(" ")[0]).strip("-")[:60] or "gpu"
    exactly = json.dumps([name, list(limits_w), profile_steps, gpus])
    return f"{name}-{gpus}x-{hashlib.sha256(exactly.encode()).hexdigest()[:12]}"


class Result(BaseModel):
    """The power limit, in W, that `selector` has chosen."""

    selector: Annotated[str, Field(max_length=MAX_SELECTOR_LENGTH)]
    power_limit: Annotated[int, Field(gt=0, le=999_999)]


class News(NamedTuple):
    """What has come: measurements, choices, and limits, in W, that a job has begun with."""

    measurements: list[PowerLimitMeasurement]
    results: list[Result]
    begun_w: list[int]


class MeasurementFolder:
    """The folder of one kind of measurement.

    Args:
        files: The shared directory.
        key: Names what is measured; letters, digits and `._-`.

    Raises:
        StoreError: It cannot be used.
    """

    def __init__(self, files: Files, key: str) -> None:
        if not _KEY.fullmatch(key):
            raise StoreError(f"{key!r} cannot name a folder of measurements")
        self._files = files
        self._key = key
        self._known: set[str] = set()
        files.make_folder(layout.POWER_LIMIT)
        files.make_folder(layout.power_limit(key))

    def news(self) -> News:
        """Returns what has come since the last call.

        What is no record of ours is passed over; what cannot be read now is tried again with the next call.

        Raises:
            StoreError: The directory gives no answer.
        """
        measurements: list[PowerLimitMeasurement] = []
        results: list[Result] = []
        begun_w: list[int] = []
        for name in self._files.names(layout.power_limit(self._key)):
            if name in self._known:
                continue
            if _LIMIT.fullmatch(name):
                found = self._read(name, "power-limit", PowerLimitMeasurement)
                if found is not None and name == _limit_name(found):
                    measurements.append(found)
            elif _RESULT.fullmatch(name):
                result = self._read(name, "power-limit-result", Result)
                if result is not None and name == _result_name(result.selector):
                    results.append(result)
            elif begun := _BEGUN.fullmatch(name):
                self._known.add(name)
                begun_w.append(int(begun[1]))
        return News(measurements, results, begun_w)

    def _read(self, name: str, kind: str, model: type[Body]) -> Body | None:
        try:
            data = self._files.read(layout.power_limit(self._key, name), _RECORD_BYTES)
        except StoreError as error:
            log.debug("%s cannot be read: %s", name, error)
            return None
        if data is None:
            return None
        self._known.add(name)  # records are whole from the start, so a bad one stays bad
        try:
            return decode(data, kind, model)[1]
        except RecordError:
            return None

    def announce(self, limit_w: int) -> None:
        """Tells others that this limit, in W, is being measured.

        Raises:
            StoreError: The directory does not take it.
        """
        self._files.claim(layout.power_limit(self._key, f"{limit_w}.begun"), b"")

    def publish(self, measurement: PowerLimitMeasurement) -> None:
        """Puts a measurement there, unless somebody was faster.

        Raises:
            StoreError: The directory does not take it.
        """
        self._claim(_limit_name(measurement), "power-limit", measurement)

    def publish_result(self, result: Result) -> Result | None:
        """Puts a choice there, unless somebody was faster; returns the one that is there, None if it cannot be read.

        Raises:
            StoreError: The directory does not take it.
        """
        name = _result_name(result.selector)
        self._claim(name, "power-limit-result", result)
        return self._read(name, "power-limit-result", Result)

    def _claim(self, name: str, kind: str, body: BaseModel) -> None:
        record = encode(Header(kind, "", f"pfo-fs@{socket.gethostname()}"), body)
        self._files.claim(layout.power_limit(self._key, name), record)


def _limit_name(measurement: PowerLimitMeasurement) -> str:
    return f"{measurement.power_limit}.json"


def _result_name(selector: str) -> str:
    return f"result-{hashlib.sha256(selector.encode()).hexdigest()[:16]}.json"
