"""Values that the ranks of a job exchange by `torch.distributed`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from threading import Timer
from typing import Any, TypeVar

from pfo_fs import errors
from pfo_fs.errors import ConfigError, CoordinationError, PfoError
from pfo_fs.guard import Guard

log = logging.getLogger("pfo_fs")

T = TypeVar("T")

_MISSING_AFTER_S = 30.0
"""If ranks wait for others for longer than this, rank 0 says for which ones."""
_agreements = count()
"""Ranks agree in the same order, so that the number of an agreement is the same on all of them."""

Problem = tuple[bool, str, str]
"""What went wrong on a rank: whether it ends the job's start in any case, the name of the error's class, its text."""


def torch_distributed() -> Any:
    """Returns `torch.distributed` if the program has set it up, without importing torch."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


class Collectives:
    """Collective calls of all ranks; with one rank, nothing is sent.

    Args:
        dist: `torch.distributed`, where there are several ranks.
    """

    def __init__(self, rank: int, world_size: int, dist: Any) -> None:
        self.rank = rank
        self.world_size = world_size
        self._dist = dist
        self._group: Any = None  # the program's group; the power-limit optimizer has its own (`power_limit/ranks.py`)

    @classmethod
    def of_job(cls, rank: int, world_size: int) -> Collectives:
        """The collectives of a job of this size.

        Raises:
            ConfigError: There are several ranks, and the program has not set up `torch.distributed`.
        """
        dist = torch_distributed() if world_size > 1 else None
        if world_size > 1 and dist is None:
            raise ConfigError("call torch.distributed.init_process_group before making a PFOFileOptimizer")
        return cls(rank, world_size, dist)

    @classmethod
    def of_program(cls) -> Collectives:
        """The collectives of all ranks that `torch.distributed` knows, where the job's size is not known."""
        dist = torch_distributed()
        return cls(0, 1, None) if dist is None else cls(dist.get_rank(), dist.get_world_size(), dist)

    def from_rank_0(self, value: T) -> T:
        """Returns rank 0's value."""
        if self.world_size == 1:
            return value
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather_to_rank_0(self, value: T) -> list[T]:
        """Returns the values of all ranks, by rank, on rank 0, and an empty list elsewhere."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        self._dist.gather_object(value, gathered, dst=0, group=self._group)
        return gathered or []

    def all_gather(self, value: T) -> list[T]:
        """Returns the values of all ranks, by rank."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(gathered, value, group=self._group)
        return gathered

    @contextmanager
    def naming_missing(self) -> Iterator[None]:
        """While the block takes long, warns once on rank 0 of ranks that have not come here."""
        key = f"pfo_fs/{next(_agreements)}/"

        def warn() -> None:
            with suppress(Exception):
                if missing := [str(rank) for rank in range(self.world_size) if not store.check([f"{key}{rank}"])]:
                    text = "all ranks must make a PFOFileOptimizer, or call attach"
                    log.warning("pfo-fs waits for rank %s: %s", ", ".join(missing[:16]), text)

        timer = Timer(_MISSING_AFTER_S, warn)
        timer.daemon = True
        with suppress(Exception):  # a backend without a store
            store = self._dist.distributed_c10d._get_default_store()
            store.set(f"{key}{self.rank}", "here")
            if self.rank == 0:
                timer.start()
        try:
            yield
        finally:
            timer.cancel()


def problem_of(error: BaseException, *, fatal: bool) -> Problem:
    """Returns what is sent to other ranks about an error. `fatal`: no rank can go on, even without `strict`."""
    name = type(error).__name__
    if isinstance(error, PfoError):
        return fatal, name, str(error)
    return fatal, CoordinationError.__name__, f"{name}: {error}"


def agree(collectives: Collectives, error: Exception | None, guard: Guard) -> None:
    """Makes all ranks go on, or none; a collective call. Rank 0 decides for all ranks whether they are strict.

    Raises:
        PfoError: On all ranks, the error of the first rank that has one. With one rank, the error itself.
    """
    if collectives.world_size == 1:
        if error is not None:
            raise error
        return
    problem = None if error is None else problem_of(error, fatal=True)
    with collectives.naming_missing():
        reports = collectives.all_gather((guard.strict, problem))
    guard.strict = reports[0][0]
    raise_first([problem for _, problem in reports], strict=True)


def raise_first(problems: list[Problem | None], *, strict: bool) -> None:
    """Raises the same error on all ranks: that of the first rank with one; without `strict`, only fatal errors count.

    Raises:
        PfoError: What went wrong, and on which rank.
    """
    for rank, problem in enumerate(problems):
        if problem is not None and (problem[0] or strict):
            _, name, text = problem
            kind = getattr(errors, name, CoordinationError)
            raise kind(text if len(problems) == 1 else f"rank {rank}: {text}")
