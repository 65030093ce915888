"""The ticks of an energy counter within the steps of one result: enough of them, and none from before.

A tick gives the energy since the tick before. Where ticks are farther apart than steps, the first tick of a window also
counts what ran before it, perhaps at other clocks: only what lies between two ticks of the window is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pfo_fs.device.metering.energy_curve import EnergyCurve
from pfo_fs.device.metering.instruction_power import PowerFit
from pfo_fs.device.metering.marked_steps import EndedStep

_ENOUGH_TICKS = 5
_FEWER_TICKS, _MANY_STEPS = 3, 20
"""Three ticks are enough if they lie so far apart that 20 steps were collected: little depends on the moment of an
iteration at which the counter ticks."""
_LONGEST_S = 5.0
"""More ticks are waited for, if there was one, while the steps last no longer than this together."""

_Named = tuple[str, int, int]


class WindowTicks:
    """Collects the ticks within the steps of a window, and gives them to the fit of powers.

    Args:
        powers: The fit.

    Attributes:
        since_ns: The time of the last tick, from which on the next step needs the curve's points and the clocks.
    """

    def __init__(self, powers: PowerFit) -> None:
        self._powers = powers
        self.clear()

    def clear(self) -> None:
        """Drops all steps and ticks."""
        self._powers.clear()
        self._ticks: list[tuple[int, float]] = []
        self._steps = self._lasts_ns = 0
        self._last_step = -1
        self.since_ns = 0
        self._carried: list[_Named] = []

    def add(self, ended: EndedStep, named: Sequence[_Named], curve: EnergyCurve) -> Iterator[None]:
        """Adds a step.

        Args:
            ended: The step.
            named: Its instructions: (name, begin, end in ns), ordered by begin.
            curve: The energy curve; it still has the last tick of the step before.

        Yields:
            None in between, so that the caller can do more urgent work.
        """
        follows = self._steps > 0 and ended.step == self._last_step + 1
        running = [*self._carried, *named] if follows else list(named)
        ticks = curve.within(self.since_ns if follows else ended.begin_ns, ended.end_ns)
        yield from self._powers.add(running, ticks)
        self._ticks += [tick for tick in ticks if not self._ticks or tick[0] > self._ticks[-1][0]]
        self._steps += 1
        self._lasts_ns += ended.end_ns - ended.begin_ns
        self._last_step = ended.step
        self.since_ns = ticks[-1][0] if ticks else (self.since_ns if follows else ended.begin_ns)
        self._carried = [instruction for instruction in running if instruction[2] > self.since_ns]

    @property
    def lasts_s(self) -> float:
        """How long the steps last together, in s."""
        return self._lasts_ns / 1e9

    def enough(self, curve: EnergyCurve) -> bool:
        """Whether the energy of the steps is known well, or will not be known better soon."""
        count = len(self._ticks)
        if curve.over or not count or count >= _ENOUGH_TICKS or (count >= _FEWER_TICKS and self._steps >= _MANY_STEPS):
            return True
        return self.lasts_s > _LONGEST_S

    def mean_power_w(self) -> float | None:
        """Returns the mean power between the first and the last tick; None where each step has ticks enough of its own.

        That is where ticks are at most half a step apart.
        """
        if len(self._ticks) < 2:
            return None
        (first_ns, first_j), (last_ns, last_j) = self._ticks[0], self._ticks[-1]
        if 2 * (last_ns - first_ns) / (len(self._ticks) - 1) < self._lasts_ns / self._steps:
            return None
        return 1e9 * (last_j - first_j) / (last_ns - first_ns)
