"""Profiles as CSV: the only module that reads and writes them, as tables of pandas.

All forms have Zeus's five columns: `stage,instruction,frequency,time,energy` (MHz, s, J; one GPU, one micro-batch).
Zeus's own profiler puts `rank,dp_rank,pp_rank,tp_rank` in front. A job of this library adds the errors of each row
(`time_error,power_error`, both relative, and `count`) and the power of a waiting GPU (`waiting_power`, W). Only the
five are read.

pandas takes 0.3 s to import, so functions import it: training and an idle daemon never load it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from pfo_fs.arrays import np
from pfo_fs.errors import PlanError
from pfo_fs.user_files import DECIMAL_COMMA, csv_table

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
RANK_COLUMNS = ("rank", "dp_rank", "pp_rank", "tp_rank")
MEASURED_COLUMNS = ("time_error", "power_error", "count", "waiting_power")
MAX_STAGES = 4096

_MAX_NAME = 64
_CLOCKS_MHZ = (50, 20_000)
_LONGEST_S, _MOST_J = 1e5, 1e9


def read_table(source: str | os.PathLike[str], text: str | None = None) -> Any:
    """Returns the rows of a profile as a pandas DataFrame, checked, with the file's line numbers as its index.

    Args:
        source: The file; with `text`, the begin of messages.
        text: The file's content, if it is at hand.

    Returns:
        The five columns as int, lower-case str, int, float, float; unknown columns are named in `attrs["dropped"]`.

    Raises:
        PlanError: The file cannot be read, is too large, or has no such columns, or a row cannot be right; the message
            names row and column.
    """
    frame, source = _cells(source, text), str(source)
    _require(frame["instruction"].str.len().between(1, _MAX_NAME), frame, "instruction", source, "is not a name")
    frame["instruction"] = frame["instruction"].str.lower()
    _whole_numbers(frame, "stage", (0, MAX_STAGES - 1), "a stage", source)
    hint = "; clocks are in MHz here, not in Hz, kHz or GHz"
    _whole_numbers(frame, "frequency", _CLOCKS_MHZ, "a clock in MHz", source, hint)
    check_measured(frame, source)
    return frame


def check_measured(frame: Any, source: str) -> None:
    """Makes numbers of the columns `time` (s) and `energy` (J).

    Raises:
        PlanError: A value is not finite, not above zero or larger than any measurement; the message names its row.
    """
    for column, unit, most in (("time", "s", _LONGEST_S), ("energy", "J", _MOST_J)):
        cells, frame[column] = frame[column], _numbers(frame, column, source)
        _require(frame[column] > 0, frame, column, source, f"{unit} is not above zero", cells)
        _require(frame[column] <= most, frame, column, source, f"{unit} is more than {most:g} {unit}", cells)


def table_text(rows: Iterable[Sequence[Any]], columns: Sequence[str], digits: int | None = None) -> str:
    """Returns rows as the text of a CSV.

    Args:
        digits: Significant digits of floating-point numbers; None for all of them.
    """
    import pandas as pd

    frame = pd.DataFrame.from_records(list(rows), columns=list(columns))
    text: str = frame.to_csv(index=False, lineterminator="\n", float_format=digits and f"%.{digits}g")
    return text


def _cells(source: str | os.PathLike[str], text: str | None) -> Any:
    """The five columns as text."""
    import pandas as pd

    with csv_table(source, COLUMNS, "a profile", text=text) as table:
        rows = [(table.line, *cells) for cells in table]
    frame = pd.DataFrame(rows, columns=pd.Index(["line", *COLUMNS]), dtype=object).set_index("line")
    frame.index = frame.index.astype("int64")
    frame.attrs["dropped"] = [name for name in table.others if name not in (*RANK_COLUMNS, *MEASURED_COLUMNS)][:8]
    return frame


def _require(good: Any, frame: Any, column: str, source: str, wrong: str, cells: Any = None) -> None:
    """Raises for the first row that is not good."""
    if not good.all():
        row = int((~good).idxmax())
        cell = str((frame[column] if cells is None else cells)[row])[:40]
        raise PlanError(f"{source}: row {row}, column {column}: {cell!r} {wrong}", line=row)


def _numbers(frame: Any, column: str, source: str) -> Any:
    """A column as finite numbers, exactly as Python's own `float` reads them."""
    try:
        numbers = frame[column].astype(float)
    except ValueError:
        bad = frame[column].map(_is_not_a_number)
        comma = bool(DECIMAL_COMMA.fullmatch(str(frame[column][int(bad.idxmax())])))
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
