"""Turns: in which steps which ranks follow a schedule, and when it ends, so that its effect is always measured.

Half of the ranks run the schedule's clocks while the other half run default clocks, in the same step; then they change
places. The effect of a step's data on all ranks cancels, so that a few steps show the effect of the clocks. Every rank
computes its turns from the step's number: there is no message.
"""

from collections.abc import Sequence
from typing import NamedTuple

NONE, EVEN, ODD, ALL = range(4)
"""Which ranks follow the schedule in a step: bit 0 stands for the even half, bit 1 for the odd one."""
ROUND = (EVEN, ODD, ALL, NONE)
"""Each half runs with and without the schedule, each way beside a half with it and beside a half without it."""
MEASURED_BY_HAND = 24
"""Steps, rounded up to whole rounds, in which a person's schedule in turns is measured: its time to some 0.03 %."""
MOST_TURNS = 1024
"""A longer list of turns is an error: a round of blocks of 100 steps has 400."""


class Term(NamedTuple):
    """For how long a schedule holds, and who follows it meanwhile.

    Attributes:
        until: The first step that no longer has its turns; 0: it holds for ever.
        after: The number of the schedule that all ranks follow from then on; if it is the schedule's own number, the
            schedule stays, without turns. -1: default clocks.
        turns: Which ranks follow it, by step, from step 0 on and repeated; empty: all of them in all steps.
        by_hand: Whether a person has named `until`, which then stays the same wherever the schedule starts. Otherwise
            the schedule lasts as many steps as it takes to measure it.
    """

    until: int = 0
    after: int = -1
    turns: tuple[int, ...] = ()
    by_hand: bool = False

    def turn_at(self, step: int) -> int:
        """Returns which ranks follow the schedule in a step; after its end, which ones follow the next schedule."""
        return self.turns[step % len(self.turns)] if self.turns and (not self.until or step < self.until) else ALL

    def stays(self, number: int) -> bool:
        """Returns whether the schedule with this number holds for ever."""
        return not self.until or self.after == number


FOR_EVER = Term()


class Turn(NamedTuple):
    """What a rank does in a step: whether it follows the schedule, and whether the other half does otherwise."""

    follows: bool = True
    is_mixed: bool = False


ALL_FOLLOW = Turn()
"""Every rank follows the schedule."""


def half_of(pp_rank: int, dp_rank: int) -> int:
    """Returns the half of a rank, 0 or 1: over two steps each stage and each pipeline has both."""
    return (pp_rank + dp_rank) % 2


def share_of(turns: Sequence[int]) -> float:
    """Returns the share of ranks that follow a schedule, in the mean over the steps."""
    return sum(turn.bit_count() for turn in turns) / (2 * len(turns)) if turns else 1.0


def swapped(turn: int) -> int:
    """Returns the turn in which the two halves have changed places."""
    return (turn & 1) << 1 | turn >> 1


def follows(turns: Sequence[int], step: int, half: int) -> bool:
    """Returns whether the ranks of a half follow a schedule in a step."""
    return not turns or bool(turns[step % len(turns)] >> half & 1)
