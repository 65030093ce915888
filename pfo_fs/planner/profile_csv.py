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
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, RootModel

from pfo_fs.errors import PlanError
from pfo_fs.models import Joules, Megahertz, RankNumber, Seconds
from pfo_fs.user_files import csv_table

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
RANK_COLUMNS = ("rank", "dp_rank", "pp_rank", "tp_rank")
MEASURED_COLUMNS = ("time_error", "power_error", "count", "waiting_power")
MAX_STAGES = 4096

_MAX_NAME = 64
_CLOCKS_MHZ = (50, 20_000)
_LEAST, _LONGEST_S, _MOST_J = 1e-9, 1e5, 1e9


def read_table(source: str | os.PathLike[str], text: str | None = None) -> DataFrame:
    """Returns the rows of a profile as a pandas DataFrame, checked, with the file's line numbers as its index.

    Args:
        source: The file; with `text`, only the name at the begin of messages.
        text: The file's content, if it is at hand.

    Returns:
        The five columns as int, lower-case str, int, float, float.

    Raises:
        PlanError: The file cannot be read, is too large, or has no such columns, or a row cannot be right; the message
            names row and column.
    """
    import pandas as pd

    rows = []
    with csv_table(source, COLUMNS, "a profile", text=text) as table:
        for stage, name, mhz, time_s, energy_j in table:
            if not 1 <= len(name) <= _MAX_NAME:
                table.wrong("instruction", name, "is not a name")
            clock = "a clock in MHz (not in Hz, kHz or GHz)"
            if not (number := table.number("frequency", mhz, *_CLOCKS_MHZ, clock)).is_integer():
                table.wrong("frequency", mhz, f"is not {clock}")
            of_row = table.whole("stage", stage, MAX_STAGES - 1), name.lower(), int(number)
            measured = (
                table.number("time", time_s, _LEAST, _LONGEST_S),
                table.number("energy", energy_j, _LEAST, _MOST_J),
            )
            rows.append((table.line, *of_row, *measured))
    return pd.DataFrame(rows, columns=["line", *COLUMNS]).set_index("line")


def table_text(rows: Iterable[Sequence[object]], columns: Sequence[str], digits: int | None = None) -> str:
    """Returns rows as the text of a CSV.

    Args:
        digits: Significant digits of floating-point numbers; None for all of them.
    """
    import pandas as pd

    frame = pd.DataFrame.from_records(list(rows), columns=list(columns))
    text: str = frame.to_csv(index=False, lineterminator="\n", float_format=digits and f"%.{digits}g")
    return text


class OfflineProfilingResult(BaseModel):
    """Average time and energy of one rank's instructions at each frequency (MHz -> s, MHz -> J), as Zeus has them."""

    model_config = ConfigDict(extra="ignore", validate_assignment=True)

    rank: RankNumber
    dp_rank: RankNumber
    pp_rank: RankNumber
    tp_rank: RankNumber
    forward_time: dict[Megahertz, Seconds]
    forward_energy: dict[Megahertz, Joules]
    backward_time: dict[Megahertz, Seconds]
    backward_energy: dict[Megahertz, Joules]


class InstructionProfilingResult(RootModel[list[OfflineProfilingResult]]):
    """Time (s) and energy (J) of each instruction on each rank, as Zeus's profile CSV holds them."""

    def to_csv(self, filepath: str | Path) -> None:
        """Writes one row per rank, instruction and frequency, with nine columns; the stage is `pp_rank`.

        Raises:
            PlanError: `filepath` does not end in `.csv`.
        """
        if Path(filepath).suffix != ".csv":
            raise PlanError(f"{filepath}: the name of a profile ends in .csv")
        rows = (
            (r.rank, r.dp_rank, r.pp_rank, r.tp_rank, r.pp_rank, instruction, mhz, times[mhz], energies[mhz])
            for r in self.root
            for instruction, times, energies in (
                ("forward", r.forward_time, r.forward_energy),
                ("backward", r.backward_time, r.backward_energy),
            )
            for mhz in times
        )
        Path(filepath).write_text(table_text(rows, (*RANK_COLUMNS, *COLUMNS)), encoding="utf-8", newline="")
