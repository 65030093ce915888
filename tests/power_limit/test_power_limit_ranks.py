"""Several real ranks on gloo decide together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from power_limit_fakes import limits_set

PROGRAM = Path(__file__).with_name("power_limit_rank.py")
OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 2, "pl_step": 100}

pytestmark = pytest.mark.slow


def run_ranks(processes: Any, tmp_path: Path, size: int, **options: Any) -> list[dict[str, Any]]:
    """Runs a job and returns what its ranks say, by rank; one that dies says nothing."""
    arguments = (str(size), str(tmp_path / "store"), json.dumps({**OPTIONS, **options}))
    ranks = [processes.python(str(PROGRAM), str(rank), *arguments) for rank in range(size)]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    lines = [[line for line in output.splitlines() if line.startswith('{"rank"')] for output in outputs]
    assert all(found or rank.returncode == 9 for found, rank in zip(lines, ranks, strict=True)), outputs
    return [json.loads(found[-1]) for found in lines if found]


@pytest.mark.parametrize("size", [2, 4])
def test_energies_are_added_and_the_slowest_time_counts_on_all_ranks(
    processes: Any, tmp_path: Path, sim_dir: Path, size: int
) -> None:
    path = tmp_path / "profile.json"
    results = run_ranks(processes, tmp_path, size, profile_path=str(path), selector_factor=1.15)
    expected = [
        {
            "power_limit": limit_w,
            "energy": sum(100.0 * (rank + 1) + 10 * window for rank in range(size)),
            "time": 10.0 + window + size - 1,
        }
        for window, limit_w in enumerate((500, 400, 300, 200, 100))
    ]
    for result in results:
        assert result["measurements"] == expected
        assert result["state"] == "Done(optimal_power_limit=400)"
        assert result["warnings"] == []
    assert json.loads(path.read_text()) == {"measurements": expected}
    for rank in range(size):
        assert limits_set(sim_dir, f"gpu{rank}")[-2:] == [400, 500]


def test_a_profile_only_rank_0_needs_to_see(processes: Any, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"measurements": [{"power_limit": 300, "energy": 1, "time": 1}]}')
    for result in run_ranks(processes, tmp_path, 2, profile_path=str(path)):
        assert result["state"] == "Done(optimal_power_limit=300)"
        assert result["measured"] == 0


def test_a_malformed_profile_is_an_error_on_all_ranks(processes: Any, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{}")
    for result in run_ranks(processes, tmp_path, 2, profile_path=str(path)):
        assert result["error"].startswith("PlanError")


def test_different_ranges_are_an_error_on_all_ranks_that_names_the_gpus(processes: Any, tmp_path: Path) -> None:
    for result in run_ranks(processes, tmp_path, 2, env={"1": {"PFO_FS_SIM_MODEL": "A40"}}):
        assert result["error"].startswith("ConfigError")
        assert "A100 SIM-gpu0 (rank 0, GPU 0): 100 to 500 W" in result["error"]
        assert "A40 SIM-gpu1 (rank 1, GPU 0): 100 to 300 W" in result["error"]


@pytest.mark.parametrize("fault", ["permission", "limit:4"])
def test_one_rank_that_cannot_set_limits_is_one_warning_and_all_leave_them_alone(
    processes: Any, tmp_path: Path, sim_dir: Path, fault: str
) -> None:
    results = run_ranks(processes, tmp_path, 2, env={"1": {"PFO_FS_SIM_FAULT": fault}})
    assert [len(result["warnings"]) for result in results] == [1, 0]
    assert "rank 1" in results[0]["warnings"][0]
    assert all(result["state"].startswith("Off(") for result in results)
    assert all(limits_set(sim_dir, f"gpu{rank}")[-1:] in ([], [500]) for rank in range(2))


def test_a_rank_that_dies_leaves_the_others_training(processes: Any, tmp_path: Path, sim_dir: Path) -> None:
    (survivor,) = run_ranks(processes, tmp_path, 2, dies_at=7)
    assert survivor["state"].startswith("Off(reason='ranks cannot be asked")
    assert len(survivor["warnings"]) == 1
    assert limits_set(sim_dir, "gpu0")[-1] == 500
    assert limits_set(sim_dir, "gpu1")[-1] == 500


def test_ranks_share_with_other_jobs_through_rank_0_and_the_default_cost_counts_all_gpus(
    processes: Any, tmp_path: Path
) -> None:
    shared = str(tmp_path / "shared")
    first = run_ranks(processes, tmp_path, 2, shared_dir=shared)
    (tmp_path / "store").unlink(missing_ok=True)
    second = run_ranks(processes, tmp_path, 2, shared_dir=shared, search="coarse-to-fine")
    assert {result["state"] for result in first + second} == {first[0]["state"]}
    assert {result["selector"] for result in first} == {"ZeusCost(eta_knob=0.5, world_size=2)"}
    assert [result["measured"] for result in first] == [5, 5]
    assert [result["measured"] for result in second] == [0, 0]
