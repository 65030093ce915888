"""An adapter for a framework that pfo-fs does not know: ColossalAI's 1F1B schedule. docs/frameworks.md explains it.

The user's line is then `attach(schedule, "/shared/pfo")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from pfo_fs.integrations.pipeline_marks import Attachment, PipelineMarks, attach_pipeline
from pfo_fs.planner import make_pipeline
from pfo_fs.planner.pipeline import Instruction


class OneForwardOneBackward:
    """Says where this rank stands, what each rank runs in one step, and which calls begin and end it."""

    def __init__(self, schedule: Any) -> None:
        self.schedule, self.stages = schedule, schedule.stage_manager

    def parallel_dims(self) -> dict[str, int]:
        pp = self.stages.num_stages
        return {
            "pp_rank": self.stages.stage,
            "pp_degree": pp,
            "dp_rank": dist.get_rank() % (dist.get_world_size() // pp),
            "dp_degree": dist.get_world_size() // pp,
            "tp_rank": 0,
            "tp_degree": 1,
        }

    def orders(self) -> Sequence[Sequence[Instruction]]:
        return make_pipeline("1f1b", self.stages.num_stages, self.schedule.num_microbatches).orders

    def install(self, marks: PipelineMarks) -> Callable[[], None]:
        schedule, whole_step = self.schedule, self.schedule.run_forward_backward

        def run_forward_backward(*arguments: Any, **options: Any) -> Any:
            with marks.step():
                return whole_step(*arguments, **options)

        own = {
            "run_forward_backward": run_forward_backward,
            "forward_step": marks.around(schedule.forward_step, "forward"),
            "backward_step": marks.around(schedule.backward_step, "backward"),
        }
        vars(schedule).update(own)  # on the object: no class is changed

        def take_off() -> None:
            for name in own:
                delattr(schedule, name)

        return take_off


def attach(schedule: Any, shared_dir: str, **options: Any) -> Attachment:
    """Makes a schedule follow clocks; returns what `close()` takes off again."""
    return attach_pipeline(OneForwardOneBackward(schedule), shared_dir, **options)
