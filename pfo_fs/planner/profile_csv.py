"""Profiles as CSV: the only module that reads and writes them, with pandas.

All forms have Zeus's five columns: `stage,instruction,frequency,time,energy` (MHz, s, J; one GPU, one micro-batch).
Zeus's own profiler puts `rank,dp_rank,pp_rank,tp_rank` in front. A job of this library adds the errors of each row
(`time_error,power_error`, both relative, and `count`) and the power of a waiting GPU (`waiting_power`, W).

pandas takes 0.3 s to import, so functions import it: training and an idle daemon never load it.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pfo_fs.errors import PlanError

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
RANK_COLUMNS = ("rank", "dp_rank", "pp_rank", "tp_rank")
MEASURED_COLUMNS = ("time_error", "power_error", "count", "waiting_power")
MAX_PROFILE_BYTES = 64 * 2**20
MAX_STAGES = 4096

_MAX_COLUMNS = 64
_MAX_NAME = 64
_CLOCKS_MHZ = (50, 20_000)
_RANKS = (0, 10_000_000)
_LONGEST_S, _MOST_J = 1e5, 1e9
_LARGEST = 1e9
"""A larger value in an optional column counts as missing."""
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def read_table(path: str | os.PathLike[str]) -> Any:
    """Reads a profile CSV as `parse_table` does.

    Raises:
        PlanError: The file cannot be read, is too large, or a row cannot be right.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PROFILE_BYTES + 1)
        if len(data) > MAX_PROFILE_BYTES:
            raise PlanError(f"{path}: is larger than {MAX_PROFILE_BYTES:,} bytes, so it cannot be a profile")
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read as a profile: {error}") from error
    return parse_table(text, str(path))


def parse_table(text: str, source: str) -> Any:
    """Returns the rows of a profile as a pandas DataFrame, checked, with the file's line numbers as its index.

    Args:
        text: The CSV, header first. Blank lines and spaces around cells do not matter; other columns are dropped.
        source: Text that messages begin with.

    Returns:
        The five columns as int, lower-case str, int, float, float; and those of the other known columns that the text
        has: ranks as int, the rest as float with NaN where a cell holds no usable number.

    Raises:
        PlanError: A column is missing, or a row cannot be right; the message names row and column.
    """
    frame = _cells(text, source)
    _require(frame["instruction"].str.len().between(1, _MAX_NAME), frame, "instruction", source, "is not a name")
    frame["instruction"] = frame["instruction"].str.lower()
    _whole_numbers(frame, "stage", (0, MAX_STAGES - 1), "a stage", source)
    hint = "; clocks are in MHz here, not in Hz, kHz or GHz"
    _whole_numbers(frame, "frequency", _CLOCKS_MHZ, "a clock in MHz", source, hint)
    for column, unit, most in (("time", "s", _LONGEST_S), ("energy", "J", _MOST_J)):
        cells, frame[column] = frame[column], _numbers(frame, column, source)
        _require(frame[column] > 0, frame, column, source, f"{unit} is not above zero", cells)
        _require(frame[column] <= most, frame, column, source, f"{unit} is more than {most:g} {unit}", cells)
    for column in RANK_COLUMNS:
        if column in frame:
            _whole_numbers(frame, column, _RANKS, "a rank", source)
    for column in MEASURED_COLUMNS:
        if column in frame:
            frame[column] = _numbers_or_nan(frame[column])
    return frame


def table_text(rows: Iterable[Sequence[Any]], columns: Sequence[str], digits: int | None = None) -> str:
    """Returns rows as the text of a CSV.

    Args:
        rows: The cells of each row; None for an empty cell.
        columns: The names of the columns.
        digits: Significant digits of floating-point numbers; None for all of them.
    """
    import pandas as pd

    frame = pd.DataFrame.from_records(list(rows), columns=list(columns))
    text: str = frame.to_csv(index=False, lineterminator="\n", float_format=digits and f"%.{digits}g")
    return text


def write_table(path: str | os.PathLike[str], rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> None:
    """Writes rows to a CSV file, in the form of `table_text`."""
    Path(path).write_text(table_text(rows, columns), encoding="utf-8", newline="")


def _cells(text: str, source: str) -> Any:
    """The known columns as stripped text, without blank lines."""
    import pandas as pd

    first = text.lstrip().partition("\n")[0]
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if "," not in first and separator in first:
            raise PlanError(
                f"{source}: the cells of the first row are separated by {name}; write a CSV with commas between cells, "
                "and points in numbers",
                line=1,
            )
    if text[: text.find("\n")].count(",") >= _MAX_COLUMNS:
        raise PlanError(f"{source}: has more than {_MAX_COLUMNS} columns, so it cannot be a profile", line=1)
    try:
        # Without a header pandas takes the number of columns from the first line, and refuses longer rows.
        frame = pd.read_csv(io.StringIO(text), header=None, dtype=object, keep_default_na=False, skip_blank_lines=False)
    except pd.errors.EmptyDataError:
        frame = pd.DataFrame([[""]], dtype=object)
    except (ValueError, OverflowError) as error:
        if found := _TOO_LONG.search(str(error)):
            columns, row, cells = map(int, found.groups())
            raise PlanError(f"{source}: row {row} has {cells} cells under {columns} columns", line=row) from error
        raise PlanError(f"{source}: cannot be read as a profile: {error}") from error
    frame.index += 1
    frame = frame.astype(object).apply(lambda column: column.str.strip())
    header = [str(name).lower() for name in frame.iloc[0].tolist()]
    if missing := [name for name in COLUMNS if name not in header]:
        first_row = ", ".join(header)[:200] or "nothing"
        raise PlanError(
            f"{source}: column {', '.join(missing)} is missing; a profile has {','.join(COLUMNS)}, and the first row "
            f"here has {first_row}",
            line=1,
        )
    known = [name for name in (*RANK_COLUMNS, *COLUMNS, *MEASURED_COLUMNS) if name in header]
    if twice := [name for name in known if header.count(name) > 1]:
        raise PlanError(f"{source}: column {twice[0]} appears twice", line=1)
    frame.columns = pd.Index(header)
    frame = frame.iloc[1:]
    kept = frame.loc[(frame != "").any(axis=1), known].copy()
    kept.attrs["dropped"] = [name for name in header if name and name not in known][:8]
    return kept


def _require(good: Any, frame: Any, column: str, source: str, wrong: str, cells: Any = None) -> None:
    """Raises for the first row that is not good."""
    if not good.all():
        row = int((~good).idxmax())
        cell = str((frame[column] if cells is None else cells)[row])[:40]
        raise PlanError(f"{source}: row {row}, column {column}: {cell!r} {wrong}", line=row)


def _numbers(frame: Any, column: str, source: str) -> Any:
    """A column as finite numbers, exactly as Python's own `float` reads them."""
    import numpy as np

    try:
        numbers = frame[column].astype(float)
    except ValueError:
        bad = frame[column].map(_is_not_a_number)
        comma = bool(_DECIMAL_COMMA.fullmatch(str(frame[column][int(bad.idxmax())])))
        wrong = "has a decimal comma; write a point" if comma else "is not a number"
        _require(~bad, frame, column, source, wrong)
        raise
    _require(np.isfinite(numbers), frame, column, source, "is not a measurement; leave the row out")
    return numbers


def _is_not_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def _whole_numbers(frame: Any, column: str, limits: tuple[int, int], what: str, source: str, hint: str = "") -> None:
    least, most = limits
    numbers = _numbers(frame, column, source)
    good = (numbers == numbers.round()) & numbers.between(least, most)
    _require(good, frame, column, source, f"is not {what} from {least} to {most}{hint}")
    frame[column] = numbers.astype("int64")


def _numbers_or_nan(cells: Any) -> Any:
    import pandas as pd

    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    return numbers.where(numbers.between(0, _LARGEST))
