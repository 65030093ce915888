"""What a program gives to `PFOFileOptimizer`: arguments, and the place of its process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfo_fs import PFOFileOptimizer
from pfo_fs.device.gpu.spec import NAMES
from pfo_fs.errors import ConfigError
from pfo_fs.training.job_request import JobRequest, checked_settings, text_of
from pfo_fs.training.parallel_dims import ALONE, ParallelDims, find_parallel_dims


def request(**given: Any) -> JobRequest:
    settings = checked_settings("daemon", None, None, None)
    fixed = {"job_metadata": None, "device": None, "wait_for_schedule_s": 0.0}
    return JobRequest(**{"settings": settings, "own_scheduler": False, "coordination": "auto", **fixed, **given})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"coordination": "wrong"}, "coordination is 'wrong'; it can be auto, daemon, local"),
        ({"switching": "late"}, "switching is 'late'; it can be auto, device, launch"),
        ({"clock_backend": "magic"}, rf"PFO_FS_CLOCK_BACKEND\) is 'magic'.*{', '.join(NAMES)}"),
        ({"max_clock_calls_per_s": 0.0}, "max_clock_calls_per_s is 0.0"),
        ({"max_clock_calls_per_s": "fast"}, "max_clock_calls_per_s is 'fast'; it must be a number"),
        ({"max_clock_calls_per_s": float("nan")}, "max_clock_calls_per_s is nan"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_that_says_what_can(given: dict[str, Any], reason: str) -> None:
    request(shared_dir="unused", max_clock_calls_per_s=0.5)
    with pytest.raises(ConfigError, match=reason):
        request(shared_dir="unused", **given)


def test_the_way_to_set_clocks_is_the_argument_then_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "Zeusd")
    with pytest.raises(ConfigError, match="'Zeusd'"):
        PFOFileOptimizer(tmp_path, rank=0, world_size=1, pp_degree=1, strict=True)
    with pytest.raises(ConfigError, match="'magic'"):
        PFOFileOptimizer(tmp_path, rank=0, world_size=1, pp_degree=1, strict=True, clock_backend="magic")


def test_a_plan_in_the_working_directory_is_named_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.py").write_text("[[('forward', 1200), ('backward', 1305)]]\n")
    monkeypatch.chdir(tmp_path)
    for plan in ("plan.py", Path("plan.py"), str(tmp_path / "plan.py")):
        settings = checked_settings("local", "PointSolution3D", {"solution_path": plan}, None)
        assert settings.scheduler_args == {"solution_path": str(tmp_path / "plan.py")}


@pytest.mark.parametrize("given", ["cab\udce9", b"cab\xe9", "\ud800x", 5], ids=repr)
def test_any_text_can_be_written_as_utf_8(given: object) -> None:
    assert (text_of(given) or "").encode().decode() == text_of(given)


# ---- a process finds its place without guessing


def mesh_of(**dims: tuple[int, int]) -> Any:
    """What is used of a DeviceMesh, by the rank and the size of each dimension."""
    at, sizes = ([dim[part] for dim in dims.values()] for part in (0, 1))
    return SimpleNamespace(mesh_dim_names=tuple(dims), get_local_rank=at.__getitem__, size=sizes.__getitem__)


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "5", "WORLD_SIZE": "8"},
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8"},
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
        {"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_SIZE": "8"},
        {"PMI_RANK": "5", "PMI_SIZE": "8"},
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
    ],
)
def test_rank_and_world_size_come_from_the_launcher(environ: dict[str, str]) -> None:
    assert find_parallel_dims(pp_degree=8, environ=environ) == ParallelDims(5, 8, 0, 5, 0, 1, 8, 1)
    place = find_parallel_dims(rank=2, world_size=4, pp_degree=4, environ=environ)
    assert (place.rank, place.world_size) == (2, 4), "arguments win"


def test_all_mesh_dimensions_but_pp_and_tp_are_replicas_and_arguments_win_over_them() -> None:
    mesh = mesh_of(dp_replicate=(1, 2), pp=(3, 4), dp_shard=(2, 3), tp=(1, 2))
    place = find_parallel_dims(rank=47, world_size=48, mesh=mesh, environ={})
    assert place == ParallelDims(47, 48, 1 * 3 + 2, 3, 1, 6, 4, 2)
    assert find_parallel_dims(rank=47, world_size=48, mesh=mesh, dp_rank=4, environ={}).dp_rank == 4


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"world_size": 8, "pp_degree": 8}, "rank is not known: .*set none of RANK, OMPI_COMM_.*, .*PMI_RANK"),
        ({"pp_degree": 2, "environ": {"WORLD_SIZE": "2"}}, "rank is not known"),
        ({"pp_degree": 1, "environ": {"RANK": "zero"}}, "RANK is 'zero'"),
        ({"rank": 0, "world_size": 8}, "pp_degree is not known"),
        ({"rank": 0, "world_size": 8, "pp_degree": 3}, "world_size 8 is not pp_degree 3"),
        ({"rank": 0, "world_size": 8, "pp_degree": 0}, "world_size 8 is not pp_degree 0"),
        ({"rank": 0, "world_size": 8, "pp_degree": 4}, "pp_rank and dp_rank not known: pass mesh=, or pp_rank= and"),
        ({"rank": 0, "world_size": 4, "pp_degree": 4, "pp_rank": 4}, "pp_rank 4 does not exist where pp_degree is 4"),
        ({"rank": 4, "world_size": 4, "pp_degree": 4, "pp_rank": 0}, "rank 4 does not exist where world_size is 4"),
        ({"rank": 0, "world_size": 1, "mesh": mesh_of()}, "no dimension names"),
        ({"rank": 0, "world_size": 1, "mesh": "pp"}, "'pp' has no dimension names"),
    ],
)
def test_what_is_missing_or_contradictory_is_an_error_that_says_what_to_pass(
    given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_parallel_dims(**{"environ": {}, **given})


def test_one_process_needs_nothing_but_the_degree() -> None:
    assert find_parallel_dims(pp_degree=1, environ={}) == ALONE
