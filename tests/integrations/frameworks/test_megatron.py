"""Megatron-Core's real schedules on CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("megatron.core", reason="needs Megatron-Core; .ci/frameworks installs it")


KINDS: dict[str, dict[str, Any]] = {
    "1F1B on four ranks, its forward_step followed": {"pp": 4, "hook": "forward_step"},
    "1F1B with two replicas, activation checkpointing": {"pp": 2, "checkpointing": True},
    "interleaved with two replicas": {"pp": 2, "chunks": 2},
    "interleaved with two replicas, its forward_step followed": {"pp": 2, "chunks": 2, "hook": "forward_step"},
}
REFUSED: dict[str, dict[str, Any]] = {
    "power-limit optimizer": {},  # one stage
    "CUDA graph of the full iteration": {"config": {"cuda_graph_impl": "full_iteration"}},
    "overlap_moe_expert_parallel_comm": {"config": {"overlap_moe_expert_parallel_comm": True}},
    "pass num_microbatches=": {"num_microbatches": None},
}


@pytest.fixture(scope="module")
def all_facts(run_ranks: Callable[..., Any]) -> Any:
    """What each of four ranks told of all cases."""
    return run_ranks("megatron_program", 4, cases={**KINDS, "refused": {"pp": 1, "refused": list(REFUSED.values())}})


@pytest.fixture(params=KINDS)
def facts(request: pytest.FixtureRequest, all_facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each rank saw in a step, an evaluation, two steps, and a step that fails."""
    return [seen[request.param] for seen in all_facts]


def test_every_instruction_comes_in_the_order_that_was_known_beforehand(facts: list[dict[str, Any]]) -> None:
    for seen in facts:
        own = [[name, stage] for name, stage, _ in seen["orders"][seen["pp"][0]]]
        assert seen["steps"] == [own, own, own]
        assert not seen["errors"]


def test_every_rank_knows_the_same_orders_of_all(facts: list[dict[str, Any]]) -> None:
    assert all(seen["orders"] == facts[0]["orders"] for seen in facts)


def test_weights_after_three_steps_are_those_of_a_run_without_pfo(facts: list[dict[str, Any]]) -> None:
    assert all(seen["same_weights"] for seen in facts)


def test_an_evaluation_between_two_steps_is_silent(facts: list[dict[str, Any]]) -> None:
    assert all(seen["evaluation_silent"] for seen in facts)


def test_an_error_in_a_step_ends_the_step(facts: list[dict[str, Any]]) -> None:
    assert {seen["left_in_step_by_an_error"] for seen in facts if seen["pp"][0] == 0} == {False}


def test_the_programs_own_timers_run_and_are_back_after_close(facts: list[dict[str, Any]]) -> None:
    for seen in facts:
        assert seen["timers_are_the_programs_own"]
        assert {"backward-compute", "forward-backward", "forward-compute"} <= set(seen["inner_timers"])


def test_what_cannot_be_followed_is_refused(all_facts: list[dict[str, Any]]) -> None:
    for seen in all_facts:
        assert all(text in refusal for text, refusal in zip(REFUSED, seen["refused"]["refused"], strict=True))
