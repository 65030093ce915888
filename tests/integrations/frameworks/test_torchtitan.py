"""torchtitan's real trainer, on CPU through a harness (torchtitan_on_cpu.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torchtitan", reason="needs torchtitan; .ci/frameworks installs it")

pytestmark = pytest.mark.timeout(300)  # the import of a framework alone takes many seconds

KINDS = {
    "1F1B with gradient accumulation": {"pp": 2, "schedule": "1F1B", "accumulate": 2},
    "interleaved 1F1B": {"pp": 2, "schedule": "Interleaved1F1B"},
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def facts(request: pytest.FixtureRequest, run_ranks: Callable[..., Any]) -> list[dict[str, Any]]:
    """What each rank saw in two optimizer steps and one that fails, and the weights of a run without pfo-fs."""
    followed = run_ranks("torchtitan_program", 2, **request.param)
    bare = run_ranks("torchtitan_program", 2, bare=True, **request.param)
    runs = 2 * request.param.get("accumulate", 1)
    return [{**seen, "bare": other["weights"], "runs": runs} for seen, other in zip(followed, bare, strict=True)]


def test_every_instruction_comes_in_the_order_that_was_known_beforehand(facts: list[dict[str, Any]]) -> None:
    for seen in facts:
        own = [[name, stage] for name, stage, _ in seen["orders"][seen["pp"][0]]]
        assert seen["steps"] == [own] * seen["runs"]
        assert not seen["errors"]


def test_weights_after_two_steps_are_those_of_a_run_without_pfo(facts: list[dict[str, Any]]) -> None:
    assert [seen["weights"] for seen in facts] == [seen["bare"] for seen in facts]


def test_an_error_in_a_step_ends_the_step_and_close_leaves_nothing(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["left_in_step_by_an_error"] is False
    assert all(seen["left_patched"] == [] for seen in facts)


def test_a_job_without_a_pipeline_is_refused(run_ranks: Callable[..., Any]) -> None:
    (seen,) = run_ranks("torchtitan_program", 1, pp=1)
    assert "power-limit optimizer" in seen["refused"]
