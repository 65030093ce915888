"""How much iterations scatter, and whether a window scatters so much that it tells nothing."""

from __future__ import annotations

from collections import deque
from statistics import median_low

_WINDOWS = 5
_NOISY, _TIMES_THE_USUAL = 0.05, 4.0
"""Scatter of a window that tells nothing: relative standard deviation, and how many times the usual one it must be."""
_FIRST_GUESS = 0.002
"""Relative."""


class IterationNoise:
    """Follows the scatter of iteration times from window to window.

    Attributes:
        usual: Relative standard deviation of an iteration's time: the median of the latest windows.
        noisy_window: Whether the latest window tells nothing, because something else ran on the hosts.
    """

    def __init__(self) -> None:
        self.usual = _FIRST_GUESS
        self.noisy_window = False
        self._windows: deque[float] = deque(maxlen=_WINDOWS)

    def add(self, noise: float) -> None:
        """Adds the relative standard deviation of a window; 0.0: nothing was measured."""
        if noise:
            self._windows.append(noise)
            self.usual = median_low(self._windows)

    def judge(self, noise: float) -> bool:
        """Adds a window's noise, and returns whether the window tells nothing."""
        self.add(noise)
        self.noisy_window = noise > max(_NOISY, _TIMES_THE_USUAL * self.usual)
        return self.noisy_window
