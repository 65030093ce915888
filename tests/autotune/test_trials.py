"""How much of a measured difference counts as real."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.autotune.trials import expected_difference


def test_a_difference_that_noise_explains_hardly_counts() -> None:
    assert expected_difference(0.002, 0.002**2) < 0.0005


def test_a_difference_that_noise_does_not_explain_counts_as_real() -> None:
    assert 0.009 < expected_difference(0.011, 0.0027**2) < 0.011


@given(st.floats(-0.2, 0.2), st.floats(0, 0.01))
def test_what_is_real_lies_between_nothing_and_what_was_measured(measured: float, deviation: float) -> None:
    real = expected_difference(measured, deviation**2)
    assert 0 <= abs(real) <= abs(measured) * (1 + 1e-12)
    assert real * measured >= 0
