"""Exchanges small messages among the ranks of a `torch.distributed` job, so that all follow the same decision.

The ranks use a gloo (CPU) group of their own, so that they do not wait for GPUs, and two exchanges per measured limit.
Ranks train in step, so a rank waits no longer here than it would for the next gradient. If they are not in step, the
wait ends with an error.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.guard import Guard, reason_of

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
