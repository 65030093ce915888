"""torchtitan's real trainer, on CPU through a harness (torchtitan_on_cpu.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torchtitan", reason="needs torchtitan; .ci/frameworks installs it")


KINDS: dict[str, dict[str, Any]] = {
    "1F1B with gradient accumulation": {"pp": 2, "accumulate": 2},
    "interleaved 1F1B": {"pp": 2, "schedule": "Interleaved1F1B"},
}


@pytest.fixture(scope="module")
def all_facts(run_ranks: Callable[..., Any]) -> Any:
    """What each of two ranks told of all cases."""
    return run_ranks("torchtitan_program", 2, cases={**KINDS, "no pipeline": {"pp": 1}})


@pytest.fixture(params=KINDS)
def facts(request: pytest.FixtureRequest, all_facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each rank saw in two optimizer steps and one that fails."""
    runs = 2 * KINDS[request.param].get("accumulate", 1)
    return [{**seen[request.param], "runs": runs} for seen in all_facts]


def test_every_instruction_comes_in_the_order_that_was_known_beforehand(facts: list[dict[str, Any]]) -> None:
    for seen in facts:
        own = [[name, stage] for name, stage, _ in seen["orders"][seen["pp"][0]]]
        assert seen["steps"] == [own] * seen["runs"]
        assert not seen["errors"]


def test_weights_after_two_steps_are_those_of_a_run_without_pfo(facts: list[dict[str, Any]]) -> None:
    assert all(seen["same_weights"] for seen in facts)


def test_an_error_in_a_step_ends_the_step_and_close_leaves_nothing(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["left_in_step_by_an_error"] is False
    assert all(seen["left_patched"] == [] for seen in facts)


def test_a_job_without_a_pipeline_is_refused(all_facts: list[dict[str, Any]]) -> None:
    assert all("power-limit optimizer" in seen["no pipeline"]["refused"] for seen in all_facts)
