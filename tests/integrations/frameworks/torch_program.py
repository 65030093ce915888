"""One rank that trains with torch.distributed.pipelining, with pfo-fs and without, and tells what it saw."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from recording import fingerprint, given, say
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import _ComputationType
from torch.utils.checkpoint import checkpoint

from pfo_fs import attach
from pfo_fs.errors import PfoError

want = given()
WIDTH, SAMPLES = 8, 8


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise ArithmeticError("a loss that is not a number")
        if want.get("checkpointing"):
            return checkpoint(self._run, x, use_reentrant=False)
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def make_schedule(group: Any, rank: int, pp: int) -> tuple[Any, list[nn.Module]]:
    """The schedule that the test wants, and the modules of this rank."""
    numbers = {"interleaved": [rank, rank + pp], "v": [rank, 2 * pp - 1 - rank]}.get(want.get("layout", ""), [rank])
    modules: list[nn.Module] = [Layer(number) for number in numbers]
    if want.get("compile"):
        modules = [torch.compile(module, backend="aot_eager") for module in modules]
    if want.get("ddp"):
        replicas = dist.new_subgroups_by_enumeration([[each, each + pp] for each in range(pp)])[0]
        modules = [nn.parallel.DistributedDataParallel(module, process_group=replicas) for module in modules]
    stages = [
        pipelining.PipelineStage(module, number, pp * len(numbers), torch.device("cpu"), group=group)
        for number, module in zip(numbers, modules, strict=True)
    ]
    make = getattr(pipelining, want["schedule"])
    microbatches = want.get("microbatches", SAMPLES)
    return make(stages if len(stages) > 1 else stages[0], microbatches, loss_fn=nn.functional.mse_loss), modules


def parameters(modules: list[nn.Module]) -> list[torch.Tensor]:
    return [parameter for module in modules for parameter in module.parameters()]


def run_once(run: Any, stages: list[Any]) -> None:
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(SAMPLES, WIDTH, generator=generator) for _ in range(2))
    arguments = (x,) if any(stage.is_first for stage in stages) else ()
    options = {"target": y} if any(stage.is_last for stage in stages) else {}
    run(*arguments, **options)


def train(schedule: Any, modules: list[nn.Module], stages: list[Any]) -> str:
    """Two optimizer steps; returns what tells the weights."""
    sgd = torch.optim.SGD(parameters(modules), lr=0.1)
    for _ in range(2):
        for _ in range(want.get("accumulate", 1)):
            run_once(schedule.step, stages)
        sgd.step()
        sgd.zero_grad()
    return fingerprint(parameters(modules))


def left_on(*things: Any) -> list[str]:
    """What pfo-fs has left on objects."""
    return [name for thing in things for name in vars(thing) if name.endswith("one_chunk") or name == "step"]


def overlap(action: Any, context: Any) -> None:
    """Stands for a function that runs a forward and a backward at once."""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, pp = dist.get_rank(), want["pp"]
    group, place = None, rank
    if want.get("ddp"):
        groups = [dist.new_group(list(range(first, first + pp))) for first in range(0, dist.get_world_size(), pp)]
        group, place = groups[rank // pp], rank % pp
    schedule, modules = make_schedule(group, place, pp)
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    if want.get("bare"):
        say(rank, weights=train(schedule, modules, stages))
        return
    if want.get("overlap"):
        schedule.register_custom_function(_ComputationType.OVERLAP_F_B, overlap)
    try:
        pfo = attach(schedule, want["shared_dir"])
    except PfoError as error:
        say(rank, refused=f"{type(error).__name__}: {error}", left_patched=left_on(schedule, *stages))
        return
    opt = pfo.optimizer
    weights = train(schedule, modules, stages)
    steps = list(opt.steps)
    if want.get("layout") != "v":  # torch's eval fails on these, without pfo-fs too
        with torch.no_grad():
            run_once(schedule.eval, stages)
    silent = opt.steps == steps
    failed_in_step = None
    if want.get("fails") and any(stage.is_first for stage in stages):
        modules[0].fails = True
        try:
            schedule.step(torch.zeros(SAMPLES, WIDTH))
        except Exception:  # torch may wrap the error
            failed_in_step = opt.in_step
    pfo.close()
    say(
        rank,
        orders=[[(name, stage) for stage, name, _ in order] for order in pfo.orders],
        steps=steps,
        errors=opt.errors,
        weights=weights,
        silent=silent,
        left_in_step_by_an_error=failed_in_step,
        left_patched=left_on(schedule, *stages),
        pp_rank=place,
        dims=[opt.parallel_dims.dp_rank, opt.parallel_dims.dp_degree],
    )


main()
