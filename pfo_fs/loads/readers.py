"""Loads of micro-batches from what training code has: lengths, boundaries, positions, masks.

Each reader returns (tokens, sum of squared lengths): the work of a transformer is linear in both, the first for its
matrix products, the second for its attention. Arrays may be lists, NumPy arrays or tensors on the CPU; those of a GPU
are refused, since reading one would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from pfo_fs.errors import ConfigError

Load = tuple[float, ...]
"""The features of one micro-batch."""


def tokens(batch: Any) -> Load:
    """Returns the load of a batch in which every row is one sequence of full length.

    Args:
        batch: Token ids of shape (rows, length), or (length,); or a mapping that holds them as `input_ids`.

    Raises:
        ConfigError: It has no such shape.
    """
    ids = batch["input_ids"] if hasattr(batch, "keys") and "input_ids" in batch else batch
    shape = tuple(getattr(ids, "shape", ()))
    if not shape and isinstance(ids, (list, tuple)):
        shape = (len(ids), len(ids[0])) if ids and isinstance(ids[0], (list, tuple)) else (len(ids),)
    if len(shape) not in (1, 2):
        raise ConfigError(f"token ids have shape {shape}; give (rows, length) or (length,)")
    rows, length = (1, shape[0]) if len(shape) == 1 else shape
    return from_lengths([length] * rows)


def from_batch(batch: Any) -> Load:
    """Returns the load of a batch as collators make it: what tells most of its sequences counts.

    In this order: `cu_seqlens` (also `cu_seq_lens_q`, `cu_seqlens_q`), `seq_lens` or `seq_lengths`, `position_ids`,
    `attention_mask`, and `input_ids`, whose rows are all full then. Transformers' and TRL's packing collators give one
    of the first four.

    Args:
        batch: A mapping.

    Raises:
        ConfigError: It holds none of these.
    """
    readers = {
        **dict.fromkeys(("cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q"), from_cu_seqlens),
        **dict.fromkeys(("seq_lens", "seq_lengths"), _from_nested_lengths),
        "position_ids": from_position_ids,
        "attention_mask": from_attention_mask,
        "input_ids": tokens,
    }
    for key, read in readers.items():
        if batch.get(key) is not None:
            return read(batch[key])
    raise ConfigError(
        f"a batch with {', '.join(map(str, batch)) or 'nothing'} shows no load; give loads= a reader for it"
    )


def _from_nested_lengths(lengths: Any) -> Load:
    return from_lengths(length for row in _rows(lengths) for length in row)


def from_lengths(lengths: Iterable[float]) -> Load:
    """Returns the load of sequences of these lengths, in tokens.

    Raises:
        ConfigError: A length is negative.
    """
    found = [float(length) for length in _numbers(lengths)]
    if any(length < 0 for length in found):
        raise ConfigError(f"a sequence has {min(found):g} tokens; a length cannot be negative")
    return sum(found), sum(length * length for length in found)


def from_cu_seqlens(cu_seqlens: Any) -> Load:
    """Returns the load of packed sequences, given where they begin and end.

    Args:
        cu_seqlens: Rising token positions, 0 first, the number of tokens last, as flash attention takes them; or an
            object that holds them as `cu_seqlens_q`, such as Megatron's packed_seq_params.

    Raises:
        ConfigError: They do not rise.
    """
    ends = [float(end) for end in _numbers(getattr(cu_seqlens, "cu_seqlens_q", cu_seqlens))]
    return from_lengths(after - before for before, after in pairwise(ends))


def from_position_ids(position_ids: Any) -> Load:
    """Returns the load of packed sequences, given the position of each token in its sequence.

    Args:
        position_ids: Shape (length,) or (rows, length); a sequence begins where a position is 0.
    """
    import numpy as np

    lengths: list[float] = []
    for positions in _arrays(position_ids):
        begins = positions == 0
        begins[:, 0] = True
        # A row's end is the begin of the next one, and the last row's that of what would follow.
        lengths += np.diff(np.append(np.flatnonzero(begins.ravel()), positions.size)).tolist()
    return from_lengths(lengths)


def from_attention_mask(attention_mask: Any) -> Load:
    """Returns the load of padded sequences: the tokens that the mask keeps.

    Args:
        attention_mask: Shape (rows, length), 1 or True for a token, 0 for padding.
    """
    return from_lengths(kept for mask in _arrays(attention_mask) for kept in mask.astype(bool).sum(axis=1).tolist())


def _arrays(values: Any) -> list[Any]:
    """Rows of numbers as arrays of two dimensions: one, or one for each row where rows are lists of unequal lengths."""
    import numpy as np

    _check_on_cpu(values)
    try:
        found = [np.atleast_2d(np.asarray(values))]
    except ValueError:
        found = [np.atleast_2d(np.asarray(row)) for row in values]
    return [each for each in found if each.size]


def _rows(values: Any) -> list[list[float]]:
    numbers = _numbers(values)
    return numbers if numbers and isinstance(numbers[0], list) else [numbers]


def _numbers(values: Any) -> list[Any]:
    """A list of what an array, a tensor or an iterable holds."""
    _check_on_cpu(values)
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    return found if isinstance(found, list) else [found]


def _check_on_cpu(values: Any) -> None:
    device = getattr(values, "device", None)
    if getattr(device, "type", "cpu") not in ("cpu", None):
        raise ConfigError(f"the tensor is on {device}: reading it waits for the device; take loads from the loader")
