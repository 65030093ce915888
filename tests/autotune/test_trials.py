"""How much of measured differences and savings counts as real."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.autotune.trials import Trial, believed_savings, expected_difference
from pfo_fs.planner import Plan


def test_a_difference_that_noise_explains_hardly_counts() -> None:
    assert expected_difference(0.002, 0.002**2) < 0.0005


def test_a_difference_that_noise_does_not_explain_counts_as_real() -> None:
    assert 0.009 < expected_difference(0.011, 0.0027**2) < 0.011


@given(st.floats(-0.2, 0.2), st.floats(0, 0.01))
def test_what_is_real_lies_between_nothing_and_what_was_measured(measured: float, deviation: float) -> None:
    real = expected_difference(measured, deviation**2)
    assert 0 <= abs(real) <= abs(measured) * (1 + 1e-12)
    assert real * measured >= 0


# ---- savings


def trial(saved: float, error: float) -> Trial:
    return Trial(cast(Plan, None), saved=saved, saved_error=error, windows=1)


def test_savings_that_were_measured_well_count_as_measured() -> None:
    found = believed_savings([0.10, 0.12], [trial(0.08, 0.0002), trial(0.11, 0.0002)])
    assert found == pytest.approx([0.08, 0.11], abs=0.001)


def test_among_savings_that_were_measured_badly_the_model_decides() -> None:
    better, worse = believed_savings([0.15, 0.10], [trial(0.11, 0.03), trial(0.13, 0.03)])
    assert better > worse + 0.03


def test_what_the_model_promises_too_much_of_all_plans_is_taken_off_all() -> None:
    found = believed_savings([0.20, 0.18, 0.16], [trial(each, 0.01) for each in (0.16, 0.14, 0.12)])
    assert found == pytest.approx([0.16, 0.14, 0.12], abs=0.005)


def test_more_windows_make_savings_better_known() -> None:
    measured = Trial(cast(Plan, None))
    for _ in range(4):
        measured.add(0.0, 0.1, 0.02)
    assert measured.saved_error == pytest.approx(0.01)
    measured.repeat()
    assert (measured.saved, measured.saved_error, measured.windows) == (0.0, 0.0, 0)
