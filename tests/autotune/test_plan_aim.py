"""Which time margin plans get, with a planner that is a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from pfo_fs.autotune.corrections import Corrections
from pfo_fs.autotune.plan_aim import aim


class Made(NamedTuple):
    """A plan: how late it is, relative, and its energy in J."""

    frequencies_mhz: tuple[int, ...]
    off: float
    energy_j: float


FULL = Made((1410,), 0.0, 100.0)


class Selection:
    """Plans whose lateness follows from the margin; above the largest margin, all run at the highest clocks."""

    def __init__(self, off: Callable[[float], float], largest: float) -> None:
        self.corrections = Corrections()
        self.model = SimpleNamespace(
            problem=SimpleNamespace(pipeline=SimpleNamespace(instructions=range(40))), full_speed=FULL
        )
        self._off, self._largest = off, largest

    def planned_for(self, pipeline: int) -> Made:
        margin, late_by = self.corrections.time_margin, self.corrections.late_by
        if margin > self._largest:
            return FULL
        off = self._off(margin)
        return Made((1200,), min(off, late_by), 80.0 + 500 * max(0.0, margin) + 1000 * max(0.0, off - late_by))

    def predicted_off(self, plan: Made) -> float:
        return plan.off


def aimed(off: Callable[[float], float], largest: float) -> tuple[Corrections, Made]:
    """The corrections that are chosen, and the plan that follows."""
    selection: Any = Selection(off, largest)
    aim(selection, 0.0)
    return selection.corrections, selection.planned_for(0)


def test_a_plan_that_is_in_time_keeps_its_margin() -> None:
    corrections, plan = aimed(lambda margin: 0.0007, 0.01)
    assert corrections.time_margin == -0.0007
    assert plan.energy_j == 80.0


def test_a_late_plan_gets_the_margin_that_makes_it_punctual() -> None:
    corrections, plan = aimed(lambda margin: 0.006 - margin, 0.02)
    assert corrections.time_margin == pytest.approx(0.0053, abs=3e-4)
    assert plan.off <= 0.0009


def test_if_there_is_no_plan_for_a_large_margin_smaller_ones_are_tried() -> None:
    """The first guess is twice the lateness; nothing is that fast."""
    corrections, plan = aimed(lambda margin: 0.006 - 2.5 * margin, 0.003)
    assert 0.002 <= corrections.time_margin <= 0.003
    assert plan.energy_j < 85


def test_if_all_larger_margins_save_nothing_the_plan_of_the_smallest_is_made_faster() -> None:
    """A balanced pipeline under a power limit: lower clocks are nearly as fast, but nothing is faster."""
    corrections, plan = aimed(lambda margin: 0.006, -0.0001)
    assert corrections.time_margin == -0.0007
    assert not math.isinf(corrections.late_by)
    assert plan.off == pytest.approx(0.0007)
    assert plan.energy_j < FULL.energy_j
