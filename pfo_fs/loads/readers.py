"""Loads of micro-batches from what training code has: lengths, boundaries, positions, masks.

Each reader returns (tokens, sum of squared lengths): the work of a transformer is linear in both, the first for its
matrix products, the second for its attention. With a mask, the same of the whole rows follows, since a model that
computes padding takes time for it. Arrays may be lists, NumPy arrays or tensors on the CPU; those of a GPU are refused,
since reading one would wait for it.

What can be understood in one way only is read; all else is a `ConfigError` that names the value and its shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from pfo_fs.arrays import Array, np
from pfo_fs.errors import ConfigError

Load = tuple[float, ...]
"""The features of one micro-batch."""
_NO_WEIGHT = -100.0
"""A mask that is added to scores drops what it makes lower by this: e to this power is no normal 32-bit number."""
_AXES = (3, 4)
"""The numbers of a position where pictures are seen: time, height and width; some models put that in the text first."""


def tokens(batch: Any) -> Load:
    """Returns the load of a batch in which every row is one sequence of full length.

    Args:
        batch: Token ids of shape (rows, length), or (length,), or a list of sequences; or a mapping that holds them as
            `input_ids`.

    Raises:
        ConfigError: It has no such shape.
    """
    ids = batch["input_ids"] if hasattr(batch, "keys") and "input_ids" in batch else batch
    return _read("token ids", ids, _of_tokens)


def from_batch(batch: Any) -> Load:
    """Returns the load of a batch as collators make it: what tells most of its sequences counts.

    In this order: `cu_seqlens` (also `cu_seq_lens_q`, `cu_seqlens_q`), `seq_lens` or `seq_lengths`, `position_ids`
    (of the tokens that an `attention_mask` of their shape keeps), `attention_mask`, and `input_ids`, whose rows are all
    full then. Transformers' and TRL's packing collators give one of the first four.

    Args:
        batch: A mapping, or an object with these attributes.

    Raises:
        ConfigError: It holds none of these, or no load can be read from it.
    """
    is_mapping = hasattr(batch, "keys")
    get: Callable[[str], Any] = batch.get if is_mapping else lambda key: getattr(batch, key, None)
    readers: dict[str, Callable[[Any], Load]] = {
        **dict.fromkeys(("cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q"), _of_boundaries),
        **dict.fromkeys(("seq_lens", "seq_lengths"), _of_lengths),
        "position_ids": lambda positions: _of_positions(positions, get("attention_mask"), get("input_ids")),
        "attention_mask": _of_mask,
        "input_ids": _of_tokens,
    }
    for key, read in readers.items():
        if (value := get(key)) is not None:
            return _read(key, value, read)
    holds = f"with {', '.join(map(str, batch)) or 'nothing'}" if is_mapping else f"of type {type(batch).__name__}"
    raise ConfigError(f"a batch {holds} shows no load; give loads= a reader for it")


def from_lengths(lengths: Iterable[Any]) -> Load:
    """Returns the load of sequences of these lengths, in tokens; rows of lengths are joined.

    Raises:
        ConfigError: A length is negative.
    """
    return _read("lengths", lengths, _of_lengths)


def from_cu_seqlens(cu_seqlens: Any) -> Load:
    """Returns the load of packed sequences, given where they begin and end.

    Args:
        cu_seqlens: Rising token positions, 0 first, the number of tokens last, as flash attention takes them, or these
            for each row; -1 may follow. Or an object that holds them as `cu_seqlens_q`, such as Megatron's
            packed_seq_params.

    Raises:
        ConfigError: They do not begin with 0, or do not rise.
    """
    return _read("cu_seqlens", getattr(cu_seqlens, "cu_seqlens_q", cu_seqlens), _of_boundaries)


def from_position_ids(position_ids: Any) -> Load:
    """Returns the load of packed sequences, given the position of each token in its sequence.

    Args:
        position_ids: Shape (length,) or (rows, length), or (axes, rows, length) with the 3 or 4 axes of models that see
            pictures; a sequence begins where a position is 0, on all axes.

    Raises:
        ConfigError: They have another shape, or begin again at something other than 0.
    """
    return _read("position_ids", position_ids, _of_positions)


def from_attention_mask(attention_mask: Any) -> Load:
    """Returns the load of padded sequences: that of the tokens which the mask keeps, and that of the whole rows.

    Args:
        attention_mask: Shape (rows, length): 1 or True for a token and 0 for padding; or the number of each token's
            document, from 1, and 0 for padding; or what is added to scores, 0 for a token and at most -100 for padding.

    Raises:
        ConfigError: It has another shape, or other values.
    """
    return _read("attention_mask", attention_mask, _of_mask)


def _read(name: str, value: Any, read: Callable[[Any], Load]) -> Load:
    """Returns what is read from a value; an error of any kind names it and its shape."""
    try:
        return read(value)
    except Exception as error:
        shape = getattr(value, "shape", None)
        what = f"of type {type(value).__name__}" if shape is None else f"of shape {tuple(shape)}"
        raise ConfigError(f"{name} {what} cannot be read as a load: {error}") from error


def _load(lengths: Sequence[float]) -> Load:
    if any(not 0 <= length < math.inf for length in lengths):
        raise ConfigError(f"a sequence has {min(lengths):g} tokens")
    return math.fsum(lengths), math.fsum(length * length for length in lengths)


def _of_lengths(lengths: Any) -> Load:
    return _load(list(_numbers(lengths)))


def _of_boundaries(cu_seqlens: Any) -> Load:
    _check_on_cpu(cu_seqlens)
    rows = list(cu_seqlens)
    lengths: list[float] = []
    for row in rows if rows and _length(rows[0]) is not None else [rows]:
        ends = list(_numbers(row))
        while ends and ends[-1] == -1:
            ends.pop()
        steps = [after - before for before, after in pairwise(ends)]
        if ends[:1] != [0] or any(step < 0 for step in steps):
            raise ConfigError("its numbers must rise, and 0 must be the first")
        lengths += steps
    return _load(lengths)


def _of_positions(position_ids: Any, mask: Any = None, ids: Any = None) -> Load:
    positions, kept = _table(position_ids)
    of_ids = tuple(getattr(ids, "shape", ()))
    if positions.ndim == 3 or (positions.ndim == 2 and len(of_ids) == 1 and len(positions) in _AXES):
        if len(positions) not in _AXES:
            raise ConfigError(f"the first of three axes must be {' or '.join(map(str, _AXES))} long")
        begins, kept, is_plain = np.atleast_2d((positions == 0).all(axis=0)), np.atleast_2d(kept[0]), False
    else:
        begins, is_plain = _two_axes(positions) == 0, True
    if len(of_ids) in (1, 2):  # one row may be given for all
        begins, kept = (np.broadcast_to(part, of_ids if len(of_ids) == 2 else (1, *of_ids)) for part in (begins, kept))
    is_masked = isinstance(mask, (list, tuple)) or len(getattr(mask, "shape", ())) in (1, 2)
    if is_masked:
        kept = kept & (_documents(mask) != 0)
    if is_plain:
        rows, _ = np.nonzero(kept)
        found = np.broadcast_to(positions, kept.shape)[kept]
        if (~(found[1:] > found[:-1]) & (found[1:] != 0) & (rows[1:] == rows[:-1])).any():
            raise ConfigError("a position is no higher than the one before, but not 0")
    documents = (1 + np.cumsum(begins, axis=1)) * kept
    return _of_documents(documents) + (_of_rows(documents) if is_masked else ())


def _of_mask(mask: Any) -> Load:
    documents = _documents(mask)
    return _of_documents(documents) + _of_rows(documents)


def _of_tokens(ids: Any) -> Load:
    if getattr(ids, "is_nested", False):
        _check_on_cpu(ids)
        ids = list(ids.unbind())
    if not hasattr(ids, "shape"):
        lengths = [_length(row) for row in ids]
        return _load([len(lengths)] if None in lengths else [length or 0 for length in lengths])
    if len(ids.shape) not in (1, 2):
        raise ConfigError("give (rows, length) or (length,)")
    return _load([ids.shape[-1]] * math.prod(ids.shape[:-1]))


def _length(row: Any) -> int | None:
    """The length of a row; None for a number."""
    shape = getattr(row, "shape", None)
    if shape is None:
        return len(row) if hasattr(row, "__len__") else None
    if len(shape) > 1:
        raise ConfigError(f"a row has shape {tuple(shape)}")
    return int(shape[0]) if len(shape) else None


def _documents(mask: Any) -> Array:
    """The number of the document of each token, (rows, length), 0 where the mask drops it."""
    values = _two_axes(_table(mask)[0])
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if low < 0:
        if not ((values == 0) | (values <= _NO_WEIGHT)).all():
            raise ConfigError(
                f"a mask that is added must hold 0 and numbers up to {_NO_WEIGHT:g}, not {low:g} to {high:g}"
            )
        return (values == 0).astype(int)
    if not (np.isfinite(values) & (values == np.floor(values))).all() or (values.dtype.kind == "f" and not high):
        raise ConfigError(f"its numbers, {low:g} to {high:g}, do not tell what it keeps")
    return values


def _of_documents(documents: Array) -> Load:
    rows, _ = np.nonzero(documents)
    numbers = documents[documents != 0]
    is_new_row = rows[1:] != rows[:-1]
    if ((numbers[1:] < numbers[:-1]) & ~is_new_row).any():
        raise ConfigError("its numbers of documents fall in a row")
    begins: Array = np.flatnonzero(is_new_row | (numbers[1:] != numbers[:-1])) + 1
    return _load(np.diff([0, *begins, len(numbers)]).tolist())


def _of_rows(documents: Array) -> Load:
    """The load of rows as long as they are."""
    return _load([documents.shape[1]] * len(documents))


def _table(values: Any) -> tuple[Array, Array]:
    """Numbers as an array of two axes at least, and where it holds them: rows of unequal lengths are filled up."""
    try:
        found = np.atleast_2d(_array(values))
        return found, np.ones(found.shape, bool)
    except ValueError:
        rows = [_array(row) for row in values]
    lengths = np.array([len(row) for row in rows])
    is_given = np.arange(lengths.max()) < lengths[:, None]
    found = np.zeros(is_given.shape)
    found[is_given] = np.concatenate(rows)
    return found, is_given


def _array(values: Any) -> Array:
    _check_on_cpu(values)
    if hasattr(values, "is_floating_point"):
        values = values.detach().float() if values.is_floating_point() else values  # numpy has no bfloat16
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise ConfigError("it holds no numbers")
    return found


def _two_axes(values: Array) -> Array:
    if values.ndim != 2:
        raise ConfigError("give (rows, length)")
    return values


def _numbers(values: Any) -> Iterator[float]:
    """The numbers of an array, a tensor, or an iterable of them."""
    _check_on_cpu(values)
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (int, float)):
        yield float(values)
    elif isinstance(values, (str, bytes)):
        raise ConfigError(f"{values!r} is no number")
    else:
        for value in values:
            yield from _numbers(value)


def _check_on_cpu(values: Any) -> None:
    device = getattr(values, "device", None)
    if getattr(device, "type", "cpu") not in ("cpu", None):
        raise ConfigError(f"the tensor is on {device}: reading it waits for the device; take loads from the loader")
