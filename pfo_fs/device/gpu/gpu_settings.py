"""What a GPU's clock and power limit are now, without changing them."""

from __future__ import annotations

from typing import NamedTuple


class GpuSettings(NamedTuple):
    """Clock and power limit in force.

    Attributes:
        locked_mhz: The clock that the GPU is locked at, in MHz; 0 if it is not locked.
        limit_w: The power limit, in W; 0 if the GPU has none.
        default_limit_w: The power limit after a restart, in W.
        processes: Processes that compute on the GPU.
        lock_is_sure: Whether `locked_mhz` is known, not concluded from the clock of a GPU without processes.
    """

    locked_mhz: int
    limit_w: float
    default_limit_w: float
    processes: int = 0
    lock_is_sure: bool = True

    @property
    def limit_differs(self) -> bool:
        """Whether the power limit is not the default one."""
        return abs(self.limit_w - self.default_limit_w) > 0.5

    @property
    def differs(self) -> bool:
        """Whether anything is not at its default."""
        return self.locked_mhz > 0 or self.limit_differs

    @property
    def text(self) -> str:
        """What differs."""
        parts = []
        if self.locked_mhz:
            parts.append(f"clock {'locked at' if self.lock_is_sure else 'stays at'} {self.locked_mhz} MHz")
        if self.limit_differs:
            parts.append(f"power limit {self.limit_w:g} W instead of {self.default_limit_w:g} W")
        return ", ".join(parts) or "at its defaults"
