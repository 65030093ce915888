"""One rank that trains with schedules of torch.distributed.pipelining; tells what it saw with pfo-fs and without."""

import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from framework_pages import run_block
from logged import warnings_of
from recording import fingerprint, given, order_in_directory, run_cases
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import pfo_fs

WIDTH, BATCH = 8, 2
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
METHODS = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward_weight",
}
want = given()


class Block(nn.Module):
    """A layer that can fail, and that counts its runs."""

    def __init__(self, *, checkpointing: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.checkpointing, self.fails, self.runs = checkpointing, False, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.runs += 1
            if self.fails:
                raise RuntimeError("on purpose")
        return checkpoint(self.inner, x, use_reentrant=False) if self.checkpointing else self.inner(x)


class Case:
    """A schedule over this rank's stages, made anew from the same seed each time."""

    def __init__(self, mesh: DeviceMesh, options: dict[str, Any]) -> None:
        self.options, self.mesh = options, mesh
        self.name, self.microbatches = options["schedule"], options.get("microbatches", 4)
        kind = schedules.get_schedule_class(self.name)
        multi = issubclass(kind, schedules.PipelineScheduleMulti)
        rank, ranks = mesh.get_local_rank("pp"), mesh["pp"].size()
        count = 2 * ranks if multi else ranks
        mine = [rank, count - 1 - rank] if self.name in V_SHAPED else list(range(rank, count, ranks))
        self.blocks = [self._block(number) for number in mine]
        self.stages = [
            PipelineStage(
                self._prepared(block), number, count, torch.device("cpu"), group=mesh.get_group("pp"), **shapes
            )
            for number, block in zip(mine, self.blocks, strict=True)
            for shapes in [self._shapes(number) if options.get("static") else {}]
        ]
        self.followed_by: Any = None
        self.in_loss: list[str | None] = []  # which instruction runs while a loss is computed
        self.schedule = kind(self.stages if multi else self.stages[0], self.microbatches, loss_fn=self._loss)
        self.parameters = [p for stage in self.stages for p in stage.submod.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)

    def _block(self, number: int) -> Block:
        torch.manual_seed(number)
        return Block(checkpointing=self.options.get("checkpointing", False))

    def _prepared(self, block: nn.Module) -> nn.Module:
        if self.options.get("compile"):
            return torch.compile(block, backend="aot_eager")  # type: ignore[return-value]
        if self.options.get("data") == "ddp":
            return nn.parallel.DistributedDataParallel(block, process_group=self.mesh.get_group("dp"))
        if self.options.get("data") == "fsdp":
            return fully_shard(block, mesh=self.mesh["dp"])
        return block

    def _shapes(self, number: int) -> dict[str, torch.Tensor]:
        return {
            "input_args": torch.zeros(BATCH, WIDTH, requires_grad=number > 0),
            "output_args": torch.zeros(BATCH, WIDTH, requires_grad=True),
        }

    def _loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.followed_by is not None:
            self.in_loss.append(self.followed_by.running)
        return nn.functional.mse_loss(output, target)

    def arguments(self, step: int) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        generator = torch.Generator().manual_seed(100 * step + self.mesh.get_local_rank("dp"))
        x, y = torch.randn(2, self.microbatches * BATCH, WIDTH, generator=generator)
        first, last = any(s.is_first for s in self.stages), any(s.is_last for s in self.stages)
        return (x,) if first else (), {"target": y} if last else {}

    def train(self, steps: int = 2) -> str:
        """Trains; returns a fingerprint of all gradients and of the weights at the end."""
        found = []
        for step in range(steps):
            for part in range(self.options.get("accumulate", 1)):
                positional, named = self.arguments(10 * step + part)
                self.schedule.step(*positional, **named)
            grads = [p.grad for p in self.parameters]
            found.append(fingerprint(g.to_local() if isinstance(g, DTensor) else g for g in grads if g is not None))
            self.optimizer.step()
            self.optimizer.zero_grad()
        weights = fingerprint(p.to_local() if isinstance(p, DTensor) else p for p in self.parameters)
        return " ".join([*found, weights])

    def record(self) -> list[Any]:
        """Records (stage, kind, micro-batch) of what runs, below the brackets of pfo-fs."""
        ran: list[Any] = []

        def recorded(method: Any, stage: int, kind: str) -> Any:
            @functools.wraps(method)
            def run(chunk: int, *arguments: Any, **options: Any) -> Any:
                ran.append((stage, kind if options.get("full_backward", True) else "backward_input", chunk))
                return method(chunk, *arguments, **options)

            return run

        for stage in self.stages:
            for name, kind in METHODS.items():
                setattr(stage, name, recorded(getattr(stage, name), stage.stage_index, kind))
        return ran

    def shape(self) -> list[Any]:
        """What the schedule and stage objects hold that can be wrapped."""
        things = [self.schedule, *self.stages]
        return [(name, id(value)) for thing in things for name, value in sorted(vars(thing).items()) if callable(value)]


def run_case(mesh: DeviceMesh, options: dict[str, Any]) -> dict[str, Any]:
    rank = dist.get_rank()
    bare = Case(mesh, options)
    without = bare.train()

    case = Case(mesh, options)
    ran = case.record()
    if "custom" in options:
        case.schedule.register_custom_function(schedules._ComputationType[options["custom"]], lambda *_: None)
    before = case.shape()
    warnings = warnings_of()
    if "attach" in options:
        given_plan = {}
        if "plan" in options:
            plan = Path(f"{want['shared_dir']}-{rank}.py")
            plan.write_text(options["plan"])
            given_plan = {"scheduler": "PointSolution3D", "scheduler_args": {"solution_path": str(plan)}}
        pfo = pfo_fs.attach(case.schedule, want["shared_dir"], **options["attach"], **given_plan)
    else:
        pfo = run_block("frameworks", "torch.distributed.pipelining", 0, want["shared_dir"], schedule=case.schedule)[
            "pfo"
        ]
    opt: Any = pfo.optimizer
    if mesh["pp"].size() == 1:  # nothing to follow
        same, patched = case.train() == without, case.shape() != before
        pfo.close()
        return {"closed": pfo.closed, "same_weights": same, "left_patched": patched, "warnings": [*warnings]}
    assert opt.job_id is not None, warnings
    # The first rank of a stage writes its order for all of them.
    known = order_in_directory(rank - mesh.get_local_rank("dp"), opt.job_id)
    case.followed_by = opt
    with_pfo = case.train()
    steps, trained = list(opt.steps), list(ran)
    runs, in_loss = sum(block.runs for block in case.blocks), list(case.in_loss)

    left_in_step = None
    if case.stages[0].is_first and not options.get("compile") and not options.get("data"):
        # The first forward of the first stage needs no other rank.
        case.blocks[0].fails = True
        try:
            positional, named = case.arguments(99)
            case.schedule.step(*positional, **named)
        except RuntimeError:
            left_in_step = opt.in_step or pfo.marks.in_step
        case.blocks[0].fails = False
    before_evaluation = len(opt.steps)
    if case.name not in V_SHAPED:  # torch's own `eval` fails on V-shaped schedules
        positional, named = case.arguments(99)
        with torch.no_grad():
            case.schedule.eval(*positional, **named)
    silent = len(opt.steps) == before_evaluation

    errors, dims = list(opt.errors), opt.parallel_dims
    pfo.close()
    return {
        "orders": [[*map(tuple, order)] for order in pfo.orders],
        "known_beforehand": known,
        "steps": steps,
        "ran": trained,
        "errors": errors,
        "same_weights": with_pfo == without,
        "evaluation_silent": silent,
        "left_in_step_by_an_error": left_in_step,
        "left_patched": case.shape() != before,
        "in_loss": in_loss,
        "runs_of_modules": runs,
        "warnings": [text for text in warnings if "expects" in text],
        "pp": [dims.pp_rank, dims.pp_degree],
        "dp": [dims.dp_rank, dims.dp_degree],
    }


torch.set_num_threads(1)
dist.init_process_group("gloo")
whole = init_device_mesh("cpu", (want["pp"], dist.get_world_size() // want["pp"]), mesh_dim_names=("pp", "dp"))
run_cases(lambda **options: run_case(whole, options))
