"""A process finds its place without guessing."""

from __future__ import annotations

import pytest

from pfo_fs.errors import ConfigError
from pfo_fs.training.parallel_dims import ParallelDims, find_parallel_dims


class Mesh:
    """What is used of a DeviceMesh."""

    def __init__(self, shape: dict[str, int], at: dict[str, int]) -> None:
        self.mesh_dim_names = tuple(shape)
        self._sizes, self._at = list(shape.values()), list(at.values())

    def get_local_rank(self, position: int) -> int:
        return self._at[position]

    def size(self, position: int) -> int:
        return self._sizes[position]


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        {"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_SIZE": "8", "MV2_COMM_WORLD_LOCAL_RANK": "1"},
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "8",
            "SLURM_LOCALID": "0",
        },
    ],
)
def test_rank_and_world_size_come_from_the_launcher(environ: dict[str, str]) -> None:
    place = find_parallel_dims(pp_degree=8, environ=environ)
    assert place == ParallelDims(5, 8, 1, 0, 5, 0, 1, 8, 1)


def test_without_a_rank_the_error_names_the_variables_that_launchers_set() -> None:
    with pytest.raises(ConfigError, match=r"rank is not known: .*set none of RANK, OMPI_COMM_WORLD_RANK, .*PMI_RANK"):
        find_parallel_dims(world_size=8, pp_degree=8, environ={})


def test_arguments_win_over_the_environment() -> None:
    place = find_parallel_dims(rank=2, world_size=4, pp_degree=4, environ={"RANK": "5", "WORLD_SIZE": "8"})
    assert (place.rank, place.world_size) == (2, 4)


def test_all_mesh_dimensions_but_pp_and_tp_are_replicas() -> None:
    mesh = Mesh(
        {"dp_replicate": 2, "pp": 4, "dp_shard": 3, "tp": 2}, {"dp_replicate": 1, "pp": 3, "dp_shard": 2, "tp": 1}
    )
    place = find_parallel_dims(rank=47, world_size=48, mesh=mesh, environ={})
    assert (place.dp_rank, place.dp_degree) == (1 * 3 + 2, 6)
    assert (place.pp_rank, place.pp_degree, place.tp_rank, place.tp_degree) == (3, 4, 1, 2)


def test_the_pipelines_degree_is_never_guessed() -> None:
    with pytest.raises(ConfigError, match="pp_degree is not known"):
        find_parallel_dims(rank=0, world_size=8, environ={})


def test_a_rank_that_cannot_be_known_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="pp_rank and dp_rank not known: pass mesh=, or pp_rank= and dp_rank="):
        find_parallel_dims(rank=0, world_size=8, pp_degree=4, environ={})


def test_a_world_size_without_a_rank_is_an_error() -> None:
    with pytest.raises(ConfigError, match="rank is not known"):
        find_parallel_dims(pp_degree=2, environ={"WORLD_SIZE": "2"})


def test_degrees_must_multiply_to_the_world_size() -> None:
    with pytest.raises(ConfigError, match="world_size 8 is not pp_degree 3"):
        find_parallel_dims(rank=0, world_size=8, pp_degree=3, environ={})


def test_a_rank_outside_its_degree_is_an_error() -> None:
    with pytest.raises(ConfigError, match="pp_rank 4 does not exist where pp_degree is 4"):
        find_parallel_dims(rank=0, world_size=4, pp_degree=4, pp_rank=4, environ={})


def test_one_process_needs_nothing_but_the_degree() -> None:
    assert find_parallel_dims(pp_degree=1, environ={}).world_size == 1


def test_a_launcher_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ConfigError, match="RANK is 'zero'"):
        find_parallel_dims(pp_degree=1, environ={"RANK": "zero"})


def test_a_mesh_without_names_is_refused() -> None:
    mesh = Mesh({}, {})
    with pytest.raises(ConfigError, match="no dimension names"):
        find_parallel_dims(rank=0, world_size=1, mesh=mesh, environ={})
