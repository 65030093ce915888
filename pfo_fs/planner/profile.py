"""A profile: time and energy of each instruction of each stage at each clock of the GPU.

`profile_csv` reads and writes the files. Several rows of one stage, instruction and clock are averaged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner.profile_csv import COLUMNS, read_table, table_text

if TYPE_CHECKING:
    from pandas import DataFrame

BLOCKING_POWER_W: Mapping[str, float] = {"A40": 70.38, "A100": 83.64}
"""Power of a GPU that waits for other GPUs (NCCL's kernels run while they wait), in W, by a word of the GPU's name.

Measured for the Perseus paper (SOSP'24, section 6.1 and its artifact). Other GPUs must be measured; the idle power
cannot be used instead.
"""

Kind: TypeAlias = tuple[int, str]
"""(stage, instruction): instructions of one kind differ in their micro-batch only, and share their options."""

_MOST_SCATTER = {"time": 0.15, "energy": 0.25}
"""The largest standard deviation of the rows of one key that can be noise, relative to their mean."""
_OTHER_UNIT = 100.0
"""Values of one key that differ by a larger factor are in several units."""
_JUMP = 2.0
"""The most that a time or power may be, as a multiple of what the next clock makes possible."""


@dataclass(frozen=True)
class Measurement:
    """One instruction of one stage at one clock.

    Attributes:
        time_s: Mean duration in seconds.
        energy_j: Mean energy of one GPU in joules.
    """

    frequency_mhz: int
    time_s: float
    energy_j: float


@dataclass(frozen=True)
class Profile:
    """Measurements of all kinds of instructions.

    Attributes:
        measurements: For each (stage, instruction), its measurements by falling clock.
        source: Name of its file or job; messages begin with it.
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

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the averages in the five-column form."""
        rows = (
            (stage, name, m.frequency_mhz, m.time_s, m.energy_j)
            for (stage, name), measurements in self.measurements.items()
            for m in measurements
        )
        Path(path).write_text(table_text(rows, COLUMNS), encoding="utf-8", newline="")


def blocking_power_w(gpu_name: str) -> float:
    """Returns the published blocking power of a GPU, in W.

    Args:
        gpu_name: The name from NVML (NVIDIA's driver library), such as "NVIDIA A100-SXM4-80GB", or only "A100".

    Raises:
        ConfigError: No blocking power is published for this GPU.
    """
    for word in gpu_name.replace("-", " ").split():
        for known, power_w in BLOCKING_POWER_W.items():
            if word.upper() == known:
                return power_w
    raise ConfigError(
        f"no blocking power is published for {gpu_name!r} (only for {', '.join(BLOCKING_POWER_W)}); `pfo-fs "
        "profile-p2p` measures what such a GPU draws while it waits: give that as --p2p-power, or blocking_power_w"
    )


def read_profile(path: str | os.PathLike[str], text: str | None = None) -> Profile:
    """Reads a profile CSV, in any form of `profile_csv`; rows of one (stage, instruction, frequency) are averaged.

    Args:
        path: The file; if its content is given as `text`, only the name at the begin of messages.

    Raises:
        PlanError: The file cannot be read; a row cannot be right (the message names row and column); values of one
            key, or of neighbouring clocks, differ by more than they can; there are no rows, or a stage is missing.
    """
    table, source = read_table(path, text), str(path)
    groups = table.groupby(["stage", "instruction", "frequency"], sort=False)[["time", "energy"]]
    means = groups.mean()
    _refuse_mixtures(table, means, groups.std(), source)
    kinds: dict[Kind, list[Measurement]] = {}
    for (stage, instruction, mhz), (time_s, energy_j) in zip(means.index, means.to_numpy().tolist(), strict=True):
        kinds.setdefault((int(stage), instruction), []).append(Measurement(int(mhz), time_s, energy_j))
    for (stage, instruction), measured in kinds.items():
        measured.sort(key=lambda m: -m.frequency_mhz)
        _refuse_jumps(stage, instruction, measured, source)
    order = {instruction: number for number, instruction in enumerate(table["instruction"].unique())}
    return Profile({kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: (kind[0], order[kind[1]]))}, source)


def _refuse_mixtures(table: DataFrame, means: DataFrame, spreads: DataFrame, source: str) -> None:
    """Refuses rows of one key that scatter more than noise: their mean would be that of no configuration."""
    for column, most in _MOST_SCATTER.items():
        apart = spreads[column] > most * means[column]
        if not apart.any():
            continue
        stage, instruction, mhz = apart.idxmax()
        same = table[(table[["stage", "instruction", "frequency"]] == [stage, instruction, mhz]).all(axis=1)][column]
        early, late = sorted((int(same.idxmin()), int(same.idxmax())))
        is_unit = same.max() > _OTHER_UNIT * same.min()
        advice = "are all of them in the same unit?" if is_unit else "keep the rows of one configuration"
        raise PlanError(
            f"{source}: row {late}, column {column}: {instruction} of stage {stage} at {mhz} MHz has several rows, of "
            f"{same.min():.4g} to {same.max():.4g} (rows {early} and {late}), which is more than noise; {advice}",
            line=late,
        )


def _refuse_jumps(stage: int, instruction: str, measured: Sequence[Measurement], source: str) -> None:
    """Refuses a clock whose time or power cannot be true beside that of the next clock: a slip, or another unit.

    If the clock falls, time rises at most in proportion and hardly falls; power falls at most with its fourth power.
    """
    for above, below in pairwise(measured):
        lower = below.frequency_mhz / above.frequency_mhz
        powers_w = [m.energy_j / m.time_s for m in (above, below)]
        for what, ratio, least, most in (
            ("time", below.time_s / above.time_s, 1 / _JUMP, _JUMP / lower),
            ("power (energy over time)", powers_w[1] / powers_w[0], lower**4 / _JUMP, _JUMP),
        ):
            if not least <= ratio <= most:
                raise PlanError(
                    f"{source}: {instruction} of stage {stage}: {what} at {below.frequency_mhz} MHz is {ratio:.3g} "
                    f"times that at {above.frequency_mhz} MHz, the next clock, which no GPU does; one of the two is "
                    "wrong, or in another unit"
                )
