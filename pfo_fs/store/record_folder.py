"""A folder of records, of one training attempt or of none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from pfo_fs.errors import RecordError
from pfo_fs.store import layout
from pfo_fs.store.fs import Files
from pfo_fs.store.records import Body, Header, decode, encode


@dataclass
class RecordFolder:
    """Writes and reads records below one folder.

    Reads return None if the file is not there now, and raise `RecordError` if it is not a valid record.

    Attributes:
        files: The shared directory.
        path: The folder, below the shared directory; empty: that itself.
        writer: The name of this process in its records.
        attempt: Random id of the training attempt; only its records are read. None: not known yet.
    """

    files: Files
    path: str
    writer: str
    attempt: str | None = None
    _sequence: int = 0

    @property
    def location(self) -> Path:
        """The folder's full path, for messages."""
        return self.files.root / self.path

    def claim(self, kind: str, body: BaseModel, name: str, *, readable: bool = False) -> bool:
        """Writes a record that is not there yet; False if it is there, with another content."""
        return self.files.claim(self._below(name), self._encode(kind, body, readable))

    def replace(self, kind: str, body: BaseModel, name: str) -> None:
        """Replaces a record that only this process writes."""
        self._sequence += 1
        self.files.publish(self._below(name), self._encode(kind, body, False))

    def read(self, kind: str, model: type[Body], name: str, limit: int = layout.RECORD_LIMIT) -> Body | None:
        """Reads a record of this folder's attempt.

        A record that is not valid is read up to three times, because a read may be incomplete or stale.
        """
        problem = ""
        for _ in range(3):
            data = self.files.read(self._below(name), limit)
            if data is None:
                return None
            try:
                return decode(data, kind, model, attempt=self.attempt)[1]
            except RecordError as error:
                problem = str(error)  # the error itself would keep the file's content, in its traceback
        raise RecordError(f"{self.location / name}: {problem}")

    def _below(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def _encode(self, kind: str, body: BaseModel, readable: bool) -> bytes:
        return encode(Header(kind, self.attempt or "", self.writer, self._sequence), body, readable=readable)

    def _numbers(self, folder: str) -> list[int]:
        return layout.numbered_files(self.files.names(f"{self.path}/{folder}"))
