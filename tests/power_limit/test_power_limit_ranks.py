"""Two real ranks on gloo decide together, in one job that runs all scenarios."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from power_limit_fakes import limits_set
from running import environment, wait_for

PROGRAM = Path(__file__).with_name("power_limit_rank.py")
OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 2, "pl_step": 100}

pytestmark = pytest.mark.slow
Results = list[dict[str, Any]]


def run_ranks(folder: Path, size: int, scenarios: dict[str, dict[str, Any]]) -> Results:
    """Runs a job and returns what its ranks say; one that dies says nothing."""
    (folder / "sim").mkdir(mode=0o700)
    arguments = [str(size), str(folder / "store"), json.dumps({n: {**OPTIONS, **s} for n, s in scenarios.items()})]
    variables = environment(**dict.fromkeys(("PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR"), str(folder / "sim")))
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(rank), *arguments], text=True, stdout=subprocess.PIPE, env=variables
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode in (0, 9) for rank in ranks] == [True] * size
    return [json.loads(output.splitlines()[-1]) for output in outputs if output]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """The folder of the job of two ranks, and what each rank says of each scenario."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "cached_profile.json").write_text('{"measurements": [{"power_limit": 300, "energy": 1, "time": 1}]}')
    (folder / "malformed.json").write_text("{}")
    scenarios: dict[str, dict[str, Any]] = {
        "combined": {"profile_path": str(folder / "profile.json"), "factor": 1.15},
        "known": {"profile_path": str(folder / "cached_profile.json")},
        "malformed": {"profile_path": str(folder / "malformed.json"), "strict": True},
        "refused": {"profile_steps": 0},
        "forgiven": {"profile_path": str(folder / "malformed.json")},
        "one_rank_fails": {"env": {"1": {"PFO_FS_GPU": "nonsense"}}},
        "ranges": {"env": {"1": {"PFO_FS_SIM_MODEL": "A40"}}, "strict": True},
        "permission": {"env": {"1": {"PFO_FS_SIM_FAULT": "permission"}}},
        "failure": {"env": {"1": {"PFO_FS_SIM_FAULT": "limit:4"}}},
        "switched": {"shared_dir": str(folder / "shared")},
        "out_of_step": {"diverges_at": 3, "wait_s": 2.0},
        "destroys_at": {"destroys_at": 3},  # the last one
    }
    return folder, run_ranks(folder, 2, scenarios)


def test_energies_are_added_and_the_slowest_time_counts(job: tuple[Path, Results]) -> None:
    folder, results = job
    size = len(results)
    expected = []
    for window, level in enumerate((500, 400, 300, 200, 100)):
        energy_j = sum(10_000.0 * (rank + 1) - 2_000 * window for rank in range(size))
        expected.append({"power_limit": level, "energy": energy_j, "time": 10.0 + window + size - 1})
    for rank, result in enumerate(results):
        assert result["combined"]["measurements"] == expected
        assert result["combined"]["state"] == "Done(optimal_power_limit=400, unit='W')"
        assert result["combined"]["warnings"] == []
        assert limits_set(folder / "sim", f"combined{rank}")[-2:] == [400, 500]
    assert json.loads((folder / "profile.json").read_text()) == {"measurements": expected}


def test_a_profile_is_read_by_rank_0_for_all_and_what_is_wrong_is_an_error_on_all(job: tuple[Path, Results]) -> None:
    for result in job[1]:
        assert result["known"]["state"] == "Done(optimal_power_limit=300, unit='W')"
        assert result["known"]["measured"] == 0
        assert result["malformed"]["error"].startswith("PlanError")
        assert result["refused"]["error"] == "InvalidArgument: rank 0: profile_steps is 0; give at least 1"


def test_different_ranges_are_an_error_on_all_ranks_that_names_the_gpus(job: tuple[Path, Results]) -> None:
    for result in job[1]:
        error = result["ranges"]["error"]
        assert error.startswith("ConfigError")
        assert "A100 SIM-ranges0 (rank 0, GPU 0): 100 to 500 W" in error
        assert "A40 SIM-ranges1 (rank 1, GPU 0): 100 to 300 W" in error


@pytest.mark.parametrize(
    ("name", "said"), [("forgiven", ""), ("one_rank_fails", ""), ("permission", "rank 1"), ("failure", "rank 1")]
)
def test_without_strict_an_error_is_one_warning_and_all_ranks_train_on(
    job: tuple[Path, Results], name: str, said: str
) -> None:
    folder, results = job
    warnings = [result[name]["warnings"] for result in results]
    assert [len(of_rank) for of_rank in warnings] == [1, 0] or (not said and any(warnings))
    assert all(len(of_rank) <= 1 and said in "".join(warnings[0]) for of_rank in warnings)
    for rank, result in enumerate(results):
        assert result[name]["state"].startswith("Off(")
        assert limits_set(folder / "sim", f"{name}{rank}")[-1:] in ([], [500])


def test_ranks_with_a_switch_choose_alike_and_the_default_cost_counts_all_gpus(job: tuple[Path, Results]) -> None:
    for result in job[1]:
        assert result["switched"]["selector"] == "ZeusCost(eta_knob=0.5, world_size=2)"
        assert result["switched"]["state"] == job[1][0]["switched"]["state"]
        assert result["switched"]["state"].startswith("Done(")


def test_ranks_out_of_step_leave_limits_alone_and_stop_waiting_for_each_other(job: tuple[Path, Results]) -> None:
    """One waits for the other's measurement, which waits for the first one's gradients."""
    for rank, result in enumerate(job[1]):
        assert result["out_of_step"]["state"].startswith("Off(reason='the ranks cannot communicate")
        assert len(result["out_of_step"]["warnings"]) == 1
        assert limits_set(job[0] / "sim", f"out_of_step{rank}")[-1] == 500


@pytest.mark.parametrize("event", ["dies_at", "destroys_at"])
def test_without_a_rank_or_group_training_goes_on(job: tuple[Path, Results], tmp_path: Path, event: str) -> None:
    folder, results = job if event == "destroys_at" else (tmp_path, run_ranks(tmp_path, 2, {event: {event: 3}}))
    assert len(results) == (1 if event == "dies_at" else 2)
    for result in results:
        assert result[event]["state"].startswith("Off(reason='the ranks cannot communicate")
        assert len(result[event]["warnings"]) == 1
    for rank in range(2):
        wait_for(lambda rank=rank: limits_set(folder / "sim", f"{event}{rank}")[-1] == 500)
