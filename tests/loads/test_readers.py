"""Loads of micro-batches from what training code has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs import loads
from pfo_fs.errors import ConfigError

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def packed(lengths: list[int]) -> dict[str, Any]:
    """The same sequences in the forms that frameworks pack them in."""
    ends = np.cumsum([0, *lengths])
    width = max(lengths)
    mask = [[1] * length + [0] * (width - length) for length in lengths]
    return {
        "lengths": loads.from_lengths(lengths),
        "boundaries": loads.from_cu_seqlens(ends),
        "boundaries of Megatron": loads.from_cu_seqlens(SimpleNamespace(cu_seqlens_q=ends)),
        "positions": loads.from_position_ids(np.concatenate([np.arange(length) for length in lengths])),
        "positions in rows": loads.from_position_ids([[*range(length)] for length in lengths]),
        "mask": loads.from_attention_mask(np.array(mask)),
    }


@given(LENGTHS)
def test_all_forms_of_the_same_sequences_are_the_same_load(lengths: list[int]) -> None:
    expected = float(sum(lengths)), float(sum(length**2 for length in lengths))
    assert packed(lengths) == dict.fromkeys(packed(lengths), expected)


@pytest.mark.parametrize("batch", [np.zeros((2, 8)), {"input_ids": np.zeros((2, 8))}, [[0] * 8, [0] * 8]])
def test_rows_of_token_ids_are_sequences_of_full_length(batch: Any) -> None:
    assert loads.tokens(batch) == (16.0, 128.0)


def test_one_row_of_token_ids_is_one_sequence() -> None:
    assert loads.tokens([0] * 8) == (8.0, 64.0)


def test_a_tensor_on_a_gpu_is_refused_since_reading_it_would_wait() -> None:
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"), tolist=lambda: pytest.fail("it was read"))
    with pytest.raises(ConfigError, match="waits for the device"):
        loads.from_cu_seqlens(tensor)


@pytest.mark.parametrize("read", [lambda: loads.from_cu_seqlens([0, 5, 3]), lambda: loads.tokens(np.zeros((2, 2, 2)))])
def test_what_cannot_be_a_load_is_refused(read: Any) -> None:
    with pytest.raises(ConfigError):
        read()
