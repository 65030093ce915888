"""One rank that trains with DeepSpeed's pipeline engine, with pfo-fs and without, and tells what it saw."""

import os
from types import SimpleNamespace
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.dualpipev import DualPipeVModule
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
from framework_pages import run_block
from recording import fingerprint, given, order_in_directory, run_cases
from torch import nn

from pfo_fs import attach

WIDTH, MICROBATCHES = 16, 6


def make_engine(kind: str, pp: int, *, checkpointing: bool) -> Any:
    torch.manual_seed(0)
    module = {"1f1b": PipelineModule, "dualpipev": DualPipeVModule}[kind](
        layers=[LayerSpec(nn.Linear, WIDTH, WIDTH) for _ in range(8)],
        topology=PipeDataParallelTopology(num_pp=pp, num_dp=dist.get_world_size() // pp),
        loss_fn=nn.MSELoss(),
        partition_method="uniform",
        activation_checkpoint_interval=1 if checkpointing else 0,
    )
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROBATCHES,
        "steps_per_print": 1000,
    }
    engine, *_ = deepspeed.initialize(
        model=module, config=settings, optimizer=torch.optim.SGD(module.parameters(), lr=0.1)
    )
    return engine


def batches() -> Any:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(2, WIDTH, generator=generator), torch.randn(2, WIDTH, generator=generator)


def run_case(kind: str = "1f1b", *, pp: int, checkpointing: bool = False) -> dict[str, Any]:
    """Two steps, an evaluation, and a step that fails; before them, two steps without pfo-fs."""
    bare = make_engine(kind, pp, checkpointing=checkpointing) if pp > 1 else None
    data = batches()
    for _ in range(2 if bare else 0):
        bare.train_batch(data)

    engine = make_engine(kind, pp, checkpointing=checkpointing)
    if pp == 1:
        attach(engine, given()["shared_dir"], strict=True)
    page = {"deepspeed": SimpleNamespace(initialize=lambda **_: (engine, None)), "PipelineModule": lambda *_: None}
    pfo = run_block("frameworks", "DeepSpeed", 0, given()["shared_dir"], **page)["pfo"]
    opt: Any = pfo.optimizer
    # The first rank of a stage writes its order for all of them.
    known = order_in_directory(dist.get_rank() - engine.grid.get_data_parallel_rank(), opt.job_id)
    data = batches()
    for _ in range(2):
        engine.train_batch(data)
    same = fingerprint(bare.module.parameters()) == fingerprint(engine.module.parameters())
    before = len(opt.steps)
    engine.eval_batch(data)
    silent = len(opt.steps) == before and not opt.errors

    failed_in_step = None
    if engine.stage_id == 0:  # its first forward needs no other rank
        try:
            engine.train_batch(iter([(torch.randn(2, WIDTH + 1), torch.randn(2, WIDTH))] * MICROBATCHES))
        except RuntimeError:
            failed_in_step = opt.in_step
    dims = opt.parallel_dims
    steps, errors = opt.steps[:2], opt.errors
    pfo.close()
    return {
        "orders": [[*map(tuple, order)] for order in pfo.orders],
        "known_beforehand": known,
        "steps": steps,
        "errors": errors,
        "same_weights": same,
        "evaluation_silent": silent,
        "left_in_step_by_an_error": failed_in_step,
        "left_patched": [name for name in ("_INSTRUCTION_MAP", "train_batch") if name in vars(engine)],
        "pp": [dims.pp_rank, dims.pp_degree],
    }


torch.set_num_threads(1)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for over a minute
deepspeed.init_distributed("gloo", verbose=False)
run_cases(run_case)
