"""Profiles as CSV: the only module that reads and writes them.

All forms have Zeus's five columns: `stage,instruction,frequency,time,energy` (MHz, s, J; one GPU, one micro-batch).
Zeus's own profiler puts `rank,dp_rank,pp_rank,tp_rank` in front. A job of this library adds the errors of each row
(`time_error,power_error`, both relative, and `count`) and the power of a waiting GPU (`waiting_power`, W). Only the
five are read.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pfo_fs.user_files import csv_table

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
RANK_COLUMNS = ("rank", "dp_rank", "pp_rank", "tp_rank")
MEASURED_COLUMNS = ("time_error", "power_error", "count", "waiting_power")
TIMES_S, ENERGIES_J = (1e-9, 1e5), (1e-9, 1e9)
"""No instruction takes less or more."""

_MOST_STAGES, _MOST_NAME = 4096, 64
_CLOCKS_MHZ = (50, 20_000)


class Row(NamedTuple):
    """A row of a profile, and its line in the file."""

    stage: int
    instruction: str
    frequency_mhz: int
    time_s: float
    energy_j: float
    line: int


def read_rows(source: str | os.PathLike[str], text: str | None = None) -> tuple[list[Row], list[str]]:
    """Returns the rows of a profile, and the names of columns that no form of it has.

    Args:
        source: The file; with `text`, which is then its content, the begin of messages.

    Raises:
        PlanError: The file cannot be read, is too large, or lacks a column, or a row cannot be right; the message names
            row and column.
    """
    rows = []
    with csv_table(source, COLUMNS, "a profile", text=text) as table:
        for stage, instruction, mhz, time_s, energy_j in table:
            if not 0 < len(instruction) <= _MOST_NAME:
                table.wrong("instruction", instruction, "is not a name")
            clock = table.number("frequency", mhz, *_CLOCKS_MHZ, "a clock in MHz (not in Hz, kHz or GHz)")
            if not clock.is_integer():
                table.wrong("frequency", mhz, "is not a whole number of MHz")
            rows.append(
                Row(
                    table.whole("stage", stage, _MOST_STAGES - 1),
                    instruction.lower(),
                    int(clock),
                    table.number("time", time_s, *TIMES_S, "a number of seconds"),
                    table.number("energy", energy_j, *ENERGIES_J, "a number of joules"),
                    table.line,
                )
            )
    return rows, [name for name in table.others if name not in (*RANK_COLUMNS, *MEASURED_COLUMNS)]


def table_text(rows: Iterable[Sequence[object]], columns: Sequence[str], digits: int = 17) -> str:
    """Returns rows as the text of a CSV, numbers with so many significant digits; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"{x:.{digits}g}" if isinstance(x, float) else x for x in row] for row in rows)
    return text.getvalue()
