"""What people are told of a plan: what was measured, with its error, and nothing that is only modelled."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.autotune.goals import TIMES_THE_ERROR, measured_text
from pfo_fs.autotune.job_layout import ClockPlan
from pfo_fs.autotune.judgements import Figure, Judgement, Trial

SHARES, ERRORS = st.floats(-0.5, 0.5), st.floats(1e-5, 0.2)
PLAN = ClockPlan(((1200,),))


def text_of(saved: float, saved_error: float, slower: float, slower_error: float, measures_energy: bool = True) -> str:
    energy = Figure(saved, saved_error) if measures_energy else Figure()
    trial = Trial(PLAN, energy, Figure(slower, slower_error), default_steps=1240)
    return measured_text(Judgement(0.0, slower_error, slower, saved, saved_error), trial)


@given(SHARES, ERRORS, SHARES, ERRORS)
def test_both_figures_are_said_with_two_standard_errors(
    saved: float, saved_error: float, slower: float, slower_error: float
) -> None:
    text = text_of(saved, saved_error, slower, slower_error)
    said = [float(each) for each in re.findall(r"[\d.]+(?= ± |\ %)", text)]
    expected = [abs(saved), TIMES_THE_ERROR * saved_error, abs(slower), TIMES_THE_ERROR * slower_error]
    assert said == pytest.approx([100 * each for each in expected], abs=0.051)
    assert text.startswith("saves") == (saved >= 0)
    assert ("slower" in text) == (slower >= 0)


def test_the_steps_at_default_clocks_are_counted() -> None:
    text = text_of(0.113, 0.001, 0.0001, 0.00015)
    assert text == "saves 11.3 ± 0.2 %, 0.01 ± 0.03 % slower, against 1,240 steps at default clocks"


def test_an_energy_that_was_not_measured_is_not_said() -> None:
    assert text_of(0.1, 0.01, 0.0, 0.001, measures_energy=False).startswith("energy not measured yet, 0.00 ± 0.20 %")


def test_of_a_plan_that_was_not_measured_nothing_is_said() -> None:
    assert measured_text(Judgement(0.0, 0.001, 0.0, 0.1, 0.01), None) == "not measured yet"


def test_at_the_highest_clocks_there_is_nothing_to_compare() -> None:
    assert measured_text(Judgement(0.0, 0.0, 0.0, 0.0, 0.0), None) == "all at max clocks"
