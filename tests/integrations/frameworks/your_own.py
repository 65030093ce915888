"""ColossalAI's 1F1B schedule followed by an adapter of its own: examples/colossalai_adapter.py, tried."""

import runpy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

dist.is_hccl_available = lambda: False  # type: ignore[attr-defined]  # ColossalAI 0.5.0 asks a torch that has it

from colossalai.accelerator import set_accelerator
from colossalai.cluster import ProcessGroupMesh
from colossalai.interface import OptimizerWrapper
from colossalai.pipeline.schedule import OneForwardOneBackwardSchedule
from colossalai.pipeline.stage_manager import PipelineStageManager
from recording import fingerprint, given, run_cases
from torch import nn

WIDTH, MICROBATCHES = 8, 4


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any = None, hidden: Any = None) -> dict[str, torch.Tensor]:
        return {"hidden": self.layer(x if hidden is None else hidden)}


def run_case() -> dict[str, Any]:
    adapter = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "colossalai_adapter.py"))

    def train(followed: bool) -> tuple[str, Any, Any]:
        torch.manual_seed(0)
        schedule = OneForwardOneBackwardSchedule(PipelineStageManager(ProcessGroupMesh(2), 0), MICROBATCHES)
        model = Stage()
        optimizer = OptimizerWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
        batches = iter([{"x": torch.randn(2 * MICROBATCHES, WIDTH)} for _ in range(3)])
        pfo = adapter["attach"](schedule, given()["shared_dir"]) if followed else None

        def run(optimizer: Any) -> None:
            schedule.forward_backward_step(model, batches, lambda out, _: out["hidden"].pow(2).mean(), optimizer)

        for _ in range(2):
            run(optimizer)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            run(None)
        return fingerprint(model.parameters()), schedule, pfo

    bare, _, _ = train(False)
    weights, schedule, pfo = train(True)
    pfo.close()
    return {
        "orders": [[*map(tuple, order)] for order in pfo.orders],
        "steps": pfo.optimizer.steps,  # and nothing of the evaluation
        "errors": pfo.optimizer.errors,
        "same_weights": bare == weights,
        "left_in_step_by_an_error": None,
        "left_patched": [name for name in vars(schedule) if name.endswith("_step")],
        "pp": [dist.get_rank(), 2],
    }


set_accelerator("cpu")
dist.init_process_group("gloo")
run_cases(run_case)
