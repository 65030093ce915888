"""torch.distributed.pipelining: its real schedules on real processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

KINDS: dict[str, dict[str, Any]] = {
    "GPipe": {"pp": 2, "schedule": "ScheduleGPipe", "fails": True},
    "1F1B on four ranks": {"pp": 4, "schedule": "Schedule1F1B", "microbatches": 4, "accumulate": 2},
    "1F1B with two replicas in DDP": {"pp": 2, "schedule": "Schedule1F1B", "ddp": True, "world": 4},
    "1F1B with activation checkpointing": {"pp": 2, "schedule": "Schedule1F1B", "checkpointing": True},
    "1F1B with compiled stages": {"pp": 2, "schedule": "Schedule1F1B", "compile": True},
    "interleaved 1F1B": {"pp": 2, "schedule": "ScheduleInterleaved1F1B", "layout": "interleaved"},
    "looped BFS": {"pp": 2, "schedule": "ScheduleLoopedBFS", "layout": "interleaved"},
    "interleaved zero bubble": {"pp": 2, "schedule": "ScheduleInterleavedZeroBubble", "layout": "interleaved"},
    "ZB-V": {"pp": 2, "schedule": "ScheduleZBVZeroBubble", "layout": "v"},
    "DualPipeV": {"pp": 2, "schedule": "ScheduleDualPipeV", "layout": "v"},
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def facts(request: pytest.FixtureRequest, run_ranks: Callable[..., Any]) -> list[dict[str, Any]]:
    """What each rank saw in two optimizer steps, and the weights of a run without pfo-fs."""
    wanted = dict(request.param)
    world = wanted.pop("world", wanted["pp"])
    followed = run_ranks("torch_program", world, **wanted)
    bare = run_ranks("torch_program", world, bare=True, **wanted)
    runs = 2 * wanted.get("accumulate", 1)
    return [
        {**seen, "bare": other["weights"], "runs": runs, "world": world}
        for seen, other in zip(followed, bare, strict=True)
    ]


def test_every_instruction_comes_in_the_order_that_was_known_beforehand(facts: list[dict[str, Any]]) -> None:
    for seen in facts:
        own = [list(each) for each in seen["orders"][seen["pp_rank"]]]
        assert seen["steps"] == [own] * seen["runs"]
        assert not seen["errors"]


def test_weights_are_those_of_a_run_without_pfo(facts: list[dict[str, Any]]) -> None:
    assert [seen["weights"] for seen in facts] == [seen["bare"] for seen in facts]


def test_evaluation_is_silent_and_close_leaves_nothing_patched(facts: list[dict[str, Any]]) -> None:
    assert all(seen["silent"] for seen in facts)
    assert all(seen["left_patched"] == [] for seen in facts)


def test_an_error_in_a_step_ends_the_step(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["left_in_step_by_an_error"] in (False, None)


def test_each_pipeline_is_a_replica(facts: list[dict[str, Any]]) -> None:
    pp = len(facts[0]["orders"])
    assert [seen["dims"] for seen in facts] == [[rank // pp, len(facts) // pp] for rank in range(len(facts))]


def test_a_custom_function_that_overlaps_forward_and_backward_is_refused(run_ranks: Callable[..., Any]) -> None:
    seen = run_ranks("torch_program", 2, pp=2, schedule="ScheduleDualPipeV", layout="v", overlap=True)
    assert all("custom function" in each["refused"] for each in seen)
    assert all(each["left_patched"] == [] for each in seen)


def test_a_pipeline_of_one_stage_is_refused(run_ranks: Callable[..., Any]) -> None:
    (seen,) = run_ranks("torch_program", 1, pp=1, schedule="ScheduleGPipe")
    assert "power-limit optimizer" in seen["refused"]
