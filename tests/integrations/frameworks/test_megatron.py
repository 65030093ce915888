"""Megatron-Core's real schedules on CPU."""

from typing import Any

import pytest
from followed import *  # noqa: F403

pytest.importorskip("megatron.core", reason="needs Megatron-Core; .ci/frameworks installs it")

PROGRAM = "megatron_program"
CASES: dict[str, dict[str, Any]] = {
    "1F1B on four ranks, its forward_step followed": {"pp": 4, "hook": "forward_step"},
    "1F1B with two replicas, activation checkpointing": {"pp": 2, "checkpointing": True},
    "interleaved with two replicas": {"pp": 2, "chunks": 2},
    "interleaved with two replicas, its forward_step followed": {"pp": 2, "chunks": 2, "hook": "forward_step"},
}
REFUSED: dict[str, dict[str, Any]] = {
    "power-limit optimizer": {},  # one stage
    "set cuda_graph_impl to": {"config": {"cuda_graph_impl": "full_iteration"}, "attach": {"hides_loop": True}},
    "overlap_moe_expert_parallel_comm": {"config": {"overlap_moe_expert_parallel_comm": True}},
    "pass num_microbatches=": {"num_microbatches": None},
}
RUNS = {4: {**CASES, "refused": {"pp": 1, "refused": list(REFUSED.values())}}}
KINDS = dict.fromkeys(CASES, (4, 3))


def test_the_first_stage_has_failed_and_the_programs_own_timers_ran(all_facts: Any) -> None:
    told = [seen[case] for seen in all_facts[4] for case in CASES]
    assert {seen["left_in_step_by_an_error"] for seen in told} == {None, False}
    assert all({"backward-compute", "forward-backward", "forward-compute"} <= {*seen["inner_timers"]} for seen in told)


def test_what_cannot_be_followed_is_refused(all_facts: Any) -> None:
    for seen in all_facts[4]:
        assert all(text in refusal for text, refusal in zip(REFUSED, seen["refused"]["refused"], strict=True))
