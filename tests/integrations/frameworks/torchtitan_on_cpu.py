"""Makes torchtitan 0.3.0 train on CPU with torch 2.13; what it changes belongs to this harness, not to the adapter.

torchtitan needs a GPU, and a newer torch for `schedule.step(arg_mbs=...)` and `set_timeout`.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.pipelining import schedules

torch._utils._get_available_device_type = lambda: "cpu"
for name, value in {
    "get_device_name": "cpu",
    "current_device": 0,
    "device_count": 64,
    "set_device": None,
    "get_device_properties": SimpleNamespace(total_memory=1 << 34, name="cpu"),
    "memory_stats": {},
    "reset_peak_memory_stats": None,
    "empty_cache": None,
}.items():
    setattr(torch.cpu, name, lambda *_, value=value: value)
torch.distributed.set_timeout = lambda *_: None  # type: ignore[attr-defined]


def take_microbatches(kind: Any) -> None:
    """Gives `step` of a class of schedules the arguments of newer versions of torch."""
    step = kind.step

    def step_of(
        self: Any,
        *arguments: Any,
        arg_mbs: Any = None,
        kwarg_mbs: Any = None,
        target_mbs: Any = None,
        **options: Any,
    ) -> Any:
        if kwarg_mbs is None:
            return step(self, *arguments, **options)
        if arg_mbs:
            arguments = tuple(torch.cat(column) for column in zip(*arg_mbs, strict=True))
        options |= {name: torch.cat([each[name] for each in kwarg_mbs]) for name in kwarg_mbs[0]}
        if target_mbs is not None:
            options["target"] = torch.cat(target_mbs)
        return step(self, *arguments, **options)

    kind.step = step_of


for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
    take_microbatches(kind)

from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel

VOCABULARY = 2048


class NoTokenizer(BaseTokenizer):
    """Stands for a tokenizer: the batches are numbers already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Any, **_: Any) -> None:
        del config

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return VOCABULARY


class RandomBatches(BaseDataLoader):
    """Batches of random numbers, the same in each run."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config: Any, *, seq_len: int, local_batch_size: int, **_: Any) -> None:
        self._shape = local_batch_size, seq_len + 1

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        while True:
            tokens = torch.randint(VOCABULARY, self._shape, generator=generator)
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: Any) -> None:
        pass


def small_config(folder: str, *, pp: int, schedule: str, steps: int, accumulate: int = 1) -> Any:
    """torchtitan's debug model on `pp` ranks, four micro-batches of 16 tokens."""
    config = llama3_debugmodel()
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # flex attention has no backward on CPU
    config.dataloader, config.tokenizer = RandomBatches.Config(), NoTokenizer.Config()
    config.loss = CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)
    config.training.seq_len, config.training.local_batch_size, config.training.steps = 16, 4, steps
    config.training.global_batch_size = 4 * accumulate
    config.training.disable_cuda_graphs = True
    config.parallelism.pipeline_parallel_degree = pp
    config.parallelism.pipeline_parallel_schedule = schedule
    config.parallelism.pipeline_parallel_microbatch_size = 1
    config.validator.enable = config.checkpoint.enable = config.compile.enable = False
    config.debug.seed = 1
    config.dump_folder = folder
    return config
