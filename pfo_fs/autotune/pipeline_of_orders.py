"""The DAG of a job's instructions, from the order in which its ranks run them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from pfo_fs.planner import Pipeline, pipeline_from_orders

_COUNTED_AS = {
    "backward": ("gradient",),
    "backward_input": ("gradient",),
    "forward_backward": ("gradient", "recomputation"),
}
"""Instructions of a stage that are counted together, since a micro-batch has one of them."""


def pipeline_of(orders: Sequence[Sequence[tuple[str, int]]]) -> Pipeline:
    """Returns the DAG of what the ranks run: the n-th forward of a stage is that of micro-batch n.

    So is the n-th gradient, whether it is a `backward`, a `backward_input`, or a `forward_backward`, which computes its
    forward again. The n-th `backward_weight` belongs to the n-th `backward_input`.

    Args:
        orders: For each rank of a pipeline, its (instruction, stage) in order.

    Raises:
        PlanError: The instructions cannot run in these orders.
    """
    numbered = []
    for order in orders:
        seen: Counter[tuple[str, int]] = Counter()
        split: dict[int, list[int]] = defaultdict(list)
        row = []
        for name, stage in order:
            counted = _COUNTED_AS.get(name, (name,))
            microbatch = seen[counted[0], stage]
            if name == "backward_input":
                split[stage].append(microbatch)
            elif name == "backward_weight" and microbatch < len(split[stage]):
                microbatch = split[stage][microbatch]
            row.append((stage, name, microbatch))
            seen.update((each, stage) for each in counted)
        numbered.append(row)
    return pipeline_from_orders(numbered, name="as it runs")
