"""All ranks of a job agree on the power limits to choose from; all GPUs must have the same range of limits."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.rank_gpus import GpuRange, RankGpus
from pfo_fs.power_limit.ranks import RankGroup

log = logging.getLogger("pfo_fs")

_MAX_GPUS_NAMED = 64


@dataclass(frozen=True)
class LimitAgreement:
    """The result of the agreement.

    Attributes:
        limits_w: The limits to choose from, in W, highest first; empty if there is a problem.
        gpu_names: Product name and UUID of each GPU of the job.
        range_w: The lowest and the highest limit that the GPUs accept, in W.
        problem: Why limits cannot be set on all ranks; empty if they can.
        rank_warns: Whether this rank logs a warning about the problem.
    """

    limits_w: list[int] = field(default_factory=list)
    gpu_names: list[str] = field(default_factory=list)
    range_w: tuple[float, float] = (0.0, 0.0)
    problem: str = ""
    rank_warns: bool = False


def agree_on_limits(ranks: RankGroup, gpus: RankGpus, step_w: int) -> LimitAgreement:
    """Exchanges the ranges of all ranks' GPUs; a collective call (all ranks must make it).

    Args:
        ranks: The ranks of the job.
        gpus: The GPUs of this rank.
        step_w: Watts between two limits.

    Raises:
        ConfigError: The GPUs have different ranges of limits; on all ranks.
    """
    mine = gpus.ranges()
    try:
        found: list[tuple[list[GpuRange], str]] = ranks.gather((mine, gpus.problem))
    except RuntimeError as error:
        return LimitAgreement(problem=f"the ranks cannot communicate: {error}", rank_warns=True)
    for rank, (_, problem) in enumerate(found):
        if problem:
            where = f"rank {rank}: " if len(found) > 1 else ""
            return LimitAgreement(problem=f"{where}{problem}", rank_warns=ranks.rank == 0)
    of_job = [(rank, gpu) for rank, (of_rank, _) in enumerate(found) for gpu in of_rank]
    ranges = {(gpu.lowest_w, gpu.highest_w) for _, gpu in of_job}
    if len(ranges) > 1:
        each = "; ".join(
            f"{gpu.name} (rank {rank}, GPU {gpu.position}): {gpu.lowest_w:g} to {gpu.highest_w:g} W"
            for rank, gpu in of_job[:_MAX_GPUS_NAMED]
        )
        raise ConfigError(f"one power limit for all needs GPUs with the same range of limits, but there are {each}")
    names = [gpu.name for _, gpu in of_job]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and ranks.rank == 0:
        log.warning("power limit: several ranks monitor %s; their energy counts once for each", ", ".join(twice))
    lowest_w, highest_w = ranges.pop()
    limits_w = list(range(math.floor(highest_w), math.ceil(lowest_w) - 1, -step_w))
    return LimitAgreement(limits_w, names, (lowest_w, highest_w))
