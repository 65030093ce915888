"""What all ranks of a `torch.distributed` job agree on: whether to start, the levels to choose from, each decision.

The ranks use a gloo (CPU) group of their own, so that they do not wait for GPUs. They exchange twice for each measured
level. Ranks train in step, so a rank waits no longer here than it would for the next gradient. If they are not in step,
the wait ends with an error.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, TypeVar

from pfo_fs.errors import ConfigError, CoordinationError
from pfo_fs.guard import Guard
from pfo_fs.ipc.collectives import Collectives, agree, torch_distributed
from pfo_fs.power_limit.rank_gpus import GpuRange, RankGpus

log = logging.getLogger("pfo_fs")

T = TypeVar("T")
R = TypeVar("R")

_MAX_GPUS_NAMED = 64
_WAIT_S = 600.0
"""A rank that has not answered within this time counts as gone. It is long because some ranks write checkpoints."""


class RanksGone(CoordinationError):
    """A rank is gone, or out of step; no exchange works from then on."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the ranks cannot communicate any more: {why}")


class RankGroup(Collectives):
    """All ranks of the default process group, or this process alone. Making the group is a collective call.

    Exchanges raise `RanksGone`.
    """

    def __init__(self) -> None:
        ranks = Collectives.of_program()
        super().__init__(ranks.rank, ranks.world_size, torch_distributed())
        self._broken = ""
        if self.world_size > 1:
            try:
                self._group = self._dist.new_group(backend="gloo", timeout=timedelta(seconds=_WAIT_S))
            except (RuntimeError, ValueError) as error:
                self._broken = str(error)

    def all_gather(self, value: T) -> list[T]:
        return self._exchange(super().all_gather, value)

    def from_rank_0(self, value: T) -> T:
        return self._exchange(super().from_rank_0, value)

    def agree(self, error: Exception | None, guard: Guard) -> None:
        """Makes all ranks go on, or none (`collectives.agree`); if they cannot exchange, the next exchange raises that.

        Raises:
            PfoError: The error of the first rank that has one.
        """
        try:
            agree(self, error, guard)
        except RanksGone:
            if error is not None:
                raise error from None

    def _exchange(self, collective: Callable[[T], R], value: T) -> R:
        if self._broken:
            raise RanksGone(self._broken)
        try:
            return collective(value)
        except Exception as error:
            self._broken = str(error) or repr(error)
            raise RanksGone(self._broken) from error

    def close(self) -> None:
        """Ends the group, so that other ranks that still call get an error at once."""
        group, self._group = self._group, None
        if group is not None:
            self._broken = self._broken or "this rank has closed its optimizer"
            with suppress(Exception):  # the default group may have gone before
                self._dist.destroy_process_group(group)


class LevelAgreement(NamedTuple):
    """The levels to choose from, highest first, within the GPUs' bounds; or why they cannot be set on all ranks."""

    levels: Sequence[int] = ()
    gpu_names: Sequence[str] = ()
    bounds: tuple[float, float] = (0.0, 0.0)
    problem: str = ""


def agree_on_levels(ranks: RankGroup, gpus: RankGpus, step: int, unit: str) -> LevelAgreement:
    """Exchanges the ranges of all ranks' GPUs; a collective call. Levels are `step` apart, clocks at least `step`.

    Raises:
        ConfigError: The GPUs accept different levels; on all ranks.
        RanksGone: A rank does not answer.
    """
    mine = gpus.ranges()
    of_ranks: list[tuple[list[GpuRange], str]] = ranks.all_gather((mine, gpus.problem))
    for rank, (_, problem) in enumerate(of_ranks):
        if problem:
            where = f"rank {rank}: " if len(of_ranks) > 1 else ""
            return LevelAgreement(problem=f"{where}{problem}")
    of_job = [(rank, gpu) for rank, (of_rank, _) in enumerate(of_ranks) for gpu in of_rank]
    ranges = {gpu.levels for _, gpu in of_job}
    if len(ranges) > 1:
        named = "; ".join(
            f"{gpu.name} (rank {rank}, GPU {gpu.position}): {gpu.levels.lowest:g} to {gpu.levels.highest:g} {unit}"
            + f", {len(gpu.levels.offered)} clocks" * bool(gpu.levels.offered)
            for rank, gpu in of_job[:_MAX_GPUS_NAMED]
        )
        same = {"W": "power limit for all needs GPUs with the same range of limits"}
        what = same.get(unit, "clock for all needs GPUs with the same clocks")
        raise ConfigError(f"one {what}, but there are {named}")
    names = [gpu.name for _, gpu in of_job]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and ranks.rank == 0:
        log.warning("power limit: several ranks monitor %s; their energy counts once for each", ", ".join(twice))
    lowest, highest, offered = ranges.pop()
    watts = range(math.floor(highest), math.ceil(lowest) - 1, -step)
    levels = spaced_clocks(offered, step) if offered else list(watts)
    return LevelAgreement(levels, names, (lowest, highest))


def spaced_clocks(offered: Sequence[int], step: int) -> list[int]:
    """Returns clocks that are at least `step` apart, highest first, down to a third of the highest.

    Below that, a step may take more than three times as long, and its energy rises again, because the GPU draws a part
    of its power at any clock.
    """
    clocks = [offered[0]]
    for mhz in offered:
        if clocks[-1] - mhz >= step and mhz >= offered[0] / 3:
            clocks.append(mhz)
    return clocks
