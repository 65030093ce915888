"""Profiles as Zeus's instruction profiler holds them: per rank, for `forward` and `backward` only."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, RootModel

from pfo_fs.errors import PlanError
from pfo_fs.models import Joules, Megahertz, RankNumber, Seconds
from pfo_fs.planner.profile_csv import COLUMNS, RANK_COLUMNS, read_table, write_table


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
        write_table(filepath, rows, (*RANK_COLUMNS, *COLUMNS))

    @classmethod
    def from_csv(cls, filepath: str | Path) -> InstructionProfilingResult:
        """Reads what `to_csv` writes, or the five-column form without ranks, where stage s becomes rank s.

        Rows of the same rank, instruction and frequency are averaged.

        Raises:
            PlanError: A column is missing, or a row cannot be right, or it holds another instruction.
        """
        frame = read_table(filepath)
        for row, name in frame["instruction"].items():
            if name not in ("forward", "backward"):
                raise PlanError(
                    f"{filepath}: row {row}, column instruction: {name!r} is neither forward nor backward", line=row
                )
        for column in RANK_COLUMNS:
            if column not in frame:
                frame[column] = frame["stage"] if column in ("rank", "pp_rank") else 0
        results = []
        for ranks, rows in frame.groupby(list(RANK_COLUMNS)):
            means = rows.groupby(["instruction", "frequency"], sort=False)[["time", "energy"]].mean()
            tables: dict[str, dict[int, float]] = {
                f"{instruction}_{column}": {
                    int(mhz): float(value) for (name, mhz), value in means[column].items() if name == instruction
                }
                for instruction in ("forward", "backward")
                for column in ("time", "energy")
            }
            of_rank = dict(zip(RANK_COLUMNS, map(int, ranks), strict=True))
            results.append(OfflineProfilingResult(**of_rank, **tables))  # type: ignore[arg-type]
        return cls(results)
