"""Profiles as Zeus's instruction profiler holds them: per rank, for `forward` and `backward` only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from pydantic import BaseModel, ConfigDict, RootModel

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, Joules, Megahertz, ProfilingResult, RankInfo, RankNumber, Seconds
from pfo_fs.planner.profile_csv import COLUMNS, RANK_COLUMNS, check_measured, table_text


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
        Path(filepath).write_text(self.csv_text(), encoding="utf-8", newline="")

    def csv_text(self) -> str:
        """Returns what `to_csv` writes."""
        rows = (
            (r.rank, r.dp_rank, r.pp_rank, r.tp_rank, r.pp_rank, instruction, mhz, times[mhz], energies[mhz])
            for r in self.root
            for instruction, times, energies in (
                ("forward", r.forward_time, r.forward_energy),
                ("backward", r.backward_time, r.backward_energy),
            )
            for mhz in times
        )
        return table_text(rows, (*RANK_COLUMNS, *COLUMNS))

    @classmethod
    def from_dump(
        cls,
        ranks: Sequence[RankInfo],
        measured: Iterable[tuple[Sequence[FrequencySchedule], Sequence[ProfilingResult]]],
    ) -> InstructionProfilingResult:
        """Returns the averages of what a server has dumped: per rank, the clock of each instruction and what it took.

        Args:
            measured: For each schedule, the clocks of all ranks (`<n>.sched.json`), and the results (`<n>.prof.json`).

        Raises:
            PlanError: A rank or a result is missing, a result does not have the instructions of its schedule, or a time
                or an energy cannot be right.
        """
        import pandas as pd

        sums: dict[tuple[int, str, int], list[tuple[float, float]]] = defaultdict(list)
        for schedules, results in measured:
            clocks = {schedule.rank: schedule.frequencies for schedule in schedules}
            for result in results:
                if result.rank not in clocks:
                    raise PlanError(f"the dump has a result of rank {result.rank}, but no schedule of it")
                for name in ("forward", "backward"):
                    clocks_mhz = [mhz for instruction, mhz in clocks[result.rank] if instruction == name]
                    times_s, energies_j = result.time_breakdown.get(name, []), result.energy_breakdown.get(name, [])
                    if [*map(len, times_s)] != [*map(len, energies_j)] or {*map(len, times_s)} - {len(clocks_mhz)}:
                        raise PlanError(
                            f"the dump's result of rank {result.rank} does not have {len(clocks_mhz)} times and "
                            f"energies of {name} in each iteration, as its schedule has"
                        )
                    took = list(zip(chain(*times_s), chain(*energies_j), strict=True))
                    frame = pd.DataFrame(took, columns=["time", "energy"], index=range(1, len(took) + 1))
                    check_measured(frame, f"the dump's result of rank {result.rank}, {name}")
                    for mhz, each in zip(len(times_s) * clocks_mhz, took, strict=True):
                        sums[result.rank, name, mhz].append(each)
        found = []
        for info in ranks:
            tables: dict[str, dict[int, float]] = {}
            for name in ("forward", "backward"):
                of_clock = {mhz: took for (rank, of, mhz), took in sums.items() if (rank, of) == (info.rank, name)}
                if not of_clock:
                    raise PlanError(f"the dump has no times and energies of {name} on rank {info.rank}")
                for place, what in enumerate(("time", "energy")):
                    tables[f"{name}_{what}"] = {
                        mhz: sum(values[place] for values in took) / len(took) for mhz, took in of_clock.items()
                    }
            of_rank = {column: getattr(info, column) for column in RANK_COLUMNS}
            found.append(OfflineProfilingResult(**of_rank, **tables))  # type: ignore[arg-type]
        return cls(found)
