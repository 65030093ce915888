"""The points of a step and the learned times between them, from which a clock follower predicts when points come."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from math import sqrt

from pfo_fs.device.shared_page import POINT_MASK

START = POINT_MASK - 1
"""The point at which a step begins, before its first instruction."""
_LEAST_MARGIN_NS = 200_000
_MEMORY = 8
"""A learned time is about the mean over this many steps."""
_ODD = 0.5
"""A time that differs from the learned one by more than this share counts only if the next time does so, too."""
_ODD_LEAST_NS = 10_000_000
CHUNK = 64
"""The learned times of this many points are added up at once."""
_FAR_NS = 1_000_000_000
"""A change is not looked at yet if it is expected later than this, and is many points away."""
_PAUSES, _LEAST_PAUSES = 16, 3
"""The usual pause between steps is the median of the last 16 pauses, once three pauses are known."""
_MOST_PAUSE = 0.05
"""The clock stays between steps whose usual pause is below this share of a step, or too short for a change to the
default clock and back. In a longer pause the default clock is in force: to keep the clock would gain little."""
_MORE_PAUSE_NS = 20_000_000
"""The clock stays for twice the usual pause and 20 ms; after that, the next step counts as late."""
_MOST_LONGER, _TOO_LONG, _SURELY = 0.0005, 0.002, 2.0
"""Training may compute in the pause, as in the optimizer's step. So the clock does not stay any more once that has made
pauses longer: by 0.05 % of a step and two standard errors of pauses, or by 0.2 % in any case."""
_LEAST_HELD = 8
"""Whether pauses get longer is judged only after this number of pauses in which the clock has stayed."""


class FollowedPlan:
    """The points of one step, in order, and how long the device takes from each to the next.

    Args:
        clocks_mhz: The clock of each instruction; 0 is the default clock.
        kinds: For each instruction, a number that is the same for the same work.
        before: The plan that ran last: what it has learned holds roughly for the same instructions at other clocks.
        keeps_pauses: Whether this plan takes the learned pauses between steps from `before`.

    Attributes:
        last: The last point, `IDLE`. Point 0 is `START`; 2 i + 1 and 2 i + 2 are begin and end of instruction i.
        clock_from: For each point, the clock that is needed from there on.
        next_change: For each point, the next point at which another clock is needed.
        since: For each point, the point from which on the same clock is needed.
        gap_ns: For each point, the learned time from the point before; -1 if unknown.
        error_ns: Mean error of the predicted end of an instruction.
    """

    def __init__(
        self,
        clocks_mhz: Sequence[int],
        kinds: Sequence[int],
        before: FollowedPlan | None = None,
        *,
        keeps_pauses: bool = False,
    ) -> None:
        self.kinds = kinds
        # A clock is needed from the end of the instruction before it on; after the last instruction, its clock stays.
        self.clock_from = [mhz for mhz in clocks_mhz for _ in range(2)] + [*(clocks_mhz[-1:] or [0]), 0]
        size = len(self.clock_from)
        self.last = size - 1
        self.next_change = [size] * size
        for at in range(size - 2, -1, -1):
            same = self.clock_from[at + 1] == self.clock_from[at]
            self.next_change[at] = self.next_change[at + 1] if same else at + 1
        self.since = [0] * size
        for at in range(1, size):
            self.since[at] = self.since[at - 1] if self.clock_from[at] == self.clock_from[at - 1] else at
        self.gap_ns = [-1] * size
        self.error_ns = _LEAST_MARGIN_NS
        if before is not None and before.kinds == kinds:
            self.gap_ns, self.error_ns = list(before.gap_ns), before.error_ns
        self._seen = [0] * size
        self._was_odd = [False] * size
        known_ns: Collection[int] = before._pauses_ns if keeps_pauses and before is not None else ()
        self._pauses_ns: deque[int] = deque(known_ns, maxlen=_PAUSES)
        self._step_ns: int = before._step_ns if known_ns and before is not None else 0
        self._held_pauses_ns: deque[int] = deque(maxlen=_PAUSES)
        self._gets_longer = False  # whether pauses get longer if the clock stays

    def place_of(self, code: int) -> int:
        """Returns the point that the device writes as `code`; the last one if the plan does not have it."""
        return 0 if code == START else min(code + 1, self.last)

    def learn_pause(self, pause_ns: int, step_ns: int, *, held: bool) -> None:
        """Learns the time from the end of a step to the begin of the next one with the same plan."""
        (self._held_pauses_ns if held else self._pauses_ns).append(max(0, pause_ns))
        self._step_ns = step_ns
        held_ns, usual_ns = self._held_pauses_ns, self._pauses_ns
        if len(held_ns) >= _LEAST_HELD:
            error_ns = _scatter(held_ns) * sqrt(1 / len(held_ns) + 1 / len(usual_ns))
            most_longer_ns = min(_MOST_LONGER * step_ns + _SURELY * error_ns, _TOO_LONG * step_ns)
            self._gets_longer = self._gets_longer or _middle(held_ns) - _middle(usual_ns) > most_longer_ns

    def holds_ns(self, change_ns: int) -> int:
        """Returns for how many ns after a step the next step's clock stays; 0: it does not stay.

        It does not stay if the pause is long or not known, or gets longer when the clock stays.

        Args:
            change_ns: The time for a change to the default clock and back; a shorter pause is not long.
        """
        if len(self._pauses_ns) < _LEAST_PAUSES or self._gets_longer:
            return 0
        usual_ns = _middle(self._pauses_ns)
        return 2 * usual_ns + _MORE_PAUSE_NS if usual_ns <= max(change_ns, _MOST_PAUSE * self._step_ns) else 0

    def hold(self, holds: bool) -> None:
        """Sets whether the clock of the first instruction is needed between steps, or the default clock."""
        mhz = self.clock_from[0] if holds else 0
        if self.clock_from[-1] == mhz:
            return
        self.clock_from[-1] = mhz
        last = self.last
        same = mhz == self.clock_from[last - 1]
        self.since[last] = self.since[last - 1] if same else last
        change = last + 1 if same else last
        for at in range(last - 1, self.since[last - 1] - 1, -1):
            self.next_change[at] = change

    def expected_ns(self, first: int, last: int) -> int:
        """Returns the learned time from one place to another; -1 if unknown."""
        gaps = self.gap_ns[first + 1 : last + 1]
        return -1 if -1 in gaps else sum(gaps)

    def expected_soon_ns(self, first: int, last: int) -> int:
        """Returns what `expected_ns` does, but -1 for a place far away, too: a step may have 65,535 instructions."""
        expected_ns = 0
        for start in range(first, last, CHUNK):
            piece_ns = self.expected_ns(start, min(start + CHUNK, last))
            if piece_ns < 0 or expected_ns > _FAR_NS:
                return -1
            expected_ns += piece_ns
        return expected_ns

    def learn(self, first: int, last: int, took_ns: int) -> None:
        """Learns that the device took this long from one place to another."""
        expected_ns = self.expected_ns(first, last)
        if expected_ns < 0:
            # The points between were all reached between two looks, which are a short time apart.
            self.gap_ns[first + 1 : last + 1] = [took_ns, *[0] * (last - first - 1)]
            return
        error_ns = took_ns - expected_ns
        if first & 1 and first < last <= first + 2 <= self.last:  # one instruction
            most_ns = max(round(_ODD * min(took_ns, expected_ns)), _ODD_LEAST_NS)  # one stall is not an error
            self.error_ns += round((min(abs(error_ns), most_ns) - self.error_ns) / _MEMORY)
        odd = abs(error_ns) > max(_ODD * expected_ns, _ODD_LEAST_NS)
        if odd and not self._was_odd[last] and self._seen[last]:
            self._was_odd[last] = True
            return
        self._was_odd[last] = False
        for at in range(first + 1, last + 1):
            self._seen[at] = 1 if odd else self._seen[at] + 1
        weight = 1.0 if odd else max(1 / _MEMORY, 1 / (1 + self._seen[last]))
        if last == first + 1 or not expected_ns:
            self.gap_ns[first + 1] += round(weight * error_ns)
        else:
            share = weight * error_ns / expected_ns
            for at in range(first + 1, last + 1):
                self.gap_ns[at] += round(share * self.gap_ns[at])


def _middle(values: Collection[int]) -> int:
    return sorted(values)[len(values) // 2]


def _scatter(values: Collection[int]) -> int:
    """The range of the middle half, which is about the standard deviation."""
    ordered, quarter = sorted(values), len(values) // 4
    return ordered[-1 - quarter] - ordered[quarter]
