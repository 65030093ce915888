"""torchtitan's trainer.

    trainer = config.build()
    pfo = attach(trainer, "/shared/pfo")
    trainer.train()

torchtitan has no hooks for trainers of others; a subclass may call `attach(self, ...)` at the end of its `__init__`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.pipeline_marks import Attachment
from pfo_fs.integrations.torch_pipelining import TorchPipeline

if TYPE_CHECKING:
    from torchtitan.trainer import Trainer


def attach(trainer: Trainer, shared_dir: str | os.PathLike[str], **options: Any) -> Attachment:
    """`pfo_fs.attach` for a torchtitan trainer, after its `__init__`."""
    return Attachment.make(lambda: TorchtitanPipeline(trainer), shared_dir, options)


class TorchtitanPipeline(TorchPipeline):
    """The schedule of torchtitan's trainer, in the trainer's place in the job.

    Raises:
        ConfigError: The trainer has no pipeline, or this version of torchtitan works in another way.
    """

    def __init__(self, trainer: Trainer) -> None:
        dims = getattr(trainer, "parallel_dims", None)
        if dims is not None and not dims.pp_enabled:
            raise ConfigError(
                "pipeline_parallel_degree is 1, so no rank waits for another and no clock can be lowered for free: use "
                "the power-limit optimizer (GlobalPowerLimitOptimizer)"
            )
        for name in ("parallel_dims", "pp_schedule"):
            if not hasattr(trainer, name):
                raise ConfigError(
                    f"{type(trainer).__name__} has no {name}: pfo-fs was written for the Trainer of torchtitan 0.3.0"
                )
        super().__init__(trainer.pp_schedule)
        self._dims = trainer.parallel_dims

    def parallel_dims(self) -> dict[str, int]:
        """This rank's place, as arguments of `PFOFileOptimizer`; all dimensions but pp and tp are replicas."""
        place = self._device()
        for axis, names in (("pp", ("pp",)), ("tp", ("tp",)), ("dp", ("dp_replicate", "dp_shard", "cp"))):
            rank, degree = 0, 1
            for mesh in map(self._dims.get_optional_mesh, names):
                if mesh is not None:
                    rank, degree = rank * mesh.size() + mesh.get_local_rank(), degree * mesh.size()
            place |= {f"{axis}_rank": rank, f"{axis}_degree": degree}
        return place
