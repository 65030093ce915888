"""torch.distributed.pipelining, all its schedules.

    pfo = pfo_fs.attach(schedule, "/shared/pfo")

The methods of the stages that run one micro-batch are wrapped, on the user's objects only, as is `schedule.step`:
torch has no hooks for them (pytorch/pytorch#167897).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.pipeline_marks import Attachment, PipelineMarks, attach_pipeline
from pfo_fs.planner.pipeline import Instruction, pipeline_from_torch

_RUNS = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward_weight",
}
"""The methods of a stage that run one micro-batch, and their instructions."""
_CUSTOM = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "backward_input",
    "BACKWARD_WEIGHT": "backward_weight",
}
"""The actions that `register_custom_function` can replace, and their instructions."""


def attach(schedule: Any, shared_dir: str | os.PathLike[str], **options: Any) -> Attachment:
    """Follows the steps of a schedule; a collective call of all ranks.

    Args:
        schedule: A schedule of `torch.distributed.pipelining`, after custom functions were registered.
        shared_dir: The directory that all ranks, the daemon and users share.
        options: Other arguments of `PFOFileOptimizer`. Without `mesh` or degrees, all ranks outside of the schedule's
            pipeline count as replicas.

    Raises:
        ConfigError: The schedule has one stage, or this version of torch works in another way.
        PlanError: The schedule does not tell the order of its instructions.
    """
    finds_replicas = not {"mesh", "dp_rank", "dp_degree", "tp_rank", "tp_degree"} & options.keys()
    return attach_pipeline(TorchPipeline(schedule, finds_replicas=finds_replicas), shared_dir, **options)


class TorchPipeline:
    """Where a schedule runs its instructions.

    A step is one call of `schedule.step`: with gradient accumulation, an optimizer step has several.

    Args:
        schedule: The schedule.
        finds_replicas: Whether to find out which pipelines there are besides this one; a collective call.

    Raises:
        ConfigError: This version of torch works in another way.
    """

    def __init__(self, schedule: Any, *, finds_replicas: bool = True) -> None:
        self._schedule = schedule
        self._finds_replicas = finds_replicas
        self._stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
        wanted = [(schedule, name) for name in ("step", "_has_backward", "_loss_fn", "pipeline_order")]
        wanted += [(stage, name) for stage in self._stages for name in (*_RUNS, "stage_index", "group_rank", "is_last")]
        for thing, name in wanted:
            if not hasattr(thing, name):
                raise ConfigError(
                    f"{type(thing).__name__} has no {name}: pfo-fs was written for torch.distributed.pipelining of "
                    "torch 2.6 to 2.13"
                )

    def parallel_dims(self) -> dict[str, int]:
        """This rank's place, as arguments of `PFOFileOptimizer`."""
        stage = self._stages[0]
        found = {"pp_rank": stage.group_rank, "pp_degree": stage.group_size}
        if self._finds_replicas:
            found |= _replicas(stage.group)
        return found

    def orders(self) -> Sequence[Sequence[Instruction]]:
        """The instructions of one step, of each rank of the pipeline."""
        return pipeline_from_torch(self._schedule).orders

    def install(self, marks: PipelineMarks) -> Callable[[], None]:
        """Wraps methods of the schedule and of its stages; returns what takes the wraps off."""
        schedule, loss_fn, wraps = self._schedule, self._schedule._loss_fn, _Wraps(marks)
        custom = getattr(schedule, "_comp_type_to_function_map", {})
        kept = dict(custom)
        replaced = {kind: wraps.custom(run, kind.name) for kind, run in kept.items()}
        schedule.step = wraps.step(schedule)
        if loss_fn is not None and any(stage.is_last for stage in self._stages):
            schedule._loss_fn = wraps.loss(loss_fn)
        for stage in self._stages:
            for method, name in _RUNS.items():
                run = getattr(stage, method)
                setattr(stage, method, wraps.stage(run, name, stage, stage.is_last and loss_fn is not None))
        custom.update(replaced)

        def take_off() -> None:
            del schedule.step
            schedule._loss_fn = loss_fn
            for stage in self._stages:
                for method in _RUNS:
                    delattr(stage, method)
            custom.update(kept)

        return take_off


class _Wraps:
    """What stands around the methods of a schedule and of its stages.

    Args:
        marks: Where training is.
    """

    def __init__(self, marks: PipelineMarks) -> None:
        self._marks = marks
        self._awaits_loss = False  # whether the forward that is open lasts until its loss is computed

    def step(self, schedule: Any) -> Callable[..., Any]:
        """The step of a schedule."""
        run_step = schedule.step

        def step(*arguments: Any, **options: Any) -> Any:
            if not schedule._has_backward:  # `eval` calls `step` too
                return run_step(*arguments, **options)
            self._awaits_loss = False
            with self._marks.step():
                return run_step(*arguments, **options)

        return step

    def stage(self, run: Callable[..., Any], name: str, stage: Any, loss_follows: bool) -> Callable[..., Any]:
        """A method of a stage that runs one micro-batch."""

        def run_instruction(*arguments: Any, **options: Any) -> Any:
            own = "backward_input" if name == "backward" and not options.get("full_backward", True) else name
            self._end_forward()  # a schedule may leave the loss out
            if self._marks.running is not None or not self._marks.in_step:
                return run(*arguments, **options)  # inside a custom function, which is the instruction, or evaluating
            self._marks.begin(own, stage.stage_index)
            self._awaits_loss = loss_follows and own == "forward"
            try:
                return run(*arguments, **options)
            except BaseException:
                self._awaits_loss = False
                raise
            finally:
                if not self._awaits_loss:
                    self._marks.end(own)

        return run_instruction

    def loss(self, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
        """The loss function, part of the last stage's forward: with a large vocabulary it is real work."""

        def compute_loss(*arguments: Any, **options: Any) -> Any:
            try:
                return loss_fn(*arguments, **options)
            finally:
                self._end_forward()

        return compute_loss

    def custom(self, run: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """A function that replaces an action of the schedule.

        Raises:
            ConfigError: The action is forward and backward at once; it would need one clock for two instructions.
        """
        if kind == "OVERLAP_F_B":
            raise ConfigError(
                "this schedule overlaps forward and backward by a custom function, which pfo-fs cannot follow; leave "
                "the function out, or do not attach pfo-fs to this schedule"
            )
        name = _CUSTOM.get(kind)
        if name is None:  # communication
            return run

        def run_action(action: Any, *arguments: Any, **options: Any) -> Any:
            self._end_forward()
            self._marks.begin(name, action.stage_index)
            try:
                return run(action, *arguments, **options)
            finally:
                self._marks.end(name)

        return run_action

    def _end_forward(self) -> None:
        if self._awaits_loss:
            self._awaits_loss = False
            self._marks.end("forward")


def _replicas(group: Any) -> dict[str, int]:
    """Which of the pipelines of this job a process group is; a collective call of all ranks."""
    import torch.distributed as dist

    own = tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))
    members: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(members, own)
    pipelines = sorted(set(members))
    return {"dp_rank": pipelines.index(own), "dp_degree": len(pipelines)}
