"""The schedules of `torch.distributed.pipelining`, also in torchtitan's trainer.

    schedule = ScheduleInterleaved1F1B(stages, n_microbatches, loss_fn=loss_fn)
    pfo = pfo_fs.attach(schedule, "/shared/pfo")

The schedule object and this rank's stage objects get methods of their own; no class is changed. Hooks of `nn.Module`
would not do: in its first step, a schedule runs each stage once more, to find the shapes of its outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.integrations.load_steps import MicroBatch
from pfo_fs.integrations.pipeline_marks import ObjectWraps, PipelineMarks
from pfo_fs.ipc.collectives import Collectives
from pfo_fs.planner.pipeline import Instruction, pipeline_from_torch
from pfo_fs.training.parallel_dims import along_dimensions, find_parallel_dims

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining.schedules import _PipelineSchedule
    from torch.distributed.pipelining.stage import _PipelineStageBase
    from torchtitan.trainer import Trainer

Given = ParamSpec("Given")
Result = TypeVar("Result")

log = logging.getLogger("pfo_fs")

_WRITTEN_FOR = "torch.distributed.pipelining of torch 2.13; use PFOFileOptimizer and its callbacks"
_PLACE = ("pp_rank", "pp_degree", "dp_rank", "dp_degree", "tp_rank", "tp_degree")
_OF_SCHEDULE = ("step", "_loss_fn", "_has_backward")
_NOT_SPLIT = ("target", "losses", "return_outputs", "loss_kwargs")
"""Arguments of a schedule's step that do not go to its model."""
_OF_STAGE = (
    "forward_one_chunk",
    "backward_one_chunk",
    "backward_weight_one_chunk",
    "stage_index",
    "is_last",
    "group",
    "group_rank",
    "group_size",
)


class TorchPipeline:
    """Where a schedule of `torch.distributed.pipelining` runs its instructions.

    A step is one run of the schedule: with gradient accumulation, an optimizer step has several.

    Args:
        mesh: A `DeviceMesh` with named dimensions, `pp` among them; None: the stages' process group tells where this
            rank stands, and there is no tensor parallelism.

    Raises:
        ConfigError: The schedule cannot be followed, or this version of torch works in another way.
    """

    def __init__(self, schedule: _PipelineSchedule, mesh: DeviceMesh | None = None) -> None:
        self._schedule = schedule
        self._mesh = mesh
        if hasattr(schedule, "forward_one_chunk"):
            raise ConfigError("give attach() the schedule, such as ScheduleGPipe(stage, ...), in place of its stage")
        stages: Sequence[_PipelineStageBase] | None = getattr(schedule, "_stages", None)
        ObjectWraps.check(schedule, _WRITTEN_FOR, *_OF_SCHEDULE, *(() if stages else ("_stage",)))
        self._stages = stages or [schedule._stage]
        for stage in self._stages:
            ObjectWraps.check(stage, _WRITTEN_FOR, *_OF_STAGE)
        if schedule._loss_fn is None:
            raise ConfigError(
                f"the {type(schedule).__name__} has no loss_fn, so its steps have no backward and are not followed; "
                "give attach() the schedule that trains"
            )
        own_functions = getattr(schedule, "_comp_type_to_function_map", {})  # the user's functions in place of actions
        if any(kind.name == "OVERLAP_F_B" for kind in own_functions):
            raise ConfigError(
                f"a function registered with this {type(schedule).__name__} runs a forward and a backward at once, and "
                "pfo-fs cannot plan a clock for the two together; remove its register_custom_function(OVERLAP_F_B, ...)"
            )

    def parallel_dims(self) -> dict[str, int]:
        """This rank's place, and its device, as arguments of `PFOFileOptimizer`; a collective call of all ranks.

        Without a mesh, every pipeline counts as a replica.
        """
        stage = self._stages[0]
        if self._mesh is not None:
            dims = find_parallel_dims(mesh=self._mesh)
            if (dims.pp_rank, dims.pp_degree) != (stage.group_rank, stage.group_size):
                raise ConfigError(
                    f"the mesh says that this is rank {dims.pp_rank} of a pipeline of {dims.pp_degree}, the stage's "
                    f"process group says {stage.group_rank} of {stage.group_size}; make both from the same mesh"
                )
            return {name: getattr(dims, name) for name in _PLACE} | self._device()
        import torch.distributed as dist

        members = tuple(dist.get_process_group_ranks(stage.group))
        pipelines = sorted(set(Collectives.of_program().all_gather(members)))
        place = (stage.group_rank, stage.group_size, pipelines.index(members), len(pipelines), 0, 1)
        return dict(zip(_PLACE, place, strict=True)) | self._device()

    def _device(self) -> dict[str, int]:
        """The index of this rank's CUDA device; empty if the stages are on another device, or do not tell which."""
        device: torch.device | None = getattr(self._stages[0], "device", None)
        if device is None or getattr(device, "type", None) != "cuda" or device.index is None:
            return {}
        return {"device": device.index}

    def orders(self) -> Sequence[Sequence[Instruction]]:
        """For each rank of the pipeline, its instructions in one step; empty if the schedule does not tell them."""
        try:
            return pipeline_from_torch(self._schedule).orders
        except PlanError as error:  # a schedule of the user's own
            log.info("the order of the instructions is taken from the first step: %s", error)
            return []

    def install(self, marks: PipelineMarks) -> Callable[[], None]:
        schedule, wraps, brackets = self._schedule, ObjectWraps(), _Brackets(marks)
        run_step = schedule.step

        def step(*arguments: object, **options: object) -> object:
            if not schedule._has_backward:  # `eval` calls `step`
                return run_step(*arguments, **options)
            marks.read_loads(lambda: _micro_batches(schedule, arguments, options))
            with marks.step():
                return run_step(*arguments, **options)

        wraps.replace(schedule, "step", step)
        wraps.replace(schedule, "_loss_fn", brackets.loss(schedule._loss_fn))
        for stage in self._stages:
            number = stage.stage_index
            forward = brackets.around(stage.forward_one_chunk, "forward", number, until_loss=stage.is_last)
            wraps.replace(stage, "forward_one_chunk", forward)
            wraps.replace(stage, "backward_one_chunk", brackets.backward(stage.backward_one_chunk, number))
            weight = brackets.around(stage.backward_weight_one_chunk, "backward_weight", number)
            wraps.replace(stage, "backward_weight_one_chunk", weight)
        return wraps.undo


class TorchtitanPipeline(TorchPipeline):
    """The schedule of torchtitan's trainer, in the trainer's place in the job.

    Raises:
        ConfigError: The trainer has no pipeline, or this version of torchtitan works in another way.
    """

    def __init__(self, trainer: Trainer) -> None:
        dims = getattr(trainer, "parallel_dims", None)
        if dims is not None and not dims.pp_enabled:
            raise ConfigError(
                "pipeline_parallel_degree is 1, so no rank waits for another and no clock can be lowered for free: use "
                "the power-limit optimizer (GlobalPowerLimitOptimizer)"
            )
        ObjectWraps.check(trainer, "the Trainer of torchtitan 0.3.0", "parallel_dims", "pp_schedule")
        super().__init__(trainer.pp_schedule)
        self._dims = trainer.parallel_dims

    def parallel_dims(self) -> dict[str, int]:
        """This rank's place, as arguments of `PFOFileOptimizer`; all dimensions but pp and tp are replicas."""
        meshes = {name: self._dims.get_optional_mesh(name) for name in ("pp", "tp", "dp_replicate", "dp_shard", "cp")}
        known = [(name, mesh.get_local_rank(), mesh.size()) for name, mesh in meshes.items() if mesh is not None]
        return along_dimensions(known) | self._device()


class _Brackets:
    """Wraps a rank's functions so that they mark begin and end of their instructions.

    A schedule computes the loss after the forward of the last stage has returned. With a large vocabulary that is much
    of the stage's work, so such a forward is kept open until the loss is there.
    """

    def __init__(self, marks: PipelineMarks) -> None:
        self._marks = marks
        self._awaits_loss = False

    def around(
        self, run: Callable[Given, Result], name: str, stage: int, *, until_loss: bool = False
    ) -> Callable[Given, Result]:
        """Returns `run`, bracketed as an instruction; if `until_loss`, the instruction ends with the loss."""

        def run_instruction(*arguments: Given.args, **options: Given.kwargs) -> Result:
            self._end_forward()
            began = self._marks.begin(name, stage)
            try:
                output = run(*arguments, **options)
            except BaseException:
                if began:
                    self._marks.end(name)
                raise
            if until_loss:
                self._awaits_loss = began
            elif began:
                self._marks.end(name)
            return output

        return run_instruction

    def loss(self, run: Callable[Given, Result]) -> Callable[Given, Result]:
        """Returns the loss function, wrapped so that its end also ends the forward of the last stage."""

        def loss_fn(*arguments: Given.args, **options: Given.kwargs) -> Result:
            try:
                return run(*arguments, **options)
            finally:
                self._end_forward()

        return loss_fn

    def _end_forward(self) -> None:
        if self._awaits_loss:
            self._awaits_loss = False
            self._marks.end("forward")

    def backward(self, run: Callable[..., Result], stage: int) -> Callable[..., Result]:
        """Returns a stage's `backward_one_chunk`, bracketed as `backward` or as `backward_input`."""
        whole, inputs = self.around(run, "backward", stage), self.around(run, "backward_input", stage)

        def run_instruction(*arguments: object, full_backward: bool = True, **options: object) -> Result:
            bracketed = whole if full_backward else inputs
            return bracketed(*arguments, full_backward=full_backward, **options)

        return run_instruction


def _micro_batches(
    schedule: _PipelineSchedule, arguments: Sequence[object], options: Mapping[str, object]
) -> Iterable[MicroBatch]:
    """The arguments of each micro-batch's forward, as a schedule splits its step's arguments; empty if it has none."""
    forward = {name: value for name, value in options.items() if name not in _NOT_SPLIT}
    if not arguments and not forward:
        return []
    return zip(*schedule._split_inputs(tuple(arguments), forward), strict=True)
