"""One rank that trains with torchtitan's trainer, with pfo-fs and without, and tells what it saw."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torchtitan_on_cpu
from framework_pages import run_block
from recording import fingerprint, given, run_cases
from torch.distributed.tensor import DTensor
from torchtitan.distributed import ParallelDims
from torchtitan.trainer import Trainer

from pfo_fs import attach
from pfo_fs.integrations.torch_pipelining import TorchtitanPipeline


class FollowedTrainer(Trainer):
    """The other way of docs/frameworks.md."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.pfo = attach(self, given()["shared_dir"])


def weights(trainer: Any) -> str:
    parameters = (p for part in trainer.model_parts for p in part.parameters())
    return fingerprint(p.to_local() if isinstance(p, DTensor) else p for p in parameters)


def run_case(pp: int, schedule: str = "1F1B", accumulate: int = 1) -> dict[str, Any]:
    """Two optimizer steps and a step that fails; before them, two without pfo-fs, and two as the page shows them."""

    if pp == 1:
        world = dist.get_world_size()
        dims = ParallelDims(dp_replicate=world, dp_shard=1, cp=1, tp=1, pp=1, ep=1, world_size=world)
        TorchtitanPipeline(SimpleNamespace(parallel_dims=dims, pp_schedule=None))

    def config() -> Any:
        folder = given()["shared_dir"] + "-dump"
        return torchtitan_on_cpu.small_config(folder, pp=pp, schedule=schedule, steps=2, accumulate=accumulate)

    bare = Trainer(config())
    bare.train()
    page = run_block(
        "frameworks", "torchtitan", 0, given()["shared_dir"], config=SimpleNamespace(build=lambda: Trainer(config()))
    )
    assert weights(page["trainer"]) == weights(bare)
    trainer = FollowedTrainer(config())
    opt: Any = trainer.pfo.optimizer
    trainer.train()
    steps, same = list(opt.steps), weights(trainer) == weights(bare)
    pipeline, failed_in_step = trainer.pp_schedule, None
    if trainer.pp_has_first_stage:  # its first forward needs no other rank
        try:
            trainer.pp_forward_backward_step(
                input_dict_mbs=[{"input": torch.full((1, 16), torchtitan_on_cpu.VOCABULARY)}] * 4,
                label_mbs=[torch.zeros(1, 16, dtype=torch.long)] * 4,
                global_valid_tokens=torch.tensor(64),
            )
        except Exception:  # whatever a token outside the vocabulary raises
            failed_in_step = opt.in_step
    trainer.pfo.close()
    stages = getattr(pipeline, "_stages", None) or [pipeline._stage]
    left = [
        name for thing in (trainer, *stages) for name in vars(thing) if name.endswith(("one_chunk", "backward_step"))
    ]
    dims = opt.parallel_dims
    return {
        "orders": [[*map(tuple, order)] for order in trainer.pfo.orders],
        "steps": steps,
        "errors": opt.errors,
        "same_weights": same,
        "left_in_step_by_an_error": failed_in_step,
        "left_patched": left,
        "pp": [dims.pp_rank, dims.pp_degree],
    }


torch.set_num_threads(1)
dist.init_process_group("gloo")
run_cases(run_case)
