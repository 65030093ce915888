"""Readings of a GPU's energy counter, which ticks every 20 to 100 ms, as a curve with a value at any time.

A tick gives the energy since the tick before. Where ticks are farther apart than steps, the first tick of a window also
counts energy from before the window, perhaps at other clocks: only the energy between two ticks of it is known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pfo_fs.device.metering.instruction_power import PowerFit

if TYPE_CHECKING:
    from pfo_fs.device.metering.meter import EndedStep

_MAX_READINGS = 4096
_TICK_NS = 1_200_000_000
"""The longest wait for the counter's next tick."""
_EARLY_NS, _OFTEN_NS, _RARELY_NS = 3_000_000, 2_000_000, 20_000_000
"""Readings are rare until shortly before the next tick is due, then frequent until it has come or is 9 ms late."""
_PERIODS = 9
"""The period of the ticks is the median gap between this many points."""
_ENOUGH_TICKS = 5
_FEWER_TICKS, _MANY_STEPS = 3, 20
"""Three ticks are enough if they lie so far apart that 20 steps were collected: then it matters little at which moment
of an iteration the counter ticks."""
_LONGEST_S = 5.0
"""Once a tick has come, more ticks are waited for until the steps together last longer than this."""

_Named = tuple[str, int, int]


class EnergyCurve:
    """Readings of a cumulative counter, with linear interpolation between them.

    If a counter shows the same value in two readings, it ticks: its value changed at some time between the last reading
    with the old value and the first with the new one, and the middle of the two is used as the time of the new value.
    A reading with an unchanged value is not added to the curve. Ticks come at a steady rate, so `pause_ns` can return
    when to read next: close to the next tick, without reading often.

    Holds at most 4,096 points: when it is full, every second point of the older half is dropped.

    Attributes:
        over: Whether the curve was broken off, and no reading has come since.
    """

    def __init__(self) -> None:
        self._times_ns: list[int] = []
        self._energies_j: list[float] = []
        self._read_ns = 0
        self._stood_ns = 0
        self._since_ns = 0
        self.over = False

    def add(self, t_ns: int, energy_j: float) -> None:
        """Adds a reading (ns, J); a reading that is not later than the last one is ignored."""
        if self._times_ns and t_ns <= self._read_ns:
            return
        if self.over:
            self.clear()
            self._since_ns, self._stood_ns, self.over = t_ns, 0, False
        self._read_ns = t_ns
        if self._times_ns and energy_j == self._energies_j[-1]:
            self._stood_ns = t_ns
            return
        if self._times_ns and self._stood_ns > self._times_ns[-1]:
            t_ns = (self._stood_ns + t_ns) // 2
        self._times_ns.append(t_ns)
        self._energies_j.append(energy_j)
        if len(self._times_ns) > _MAX_READINGS:
            half = len(self._times_ns) // 2
            del self._times_ns[1:half:2]
            del self._energies_j[1:half:2]

    def pause_ns(self) -> int:
        """Returns how long after the last reading the next one is due."""
        if not self._stood_ns or len(self._times_ns) < 3 or self._read_ns - self._stood_ns > _TICK_NS:
            return _RARELY_NS  # no unchanged value was seen: every reading is a point
        last = self._times_ns[-_PERIODS:]
        gaps = sorted(later - earlier for earlier, later in pairwise(last))
        due_ns = last[-1] + gaps[len(gaps) // 2] - _EARLY_NS
        if self._read_ns < due_ns:
            return max(_OFTEN_NS, min(due_ns - self._read_ns, 5 * _RARELY_NS))
        return _OFTEN_NS if self._read_ns < due_ns + 4 * _EARLY_NS else _RARELY_NS

    def at(self, t_ns: int) -> float:
        """Returns the counter at `t_ns` in joules; outside of the points, the nearest line is extended."""
        times, energies = self._times_ns, self._energies_j
        if len(times) < 2:
            return energies[0] if energies else 0.0
        right = min(max(bisect_right(times, t_ns), 1), len(times) - 1)
        t0, t1 = times[right - 1], times[right]
        e0, e1 = energies[right - 1], energies[right]
        return e0 + (e1 - e0) * (t_ns - t0) / (t1 - t0)

    def within(self, begin_ns: int, end_ns: int) -> list[tuple[int, float]]:
        """Returns the points (ns, J) from `begin_ns` to `end_ns`."""
        first, last = bisect_right(self._times_ns, begin_ns - 1), bisect_right(self._times_ns, end_ns)
        return list(zip(self._times_ns[first:last], self._energies_j[first:last], strict=True))

    def forget_before(self, t_ns: int) -> None:
        """Drops the points that are not needed for times from `t_ns` on."""
        keep_from = bisect_right(self._times_ns, t_ns) - 1
        if keep_from > 0:
            del self._times_ns[:keep_from]
            del self._energies_j[:keep_from]

    def break_off(self) -> None:
        """Notes that it is not known what is consumed from the last reading to the next one, if there is one."""
        self.over = True

    def clear(self) -> None:
        """Drops all points: without any, energy counts as 0, as on a GPU that has no counter."""
        self._times_ns.clear()
        self._energies_j.clear()

    def knows(self, begin_ns: int, end_ns: int) -> bool:
        """Whether the energy from `begin_ns` to `end_ns` is known; also True without any point."""
        if not self._times_ns:
            return True
        return begin_ns >= self._since_ns and not (self.over and end_ns > self._read_ns)

    def covers(self, t_ns: int) -> bool:
        """Whether `at(t_ns)` is final: a point follows, 1.2 s have passed, or there are no readings now."""
        waits = self._times_ns and self._times_ns[-1] < t_ns and self._read_ns < t_ns + _TICK_NS
        return self.over or not waits


class WindowTicks:
    """Collects the ticks within the steps of a window, and gives them to the fit of powers.

    Attributes:
        since_ns: The time of the last tick, from which on the next step needs the curve's points and the clocks.
    """

    def __init__(self, powers: PowerFit) -> None:
        self._powers = powers
        self.clear()

    def clear(self) -> None:
        self._powers.clear()
        self._ticks: list[tuple[int, float]] = []
        self._steps = self._lasts_ns = 0
        self._last_step = -1
        self.since_ns = 0
        self._carried: list[_Named] = []

    def add(self, ended: EndedStep, named: Sequence[_Named], curve: EnergyCurve) -> Iterator[None]:
        """Adds a step.

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
        return self._lasts_ns / 1e9

    def enough(self, curve: EnergyCurve) -> bool:
        """Whether the energy of the steps is known well, or will not be known better soon."""
        count = len(self._ticks)
        if curve.over or not count or count >= _ENOUGH_TICKS or (count >= _FEWER_TICKS and self._steps >= _MANY_STEPS):
            return True
        return self.lasts_s > _LONGEST_S

    def mean_power_w(self) -> float | None:
        """Returns the mean power in W between the first and the last tick; None if each step has enough own ticks.

        A step has enough if ticks are less than half a step apart. Also returns None for fewer than two ticks.
        """
        if len(self._ticks) < 2:
            return None
        (first_ns, first_j), (last_ns, last_j) = self._ticks[0], self._ticks[-1]
        if 2 * (last_ns - first_ns) / (len(self._ticks) - 1) < self._lasts_ns / self._steps:
            return None
        return 1e9 * (last_j - first_j) / (last_ns - first_ns)
