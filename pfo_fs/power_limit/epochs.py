"""Epochs that are too short for a window."""

from __future__ import annotations


class EpochLengths:
    """Notices that no window can be complete within an epoch.

    Args:
        warmup_steps: Number of steps before a level is measured.
        window_steps: Number of steps in which it is measured.
    """

    def __init__(self, warmup_steps: int, window_steps: int) -> None:
        self._warmup_steps, self._window_steps = warmup_steps, window_steps
        self._steps = 0
        self._ended = False  # whether an epoch was long enough, or it was said that none is

    def step_begins(self) -> None:
        """Counts a step of the epoch."""
        self._steps += 1

    def ends(self, *, dropped: bool) -> str:
        """Notes the end of an epoch; returns what is wrong, once, for a warning.

        Args:
            dropped: Whether a window was dropped because it was not complete.
        """
        steps, self._steps = self._steps, 0
        needed = 1 + self._warmup_steps + self._window_steps
        if self._ended or not (dropped or steps >= needed):
            return ""
        self._ended = True
        if steps >= needed:
            return ""
        return (
            f"an epoch of {steps} steps ends before a level is measured, which takes {needed} steps of one epoch (1 + "
            f"{self._warmup_steps} to warm up + {self._window_steps} to measure), so nothing is measured. Give fewer "
            "warmup_steps and profile_steps, or call pause_measurement() instead of on_epoch_end()"
        )
