"""Records that can be verified: JSON with its kind, job attempt, writer, length and checksum.

On disk a record is one JSON object whose last key is `body`; length and checksum are of the body's exact bytes. So
an incomplete, padded or mixed read is detected on any file system, and any JSON tool can still read the file.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfo_fs.errors import RecordError, first_problem, plain_text
from pfo_fs.models import Count, ShortText, Text
from pfo_fs.store import layout
from pfo_fs.store.fs import Files

SCHEMA = "pfo-fs/5"
"""A record with another schema is not read."""
_BODY = b',"body":'
_MAX_HEADER_BYTES = 8192
_MOST_LISTS = 300_000
"""The most lists and objects in one record: 8 MB of empty lists would take 250 MB of memory."""
_MOST_VALUES = 1_000_000
"""The most values in one record, as counted by their commas."""
_MOST_KEYS = 100_000
"""The most keys in one record: each wrong key is a problem, and a million problems would take 1 GB and ten seconds."""
_MOST_NAMED = 1000
"""If there are more problems than this, only their number is told: to name one, all would have to be written."""

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True)
class Header:
    """What a record says about itself: the kind of its body, the random id of the training attempt (empty outside
    jobs), and the process that wrote it, for messages: `rank-3@node17:4242`."""

    kind: str
    attempt: str
    writer: str


class _HeaderOnDisk(BaseModel):
    """The header as it is in the file, before it is verified. Only its first key is the same in every release."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_: ShortText = Field(alias="schema")
    kind: ShortText = ""
    attempt: Annotated[str, Field(max_length=_MAX_HEADER_BYTES)] = ""
    writer: Text = ""
    length: Count = 0
    sha256: Annotated[str, Field(max_length=64)] = ""


def encode(header: Header, body: BaseModel, *, readable: bool = False) -> bytes:
    """Returns the record's bytes; `readable`: with one line for each key, and for each item of a list of lists."""
    payload = _readable(body) if readable else body.model_dump_json().encode()
    proof = {"length": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    head = {"schema": SCHEMA, **asdict(header), **proof}
    return json.dumps(head, separators=(",", ":")).encode()[:-1] + _BODY + payload + b"}\n"


def _readable(body: BaseModel) -> bytes:
    lines = []
    for key, value in body.model_dump(mode="json").items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], list):
            text = "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "]"
        lines.append(f"{json.dumps(key)}: {text}")
    return ("{\n " + ",\n ".join(lines) + "\n}").encode()


def decode(data: bytes, kind: str, model: type[Body], *, attempt: str | None = None) -> tuple[Header, Body]:
    """Returns header and validated body; the record must belong to this training attempt, None: to any.

    Raises:
        RecordError: The record is incomplete, of another kind, release or attempt, or header or body is not valid; the
            message says which. This function raises no other exception, whatever `data` is.
    """
    at = data.find(_BODY, 0, _MAX_HEADER_BYTES)
    if at < 0 or not data.endswith(b"}\n"):
        raise RecordError("not a complete record: torn while written, or made by another program")
    payload = data[at + len(_BODY) : -2]
    try:
        head = _HeaderOnDisk.model_validate_json(data[:at] + b"}")
    except ValidationError as error:
        raise RecordError(f"the record's header is not valid: {_first_problem(error)}") from None
    if head.schema_ != SCHEMA:
        raise RecordError(
            f"the record has schema {head.schema_[:40]!r}, and this release reads {SCHEMA!r}: another release of "
            "pfo-fs wrote it. Give all hosts of a shared directory the same release"
        )
    if head.length != len(payload) or head.sha256 != hashlib.sha256(payload).hexdigest():
        raise RecordError("the record's length or checksum is wrong: torn, or edited by hand")
    if head.kind != kind:
        raise RecordError(f"a record of kind {head.kind[:40]!r} where {kind!r} is expected")
    if attempt is not None and head.attempt != attempt:
        raise RecordError("the record belongs to another training attempt")
    if payload.count(b"[") + payload.count(b"{") > _MOST_LISTS or payload.count(b",") > _MOST_VALUES:
        raise RecordError(f"the record has more than {_MOST_LISTS:,} lists, or more than {_MOST_VALUES:,} values")
    if payload.count(b'":') > _MOST_KEYS:
        raise RecordError(f"the record has more than {_MOST_KEYS:,} keys")
    try:
        body = model.model_validate_json(payload)
    except ValidationError as error:
        raise RecordError(f"the record's content is not valid: {_first_problem(error)}") from None
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise RecordError(f"the record cannot be read: {plain_text(str(error), 300)}") from None
    return Header(head.kind, head.attempt, head.writer), body


def _first_problem(error: ValidationError) -> str:
    if error.error_count() > _MOST_NAMED:
        return f"{error.error_count():,} values are wrong"
    where, wrong = first_problem(error)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where or 'content'} {wrong}{more}"


@dataclass
class RecordFolder:
    """Writes and reads the records below one folder: `layout.RECORDS` says where those of each type lie.

    Attributes:
        path: The folder, below the shared directory; empty: the directory itself.
        writer: The name of this process in its records.
        attempt: Random id of the training attempt; only its records are read. None: not known yet, or none.
        reads: A record that is not valid is read this many times in all: a read may be incomplete or stale.
    """

    files: Files
    path: str
    writer: str
    attempt: str | None = None
    reads: int = 3

    @property
    def location(self) -> Path:
        """The folder's full path."""
        return self.files.root / self.path

    def read(self, model: type[Body], **place: int | str) -> Body | None:
        """Reads a record of this folder's attempt; None if the file is not there now.

        `place`: the numbers in its path, by their names in `layout.RECORDS`.

        Raises:
            RecordError: The file is not a valid record, or its body has another number than its path.
        """
        found = self._read(model, **place)
        return None if found is None else found[1]

    def _read(self, model: type[Body], **place: int | str) -> tuple[Header, Body] | None:
        form = layout.RECORDS[model]
        name = form.path.format(**place)
        problem = ""
        for _ in range(self.reads):
            data = self.files.read(self.below(name), form.limit)
            if data is None:
                return None
            try:
                header, body = decode(data, form.kind, model, attempt=self.attempt)
                for key, number in place.items():
                    if getattr(body, key, number) != number:
                        raise RecordError(f"its body has {key} {getattr(body, key)}")
                return header, body
            except RecordError as error:
                problem = str(error)  # the error itself would keep the file's content, in its traceback
        raise RecordError(f"{self.location / name}: {problem}")

    def write(self, body: BaseModel, **place: int | str) -> bool:
        """Writes a record; returns False if it is to be written once, and is there with another content.

        `place`: the numbers in its path that are not in the body.
        """
        path = self.path_of(type(body), **body.__dict__ | place)
        if layout.RECORDS[type(body)].once:
            return self.files.claim(path, self.encoded(body))
        self.files.publish(path, self.encoded(body))
        return True

    def encoded(self, body: BaseModel) -> bytes:
        """Returns a record's bytes."""
        form = layout.RECORDS[type(body)]
        return encode(Header(form.kind, self.attempt or "", self.writer), body, readable=form.readable)

    def numbers(self, model: type[BaseModel], **place: int) -> list[int]:
        """Returns the numbers in the names of records of this type, ascending; `place`: the numbers of their folder."""
        folder = layout.RECORDS[model].path.rpartition("/")[0]
        return layout.numbers(self.files.names(self.below(folder.format(**place))), ".json")

    def path_of(self, model: type[BaseModel], **place: int | str) -> str:
        """Returns the path of a record, below the shared directory."""
        return self.below(layout.RECORDS[model].path.format(**place))

    def below(self, name: str) -> str:
        """Returns the path of a file in this folder, below the shared directory."""
        return f"{self.path}/{name}" if self.path else name
