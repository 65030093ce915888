"""Which clocks act quickly on a node, for plans that leave out the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pfo_fs.planner import Profile, SwitchCosts

_QUICK_S, _LATE_SHARE = 0.005, 0.25
"""Clocks that act within this time, or this share of an instruction's duration, are quick."""


class ClockOffer(NamedTuple):
    """Clocks that a plan may use.

    Attributes:
        left_out_mhz: The clocks that it may not use.
        latency_s: How late the others act, in s: of the quick clocks the median of all, with slower ones the slowest.
    """

    left_out_mhz: frozenset[int]
    latency_s: float


class NodeSwitching(NamedTuple):
    """What changes cost on a node.

    Attributes:
        costs: What a change of one rank costs.
        offers: The quick clocks; these and half of the slow ones; all clocks. With slow clocks a plan changes less
            often, since each must act before the next change; but where the quick ones are few, it saves more.
    """

    costs: SwitchCosts
    offers: tuple[ClockOffer, ...]

    @property
    def slow_mhz(self) -> frozenset[int]:
        """The clocks that are not quick."""
        return self.offers[0].left_out_mhz


def node_switching(costs: SwitchCosts, instruction_s: float) -> NodeSwitching:
    """Returns the offers of a node.

    Args:
        costs: What a change of one rank costs.
        instruction_s: Mean duration of an instruction, in s.
    """
    latency_s, limit_s = costs.latencies_s, max(_QUICK_S, _LATE_SHARE * instruction_s)
    slow_s = sorted(seconds for seconds in latency_s.values() if seconds > limit_s)
    limits_s = dict.fromkeys([slow_s[(len(slow_s) - 1) // 2], slow_s[-1]]) if slow_s else {}

    def slower_than(most_s: float) -> frozenset[int]:
        return frozenset(mhz for mhz, seconds in latency_s.items() if seconds > most_s)

    quick = ClockOffer(slower_than(limit_s), costs.latency_s)
    return NodeSwitching(costs, (quick, *(ClockOffer(slower_than(each), each) for each in limits_s)))


def without_clocks(profile: Profile, left_out_mhz: Collection[int]) -> Profile:
    """Returns the profile without these clocks; the highest clock of each instruction always stays."""
    table = {}
    for kind, rows in profile.measurements.items():
        top = max(row.frequency_mhz for row in rows)
        table[kind] = [row for row in rows if row.frequency_mhz == top or row.frequency_mhz not in left_out_mhz]
    return Profile(table, profile.source)
