"""A profile: what each instruction of each stage takes, in time and energy, at each clock of the GPU.

The file is Zeus's CSV, with the columns `stage,instruction,frequency,time,energy` (MHz, s, J; one GPU, one
micro-batch), or with `rank,dp_rank,pp_rank,tp_rank` in front. Several rows of one key are averaged.
"""

from __future__ import annotations

import csv
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TypeAlias

from pfo_fs.errors import ConfigError, PlanError

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
MAX_PROFILE_BYTES = 64 * 2**20
MAX_STAGES = 4096
_CLOCKS_MHZ = (50, 20_000)
_LONGEST_S, _MOST_J = 1e5, 1e9

BLOCKING_POWER_W: Mapping[str, float] = {"A40": 70.38, "A100": 83.64}
"""What a GPU draws while it waits for its neighbours (NCCL's kernels spin), in W, by a word of the GPU's name.

Measured for the Perseus paper (SOSP'24, section 6.1 and its artifact). Measure others; the idle power is not it.
"""

Kind: TypeAlias = tuple[int, str]
"""(stage, instruction): instructions of one kind differ in their micro-batch only, and share their options."""


@dataclass(frozen=True)
class Measurement:
    """One instruction of one stage at one clock.

    Attributes:
        frequency_mhz: The GPU's graphics clock.
        time_s: Mean duration in seconds.
        energy_j: Mean energy of one GPU in joules.
        time_spread_s: Standard deviation over the rows that were averaged; 0 for a single row.
        energy_spread_j: The same in joules.
        rows: How many rows were averaged.
    """

    frequency_mhz: int
    time_s: float
    energy_j: float
    time_spread_s: float = 0.0
    energy_spread_j: float = 0.0
    rows: int = 1


@dataclass(frozen=True)
class Profile:
    """Measurements of all kinds of instructions.

    Attributes:
        measurements: For each (stage, instruction), its measurements by falling clock.
        source: Where it came from; messages begin with it.
    """

    measurements: Mapping[Kind, Sequence[Measurement]]
    source: str = field(default="profile", compare=False)

    def __post_init__(self) -> None:
        stages = {stage for stage, _ in self.measurements}
        if not stages:
            raise PlanError(f"{self.source}: the profile is empty")
        if missing := sorted(set(range(max(stages) + 1)) - stages):
            raise PlanError(
                f"{self.source}: column stage: stage {missing[0]} is missing; stages are numbered from 0 to "
                f"{max(stages)} without gaps"
            )

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return 1 + max(stage for stage, _ in self.measurements)

    def instructions(self, stage: int) -> list[str]:
        """The instructions that are measured for a stage."""
        return [name for at, name in self.measurements if at == stage]

    def derived(self, names: Sequence[str]) -> Profile:
        """Returns a profile in which missing instructions are estimated from `forward` and `backward`.

        `backward_input` and `backward_weight` become half a backward each. For early recomputation, where a measured
        `backward` of a checkpointed model contains its recomputation: `recomputation` becomes a forward,
        `forward_backward` the measured backward, and `backward` the measured one less a forward. Good enough to compare
        schedules before profiling them; instructions that are there stay as they are.

        Args:
            names: The instructions that are wanted on every stage.

        Raises:
            PlanError: One of them cannot be derived.
        """
        if not set(names) & {"backward_input", "backward_weight", "recomputation", "forward_backward"}:
            return self
        kinds: dict[Kind, Sequence[Measurement]] = {}
        for stage in range(self.num_stages):
            have = {name: self.measurements[stage, name] for name in self.instructions(stage)}
            for name in names:
                kinds[stage, name] = have[name] if name in have else self._derive(stage, name, have)
            if "recomputation" in names and "forward_backward" not in have:
                kinds[stage, "backward"] = self._derive(stage, "backward_only", have)
        return Profile(kinds, self.source)

    def _derive(self, stage: int, name: str, have: Mapping[str, Sequence[Measurement]]) -> list[Measurement]:
        parts = {
            "backward_input": {"backward": 0.5},
            "backward_weight": {"backward": 0.5},
            "recomputation": {"forward": 1.0},
            "forward_backward": {"backward": 1.0},
            "backward_only": {"backward": 1.0, "forward": -1.0},
        }.get(name, {})
        if not parts or not parts.keys() <= have.keys():
            raise PlanError(
                f"{self.source}: stage {stage} has no {name}, and it cannot be derived from "
                f"{', '.join(have)}; profile it"
            )
        tables = [({m.frequency_mhz: m for m in have[part]}, share) for part, share in parts.items()]
        result = []
        for mhz in sorted(set.intersection(*(set(table) for table, _ in tables)), reverse=True):
            time_s = sum(share * table[mhz].time_s for table, share in tables)
            energy_j = sum(share * table[mhz].energy_j for table, share in tables)
            if time_s <= 0 or energy_j <= 0:
                raise PlanError(
                    f"{self.source}: stage {stage} at {mhz} MHz: backward is not longer than forward, so it holds no "
                    "recomputation to take out; profile recomputation and forward_backward instead"
                )
            result.append(Measurement(mhz, time_s, energy_j))
        return result

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the averages in the five-column form."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for (stage, name), measurements in self.measurements.items():
                writer.writerows((stage, name, m.frequency_mhz, m.time_s, m.energy_j) for m in measurements)


def blocking_power_w(gpu_name: str) -> float:
    """Returns the published blocking power of a GPU, in W.

    Args:
        gpu_name: As NVML gives it, "NVIDIA A100-SXM4-80GB", or just "A100".

    Raises:
        ConfigError: None is published for it.
    """
    for word in gpu_name.replace("-", " ").split():
        for known, power_w in BLOCKING_POWER_W.items():
            if word.upper() == known:
                return power_w
    raise ConfigError(
        f"no blocking power is published for {gpu_name!r} (only for {', '.join(BLOCKING_POWER_W)}); measure what it "
        "draws while it waits in a collective, and give that in watts"
    )


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile CSV.

    Args:
        path: The file, with five columns or nine.

    Returns:
        Rows of one (stage, instruction, frequency) averaged, with their spread.

    Raises:
        PlanError: The file cannot be read, or a row cannot be right; the message names row and column.
    """
    source = str(path)
    try:
        if Path(path).stat().st_size > MAX_PROFILE_BYTES:
            raise PlanError(f"{source}: is larger than {MAX_PROFILE_BYTES:,} bytes, which is no profile")
        with open(path, newline="", encoding="utf-8-sig") as file:
            return parse_profile(file, source)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{source}: cannot be read as a profile: {error}") from error


def parse_profile(lines: Iterable[str], source: str) -> Profile:
    """Reads a profile from the lines of a CSV; as `read_profile` otherwise.

    Args:
        lines: The header first.
        source: What messages begin with.
    """
    try:
        rows = list(_rows(csv.reader(lines), source))
    except csv.Error as error:
        raise PlanError(f"{source}: cannot be read as a profile: {error}") from error
    table: dict[tuple[int, str, int], list[_Row]] = defaultdict(list)
    for row in rows:
        table[row.stage, row.instruction, row.frequency_mhz].append(row)
    kinds: dict[Kind, list[Measurement]] = defaultdict(list)
    for (stage, instruction, mhz), same in sorted(table.items(), key=lambda item: -item[0][2]):
        _same_units(same, source)
        times, energies = [row.time_s for row in same], [row.energy_j for row in same]
        kinds[stage, instruction].append(
            Measurement(mhz, fmean(times), fmean(energies), _spread(times), _spread(energies), len(same))
        )
    order = {row.instruction: number for number, row in reversed(list(enumerate(rows)))}
    return Profile({kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: (kind[0], order[kind[1]]))}, source)


@dataclass(frozen=True)
class _Row:
    line: int
    stage: int
    instruction: str
    frequency_mhz: int
    time_s: float
    energy_j: float


def _rows(reader: Iterator[list[str]], source: str) -> Iterator[_Row]:
    header = [name.strip() for name in next(reader, [])]
    if missing := [name for name in COLUMNS if name not in header]:
        raise PlanError(f"{source}: column {', '.join(missing)} is missing; a profile has {','.join(COLUMNS)}", line=1)
    if twice := [name for name in COLUMNS if header.count(name) > 1]:
        raise PlanError(f"{source}: column {twice[0]} is there twice", line=1)
    at = {name: header.index(name) for name in COLUMNS}
    for line, cells in enumerate(reader, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise PlanError(f"{source}: row {line} has {len(cells)} cells under {len(header)} columns", line=line)
        text = {name: cells[at[name]].strip() for name in COLUMNS}
        if not 0 < len(text["instruction"]) <= 64:
            raise PlanError(
                f"{source}: row {line}, column instruction: {text['instruction'][:70]!r} is no name", line=line
            )
        yield _Row(
            line,
            _whole(text["stage"], 0, MAX_STAGES - 1, "a stage", f"{source}: row {line}, column stage", line),
            text["instruction"].lower(),
            _whole(text["frequency"], *_CLOCKS_MHZ, "a clock in MHz", f"{source}: row {line}, column frequency", line),
            _positive(text["time"], f"{source}: row {line}, column time", "s", _LONGEST_S, line),
            _positive(text["energy"], f"{source}: row {line}, column energy", "J", _MOST_J, line),
        )


def _number(text: str, where: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        raise PlanError(f"{where}: {text[:40]!r} is no number", line=line) from None
    if not math.isfinite(value):
        raise PlanError(f"{where}: {text[:40]} is no measurement; leave the row out", line=line)
    return value


def _whole(text: str, least: int, most: int, what: str, where: str, line: int) -> int:
    value = _number(text, where, line)
    if value != int(value) or not least <= value <= most:
        hint = "; clocks are in MHz here, not Hz, kHz or GHz" if what.endswith("MHz") else ""
        raise PlanError(f"{where}: {text[:40]} is not {what} from {least} to {most}{hint}", line=line)
    return int(value)


def _positive(text: str, where: str, unit: str, most: float, line: int) -> float:
    value = _number(text, where, line)
    if not 0 < value <= most:
        what = "is not above zero" if value <= 0 else f"is more than one instruction can take, {most:g} {unit}"
        raise PlanError(f"{where}: {text[:40]} {unit} {what}", line=line)
    return value


def _same_units(rows: Sequence[_Row], source: str) -> None:
    """Refuses rows of one key that are a hundred times apart: no noise does that, seconds beside milliseconds do."""
    for column, values in (("time", [r.time_s for r in rows]), ("energy", [r.energy_j for r in rows])):
        low, high = min(values), max(values)
        if high > 100 * low:
            small, large = rows[values.index(low)], rows[values.index(high)]
            late, early = (small, large) if small.line > large.line else (large, small)
            raise PlanError(
                f"{source}: row {late.line}, column {column}: {late.instruction} of stage {late.stage} at "
                f"{late.frequency_mhz} MHz is there twice, and the value in row {early.line} is {high / low:,.0f} "
                "times apart; are these the same units?",
                line=late.line,
            )


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
