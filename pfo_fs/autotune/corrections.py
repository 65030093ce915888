"""Corrects what the planner is asked for after a measured plan missed its target."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TIME_MARGIN = 0.25
"""Relative: the largest correction of times; if it does not suffice, all run at full speed."""
MOST_CORRECTIONS = 8
"""This many plans are tried at most in a row: because one missed its target, or because another looks better."""


@dataclass
class Corrections:
    """What was tried for one target.

    Attributes:
        count: Number of plans that were made because of what one was measured to take.
        time_margin: By how much iterations take longer than planned, relative. Above zero, the planner is told that
            slowed instructions take longer by this share; below zero, that iterations may.
        late_by: Plans are made to be late by this on average, relative, as far as the model knows.
        change_s: The time in s that a clock change of a rank costs beyond what is known, if it counts on the longest
            path: clocks that act a little late.
        change_price: What a clock change costs for the planner, as a multiple of what it is known to cost;
            infinite: each stage runs at one clock.
        power_scale: The power that the planner is asked for, as a multiple of the cap on power.
        full_speed_only: Whether all instructions run at the highest clocks, because no plan keeps to the target.
    """

    count: int = 0
    time_margin: float = 0.0
    late_by: float = 0.0
    change_s: float = 0.0
    change_price: float = 1.0
    power_scale: float = 1.0
    full_speed_only: bool = False

    @property
    def key(self) -> object:
        """A key that is equal for corrections with the same plans."""
        return self.time_margin, self.late_by, self.change_price, self.power_scale, self.full_speed_only

    def count_anew(self) -> None:
        """Starts the count of corrections again; their effect stays."""
        self.count = 0
