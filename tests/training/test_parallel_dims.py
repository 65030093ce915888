"""A process finds its place without guessing."""

from __future__ import annotations

from typing import Any

import pytest

from pfo_fs.errors import ConfigError
from pfo_fs.training.parallel_dims import ALONE, ParallelDims, find_parallel_dims


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
    mesh: Any = Mesh(
        {"dp_replicate": 2, "pp": 4, "dp_shard": 3, "tp": 2}, {"dp_replicate": 1, "pp": 3, "dp_shard": 2, "tp": 1}
    )
    place = find_parallel_dims(rank=47, world_size=48, mesh=mesh, environ={})
    assert place == ParallelDims(47, 48, 1 * 3 + 2, 3, 1, 6, 4, 2)
    assert find_parallel_dims(rank=47, world_size=48, mesh=mesh, dp_rank=4, environ={}).dp_rank == 4


@pytest.mark.parametrize(
    ("given", "environ", "reason"),
    [
        ({"world_size": 8, "pp_degree": 8}, {}, "rank is not known: .*set none of RANK, OMPI_COMM_.*, .*PMI_RANK"),
        ({"pp_degree": 2}, {"WORLD_SIZE": "2"}, "rank is not known"),
        ({"pp_degree": 1}, {"RANK": "zero"}, "RANK is 'zero'"),
        ({"rank": 0, "world_size": 8}, {}, "pp_degree is not known"),
        ({"rank": 0, "world_size": 8, "pp_degree": 3}, {}, "world_size 8 is not pp_degree 3"),
        ({"rank": 0, "world_size": 8, "pp_degree": 0}, {}, "world_size 8 is not pp_degree 0"),
        (
            {"rank": 0, "world_size": 8, "pp_degree": 4},
            {},
            "pp_rank and dp_rank not known: pass mesh=, or pp_rank= and dp_rank=",
        ),
        (
            {"rank": 0, "world_size": 4, "pp_degree": 4, "pp_rank": 4},
            {},
            "pp_rank 4 does not exist where pp_degree is 4",
        ),
        ({"rank": 4, "world_size": 4, "pp_degree": 4, "pp_rank": 0}, {}, "rank 4 does not exist where world_size is 4"),
        ({"rank": 0, "world_size": 1, "mesh": Mesh({}, {})}, {}, "no dimension names"),
    ],
)
def test_what_is_missing_or_contradictory_is_an_error_that_says_what_to_pass(
    given: dict[str, Any], environ: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_parallel_dims(**given, environ=environ)


def test_one_process_needs_nothing_but_the_degree() -> None:
    assert find_parallel_dims(pp_degree=1, environ={}) == ALONE
