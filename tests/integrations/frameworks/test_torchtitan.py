"""torchtitan's real trainer, on CPU through a harness (torchtitan_on_cpu.py)."""

from typing import Any

import pytest
from followed import *  # noqa: F403

pytest.importorskip("torchtitan", reason="needs torchtitan; .ci/frameworks installs it")

PROGRAM = "torchtitan_program"
CASES: dict[str, dict[str, Any]] = {
    "1F1B with gradient accumulation": {"pp": 2, "accumulate": 2},
    "interleaved 1F1B": {"pp": 2, "schedule": "Interleaved1F1B"},
}
RUNS = {2: {**CASES, "no pipeline": {"pp": 1}}}
KINDS = {name: (2, 2 * case.get("accumulate", 1)) for name, case in CASES.items()}


def test_the_first_stage_has_failed_and_a_job_without_a_pipeline_is_refused(all_facts: Any) -> None:
    assert {seen[case]["left_in_step_by_an_error"] for seen in all_facts[2] for case in CASES} == {None, False}
    assert all("power-limit optimizer" in seen["no pipeline"]["refused"] for seen in all_facts[2])
