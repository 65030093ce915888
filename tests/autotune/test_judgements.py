"""What plans that were measured tell of others, and what people are told of them: nothing that is only modelled."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfo_fs.autotune.goals import TIMES_THE_ERROR, PlanGoal, goal_text, measured_text
from pfo_fs.autotune.job_layout import ClockPlan
from pfo_fs.autotune.judgements import Figure, Judgement, ModelError, Trial, expected_offset, highest_scatter
from pfo_fs.models import Target

OF_ALL, OF_ONE = 0.001, 0.0003
ERROR = ModelError(OF_ALL, OF_ONE)
EXACTLY = 1e-6


def test_a_plan_is_expected_to_differ_as_it_was_measured_to_and_before_that_nothing_is_known() -> None:
    found, error = expected_offset([Figure()], np.array([[0.003**2]]), ERROR, shares_curves=True)
    assert found == 0.0
    assert error == pytest.approx(math.hypot(0.003, OF_ALL, OF_ONE))
    found, error = expected_offset([Figure(0.002, EXACTLY)], np.array([[0.01**2]]), ERROR, shares_curves=True)
    assert found == pytest.approx(0.002, abs=1e-5)
    assert error < 2e-5


def test_plans_with_the_same_clocks_are_wrong_in_the_same_way() -> None:
    """Iterations of one plan simply took 1 % longer, as the curves of its clocks were wrong."""
    same = np.full((2, 2), 0.01**2)
    other = np.diag([0.01**2, 0.01**2])
    measured = [Figure(0.01, EXACTLY), Figure()]
    found, error = expected_offset(measured, same, ERROR, shares_curves=True)
    assert found == pytest.approx(0.01, abs=0.0005)
    assert error < 0.001
    of_other, other_error = expected_offset(measured, other, ERROR, shares_curves=True)
    assert abs(of_other) < 0.001
    assert other_error > 0.009


def test_only_iterations_beside_those_at_default_clocks_tell_what_curves_have_wrong_that_have_no_part_in_others() -> (
    None
):
    same = np.full((2, 2), 0.01**2)
    found, error = expected_offset([Figure(0.0005, EXACTLY), Figure()], same, ERROR, shares_curves=False)
    assert abs(found) <= 0.0005
    assert error >= 0.01
    measured, beside = [Figure(0.0, EXACTLY), Figure()], [Figure(0.01, 0.0003), Figure()]
    found, error = expected_offset(measured, same, ERROR, beside, shares_curves=False)
    assert found == pytest.approx(0.01, abs=0.001)
    assert error < 0.001


def test_plans_that_differ_by_more_than_was_expected_tell_less_of_others() -> None:
    def error_with(last: float) -> float:
        measured = [Figure(0.001, EXACTLY), Figure(last, EXACTLY), Figure()]
        return expected_offset(measured, np.zeros((3, 3)), ERROR, shares_curves=True)[1]

    assert error_with(0.01) > 3 * error_with(0.0012)


OFFSETS = st.builds(Figure, st.floats(-0.01, 0.01), st.sampled_from([0.0, 1e-4, 0.01, math.inf]))


@settings(max_examples=50)
@given(st.lists(OFFSETS, min_size=1, max_size=6), st.integers(0, 1000), st.booleans())
def test_errors_are_finite_whatever_was_measured(measured: list[Figure], seed: int, shares_curves: bool) -> None:
    root = np.random.default_rng(seed).normal(scale=0.003, size=(len(measured), len(measured)))
    directly = [] if shares_curves else measured[::-1]
    found, error = expected_offset(measured, root @ root.T, ERROR, directly, shares_curves=shares_curves)
    assert math.isfinite(found)
    assert 0 <= error < 0.1


@pytest.mark.parametrize(("count", "times"), [(2, 15.9), (5, 2.37), (24, 1.33), (100, 1.13)])
def test_a_scatter_of_few_values_may_be_much_larger(count: int, times: float) -> None:
    """The exact quantiles of chi square with 1, 4, 23 and 99 degrees of freedom are 0.0039, 0.711, 13.09 and 77.0."""
    assert highest_scatter(0.01, count) == pytest.approx(0.01 * times, rel=0.03)


@pytest.mark.parametrize(
    ("before", "new", "both"),
    [
        (Figure(0.1, 0.01), Figure(0.12, 0.01), Figure(0.11, 0.01 / 2**0.5)),
        (Figure(0.1, 0.01), Figure(), Figure(0.1, 0.01)),
        (Figure(), Figure(0.1, 0.01), Figure(0.1, 0.01)),
        (Figure(0.1, 0.0), Figure(0.2, 0.0), Figure(0.15, 0.0)),
    ],
    ids=["a smaller error", "nothing new", "the first", "without any scatter"],
)
def test_several_measurements_of_a_plan_are_one(before: Figure, new: Figure, both: Figure) -> None:
    assert before.pooled(new) == pytest.approx(both)


# ---- what people are told


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


def test_only_what_was_measured_is_said_against_how_many_steps() -> None:
    text = text_of(0.113, 0.001, 0.0001, 0.00015)
    assert text == "saves 11.3 ± 0.2 %, 0.01 ± 0.03 % slower, against 1,240 steps at default clocks"
    assert text_of(0.1, 0.01, 0.0, 0.001, measures_energy=False).startswith("energy not measured yet, 0.00 ± 0.20 %")
    assert measured_text(Judgement(0.0, 0.001, 0.0, 0.1, 0.01), None) == "not measured yet"
    assert measured_text(Judgement(0.0, 0.0, 0.0, 0.0, 0.0), None) == "all at max clocks"
    assert goal_text(PlanGoal(Target(slowdown=1.0), {1: 0.8}), "", {}) == "target: no slowdown"
