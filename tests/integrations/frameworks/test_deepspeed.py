"""DeepSpeed's real pipeline engines on CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs DeepSpeed; .ci/frameworks installs it")


KINDS: dict[str, dict[str, Any]] = {
    "1F1B with two replicas": {"pp": 2},
    "1F1B on four ranks, activation checkpointing": {"pp": 4, "checkpointing": True},
    "DualPipeV with two replicas": {"kind": "dualpipev", "pp": 2},
}


@pytest.fixture(scope="module")
def all_facts(run_ranks: Callable[..., Any]) -> Any:
    """What each of four ranks told of all cases."""
    return run_ranks("deepspeed_program", 4, cases={**KINDS, "one stage": {"pp": 1}})


@pytest.fixture(params=KINDS)
def facts(request: pytest.FixtureRequest, all_facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each rank saw in two steps, an evaluation, and a step that fails."""
    return [seen[request.param] for seen in all_facts]


def test_every_instruction_comes_in_the_order_that_was_known_beforehand(facts: list[dict[str, Any]]) -> None:
    for seen in facts:
        own = [[name, stage] for name, stage, _ in seen["orders"][seen["pp"][0]]]
        assert seen["steps"] == [own, own]
        assert seen["known_beforehand"] == own  # in the shared directory, before the first step
        assert not seen["errors"]


def test_every_rank_knows_the_same_orders_of_all(facts: list[dict[str, Any]]) -> None:
    assert all(seen["orders"] == facts[0]["orders"] for seen in facts)


def test_weights_after_two_steps_are_those_of_a_run_without_pfo(facts: list[dict[str, Any]]) -> None:
    assert all(seen["same_weights"] for seen in facts)


def test_an_evaluation_is_silent(facts: list[dict[str, Any]]) -> None:
    assert all(seen["evaluation_silent"] for seen in facts)


def test_an_error_in_a_step_ends_the_step(facts: list[dict[str, Any]]) -> None:
    assert {seen["left_in_step_by_an_error"] for seen in facts if seen["pp"][0] == 0} == {False}


def test_nothing_is_left_on_the_engine_after_close(facts: list[dict[str, Any]]) -> None:
    assert all(seen["left_patched"] == [] for seen in facts)


def test_a_pipeline_of_one_stage_is_refused(all_facts: list[dict[str, Any]]) -> None:
    assert all("power-limit optimizer" in seen["one stage"]["refused"] for seen in all_facts)
