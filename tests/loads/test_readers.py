"""Loads of micro-batches from what training code has."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs import loads
from pfo_fs.errors import ConfigError

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def mask_of(lengths: list[int]) -> list[list[int]]:
    return [[1] * length + [0] * (max(lengths) - length) for length in lengths]


def packed(lengths: list[int]) -> dict[str, Any]:
    """The same sequences in the forms that frameworks pack them in."""
    ends = np.cumsum([0, *lengths])
    return {
        "lengths": loads.from_lengths(lengths),
        "boundaries": loads.from_cu_seqlens(ends),
        "boundaries of Megatron": loads.from_cu_seqlens(SimpleNamespace(cu_seqlens_q=ends)),
        "positions": loads.from_position_ids(np.concatenate([np.arange(length) for length in lengths])),
        "positions in rows": loads.from_position_ids([[*range(length)] for length in lengths]),
        "mask": loads.from_attention_mask(np.array(mask_of(lengths)))[:2],
    }


@given(LENGTHS)
def test_all_forms_of_the_same_sequences_are_the_same_load(lengths: list[int]) -> None:
    expected = float(sum(lengths)), float(sum(length**2 for length in lengths))
    assert packed(lengths) == dict.fromkeys(packed(lengths), expected)


@given(LENGTHS)
def test_what_a_mask_drops_is_told_too_since_a_model_computes_it(lengths: list[int]) -> None:
    mask = mask_of(lengths)
    assert loads.from_attention_mask(mask)[2:] == loads.tokens(mask)


def test_rows_of_token_ids_are_sequences_of_full_length() -> None:
    for rows in (np.zeros((2, 8)), {"input_ids": np.zeros((2, 8))}, [[0] * 8] * 2):
        assert loads.tokens(rows) == (16, 128)
    assert loads.tokens([0] * 8) == (8, 64)


def test_a_tensor_on_a_gpu_is_refused_since_reading_it_would_wait() -> None:
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"), tolist=lambda: pytest.fail("it was read"))
    with pytest.raises(ConfigError, match="waits for the device"):
        loads.from_cu_seqlens(tensor)


POSITIONS = np.array([[0, 1, 0, 1, 2, 0]])
NUMBERS = np.array([[1, 1, 2, 2, 2, 3, 0, 0]])
DENSE = np.ones((1, 1, 6, 6))


@pytest.mark.parametrize(
    ("batch", "load"),
    [
        ({"position_ids": np.stack([POSITIONS] * 3), "input_ids": POSITIONS}, (6, 14)),
        ({"position_ids": np.stack([POSITIONS] * 4)}, (6, 14)),
        ({"position_ids": np.array([POSITIONS[0]] * 3), "input_ids": POSITIONS[0]}, (6, 14)),
        ({"position_ids": POSITIONS, "input_ids": np.zeros((2, 6))}, (12, 28)),
        (
            {"position_ids": [[1, 1, 0, 1, 2], [0, 1, 2, 3, 4]], "attention_mask": [[0, 0, 1, 1, 1], [1] * 5]},
            (8, 34, 10, 50),
        ),
        ({"position_ids": POSITIONS, "attention_mask": DENSE}, (6, 14)),
        ({"attention_mask": NUMBERS}, (6, 14, 8, 64)),
        ({"attention_mask": [[True, True, False], [False, True, True]]}, (4, 8, 6, 18)),
        ({"attention_mask": np.array([[0, 0, -np.inf], [0, -1e4, -1e4]])}, (3, 5, 6, 18)),
        ({"cu_seqlens": np.array([[0, 2, 5, 6, -1], [0, 6, -1, -1, -1]])}, (12, 50)),
        ({"cu_seq_lens_q": [0, 2, 5, 6, -1]}, (6, 14)),
        ({"seq_lens": [np.array([2, 3]), np.array([1])]}, (6, 14)),
        ({"input_ids": [np.zeros(2), np.zeros(3), np.zeros(1)]}, (6, 14)),
        (SimpleNamespace(cu_seqlens_q=[0, 2, 5, 6]), (6, 14)),
    ],
)
def test_what_can_be_understood_in_one_way_is_read(batch: Any, load: tuple[float, ...]) -> None:
    assert loads.from_batch(batch) == load


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"position_ids": np.stack([POSITIONS] * 2)}, r"position_ids of shape \(2, 1, 6\)"),
        ({"position_ids": [[0, 1, 2, 1, 2]]}, "position_ids of type list.*not 0"),
        ({"position_ids": POSITIONS, "input_ids": np.zeros((1, 8))}, r"position_ids of shape \(1, 6\)"),
        ({"position_ids": POSITIONS[0], "input_ids": np.zeros(8)}, r"position_ids of shape \(6,\)"),
        ({"attention_mask": DENSE}, r"attention_mask of shape \(1, 1, 6, 6\)"),
        ({"attention_mask": {"full_attention": NUMBERS}}, "attention_mask of type dict"),
        ({"attention_mask": np.zeros((1, 6))}, "attention_mask"),  # of a mask that is added it may be all or nothing
        ({"attention_mask": [[0.5, 1.0]]}, "attention_mask"),
        ({"attention_mask": [[0.0, -1.0]]}, "attention_mask"),
        ({"attention_mask": [[1, 2, 1]]}, "attention_mask"),
        ({"cu_seqlens": [2, 5, 6]}, "cu_seqlens of type list.* 0 must be the first"),
        ({"cu_seqlens": [0, 5, 3]}, "must not fall"),
        ({"cu_seqlens": []}, "cu_seqlens"),
        ({"cu_seqlens": 6}, "cu_seqlens of type int"),
        ({"seq_lens": [2, -3]}, "-3 tokens"),
        ({"seq_lens": [float("nan")]}, "seq_lens"),
        ({"seq_lens": "23"}, "seq_lens of type str"),
        ({"input_ids": np.zeros((2, 2, 2))}, r"input_ids of shape \(2, 2, 2\)"),
        ({"input_ids": ["hello"]}, "input_ids of type list.*it is text"),
        ({"x": 1}, "a batch with x shows no load"),
        ({}, "a batch with nothing"),
        ([{"input_ids": [1, 2]}], "a batch of type list"),
        (None, "a batch of type NoneType"),
    ],
)
def test_all_else_is_refused_by_name(batch: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        loads.from_batch(batch)


@pytest.mark.parametrize("read", [loads.from_cu_seqlens, loads.from_lengths, loads.from_position_ids, loads.tokens])
@pytest.mark.parametrize("value", [None, [10**400], ["a"], [[[1]]], object()])
def test_a_reader_has_no_errors_but_its_own(read: Any, value: Any) -> None:
    try:
        load = read(value)
    except ConfigError:
        return
    assert all(isinstance(number, float) for number in load)


def test_tensors_of_types_that_numpy_does_not_know_are_read() -> None:
    torch = pytest.importorskip("torch")
    added = torch.tensor([[0, 0, torch.finfo(torch.bfloat16).min]], dtype=torch.bfloat16, requires_grad=True)
    assert loads.from_attention_mask(added) == (2, 4, 3, 9)
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3), torch.ones(1)], layout=torch.jagged)
    assert loads.from_batch({"input_ids": jagged}) == (6, 14)
