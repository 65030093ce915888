"""All ranks of a job agree on the levels to choose from; all GPUs must accept the same ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.rank_gpus import GpuRange, RankGpus
from pfo_fs.power_limit.ranks import RankGroup

log = logging.getLogger("pfo_fs")

_MAX_GPUS_NAMED = 64


@dataclass(frozen=True)
class LevelAgreement:
    """The result of the agreement.

    Attributes:
        levels: The levels to choose from, highest first; empty if there is a problem.
        gpu_names: Product name and UUID of each GPU of the job.
        bounds: The lowest and the highest level that the GPUs accept.
        problem: Why levels cannot be set on all ranks; empty if they can.
        rank_warns: Whether this rank logs a warning about the problem.
    """

    levels: list[int] = field(default_factory=list)
    gpu_names: list[str] = field(default_factory=list)
    bounds: tuple[float, float] = (0.0, 0.0)
    problem: str = ""
    rank_warns: bool = False


def agree_on_levels(ranks: RankGroup, gpus: RankGpus, step: int, unit: str) -> LevelAgreement:
    """Exchanges the ranges of all ranks' GPUs; a collective call (all ranks must make it).

    Args:
        ranks: The ranks of the job.
        gpus: The GPUs of this rank.
        step: Distance of two levels; with clocks, the least one.
        unit: W or MHz.

    Raises:
        ConfigError: The GPUs accept different levels; on all ranks.
    """
    mine = gpus.ranges()
    try:
        found: list[tuple[list[GpuRange], str]] = ranks.gather((mine, gpus.problem))
    except RuntimeError as error:
        return LevelAgreement(problem=f"the ranks cannot communicate: {error}", rank_warns=True)
    for rank, (_, problem) in enumerate(found):
        if problem:
            where = f"rank {rank}: " if len(found) > 1 else ""
            return LevelAgreement(problem=f"{where}{problem}", rank_warns=ranks.rank == 0)
    of_job = [(rank, gpu) for rank, (of_rank, _) in enumerate(found) for gpu in of_rank]
    ranges = {gpu.levels for _, gpu in of_job}
    if len(ranges) > 1:
        each = "; ".join(
            f"{gpu.name} (rank {rank}, GPU {gpu.position}): {gpu.levels.lowest:g} to {gpu.levels.highest:g} {unit}"
            for rank, gpu in of_job[:_MAX_GPUS_NAMED]
        )
        what = "power limit for all needs GPUs with the same range of limits"
        if unit == "MHz":
            what = "clock for all needs GPUs with the same clocks"
        raise ConfigError(f"one {what}, but there are {each}")
    names = [gpu.name for _, gpu in of_job]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and ranks.rank == 0:
        log.warning("power limit: several ranks monitor %s; their energy counts once for each", ", ".join(twice))
    lowest, highest, offered = ranges.pop()
    watts = range(math.floor(highest), math.ceil(lowest) - 1, -step)
    levels = spaced_clocks(offered, step) if offered else list(watts)
    return LevelAgreement(levels, names, (lowest, highest))


def spaced_clocks(offered: Sequence[int], step: int) -> list[int]:
    """Returns the clocks to choose from, in MHz, highest first: `step` or more apart, from a third of the highest up.

    Below that, a step takes up to three times as long, and its energy rises again, because the GPU draws a part of its
    power at any clock.

    Args:
        offered: The clocks that the GPU offers, highest first.
        step: The least distance of two clocks, in MHz.
    """
    found = [offered[0]]
    for mhz in offered:
        if found[-1] - mhz >= step and mhz >= offered[0] / 3:
            found.append(mhz)
    return found
