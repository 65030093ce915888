"""Self-proving records: a JSON object that says what it is, for which job, by whom, how long, and its checksum.

On disk a record is one JSON object whose last key is `body`; length and checksum are of the body's exact bytes, so
a torn, padded or stale read is seen whatever the file system did, and any JSON tool can still read the file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pfo_fs.errors import RecordError

SCHEMA = "pfo-fs/1"
_BODY = b',"body":'
_MAX_HEADER_BYTES = 8192

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True)
class Header:
    """What a record says about itself.

    Attributes:
        kind: What the body is: `job`, `rank`, `schedule`, ...
        attempt: Random id of the training attempt it belongs to; empty outside jobs.
        writer: Who wrote it, for people: `rank-3@node17:4242`.
        sequence: Counts a writer's replacements of this file.
    """

    kind: str
    attempt: str
    writer: str
    sequence: int = 0


def encode(header: Header, body: BaseModel) -> bytes:
    """Returns the record's bytes."""
    payload = body.model_dump_json().encode()
    head = {
        "schema": SCHEMA,
        "kind": header.kind,
        "attempt": header.attempt,
        "writer": header.writer[:200],
        "sequence": header.sequence,
        "length": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return json.dumps(head, separators=(",", ":")).encode()[:-1] + _BODY + payload + b"}\n"


def decode(data: bytes, kind: str, model: type[Body], *, attempt: str | None = None) -> tuple[Header, Body]:
    """Returns header and validated body.

    Args:
        data: The whole file.
        kind: The kind that the file must be.
        model: What the body must be.
        attempt: The job attempt that it must belong to; None: any.

    Raises:
        RecordError: It is torn, of another kind, release or attempt, or its body is not valid; the message says which.
    """
    at = data.find(_BODY, 0, _MAX_HEADER_BYTES)
    if at < 0 or not data.endswith(b"}\n"):
        raise RecordError("no complete record: torn while written, or made by something else")
    try:
        head = json.loads(data[:at] + b"}")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the record's header is no JSON: {error}") from None
    payload = data[at + len(_BODY) : -2]
    if head.get("schema") != SCHEMA:
        raise RecordError(f"record of schema {str(head.get('schema'))[:40]!r}; this release reads {SCHEMA!r}")
    if head.get("length") != len(payload) or head.get("sha256") != hashlib.sha256(payload).hexdigest():
        raise RecordError("the record's length or checksum is wrong: torn, or edited by hand")
    if head.get("kind") != kind:
        raise RecordError(f"a record of kind {str(head.get('kind'))[:40]!r} where {kind!r} is expected")
    if attempt is not None and head.get("attempt") != attempt:
        raise RecordError("the record belongs to another training attempt")
    try:
        body = model.model_validate_json(payload)
        header = Header(kind, str(head["attempt"]), str(head["writer"]), int(head["sequence"]))
    except ValidationError as error:
        raise RecordError(f"the record's content is not valid: {_first_problem(error)}") from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"the record cannot be read: {error}") from None
    return header, body


def _first_problem(error: ValidationError) -> str:
    first: Any = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where or 'content'}: {first['msg']}{more}"
