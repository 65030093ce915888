"""How much iteration times scatter, and whether those of a window scatter too much to be used."""

from __future__ import annotations

from collections import deque
from statistics import median_low

_WINDOWS = 5
_NOISY, _TIMES_THE_USUAL = 0.05, 4.0
"""A window is noisy if its relative standard deviation exceeds the first number, and also the second number times the
usual one."""
_FIRST_GUESS = 0.002
"""The usual relative standard deviation, before any was measured."""


class IterationNoise:
    """Follows the scatter of iteration times from window to window.

    Attributes:
        usual: Relative standard deviation of an iteration's time: the median of the latest windows.
        noisy_window: Whether the latest window is too noisy to be used, because other programs ran on the hosts.
    """

    def __init__(self) -> None:
        self.usual = _FIRST_GUESS
        self.noisy_window = False
        self._windows: deque[float] = deque(maxlen=_WINDOWS)

    def add(self, noise: float) -> None:
        """Adds the relative standard deviation of a window; 0.0 means that nothing was measured."""
        if noise:
            self._windows.append(noise)
            self.usual = median_low(self._windows)

    def judge(self, noise: float) -> bool:
        """Adds a window's noise, and returns whether the window is too noisy to be used."""
        self.add(noise)
        self.noisy_window = noise > max(_NOISY, _TIMES_THE_USUAL * self.usual)
        return self.noisy_window
