"""One rank that trains with torchtitan's trainer, with pfo-fs and without, and tells what it saw."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torchtitan_on_cpu
from recording import fingerprint, given, say
from torch.distributed.tensor import DTensor
from torchtitan.trainer import Trainer

from pfo_fs.errors import PfoError
from pfo_fs.integrations.torchtitan import attach

want = given()


class FollowedTrainer(Trainer):
    """What docs/frameworks/torchtitan.md shows."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.pfo = attach(self, want["shared_dir"])


def weights(trainer: Any) -> str:
    parameters = (p for part in trainer.model_parts for p in part.parameters())
    return fingerprint(p.to_local() if isinstance(p, DTensor) else p for p in parameters)


def main() -> None:
    torch.set_num_threads(1)
    config = torchtitan_on_cpu.small_config(
        want["shared_dir"] + "-dump",
        pp=want["pp"],
        schedule=want.get("schedule", "1F1B"),
        steps=2,
        accumulate=want.get("accumulate", 1),
    )
    try:
        trainer = FollowedTrainer(config)
    except PfoError as error:
        say(dist.get_rank(), refused=f"{type(error).__name__}: {error}")
        return
    opt = trainer.pfo.optimizer
    trainer.train()
    steps, followed = list(opt.steps), weights(trainer)
    schedule, failed_in_step = trainer.pp_schedule, None
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
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    left = [
        name for thing in (trainer, *stages) for name in vars(thing) if name.endswith(("one_chunk", "backward_step"))
    ]
    dims = opt.parallel_dims
    say(
        dist.get_rank(),
        orders=[[(name, stage, microbatch) for stage, name, microbatch in order] for order in trainer.pfo.orders],
        steps=steps,
        errors=opt.errors,
        weights=followed,
        left_in_step_by_an_error=failed_in_step,
        left_patched=left,
        pp=[dims.pp_rank, dims.pp_degree],
        dp=[dims.dp_rank, dims.dp_degree],
    )


def bare() -> None:
    """The same without pfo-fs."""
    trainer = Trainer(
        torchtitan_on_cpu.small_config(
            want["shared_dir"] + "-dump",
            pp=want["pp"],
            schedule=want.get("schedule", "1F1B"),
            steps=2,
            accumulate=want.get("accumulate", 1),
        )
    )
    trainer.train()
    say(dist.get_rank(), weights=weights(trainer))


if want.get("bare"):
    bare()
else:
    main()
