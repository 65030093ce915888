"""How well the load of a batch (its tokens, its squared lengths) tells what a pass over it costs; without a GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

FORMULAS: dict[str, tuple[int, ...]] = {"none": (), "tokens": (0,), "squares": (1,), "tokens and squares": (0, 1)}
"""Which numbers of a load a formula uses, besides a constant."""
_RESAMPLES = 300


class Batch(NamedTuple):
    """Sequences that are packed one behind the other."""

    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Returns how long the batch is; linear layers take time in proportion to it."""
        return sum(self.lengths)

    @property
    def squares(self) -> int:
        """Returns the sum of the squared lengths; attention takes time in proportion to it."""
        return sum(length * length for length in self.lengths)


def draw_batches(count: int, seed: int = 0, fewest: int = 2048, most: int = 16384) -> list[Batch]:
    """Draws batches whose tokens and typical lengths differ independently; multiples of 8 tokens."""
    rng = random.Random(seed)
    batches = []
    for _ in range(count):
        left = rng.randrange(fewest, most + 1, 8)
        typical = 128 * 64 ** rng.random()  # 128 to 8,192
        lengths = []
        while left:
            drawn = max(16, round(typical * rng.lognormvariate(0, 0.6) / 8) * 8)
            length = left if left - drawn < 16 else drawn
            lengths.append(length)
            left -= length
        batches.append(Batch(tuple(lengths)))
    return batches


class Unexplained(NamedTuple):
    """What a formula leaves of values."""

    rms: float
    """Root of the mean square of (value - formula) / value."""
    rms_error: float
    """Its standard error: batches drawn again with replacement."""
    worst: float
    factors: list[float]
    """The constant, then the slope of each number; numbers count in 10,000 tokens and 100,000,000 squares."""


def unexplained(batches: Sequence[Batch], values: Sequence[float], columns: Sequence[int]) -> Unexplained:
    """Fits value = constant + slope * number + ... by relative least squares.

    Raises:
        ValueError: There are too few batches for the formula.
    """
    loads = np.array([[batch.tokens / 1e4, batch.squares / 1e8] for batch in batches])
    known = np.array(values, dtype=float)
    if len(known) < len(columns) + 3:
        raise ValueError(f"{len(known)} batches do not show how well {len(columns) + 1} terms fit")
    terms = np.column_stack([np.ones(len(known)), *(loads[:, i] for i in columns)])
    factors, errors = _relative_fit(terms, known)
    rng = np.random.default_rng(0)
    again = []
    for _ in range(_RESAMPLES):
        drawn = rng.integers(0, len(known), len(known))
        again.append(_rms(_relative_fit(terms[drawn], known[drawn])[1], terms.shape[1]))
    rms = _rms(errors, terms.shape[1])
    return Unexplained(rms, float(np.std(again)), float(np.max(np.abs(errors))), [float(one) for one in factors])


def _relative_fit(terms: Any, values: Any) -> tuple[Any, Any]:
    scaled = terms / values[:, None]
    factors, *_ = np.linalg.lstsq(scaled, np.ones(len(values)), rcond=None)
    return factors, scaled @ factors - 1


def _rms(errors: Any, terms: int) -> float:
    return float(np.sqrt(np.sum(errors**2) / (len(errors) - terms)))


def all_formulas(batches: Sequence[Batch], values: Sequence[float]) -> Mapping[str, Mapping[str, Any]]:
    """Returns what each formula leaves unexplained."""
    return {name: unexplained(batches, values, columns)._asdict() for name, columns in FORMULAS.items()}


def scatter(samples: Sequence[Sequence[float]]) -> float:
    """Returns how far single runs of the same batch are from its median: root mean square, as a share."""
    off = [value / float(np.median(one)) - 1 for one in samples for value in one]
    return float(np.sqrt(np.mean(np.square(off))))


def standard_error(values: Sequence[float]) -> float:
    """Returns the standard error of the median, from the middle half of the values."""
    low, high = np.percentile(values, (25, 75))
    return float(1.2533 * (high - low) / 1.349 / np.sqrt(len(values)))
