"""Files that a user names: opened without waiting for another program, and never read beyond a limit.

All CSV files are read here, so that all have the same form: UTF-8 with or without a byte order mark, as it is or
compressed by gzip, whatever its name; commas between cells; blanks around cells, blank lines, capitals in the names of
columns and further columns do not matter.
"""

import csv
import gzip
import io
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NoReturn, TextIO, cast

from pfo_fs.errors import PlanError, plain_text

TRACE_COLUMNS = ("step", "dp_rank", "stage", "instruction", "micro_batch", "time_s")
"""The columns of a job's trace, which reports write and the simulator plays."""
INSTRUCTIONS = "forward, backward (zero bubble: backward_input, backward_weight)"
MOST_CSV_CHARS = 128 * 2**20
"""The most characters of a table: a trace of two million rows, the largest expected one, has 100 million. A compressed
file has up to 1,000 times as many characters as bytes, so they are counted after decompression."""
MOST_ROWS = 2_000_000
"""The most rows of a table: a day of a large job's sampled iterations. More would fill the memory of a laptop."""
_MOST_ROW_CHARS = 4096
"""A longer row is an error: rows have about 50 characters, and a file without line ends must not be read whole."""
_MOST_COLUMNS = 64
_MOST_NUMBER = 10**12
_GZIP = b"\x1f\x8b"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError)


def open_user_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a file for reading; a FIFO that no program writes to is empty, instead of waiting for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return open(descriptor, "rb")


def read_user_file(path: str | os.PathLike[str], most: int, what: str) -> bytes:
    """Returns the content of a file, without its compression by gzip.

    Args:
        what: What the file should be, for messages: "a plan".

    Raises:
        PlanError: The file cannot be read, or is larger than `most` bytes.
    """
    try:
        with _data_of(path) as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:  # ValueError: a path with NUL in it
        raise PlanError(f"{path}: cannot be read: {_reason(error)}") from None
    if len(content) > most:
        raise PlanError(f"{path}: is larger than {most:,} bytes, so it cannot be {what}")
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return "its compressed data is damaged, or cut off"
    return getattr(error, "strerror", None) or str(error)


class CsvTable:
    """The rows of a CSV file, read once and in order: of each row, the cells of `names`, as stripped text.

    Attributes:
        names: The required columns.
        line: The line of the last row that was read, from 1.
    """

    def __init__(self, file: TextIO, source: str, required: Sequence[str], what: str) -> None:
        self._source, self._what, self.line = source, what, 1
        self._reader = csv.reader(self._lines(file), skipinitialspace=True, strict=True)
        header = [name.strip().lower() for name in next(self._rows(), [])]
        if missing := [name for name in required if name not in header]:
            raise PlanError(
                f"{source}: column {', '.join(missing)} is missing; {what} has {','.join(required)}, and the first row "
                f"here has {', '.join(header)[:200] or 'nothing'}"
                + "; divide time_ms by 1000 and name it time_s"
                * ("time_ms" in header),
                line=1,
            )
        if len(header) > _MOST_COLUMNS:
            raise PlanError(f"{source}: has more than {_MOST_COLUMNS} columns, so it cannot be {what}", line=1)
        self.names = required
        if twice := [name for name in self.names if header.count(name) > 1]:
            raise PlanError(f"{source}: column {twice[0]} appears twice", line=1)
        self._columns, self._places = len(header), [header.index(name) for name in self.names]

    def _lines(self, file: TextIO) -> Iterator[str]:
        left, number = MOST_CSV_CHARS, 0
        while line := file.readline(_MOST_ROW_CHARS):
            number += 1
            left -= len(line)
            if len(line) == _MOST_ROW_CHARS:
                text = f"row {number} is longer than {_MOST_ROW_CHARS} characters"
                raise PlanError(f"{self._source}: {text}", line=number)
            if left < 0:
                raise PlanError(f"{self._source}: has more than {MOST_CSV_CHARS:,} characters; {self._what} is shorter")
            if number == 1:
                for separator, name in _SEPARATORS.items():
                    if separator in line and "," not in line:
                        raise PlanError(
                            f"{self._source}: the cells of the first row are separated by {name}; write a CSV with "
                            "commas between cells, and points in numbers",
                            line=1,
                        )
            yield line

    def _rows(self) -> Iterator[list[str]]:
        try:
            yield from self._reader
        except csv.Error:
            text = f"row {self._reader.line_num}: a quotation mark is not closed, or stands inside a cell"
            raise PlanError(f"{self._source}: {text}", line=self._reader.line_num) from None

    def __iter__(self) -> Iterator[list[str]]:
        count = 0
        for cells in self._rows():
            self.line = self._reader.line_num
            if not any(map(str.strip, cells)):
                continue
            count += 1
            if count > MOST_ROWS:
                raise PlanError(f"{self._source}: has more than {MOST_ROWS:,} rows; give {self._what} of fewer steps")
            if any(cells[self._columns :]):
                text = f"row {self.line} has {len(cells)} cells under {self._columns} columns"
                raise PlanError(f"{self._source}: {text}", line=self.line)
            cells += [""] * (self._columns - len(cells))
            yield [cells[place].strip() for place in self._places]

    def wrong(self, column: str, cell: str, problem: str) -> NoReturn:
        """Raises the error of a cell of the last row."""
        where = f"{self._source}: row {self.line}, column {column}"
        if DECIMAL_COMMA.fullmatch(cell):
            problem = "has a decimal comma; write a point"
        raise PlanError(f"{where}: {plain_text(cell, 40)!r} {problem}", line=self.line)

    def whole(self, column: str, cell: str, most: int = _MOST_NUMBER) -> int:
        """Returns a cell of the last row as a whole number from 0 to `most`."""
        number = _float(cell)  # other programs write 3.0
        if not (0 <= number <= most and number.is_integer()):
            self.wrong(column, cell, f"is not a whole number from 0 to {most:,}")
        return int(number)

    def number(self, column: str, cell: str, least: float, most: float, what: str = "a number") -> float:
        """Returns a cell of the last row as a number from `least` to `most`."""
        number = _float(cell)
        if not least <= number <= most:
            self.wrong(column, cell, f"is not {what} from {least:g} to {most:g}")
        return number


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


@contextmanager
def csv_table(
    source: str | os.PathLike[str],
    required: Sequence[str],
    what: str,
    *,
    text: str | None = None,
) -> Iterator[CsvTable]:
    """Opens a CSV file; its rows are read in the block.

    Args:
        source: The file; if `text` is given, its name in messages.
        required: The columns that must be there.
        what: What the file should be, for messages: "a profile".

    Raises:
        PlanError: The file cannot be read or is too large, or has another form; the message names the row. Errors that
            come while the block reads rows are PlanErrors, too.
    """
    try:
        with _text_of(source) if text is None else io.StringIO(text.removeprefix("\ufeff"), newline="") as file:
            yield CsvTable(file, str(source), required, what)
    except _UNREADABLE as error:
        raise PlanError(f"{source}: cannot be read as {what}: {_reason(error)}") from None


@contextmanager
def _data_of(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    with open_user_file(path) as file:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP else file


@contextmanager
def _text_of(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    with _data_of(path) as data, io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as text:
        yield text
