"""What people are told of a plan: figures with their errors, and no figure that is smaller than its error."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.autotune.judgements import Judgement
from pfo_fs.autotune.status_text import TIMES_THE_ERROR, believed_text

SHARES, ERRORS = st.floats(-0.5, 0.5), st.floats(1e-5, 0.2)


def text_of(saved: float, saved_error: float, slower: float = 0.0, slower_error: float = 0.001) -> str:
    return believed_text(Judgement(0.0, slower_error, slower, saved, saved_error), 1234)


@given(SHARES, ERRORS, SHARES, ERRORS)
def test_a_figure_that_is_smaller_than_its_error_is_no_fact(
    saved: float, saved_error: float, slower: float, slower_error: float
) -> None:
    text = text_of(saved, saved_error, slower, slower_error)
    energy = re.search(r"([\d.]+)% less energy", text)
    time = re.search(r"([\d.]+)% (slower|faster) ", text)
    assert (energy is not None) == (saved > TIMES_THE_ERROR * saved_error)
    assert (time is not None) == (abs(slower) > TIMES_THE_ERROR * slower_error)
    if energy is not None:
        assert float(energy[1]) == pytest.approx(100 * saved, abs=0.051)
    if time is not None:
        assert float(time[1]) == pytest.approx(100 * abs(slower), abs=0.0051)
        assert (time[2] == "slower") == (slower > 0)


@given(SHARES, ERRORS, SHARES, ERRORS)
def test_what_is_said_of_unknown_figures_holds_them(
    saved: float, saved_error: float, slower: float, slower_error: float
) -> None:
    text = text_of(saved, saved_error, slower, slower_error)
    energy = re.search(r"not known yet \(within ([\d.]+)%\)", text)
    time = re.search(r"no slower within ([\d.]+)%", text)
    if energy is not None:
        assert abs(saved) <= float(energy[1]) / 100 + 0.00051
    if time is not None:
        assert slower <= float(time[1]) / 100 + 0.000051


@given(st.floats(0.02, 0.5), st.floats(0.0, 0.009))
def test_the_error_that_is_said_is_that_within_which_the_figure_is_nearly_surely(saved: float, error: float) -> None:
    said = re.search(r"\(± ([\d.]+)\)", text_of(saved, error))
    assert said is not None
    assert float(said[1]) == pytest.approx(100 * TIMES_THE_ERROR * error, abs=0.051)


def test_at_the_highest_clocks_there_is_nothing_to_compare() -> None:
    assert text_of(0.0, 0.0, 0.0, 0.0) == "all at max clocks"


def test_the_number_of_iterations_is_said() -> None:
    assert text_of(0.1, 0.01).endswith("over 1,234 iterations")
