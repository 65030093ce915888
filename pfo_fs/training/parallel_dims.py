"""Finds this process's place in the job: rank, world size, degrees. Of the degrees, only `tp_degree` has a default, 1.

Sources, in this order: the argument, a `DeviceMesh`, `torch.distributed`, the launcher's environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfo_fs.errors import ConfigError
from pfo_fs.ipc.collectives import torch_distributed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_PIPELINE = ("pp", "pipe", "pipeline", "pipeline_parallel")
_TENSOR = ("tp", "tensor", "model", "tensor_parallel")

# Variables with the rank and the number of ranks. Both come from the first launcher whose rank is set: mpirun within a
# Slurm job leaves Slurm's variables of the batch script (rank 0) in place. Hydra is the launcher of MPICH, Intel MPI
# and MVAPICH 3.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate, DeepSpeed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH 2
    ("PMI_RANK", "PMI_SIZE"),  # Hydra
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun
)


@dataclass(frozen=True)
class ParallelDims:
    """The place of one process of a job."""

    rank: int
    world_size: int
    dp_rank: int
    pp_rank: int
    tp_rank: int
    dp_degree: int
    pp_degree: int
    tp_degree: int


ALONE = ParallelDims(0, 1, 0, 0, 0, 1, 1, 1)
"""The place of a process that is the whole job, and of a process whose place is not known."""


def find_parallel_dims(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: DeviceMesh | None = None,
    environ: Mapping[str, str] | None = None,
    **place: int | None,
) -> ParallelDims:
    """Returns this process's place in the job.

    Raises:
        ConfigError: Something is missing, or the numbers contradict each other; the message says what to pass.
    """
    dist = torch_distributed()
    launched_rank, launched_size = _launched(os.environ if environ is None else environ)
    if rank is None:
        rank = int(dist.get_rank()) if dist else launched_rank
    if world_size is None:
        world_size = int(dist.get_world_size()) if dist else launched_size
    if rank is None and world_size in (None, 1):
        rank, world_size = 0, 1
    if rank is None or world_size is None:
        missing = "rank" if rank is None else "world_size"
        names = ", ".join(variable if rank is None else size for variable, size in _LAUNCHERS)
        raise ConfigError(
            f"{missing} is not known: call torch.distributed.init_process_group first, or pass {missing}= "
            f"(the launcher has set none of {names})"
        )
    known = {} if mesh is None else _from_mesh(mesh)
    known |= {name: number for name, number in place.items() if number is not None}
    if (pp := known.get("pp_degree")) is None:
        raise ConfigError(
            "pp_degree is not known, and is never guessed: pass mesh= (a DeviceMesh with a 'pp' dimension), "
            "or pp_degree=, and pp_rank= where the pipeline does not span all ranks"
        )
    tp = known.get("tp_degree", 1)
    dp = known.get("dp_degree", max(1, world_size // max(1, pp * tp)))
    if dp * pp * tp != world_size:
        raise ConfigError(f"world_size {world_size} is not pp_degree {pp} x dp_degree {dp} x tp_degree {tp}")
    ranks: dict[str, int] = {}
    for axis, degree in (("pp", pp), ("dp", dp), ("tp", tp)):
        at = known.get(f"{axis}_rank", 0 if degree == 1 else rank if degree == world_size else None)
        if at is not None:
            ranks[f"{axis}_rank"] = at
            if not 0 <= at < degree:
                raise ConfigError(f"{axis}_rank {at} does not exist where {axis}_degree is {degree}")
    if missing_ranks := [name for name in ("pp_rank", "dp_rank", "tp_rank") if name not in ranks]:
        raise ConfigError(
            f"{' and '.join(missing_ranks)} not known: pass mesh=, or {'= and '.join(missing_ranks)}= "
            f"(degrees: pp {pp}, dp {dp}, tp {tp})"
        )
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} does not exist where world_size is {world_size}")
    return ParallelDims(rank, world_size, dp_degree=dp, pp_degree=pp, tp_degree=tp, **ranks)


def _launched(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Returns rank and number of ranks as the launcher has set them."""
    for rank, size in _LAUNCHERS:
        if (found := _number(environ, rank)) is not None:
            return found, _number(environ, size)
    return None, _number(environ, "WORLD_SIZE")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}, which is not a number") from None


def _from_mesh(mesh: DeviceMesh) -> dict[str, int]:
    names = getattr(mesh, "mesh_dim_names", None)
    if not names:
        raise ConfigError(f"mesh={mesh!r:.60} has no dimension names; make a DeviceMesh with them: ('pp', 'dp', 'tp')")
    sizes = [(int(mesh.get_local_rank(at)), int(mesh.size(at))) for at in range(len(names))]
    return along_dimensions((name, *size) for name, size in zip(names, sizes, strict=True))


def along_dimensions(dimensions: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """Returns rank and degree along dp, pp and tp; dimensions other than pp and tp are replicas.

    Args:
        dimensions: Name, rank and size of each, outermost first.
    """
    places = {"dp": (0, 1), "pp": (0, 1), "tp": (0, 1)}
    for name, rank, size in dimensions:
        axis = "pp" if name in _PIPELINE else "tp" if name in _TENSOR else "dp"
        at, degree = places[axis] if axis == "dp" else (0, 1)
        places[axis] = at * size + rank, degree * size
    ranks = {f"{axis}_rank": at for axis, (at, _) in places.items()}
    return ranks | {f"{axis}_degree": degree for axis, (_, degree) in places.items()}
