"""Finds this process's place in the job: rank, world size, degrees. A value that is in no source is never guessed.

Sources, in this order: the argument, a `DeviceMesh`, `torch.distributed`, the launcher's environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pfo_fs.errors import ConfigError
from pfo_fs.ipc.collectives import torch_distributed

_PIPELINE = ("pp", "pipe", "pipeline", "pipeline_parallel")
_TENSOR = ("tp", "tensor", "model", "tensor_parallel")


class _Launcher(NamedTuple):
    """Variables with the rank, the number of ranks, and the rank on the host."""

    rank: str
    size: str
    local: tuple[str, ...]


# The first launcher with a rank gives all three values, since mpirun within a Slurm job leaves Slurm's variables of the
# batch script (rank 0) in place. Hydra is the launcher of MPICH, Intel MPI and MVAPICH 3.
_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", ("LOCAL_RANK",)),  # torchrun, accelerate, DeepSpeed
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)),  # Open MPI
    _Launcher("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ("MV2_COMM_WORLD_LOCAL_RANK",)),  # MVAPICH 2
    _Launcher("PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")),  # Hydra
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", ("SLURM_LOCALID",)),  # srun
)


@dataclass(frozen=True)
class ParallelDims:
    """One process of a job. `local_rank` counts processes on a host and is not a GPU index; None: not known."""

    rank: int
    world_size: int
    local_rank: int | None
    dp_rank: int
    pp_rank: int
    tp_rank: int
    dp_degree: int
    pp_degree: int
    tp_degree: int


ALONE = ParallelDims(0, 1, None, 0, 0, 0, 1, 1, 1)
"""The place of a process that is the whole job, and of one whose place is not known."""


def find_parallel_dims(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    dp_rank: int | None = None,
    pp_rank: int | None = None,
    tp_rank: int | None = None,
    dp_degree: int | None = None,
    pp_degree: int | None = None,
    tp_degree: int | None = None,
    mesh: Any = None,
    environ: Mapping[str, str] | None = None,
) -> ParallelDims:
    """Returns this process's place in the job.

    Args:
        mesh: A `torch.distributed.DeviceMesh` with dimensions named `pp` and `tp`; all others count as `dp`.

    Raises:
        ConfigError: Something is missing, or the numbers contradict each other; the message says what to pass.
    """
    environ = os.environ if environ is None else environ
    dist = torch_distributed()
    launched_rank, launched_size, launched_local = _launched(environ)
    if rank is None:
        rank = int(dist.get_rank()) if dist else launched_rank
    if world_size is None:
        world_size = int(dist.get_world_size()) if dist else launched_size
    if rank is None and world_size in (None, 1):
        rank, world_size = 0, 1
    if rank is None or world_size is None:
        missing = "rank" if rank is None else "world_size"
        names = ", ".join(launcher.rank if rank is None else launcher.size for launcher in _LAUNCHERS)
        raise ConfigError(
            f"{missing} is not known: call torch.distributed.init_process_group first, or pass {missing}= "
            f"(the launcher has set none of {names})"
        )
    if local_rank is None:
        local_rank = launched_local
    if mesh is not None:
        (dp_r, dp_d), (pp_r, pp_d), (tp_r, tp_d) = _from_mesh(mesh)
        dp_rank, pp_rank, tp_rank = _first(dp_rank, dp_r), _first(pp_rank, pp_r), _first(tp_rank, tp_r)
        dp_degree, pp_degree, tp_degree = _first(dp_degree, dp_d), _first(pp_degree, pp_d), _first(tp_degree, tp_d)
    if pp_degree is None:
        raise ConfigError(
            "pp_degree is not known, and is never guessed: pass mesh= (a DeviceMesh with a 'pp' dimension), "
            "or pp_degree=, and pp_rank= where the pipeline does not span all ranks"
        )
    tp_degree = 1 if tp_degree is None else tp_degree
    if dp_degree is None:
        dp_degree = max(1, world_size // (pp_degree * tp_degree))
    degrees = {"dp": dp_degree, "pp": pp_degree, "tp": tp_degree}
    if dp_degree * pp_degree * tp_degree != world_size:
        raise ConfigError(
            f"world_size {world_size} is not pp_degree {pp_degree} x dp_degree {dp_degree} x tp_degree {tp_degree}"
        )
    ranks = {"dp": dp_rank, "pp": pp_rank, "tp": tp_rank}
    for axis, degree in degrees.items():
        if ranks[axis] is None and degree in (1, world_size):
            ranks[axis] = 0 if degree == 1 else rank
    if missing_ranks := [f"{axis}_rank" for axis in ("pp", "dp", "tp") if ranks[axis] is None]:
        raise ConfigError(
            f"{' and '.join(missing_ranks)} not known: pass mesh=, or {'= and '.join(missing_ranks)}= "
            f"(degrees: pp {pp_degree}, dp {dp_degree}, tp {tp_degree})"
        )
    for axis, degree in degrees.items():
        if not 0 <= (ranks[axis] or 0) < degree:
            raise ConfigError(f"{axis}_rank {ranks[axis]} does not exist where {axis}_degree is {degree}")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} does not exist where world_size is {world_size}")
    return ParallelDims(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        dp_rank=ranks["dp"] or 0,
        pp_rank=ranks["pp"] or 0,
        tp_rank=ranks["tp"] or 0,
        dp_degree=dp_degree,
        pp_degree=pp_degree,
        tp_degree=tp_degree,
    )


def _first(given: int | None, found: int) -> int:
    return found if given is None else given


def _launched(environ: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """Returns rank, number of ranks and rank on the host as the launcher has set them."""
    for launcher in _LAUNCHERS:
        rank = _number(environ, launcher.rank)
        if rank is not None:
            local = next((found for name in launcher.local if (found := _number(environ, name)) is not None), None)
            return rank, _number(environ, launcher.size), local
    return None, _number(environ, "WORLD_SIZE"), _number(environ, "LOCAL_RANK")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}, which is not a number") from None


def _from_mesh(mesh: Any) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Returns (rank, degree) along dp, pp and tp; dimensions other than pp and tp are replicas, outermost first."""
    names = mesh.mesh_dim_names
    if not names:
        raise ConfigError("the mesh has no dimension names; make it with mesh_dim_names=('pp', 'dp', 'tp')")
    dp, pp, tp = (0, 1), (0, 1), (0, 1)
    for position, name in enumerate(names):
        at, size = int(mesh.get_local_rank(position)), int(mesh.size(position))
        if name in _PIPELINE:
            pp = (at, size)
        elif name in _TENSOR:
            tp = (at, size)
        else:
            dp = (dp[0] * size + at, dp[1] * size)
    return dp, pp, tp
