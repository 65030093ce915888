"""One rank that trains with DeepSpeed's pipeline engine, with pfo-fs and without, and tells what it saw."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.dualpipev import DualPipeVModule
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
from recording import fingerprint, given, say
from torch import nn

from pfo_fs.errors import PfoError
from pfo_fs.integrations.deepspeed import attach
from pfo_fs.store import Files, SharedDirectory

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


def wait_for_order(shared_dir: str, rank: int) -> Any:
    """A rank's order as a scheduler finds it in the shared directory; None if it does not come."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for name in SharedDirectory(Files(Path(shared_dir))).job_ids():
            job = SharedDirectory(Files(Path(shared_dir))).job(name)
            body = job.read_order(rank)
            if body is not None:
                return body.instructions
        time.sleep(0.05)
    return None


def main() -> None:
    want = given()
    kind, pp, checkpointing = want["kind"], want["pp"], want.get("checkpointing", False)
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for over a minute
    deepspeed.init_distributed("gloo", verbose=False)
    rank = dist.get_rank()
    if pp == 1:
        try:
            attach(make_engine(kind, pp, checkpointing=False), want["shared_dir"])
        except PfoError as error:
            say(rank, refused=f"{type(error).__name__}: {error}")
        return

    bare = make_engine(kind, pp, checkpointing=checkpointing)
    data = batches()
    for _ in range(2):
        bare.train_batch(data)

    engine = make_engine(kind, pp, checkpointing=checkpointing)
    pfo = attach(engine, want["shared_dir"])
    # The first rank of a stage writes its order for all of them.
    known = wait_for_order(want["shared_dir"], rank - engine.grid.get_data_parallel_rank())
    opt = pfo.optimizer
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
    say(
        rank,
        orders=[[(name, stage, microbatch) for stage, name, microbatch in order] for order in pfo.orders],
        known_beforehand=known,
        steps=steps,
        errors=errors,
        same_weights=same,
        evaluation_silent=silent,
        left_in_step_by_an_error=failed_in_step,
        left_patched=[name for name in ("_INSTRUCTION_MAP", "train_batch") if name in vars(engine)],
        pp=[dims.pp_rank, dims.pp_degree],
        dp=[dims.dp_rank, dims.dp_degree],
    )
    dist.destroy_process_group()


main()
