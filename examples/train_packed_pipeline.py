"""Train on packed documents in pipelines of two stages, with torch.distributed.pipelining and clocks from loads.

    PFO_FS_GPU=simulated torchrun --nproc-per-node 4 examples/train_packed_pipeline.py

Each micro-batch holds as many tokens as another, but documents of other lengths, so that their attention, and with it a
step of a pipeline, takes longer or shorter. Pipelines that have less work in a step run at a lower clock.
"""

import argparse
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import pfo_fs

WIDTH, TOKENS, MOST, MICRO_BATCHES, STAGES = 32, 128, 8, 4, 2


def draw(step: int, pipeline: int) -> list[list[int]]:
    """The lengths of each micro-batch's documents, which fill its tokens."""
    drawn, found = random.Random(f"{step} {pipeline}"), []
    source = drawn.choice([(0, 1), (3, MOST - 1)])  # long documents, or short ones
    for _ in range(MICRO_BATCHES):
        cuts = sorted(drawn.sample(range(1, TOKENS), drawn.choice(source)))
        found.append([end - begin for begin, end in zip([0, *cuts], [*cuts, TOKENS], strict=True)])
    return found


class SimulatedWork(torch.autograd.Function):
    """On a simulated GPU, a forward and its backward take as long as their documents' attention."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, kernels: Any, stage: int, work: float) -> torch.Tensor:
        context.of = kernels, stage, work
        if kernels is not None:
            kernels.run("forward", stage, work=work)
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradient: torch.Tensor) -> Any:  # type: ignore[override]
        kernels, stage, work = context.of
        if kernels is not None:
            kernels.run("backward", stage, work=work)
        return *gradient, None, None, None


class Stage(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.kernels = number, None
        self.embed = nn.Embedding(256, WIDTH) if number == 0 else None
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 256) if number == STAGES - 1 else None

    def forward(self, x: torch.Tensor, *, lengths: torch.Tensor) -> torch.Tensor:
        documents = torch.repeat_interleave(torch.arange(MOST), lengths[0], output_size=TOKENS)
        x = self.embed(x) if self.embed is not None else x
        work = 0.5 + float(lengths.square().sum()) / TOKENS**2
        x = SimulatedWork.apply(x, self.kernels, self.number, work)
        x = self.block(x, documents[:, None] != documents)  # a token sees those of its document
        return self.head(x) if self.head is not None else x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared-dir", default=os.environ.get("PFO_FS_SHARED_DIR", "./pfo"))
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--without", action="store_true", help="train without pfo-fs")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, pipelines = dist.get_rank(), dist.get_world_size() // STAGES
    pipeline, number = rank // STAGES, rank % STAGES
    groups = [dist.new_group([p * STAGES + s for s in range(STAGES)]) for p in range(pipelines)]
    torch.manual_seed(0)
    module = Stage(number)
    stage = PipelineStage(module, number, STAGES, torch.device("cpu"), group=groups[pipeline])
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda y, t: nn.functional.cross_entropy(y.mT, t))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    peers = dist.new_subgroups_by_enumeration([[p * STAGES + s for p in range(pipelines)] for s in range(STAGES)])[0]
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    pfo = None
    if not args.without:
        reads = lambda *_, lengths: pfo_fs.loads.from_lengths(lengths[0])  # noqa: E731
        pfo = pfo_fs.attach(schedule, args.shared_dir, loads=reads)  # pfo-fs
        module.kernels = pfo.optimizer.simulated_kernels()
    for step in range(args.iterations):
        began_s = time.perf_counter()
        places = (torch.arange(MICRO_BATCHES)[:, None] * 997 + step * TOKENS + torch.arange(TOKENS + 1)) % len(text)
        batch = text[places]
        lengths = torch.tensor([each + [0] * (MOST - len(each)) for each in draw(step, pipeline)])
        schedule.step(*[batch[:, :-1]] * (number == 0), lengths=lengths, target=batch[:, 1:])
        for parameter in module.parameters():  # the pipelines wait for each other here
            dist.all_reduce(parameter.grad, group=peers)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step:3d}  {time.perf_counter() - began_s:.3f} s", flush=True)
    if rank == 0:
        print(f"weights {sum(float(each.detach().double().sum()) for each in module.parameters())!r}")
    if pfo is not None:
        if rank == 0:
            print(f"pfo-fs: {pfo.status_text}")
        pfo.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
