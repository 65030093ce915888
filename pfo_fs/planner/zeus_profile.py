"""Profiles as Zeus's instruction profiler holds them: per rank, for `forward` and `backward` only."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, RootModel

from pfo_fs.errors import PlanError
from pfo_fs.models import Joules, Megahertz, RankNumber, Seconds
from pfo_fs.planner.profile_csv import COLUMNS, RANK_COLUMNS, table_text


class OfflineProfilingResult(BaseModel):
    """Average time and energy of one rank's instructions at each frequency (MHz -> s, MHz -> J)."""

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
