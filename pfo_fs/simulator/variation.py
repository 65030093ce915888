"""How the durations of a simulated job vary from iteration to iteration, as those of real jobs do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Variation(Protocol):
    """Factors by which instructions take longer than the truth says, in each iteration.

    They depend on the iteration and the seed only, so that a run can be repeated, and its iterations judged in any
    order.
    """

    def factors(self, iteration: int, seed: int) -> Any:
        """Factors of an iteration: (nodes, pipelines), nodes as in `pipeline.instructions`."""

    def judged(self, iterations: int, seed: int) -> Sequence[Any]:
        """Factors of all iterations by which a plan in force after so many iterations is judged."""
