"""Loads and times of the steps of a window, on one rank: what begins and ends with each step."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from pfo_fs.loads.step_rows import load_of_step


class StepsReport(NamedTuple):
    """The steps of a window on one rank; small, since ranks exchange it.

    Attributes:
        features: Numbers in the load of a step; 0 if a step has no load that can be used.
        loads: The load of each step (`load_of_step`), one after the other.
        times_s: The time of each step in s, by when the training thread begins it; NaN if something else ran in it.
        given: Whether a step has a load at all.
    """

    features: int = 0
    loads: array[float] = array("d")
    times_s: array[float] = array("d")
    given: bool = False


class WindowSteps:
    """Takes down the steps of one window."""

    def __init__(self) -> None:
        self._loads: list[tuple[float, ...]] = []
        self._times_s = array("d")
        self._began_s = math.nan
        self._given = False

    def begin(self, loads: Iterable[Any] | None) -> None:
        """Notes that a step begins with these loads of its micro-batches."""
        self._given |= loads is not None
        self._loads.append(load_of_step(loads))
        self._began_s = time.monotonic()

    def interrupt(self) -> None:
        """Notes that something else runs within the step, so that its time is not known."""
        self._began_s = math.nan

    def end(self) -> None:
        """Notes that the step ends."""
        self._times_s.append(time.monotonic() - self._began_s)

    def report(self) -> StepsReport:
        """Returns the steps so far, all of which have ended."""
        sizes = {len(load) for load in self._loads}
        if not self._given or len(sizes) != 1 or len(self._times_s) != len(self._loads):
            return StepsReport(given=self._given)
        loads = array("d", (number for load in self._loads for number in load))
        return StepsReport(sizes.pop(), loads, self._times_s, self._given)
