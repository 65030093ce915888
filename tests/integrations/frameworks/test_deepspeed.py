"""DeepSpeed's real pipeline engines on CPU."""

from typing import Any

import pytest
from followed import *  # noqa: F403

pytest.importorskip("deepspeed", reason="needs DeepSpeed; .ci/frameworks installs it")

PROGRAM = "deepspeed_program"
CASES: dict[str, dict[str, Any]] = {
    "1F1B with two replicas": {"pp": 2},
    "1F1B on four ranks, activation checkpointing": {"pp": 4, "checkpointing": True},
    "DualPipeV with two replicas": {"kind": "dualpipev", "pp": 2},
}
RUNS = {4: {**CASES, "one stage": {"pp": 1}}}
KINDS = dict.fromkeys(CASES, (4, 2))


def test_the_first_stage_has_failed_and_one_stage_is_refused(all_facts: Any) -> None:
    assert {seen[case]["left_in_step_by_an_error"] for seen in all_facts[4] for case in CASES} == {None, False}
    assert all("power-limit optimizer" in seen["one stage"]["refused"] for seen in all_facts[4])
