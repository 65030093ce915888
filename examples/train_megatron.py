"""Train a small model with Megatron-Core's pipeline schedule, at the clocks of a frequency plan.

    PFO_FS_GPU=simulated torchrun --nproc-per-node 2 examples/train_megatron.py

Megatron-Core computes on CUDA only; where there is none, `OnCpu` gives it CPU tensors.
The lines that concern pfo-fs are marked.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

if not torch.cuda.is_available():
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]

from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func

from pfo_fs.integrations import megatron  # pfo-fs

WIDTH, LENGTH, MICROBATCHES, BATCH = 64, 32, 8, 2


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        absent = not torch.cuda.is_available() and str((kwargs or {}).get("device", "")).startswith("cuda")
        return function(*args, **{**(kwargs or {}), **({"device": "cpu"} if absent else {})})


class Stage(nn.Sequential):
    model_type = ModelType.encoder_or_decoder

    def __init__(self, config: ModelParallelConfig) -> None:
        super().__init__(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)])
        self.config, self.given = config, None

    def set_input_tensor(self, tensors: Any) -> None:
        self.given = tensors[0] if isinstance(tensors, list) else tensors


def forward_step(batches: Any, model: Stage) -> Any:
    sample = torch.randn(LENGTH, BATCH, WIDTH, generator=batches).to(next(model.parameters()).device)
    output = model(sample if model.given is None else model.given)
    return output, lambda output: ((output - 1).pow(2).mean(), {"loss": (output - 1).detach().pow(2).mean()})


def main() -> None:
    cuda, pp = torch.cuda.is_available(), int(os.environ["WORLD_SIZE"])
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=pp)
    config = ModelParallelConfig(pipeline_model_parallel_size=pp, pipeline_dtype=torch.float32)
    config.hidden_size, config.fine_grained_activation_offloading = WIDTH, False
    model = Stage(config).to("cuda" if cuda else "cpu")
    optimizer, batches = torch.optim.SGD(model.parameters(), lr=0.1), torch.Generator().manual_seed(1)
    sizes = {"num_microbatches": MICROBATCHES, "seq_length": LENGTH, "micro_batch_size": BATCH, "forward_only": False}
    pfo = megatron.attach(model, os.environ.get("PFO_FS_SHARED_DIR", "./pfo"), num_microbatches=MICROBATCHES)  # pfo-fs
    forward_backward = pfo.forward_backward(get_forward_backward_func())  # pfo-fs
    with pfo, OnCpu():
        for iteration in range(20):
            losses = forward_backward(forward_step_func=forward_step, data_iterator=batches, model=model, **sizes)
            optimizer.step()
            optimizer.zero_grad()
            if losses:
                print(f"iteration {iteration:4d}  loss {losses[-1]['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
