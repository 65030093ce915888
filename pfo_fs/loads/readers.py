"""Loads of micro-batches from what training code has: lengths, boundaries, positions, masks.

Each reader returns (tokens, sum of squared lengths): the work of a transformer is linear in both, the first for its
matrix products, the second for its attention. If there is a mask, two more numbers follow: tokens and squared lengths
of whole rows with padding, because a model that computes padding needs time for it. Arrays may be lists, NumPy arrays
or tensors on the CPU; those of a GPU are refused, since reading one would wait for it.

A reader takes only values that have one meaning; for others it raises a `ConfigError` that names value and shape.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from pfo_fs.arrays import Array, np
from pfo_fs.errors import ConfigError

Load = tuple[float, ...]
"""The features of one micro-batch."""
Values = Iterable[object]
"""Numbers, or rows of them: lists, arrays or tensors."""
_NO_WEIGHT = -100.0
"""Masks that are added to scores hold at most this for dropped tokens: exp of it is 4e-44."""
_AXES = (3, 4)
"""Models with images have positions of three axes (time, height, width), or four (position in the text, then these)."""


def tokens(batch: object) -> Load:
    """Returns the load of a batch in which every row is one sequence of full length.

    Args:
        batch: Token ids of shape (rows, length), or (length,), or a list of sequences; or a mapping that holds them as
            `input_ids`.

    Raises:
        ConfigError: It has no such shape.
    """
    ids = _held(batch, "input_ids") if hasattr(batch, "keys") else None
    return _read("token ids", batch if ids is None else ids, _of_tokens)


def from_batch(batch: object) -> Load:
    """Returns the load of a batch as collators make it, from the first of these keys that it has, the best first:

    `cu_seqlens` (also `cu_seq_lens_q`, `cu_seqlens_q`), `seq_lens` or `seq_lengths`, `position_ids` (of the tokens that
    an `attention_mask` of their shape keeps), `attention_mask`, and `input_ids`, whose rows all count as full then.
    Transformers' and TRL's packing collators give one of those before `attention_mask`.

    Args:
        batch: A mapping, or an object with these attributes.

    Raises:
        ConfigError: It holds none of these, or no load can be read from it.
    """
    mask, ids = _held(batch, "attention_mask"), _held(batch, "input_ids")
    readers: dict[str, Callable[[Values], Load]] = {
        **dict.fromkeys(("cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q"), _of_boundaries),
        **dict.fromkeys(("seq_lens", "seq_lengths"), _of_lengths),
        "position_ids": lambda positions: _of_positions(positions, mask, ids),
        "attention_mask": _of_mask,
        "input_ids": _of_tokens,
    }
    for key, read in readers.items():
        if (value := _held(batch, key)) is not None:
            return _read(key, value, read)
    holds = f"of type {type(batch).__name__}"
    if hasattr(batch, "keys") and isinstance(batch, Iterable):
        holds = f"with {', '.join(map(str, batch)) or 'nothing'}"
    raise ConfigError(f"a batch {holds} shows no load; give a function that reads one as loads=")


def from_lengths(lengths: Values) -> Load:
    """Returns the load of sequences of these lengths, in tokens; rows of lengths are joined.

    Raises:
        ConfigError: A length is negative, infinite or not a number.
    """
    return _read("lengths", lengths, _of_lengths)


def from_cu_seqlens(cu_seqlens: object) -> Load:
    """Returns the load of packed sequences, given where they begin and end.

    Args:
        cu_seqlens: Rising token positions, 0 first, the number of tokens last, as flash attention takes them, or these
            for each row; -1 may follow. Or an object that holds them as `cu_seqlens_q`, such as Megatron's
            packed_seq_params.

    Raises:
        ConfigError: They do not begin with 0, or fall.
    """
    return _read("cu_seqlens", getattr(cu_seqlens, "cu_seqlens_q", cu_seqlens), _of_boundaries)


def from_position_ids(position_ids: Values) -> Load:
    """Returns the load of packed sequences, given the position of each token in its sequence.

    Args:
        position_ids: Shape (length,) or (rows, length), or (axes, rows, length) with the 3 or 4 axes of models that see
            pictures; a sequence begins where a position is 0, on all axes.

    Raises:
        ConfigError: They have another shape, or a sequence begins at a number that is not 0.
    """
    return _read("position_ids", position_ids, _of_positions)


def from_attention_mask(attention_mask: Values) -> Load:
    """Returns the load of padded sequences: that of the tokens which the mask keeps, and that of the whole rows.

    Args:
        attention_mask: Shape (rows, length): 1 or True for a token and 0 for padding; or the number of each token's
            document, from 1, and 0 for padding; or what is added to scores, 0 for a token and at most -100 for padding.

    Raises:
        ConfigError: It has another shape, or other values.
    """
    return _read("attention_mask", attention_mask, _of_mask)


def _held(batch: object, key: str) -> object:
    """What a batch holds under a name, as a mapping or as an attribute; None: nothing."""
    return batch.get(key) if hasattr(batch, "keys") and hasattr(batch, "get") else getattr(batch, key, None)


def _read(name: str, value: object, read: Callable[..., Load]) -> Load:
    """Returns what is read from a value; an error of any kind names it and its shape."""
    try:
        return read(value)
    except Exception as error:
        shape = getattr(value, "shape", None)
        what = f"of type {type(value).__name__}" if shape is None else f"of shape {tuple(shape)}"
        raise ConfigError(f"{name} {what} cannot be read as a load: {error}") from error


def _load(lengths: Sequence[float]) -> Load:
    if bad := [length for length in lengths if not 0 <= length < math.inf]:
        raise ConfigError(f"a sequence has {bad[0]:g} tokens")
    return math.fsum(lengths), math.fsum(length * length for length in lengths)


def _of_lengths(lengths: Values) -> Load:
    return _load([length for row in _rows(lengths) for length in row.tolist()])


def _of_boundaries(cu_seqlens: Values) -> Load:
    lengths: list[float] = []
    for row in _rows(cu_seqlens):
        ends = row[: len(row) - int((row[::-1] != -1).argmax())]  # without the -1 at its end
        steps = np.diff(ends)
        if ends[0] != 0 or (steps < 0).any():
            raise ConfigError("its numbers must not fall, and 0 must be the first")
        lengths += steps.tolist()
    return _load(lengths)


def _of_positions(position_ids: Values, mask: object = None, ids: object = None) -> Load:
    shape, given = (tuple(getattr(values, "shape", ())) for values in (ids, position_ids))
    is_plain = len(given) != 3 and not (len(given) == 2 and len(shape) == 1 and given[0] in _AXES)
    if is_plain:
        rows = _rows(position_ids)
    elif given[0] in _AXES:
        rows = _rows((_array(position_ids) != 0).any(axis=0))
    else:
        raise ConfigError(f"the first of three axes must be {' or '.join(map(str, _AXES))} long")
    if len(shape) in (1, 2):  # one row may be given for all
        count, length = shape if len(shape) == 2 else (1, *shape)
        rows = [np.broadcast_to(row, length) for row in (rows * count if len(rows) == 1 else rows)]
    kept: list[Array] = [np.ones(len(row), bool) for row in rows]
    is_masked = isinstance(mask, (list, tuple)) or len(getattr(mask, "shape", ())) in (1, 2)
    if is_masked:
        kept = [document != 0 for document in _documents(mask)]
    documents = []
    for row, keeps in zip(rows, kept, strict=True):
        seen = row[keeps]
        if is_plain and (~(seen[1:] > seen[:-1]) & (seen[1:] != 0)).any():
            raise ConfigError("a position is no higher than the one before, but not 0")
        documents.append((1 + np.cumsum(row == 0)) * keeps)
    return _of_documents(documents) + (_of_rows(documents) if is_masked else ())


def _of_mask(mask: Values) -> Load:
    documents = _documents(mask)
    return _of_documents(documents) + _of_rows(documents)


def _of_tokens(ids: Values) -> Load:
    if getattr(ids, "is_nested", False):
        _check_on_cpu(ids)
    elif hasattr(ids, "shape"):
        ids = np.broadcast_to(0, ids.shape)  # no token is read, so it may be on a GPU
    return _load([len(row) for row in _split(ids)])


def _documents(mask: object) -> list[Array]:
    """The number of the document of each token, by row, 0 where the mask drops it."""
    rows = _rows(mask)
    values = np.concatenate(rows)
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if low < 0:
        if not ((values == 0) | (values <= _NO_WEIGHT)).all():
            raise ConfigError(
                f"a mask that is added must hold 0 and numbers up to {_NO_WEIGHT:g}, not {low:g} to {high:g}"
            )
        return [(row == 0).astype(int) for row in rows]
    if not (np.isfinite(values) & (values == np.floor(values))).all() or (values.dtype.kind == "f" and not high):
        raise ConfigError(f"its numbers, {low:g} to {high:g}, do not tell which tokens it keeps")
    return rows


def _of_documents(rows: Sequence[Array]) -> Load:
    lengths: list[float] = []
    for row in rows:
        steps = np.diff(row[row != 0].astype(int))
        if (steps < 0).any():
            raise ConfigError("document numbers decrease within a row")
        lengths += np.diff([0, *np.flatnonzero(steps) + 1, len(steps) + 1]).tolist() if row.any() else []
    return _load(lengths)


def _of_rows(rows: Sequence[Array]) -> Load:
    """The load of whole rows, padding included."""
    return _load([max(map(len, rows))] * len(rows))


def _rows(values: object) -> list[Array]:
    """Numbers, in one or two axes, by row."""
    _check_on_cpu(values)
    is_array = hasattr(values, "shape") and not getattr(values, "is_nested", False)
    return [_array(row) for row in _split(np.atleast_2d(_array(values)) if is_array else values)]


def _split(values: Array) -> list[Array]:
    """Splits into rows, which may have unequal lengths; a flat list of numbers is one row."""
    rows = list(values)
    if isinstance(values, str | bytes) or any(isinstance(row, str | bytes) for row in rows):
        raise ConfigError("it is text; give numbers, such as the token ids that a tokenizer makes of it")
    axes = {np.ndim(row) for row in rows}
    if not (axes <= {0} or axes == {1}):
        raise ConfigError("give (rows, length)")
    return rows if axes == {1} else [rows]


def _array(values: object) -> Array:
    _check_on_cpu(values)
    if hasattr(values, "is_floating_point") and hasattr(values, "detach") and values.is_floating_point():
        values = values.detach().float()  # numpy has no bfloat16
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "biuf":
        raise ConfigError("it holds no numbers")
    return numbers


def _check_on_cpu(values: object) -> None:
    device = getattr(values, "device", None)
    if getattr(device, "type", "cpu") not in ("cpu", None):
        raise ConfigError(f"the tensor is on {device}: reading it waits for the device; take loads from the loader")
