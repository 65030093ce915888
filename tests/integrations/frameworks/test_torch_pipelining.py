"""All schedules of torch.distributed.pipelining, followed by `pfo_fs.attach` on CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TWO_RANKS: dict[str, dict[str, Any]] = {
    "GPipe": {"schedule": "GPipe"},
    "1F1B": {"schedule": "1F1B"},
    "interleaved 1F1B": {"schedule": "Interleaved1F1B"},
    "looped BFS": {"schedule": "LoopedBFS"},
    "interleaved zero bubble": {"schedule": "InterleavedZeroBubble"},
    "ZB-V": {"schedule": "ZBVZeroBubble"},
    "DualPipeV": {"schedule": "DualPipeV", "microbatches": 8},  # with as many, forwards and backwards are paired
    "gradient accumulation": {"schedule": "1F1B", "accumulate": 2},
    "activation checkpointing": {"schedule": "1F1B", "checkpointing": True},
    "static shapes": {"schedule": "1F1B", "static": True},
    "compiled stages": {"schedule": "Interleaved1F1B", "compile": True},
    "functions of the user": {"schedule": "Interleaved1F1B", "custom": "FORWARD"},
}
TWO_REPLICAS: dict[str, dict[str, Any]] = {
    "1F1B with DDP": {"schedule": "1F1B", "data": "ddp"},
    "GPipe with DDP and static shapes": {"schedule": "GPipe", "data": "ddp", "static": True},
    "interleaved 1F1B with FSDP": {"schedule": "Interleaved1F1B", "data": "fsdp"},
    "ZB-V with FSDP": {"schedule": "ZBVZeroBubble", "data": "fsdp"},
}
KINDS = {
    **{name: (2, case) for name, case in TWO_RANKS.items()},
    **{name: (4, case) for name, case in TWO_REPLICAS.items()},
}


@pytest.fixture(scope="module")
def all_facts(
    run_ranks: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[dict[str, Any]]]:
    """What each rank of two and of four told of all its cases."""
    plan = tmp_path_factory.mktemp("plan") / "gpipe.py"
    plan.write_text(repr([[("forward", 1200)] * 4 + [("backward", 1110)] * 4] * 2))
    of_gpipe = {"scheduler": "PointSolution3D", "scheduler_args": {"solution_path": str(plan)}}
    more = {
        "a plan of another order": {"schedule": "1F1B", "attach": of_gpipe},
        "forward and backward at once": {
            "schedule": "DualPipeV",
            "microbatches": 8,
            "custom": "OVERLAP_F_B",
            "attach": {"strict": True},
        },
    }
    return {
        ranks: run_ranks("torch_pipelining_program", ranks, pp=2, cases=cases)
        for ranks, cases in ((2, {**TWO_RANKS, **more}), (4, TWO_REPLICAS))
    }


@pytest.fixture(params=KINDS)
def facts(request: pytest.FixtureRequest, all_facts: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What each rank saw of one case in two optimizer steps, an evaluation, and a step that fails."""
    ranks, case = KINDS[request.param]
    return [{**seen[request.param], "case": case} for seen in all_facts[ranks]]


def test_every_instruction_of_every_microbatch_comes_in_the_order_that_was_known_beforehand(
    facts: list[dict[str, Any]],
) -> None:
    for seen in facts:
        own = seen["orders"][seen["pp"][0]]
        steps = 2 * seen["case"].get("accumulate", 1)
        assert seen["ran"] == own * steps  # what torch ran: (stage, name, micro-batch)
        assert seen["steps"] == [[[name, stage] for stage, name, _ in own]] * steps  # what the optimizer was told
        assert seen["known_beforehand"] == [[name, stage] for stage, name, _ in own]
        assert not seen["errors"]
        assert seen["orders"] == facts[0]["orders"]


def test_gradients_and_weights_are_those_of_a_run_without_pfo(facts: list[dict[str, Any]]) -> None:
    assert all(seen["same_gradients"] for seen in facts)


def test_the_forward_of_the_last_stage_lasts_until_its_loss_is_there(facts: list[dict[str, Any]]) -> None:
    for seen in facts:
        # Where shapes are found in the first step, that computes a loss outside of all instructions.
        assert set(seen["in_loss"]) <= {"forward", None}
        assert seen["in_loss"].count(None) <= 1
    assert sum(len(seen["in_loss"]) for seen in facts) > 0


def test_an_evaluation_is_silent(facts: list[dict[str, Any]]) -> None:
    assert all(seen["evaluation_silent"] for seen in facts)


def test_an_error_in_a_step_ends_the_step(facts: list[dict[str, Any]]) -> None:
    assert not any(seen["left_in_step_by_an_error"] for seen in facts)


def test_nothing_is_left_on_schedule_and_stages_after_close(facts: list[dict[str, Any]]) -> None:
    assert not any(seen["left_patched"] for seen in facts)


def test_ranks_and_replicas_are_found_from_the_process_group(all_facts: dict[int, list[dict[str, Any]]]) -> None:
    found = [seen["1F1B with DDP"] for seen in all_facts[4]]
    assert [(seen["pp"], seen["dp"]) for seen in found] == [([p, 2], [d, 2]) for p in (0, 1) for d in (0, 1)]


def test_runs_that_only_find_shapes_are_no_instructions(all_facts: dict[int, list[dict[str, Any]]]) -> None:
    for seen in all_facts[2]:
        forwards = len([1 for _, name, _ in seen["1F1B"]["ran"] if name == "forward"])
        assert seen["1F1B"]["runs_of_modules"] == forwards + 1
        assert seen["static shapes"]["runs_of_modules"] == forwards


def test_a_plan_of_another_order_is_not_followed_and_the_warning_names_the_instruction(
    all_facts: dict[int, list[dict[str, Any]]],
) -> None:
    first, last = [seen["a plan of another order"] for seen in all_facts[2]]
    expected = "the schedule expects 'forward', training ran 'backward' of stage"
    assert first["warnings"][0].startswith(f"rank 0, step 0, instruction 2: {expected} 0; clocks are released")
    assert last["warnings"][0].startswith(f"rank 1, step 0, instruction 1: {expected} 1; clocks are released")
    assert all(seen["same_gradients"] for seen in (first, last))


def test_a_function_that_runs_a_forward_and_a_backward_at_once_is_refused(
    all_facts: dict[int, list[dict[str, Any]]],
) -> None:
    for seen in all_facts[2]:
        assert "remove its register_custom_function" in seen["forward and backward at once"]["refused"]


def test_a_pipeline_of_one_stage_is_refused(run_ranks: Callable[..., Any]) -> None:
    cases = {"warns": {"schedule": "1F1B"}, "raises": {"schedule": "1F1B", "attach": {"strict": True}}}
    (seen,) = run_ranks("torch_pipelining_program", 1, pp=1, cases=cases)
    assert "power-limit optimizer" in seen["raises"]["refused"]
    (warning,) = seen["warns"]["warnings"]
    assert "training goes on" in warning
    assert "power-limit optimizer" in warning
    assert seen["warns"]["closed"]
    assert seen["warns"]["same_gradients"]
    assert not seen["warns"]["left_patched"]
