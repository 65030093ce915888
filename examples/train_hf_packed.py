"""Train a small GPT-2 on documents of unequal lengths with the Hugging Face Trainer; clocks follow the lengths.

    PFO_FS_GPU=simulated torchrun --nproc-per-node 2 examples/train_hf_packed.py --shared-dir /tmp/pfo
    torchrun --nproc-per-node 8 examples/train_hf_packed.py --shared-dir /shared/pfo    # on GPUs: one process each

The collator joins the documents of a micro-batch to one row, without padding. So ranks get unequal work in each step,
and wait for the one that has most. On simulated GPUs, a step takes as long as its work at the clock in force. The lines
that concern pfo-fs are marked.
"""

import argparse
import logging
import random
import tempfile
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import (
    DataCollatorWithFlattening,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from pfo_fs.integrations.huggingface import HFLoadClocks  # pfo-fs
from pfo_fs.loads import from_batch

LONGEST, DOCUMENTS, MICRO_BATCHES = 512, 2, 2


class SimulatedWork(TrainerCallback):
    """Does on the simulated GPU what a real one would do: in each forward for its tokens and their attention."""

    def __init__(self, kernels: Any) -> None:
        self.stream = kernels.stream

    def launch(self, model: torch.nn.Module, _args: Any, batch: dict[str, Any]) -> None:
        tokens, squares = from_batch(batch)
        self.stream.launch("forward_backward", work=tokens / 150 + squares / 75_000)

    def on_pre_optimizer_step(self, *_args: object, **_kwargs: object) -> None:
        self.stream.synchronize()  # as a GPU's gradients are there only then
        torch.distributed.barrier()


def documents(count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Returns pieces of Python's own documentation, most of them short, some long."""
    text, drawn = "".join(topics.values()).encode(), random.Random(seed)
    found, begin = [], 0
    for _ in range(count):
        length = min(LONGEST, max(8, round(drawn.lognormvariate(4.0, 1.2))))
        found.append({"input_ids": list(text[begin : begin + length])})
        begin = (begin + length) % (len(text) - LONGEST)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared-dir", required=True)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    logging.basicConfig(format="%(message)s")
    torch.set_num_threads(1)  # a model this small gains nothing from more
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(  # sets up torch.distributed, so it comes first
            output_dir=folder, max_steps=args.steps, per_device_train_batch_size=DOCUMENTS, learning_rate=3e-3,
            gradient_accumulation_steps=MICRO_BATCHES, logging_steps=20, report_to=[], save_strategy="no",
            disable_tqdm=True, dataloader_pin_memory=False, use_cpu=not torch.cuda.is_available(),
            ddp_find_unused_parameters=False,
        )  # fmt: skip
        sizes = {"vocab_size": 256, "n_positions": LONGEST, "n_embd": 64, "n_layer": 2, "n_head": 4}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=documents(args.steps * MICRO_BATCHES * DOCUMENTS * arguments.world_size),
            data_collator=DataCollatorWithFlattening(),
        )
        callback = HFLoadClocks(args.shared_dir).attach(trainer)  # pfo-fs
        kernels = callback.clocks.simulated_kernels()
        if kernels is not None:
            work = SimulatedWork(kernels)
            model.register_forward_pre_hook(work.launch, with_kwargs=True)
            trainer.add_callback(work)
        trainer.train()
    if trainer.is_world_process_zero():
        print(callback.clocks.status_text)  # pfo-fs
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
