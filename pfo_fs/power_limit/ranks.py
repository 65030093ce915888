"""What all ranks of a `torch.distributed` job agree on: whether to start, the levels to choose from, each decision.

The ranks use a gloo (CPU) group of their own, so that they do not wait for GPUs, and two exchanges per measured limit.
Ranks train in step, so a rank waits no longer here than it would for the next gradient. If they are not in step, the
wait ends with an error.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.guard import Guard, reason_of
from pfo_fs.power_limit.rank_gpus import GpuRange, RankGpus

log = logging.getLogger("pfo_fs")

_MAX_GPUS_NAMED = 64
_WAIT_S = 600.0
"""A rank that has not answered within this time counts as gone. It is long because some ranks write checkpoints."""


class RankGroup:
    """All ranks of the default process group, or this process alone. Making one is a collective call."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._broken = ""
        self._closed = False
        dist: Any = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return
        self._dist = dist
        self._cpu = sys.modules["torch"].device("cpu")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        try:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=_WAIT_S))
        except (RuntimeError, ValueError) as error:
            self._broken = str(error)

    def gather(self, value: Any) -> list[Any]:
        """Returns what all ranks gave, by rank.

        Raises:
            RuntimeError: A rank is gone, or out of step. No exchange works from then on.
        """
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._exchange(self._dist.all_gather_object, values, value)
        return values

    def agree(self, error: Exception | None, guard: Guard) -> None:
        """Makes all ranks go on, or none; rank 0 decides for all ranks whether they are strict.

        Raises:
            Exception: This rank's error, or a ConfigError with that of the first rank that has one.
        """
        mine = "" if error is None else f"rank {self.rank}: {reason_of(error)}"
        try:
            found = self.gather((guard.strict, mine))
        except RuntimeError:  # the next exchange says so
            found = [(guard.strict, "")]
        guard.strict = found[0][0]
        if error is not None:
            raise error
        for _, text in found:
            if text:
                raise ConfigError(text)

    def from_first(self, value: Any) -> Any:
        """Returns what rank 0 gave; the values that other ranks give are not used.

        Raises:
            RuntimeError: As for `gather`.
        """
        if self.size == 1:
            return value
        box = [value]
        self._exchange(self._dist.broadcast_object_list, box, src=0, device=self._cpu)
        return box[0]

    def close(self) -> None:
        """Ends the group, so that other ranks that still call get an error at once."""
        if self.size > 1 and not self._closed:
            self._closed, self._broken = True, self._broken or "this rank has closed its optimizer"
            with suppress(Exception):  # the default group may have gone before
                self._dist.destroy_process_group(self._group)

    def _exchange(self, collective: Any, *args: Any, **options: Any) -> None:
        if self._broken:
            raise RuntimeError(self._broken)
        try:
            collective(*args, **options, group=self._group)
        except Exception as error:
            self._broken = str(error) or repr(error)
            raise RuntimeError(self._broken) from error


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
