"""All schedules of torch.distributed.pipelining, followed by `pfo_fs.attach` on CPU."""

from typing import Any

import pytest
from followed import *  # noqa: F403
from followed import Facts

pytestmark = pytest.mark.slow

PROGRAM = "torch_pipelining_program"
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
}
TWO_REPLICAS: dict[str, dict[str, Any]] = {
    "1F1B with DDP": {"schedule": "1F1B", "data": "ddp"},
    "GPipe with DDP and static shapes": {"schedule": "GPipe", "data": "ddp", "static": True},
    "interleaved 1F1B with FSDP": {"schedule": "Interleaved1F1B", "data": "fsdp"},
    "ZB-V with FSDP": {"schedule": "ZBVZeroBubble", "data": "fsdp"},
}
GPIPE = repr([[("forward", 1200)] * 4 + [("backward", 1110)] * 4] * 2)
MORE: dict[str, dict[str, Any]] = {
    "another order": {"schedule": "1F1B", "plan": GPIPE, "attach": {}},
    "at once": {"schedule": "DualPipeV", "microbatches": 8, "custom": "OVERLAP_F_B", "attach": {"strict": True}},
}
ONE_STAGE = {"warns": {"schedule": "1F1B"}, "raises": {"schedule": "1F1B", "attach": {"strict": True}}}
RUNS = {1: ONE_STAGE, 2: {**TWO_RANKS, **MORE}, 4: TWO_REPLICAS}
KINDS = {
    name: (ranks, 2 * case.get("accumulate", 1))
    for ranks, cases in ((2, TWO_RANKS), (4, TWO_REPLICAS))
    for name, case in cases.items()
}


def test_what_torch_runs_is_in_the_order_and_the_last_forward_lasts_until_its_loss_is_there(facts: Facts) -> None:
    for seen in facts:
        assert seen["ran"] == seen["orders"][seen["pp"][0]] * seen["expected_steps"]  # stage, name, micro-batch
        # Where shapes are found in the first step, that computes a loss outside of all instructions.
        assert set(seen["in_loss"]) <= {"forward", None}
        assert seen["in_loss"].count(None) <= 1
    assert sum(len(seen["in_loss"]) for seen in facts) > 0


def test_ranks_and_replicas_are_found_from_the_process_group(all_facts: dict[int, Facts]) -> None:
    found = [seen["1F1B with DDP"] for seen in all_facts[4]]
    assert [(seen["pp"], seen["dp"]) for seen in found] == [([p, 2], [d, 2]) for p in (0, 1) for d in (0, 1)]


def test_runs_that_only_find_shapes_are_no_instructions(all_facts: dict[int, Facts]) -> None:
    for seen in all_facts[2]:
        forwards = len([1 for _, name, _ in seen["1F1B"]["ran"] if name == "forward"])
        assert seen["1F1B"]["runs_of_modules"] == forwards + 1
        assert seen["static shapes"]["runs_of_modules"] == forwards


def test_a_plan_of_another_order_is_not_followed_and_the_warning_names_the_instruction(
    all_facts: dict[int, Facts],
) -> None:
    for stage, (seen, place) in enumerate(zip(all_facts[2], (2, 1), strict=True)):
        told = seen["another order"]
        expected = f"the schedule expects 'forward', training ran 'backward' of stage {stage}; clocks are released"
        assert told["warnings"][0].startswith(f"rank {stage}, step 0, instruction {place}: {expected}")
        assert told["same_weights"]


def test_one_stage_and_a_function_that_runs_two_instructions_at_once_are_refused(all_facts: dict[int, Facts]) -> None:
    assert all("remove its register_custom_function" in seen["at once"]["refused"] for seen in all_facts[2])
    (seen,) = all_facts[1]
    assert "power-limit optimizer" in seen["raises"]["refused"]
    (warning,) = seen["warns"]["warnings"]
    assert "training goes on" in warning
    assert "power-limit optimizer" in warning
    assert seen["warns"]["closed"]
    assert seen["warns"]["same_weights"]
    assert not seen["warns"]["left_patched"]
