"""How well the load of a batch tells what a pass over it costs (benchmarks/gpu/load_fits.py)."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.load_fits import Batch, all_formulas, draw_batches, scatter, standard_error, unexplained


@given(st.integers(0, 1000), st.integers(1, 60))
def test_batches_are_as_long_as_asked_and_differ_in_both_numbers(seed: int, count: int) -> None:
    batches = draw_batches(count, seed, fewest=512, most=4096)
    assert len(batches) == count
    for batch in batches:
        assert 512 <= batch.tokens <= 4096
        assert all(length > 0 and length % 8 == 0 for length in batch.lengths)
        assert batch.squares <= batch.tokens**2


def test_the_squares_of_a_batch_are_those_of_its_sequences() -> None:
    assert (Batch((3, 4)).tokens, Batch((3, 4)).squares) == (7, 25)


@pytest.mark.parametrize(("constant", "linear", "square"), [(1e-4, 0.6, 0.3), (0.5, 1e-4, 1.0), (0.2, 0.2, 1e-3)])
def test_what_depends_on_both_numbers_is_explained_by_both_only(constant: float, linear: float, square: float) -> None:
    batches = draw_batches(30)
    values = [constant + linear * batch.tokens / 1e4 + square * batch.squares / 1e8 for batch in batches]
    found = all_formulas(batches, values)
    assert found["tokens and squares"]["rms"] == pytest.approx(0, abs=1e-6)
    assert found["tokens and squares"]["factors"] == pytest.approx([constant, linear, square], rel=1e-3, abs=1e-6)
    assert found["tokens"]["rms"] >= found["tokens and squares"]["rms"]


def test_noise_stays_unexplained_as_large_as_it_is() -> None:
    rng = random.Random(3)
    batches = draw_batches(400)
    values = [(1 + batch.tokens / 1e4) * rng.gauss(1, 0.02) for batch in batches]
    left = unexplained(batches, values, (0,))
    assert abs(left.rms - 0.02) < 4 * left.rms_error
    assert left.rms < left.worst


def test_few_batches_explain_nothing() -> None:
    with pytest.raises(ValueError, match="4 batches do not show how well 3 terms fit"):
        unexplained(draw_batches(4), [1.0] * 4, (0, 1))


def test_the_scatter_is_around_the_median_of_each_batch() -> None:
    assert scatter([[1.0, 1.0, 1.0], [50.0, 50.0, 50.0]]) == 0
    assert scatter([[0.9, 1.0, 1.1]]) == pytest.approx((0.02 / 3) ** 0.5)


def test_the_standard_error_is_that_of_the_median() -> None:
    rng = random.Random(4)
    medians = [median(rng.gauss(10, 1) for _ in range(50)) for _ in range(400)]
    assert standard_error([rng.gauss(10, 1) for _ in range(50)]) == pytest.approx(stdev(medians), rel=0.5)
