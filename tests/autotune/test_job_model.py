"""The DAG of a job, from the order of instructions that its ranks report."""

from __future__ import annotations

import pytest

from pfo_fs.autotune.job_model import pipeline_of
from pfo_fs.planner import make_pipeline


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "early-recomputation"])
def test_the_dag_of_a_known_schedule_follows_from_the_orders_of_its_ranks(schedule: str) -> None:
    pipeline = make_pipeline(schedule, 8, 12, num_ranks=4 if schedule in ("interleaved", "zb-v") else None)
    found = pipeline_of([[(i.name, i.stage) for i in order] for order in pipeline.orders])
    assert found.orders == pipeline.orders
    assert set(found.dependencies) == set(pipeline.dependencies)


def test_weight_gradients_belong_to_the_backwards_that_were_split() -> None:
    names = ["forward", "forward", "backward", "backward_input", "backward_weight"]
    (order,) = pipeline_of([[(name, 0) for name in names]]).orders
    assert order[-1].microbatch == 1
