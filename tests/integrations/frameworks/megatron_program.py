"""One rank that trains with Megatron-Core's schedules, with pfo-fs and without, and tells what it saw.

Megatron-Core computes on CUDA only. This program, not the adapter, gives it CPU tensors where it asks for CUDA.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]

from framework_pages import run_block
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.enums import ModelType
from megatron.core.num_microbatches_calculator import (
    destroy_num_microbatches_calculator,
    init_num_microbatches_calculator,
)
from megatron.core.pipeline_parallel import schedules
from megatron.core.timers import Timers
from recording import fingerprint, given, run_cases

from pfo_fs.errors import PfoError
from pfo_fs.integrations import megatron

WIDTH, BATCH, LENGTH, MICROBATCHES = 16, 2, 4, 8


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Chunk(nn.Module):
    """What the schedules need of a model."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, config: Any, chunk: int | None, *, checkpointing: bool) -> None:
        super().__init__()
        self.layer, self.config, self.vp_stage = nn.Linear(WIDTH, WIDTH), config, chunk
        self.checkpointing, self.given = checkpointing, None

    def set_input_tensor(self, tensors: Any) -> None:
        self.given = tensors[0] if isinstance(tensors, list) else tensors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.given is None else self.given
        return torch.relu(checkpoint(self.layer, x, use_reentrant=False) if self.checkpointing else self.layer(x))


class Job:
    """A model and its schedule."""

    def __init__(self, pp: int, chunks: int, *, checkpointing: bool) -> None:
        self.config = ModelParallelConfig(
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=chunks or None,
            pipeline_dtype=torch.float32,
            deallocate_pipeline_outputs=False,
            batch_p2p_comm=not chunks,
            barrier_with_L1_time=False,  # in the step that fails, the other ranks take no part
        )
        self.config.hidden_size = WIDTH
        self.config.fine_grained_activation_offloading = False
        torch.manual_seed(dist.get_rank())
        made = [Chunk(self.config, number, checkpointing=checkpointing) for number in range(chunks)]
        self.model = made or Chunk(self.config, None, checkpointing=checkpointing)
        self.parts = made or [self.model]
        self.optimizer = torch.optim.SGD((p for part in self.parts for p in part.parameters()), lr=0.1)
        self.function = schedules.get_forward_backward_func()
        self.forward_step = forward_step
        self.generator: Any = torch.Generator().manual_seed(1)

    def run(self, *, forward_only: bool = False) -> None:
        iterators = [self.generator] * len(self.parts) if isinstance(self.model, list) else self.generator
        self.function(
            forward_step_func=self.forward_step,
            data_iterator=iterators,
            model=self.model,
            num_microbatches=MICROBATCHES,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=forward_only,
        )

    def step(self) -> None:
        self.run()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> str:
        return fingerprint(p for part in self.parts for p in part.parameters())


broken = False


def forward_step(generator: torch.Generator, model: Any) -> Any:
    if broken:
        raise ZeroDivisionError
    output = model(torch.randn(LENGTH, BATCH, WIDTH, generator=generator))
    return output, lambda output: ((output**2).mean(), {"loss": output.detach().mean()})


def refusals(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What `attach` says of configurations of one stage."""
    found = []
    for case in cases:
        job = Job(1, 0, checkpointing=False)
        vars(job.config).update(case.get("config", {}))
        try:
            microbatches = case.get("num_microbatches", 1)
            more = {"num_microbatches": microbatches, "strict": True, **case.get("attach", {})}
            megatron.attach(job.model, given()["shared_dir"], **more)
        except PfoError as error:
            found.append(str(error))
    return {"refused": found}


def follow(job: Job, hook: str) -> Any:
    """Attaches pfo-fs in one of the two ways of docs/frameworks.md."""
    shared_dir, timers = given()["shared_dir"], job.config.timers
    if hook == "forward_backward":
        page = run_block(
            "frameworks", "Megatron", 0, shared_dir, model=job.model, get_forward_backward_func=lambda: job.function
        )
        job.function = page["forward_backward_func"]
        return page["pfo"]
    # As megatron.training does it: the loop is hidden, and replaces the timers around evaluations.
    attached: list[Any] = []
    attach = megatron.attach
    megatron.attach = lambda *a, **k: attached.append(attach(*a, **k)) or attached[0]
    replicas = parallel_state.get_data_parallel_world_size()
    init_num_microbatches_calculator(dist.get_rank(), None, MICROBATCHES * BATCH * replicas, BATCH, replicas)

    def pretrain(*arguments: Any) -> None:
        _, provide, _, job.forward_step, _ = arguments
        provide()

    names = {"model_provider": lambda: job.model, "forward_step": forward_step, "pretrain": pretrain}
    run_block("frameworks", "Megatron", 1, shared_dir, megatron=megatron, **names)
    destroy_num_microbatches_calculator()
    megatron.attach = attach
    job.config.timers = timers
    return attached[0]


def run_case(
    *,
    pp: int,
    chunks: int = 0,
    hook: str = "forward_backward",
    checkpointing: bool = False,
    refused: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A step, an evaluation, two steps, and a step that fails; before them, three steps without pfo-fs."""
    global broken
    parallel_state.initialize_model_parallel(1, pp, chunks or None)
    try:
        if refused is not None:
            return refusals(refused)
        bare = Job(pp, chunks, checkpointing=checkpointing)
        for _ in range(3):
            bare.step()

        job = Job(pp, chunks, checkpointing=checkpointing)
        timers = job.config.timers = Timers(2, "max")
        pfo = follow(job, hook)
        opt = pfo.optimizer
        job.step()
        with torch.no_grad():
            job.config.timers = None
            state = job.generator.get_state()
            job.run(forward_only=True)
            job.generator.set_state(state)
            job.config.timers = timers
        silent = len(opt.steps) == 1 and not opt.errors
        job.step()
        job.step()
        same = job.weights() == bare.weights()

        steps, failed_in_step = list(opt.steps), None
        if parallel_state.get_pipeline_model_parallel_rank() == 0:  # its first forward needs no other rank
            broken = True
            try:
                job.run()
            except ZeroDivisionError:
                failed_in_step = opt.in_step
            broken = False
        dims = opt.parallel_dims
        errors = opt.errors
        pfo.close()
        return {
            "orders": [[*map(tuple, order)] for order in pfo.orders],
            "steps": steps,
            "errors": errors,
            "same_weights": same,
            "evaluation_silent": silent,
            "left_in_step_by_an_error": failed_in_step,
            "left_patched": job.config.timers is not timers,
            "inner_timers": sorted(timers._timers),
            "pp": [dims.pp_rank, dims.pp_degree],
        }
    finally:
        parallel_state.destroy_model_parallel()


torch.set_num_threads(1)
dist.init_process_group("gloo")
with OnCpu():
    run_cases(run_case)
