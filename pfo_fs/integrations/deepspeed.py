"""DeepSpeed's pipeline engines: `PipelineEngine` and `DualPipeVEngine`.

    engine, *_ = deepspeed.initialize(model=PipelineModule(...), config=...)
    pfo = pfo_fs.attach(engine, "/shared/pfo")

The engine runs the instructions of its schedule through a table, `_INSTRUCTION_MAP`, of its class. The engine object
gets a table of its own in which forward and backward are wrapped. To wrap the engine's methods would have no effect:
the table holds the functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import TYPE_CHECKING, TypeVar

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.pipeline_marks import ObjectWraps, PipelineMarks
from pfo_fs.planner.pipeline import Instruction

if TYPE_CHECKING:
    from deepspeed.runtime.pipe.engine import PipelineEngine

Result = TypeVar("Result")

_ENGINE = "the PipelineEngine of DeepSpeed 0.19.8"
_NAMES = {"ForwardPass": "forward", "BackwardPass": "backward"}


class DeepSpeedPipeline:
    """The adapter to the engine of a `PipelineModule` or a `DualPipeVModule`.

    Raises:
        ConfigError: The engine has no pipeline, or this version of DeepSpeed works in another way.
    """

    def __init__(self, engine: PipelineEngine) -> None:
        self._engine = engine
        names = ("train_batch", "_INSTRUCTION_MAP", "_train_schedule", "num_stages", "stage_id", "grid")
        ObjectWraps.check(engine, f"{_ENGINE}; give attach() the engine of a PipelineModule", *names)
        if missing := sorted(_NAMES.keys() - {kind.__name__ for kind in engine._INSTRUCTION_MAP}):
            raise ConfigError(f"this engine has no instruction {missing[0]}; pfo-fs was written for {_ENGINE}")

    def parallel_dims(self) -> dict[str, int]:
        grid = self._engine.grid
        # The grid's `get_model_parallel_rank` counts pipeline ranks too; `get_tensor_model_parallel_rank` does not.
        return {
            "pp_rank": grid.get_pipe_parallel_rank(),
            "pp_degree": grid.get_pipe_parallel_world_size(),
            "dp_rank": grid.get_data_parallel_rank(),
            "dp_degree": grid.get_data_parallel_world_size(),
            "tp_rank": grid.get_tensor_model_parallel_rank(),
            "tp_degree": grid.get_tensor_model_parallel_world_size(),
        }

    def orders(self) -> list[list[Instruction]]:
        return [self._order(stage_id) for stage_id in range(self._engine.num_stages)]

    def _order(self, stage_id: int) -> list[Instruction]:
        own = self._engine._train_schedule()
        schedule = type(own)(micro_batches=own.micro_batches, stages=own.stages, stage_id=stage_id)
        # A command does not name its micro-batch, only a buffer, which later micro-batches use again.
        counts: defaultdict[tuple[int, str], Iterator[int]] = defaultdict(count)
        places = [
            (self._stage(stage_id, command.kwargs.get("phase")), _NAMES[type(command).__name__])
            for command in chain.from_iterable(schedule.steps())
            if type(command).__name__ in _NAMES
        ]
        return [Instruction(*place, next(counts[place])) for place in places]

    def _stage(self, stage_id: int, phase: object) -> int:
        """The stage of an instruction: in DualPipeV, a rank's stage of phase 1 is on the way back."""
        return 2 * self._engine.num_stages - 1 - stage_id if phase else stage_id

    def install(self, marks: PipelineMarks) -> Callable[[], None]:
        """Gives the engine object a table and a `train_batch` of its own; returns the function that removes both."""
        engine, train_batch = self._engine, self._engine.train_batch

        def bracketed(run: Callable[..., Result], name: str) -> Callable[..., Result]:
            def run_instruction(engine: PipelineEngine, *arguments: object, **options: object) -> Result:
                stage = None
                with marks.guard:
                    stage = self._stage(engine.stage_id, options.get("phase"))
                return marks.around(run, name, stage)(engine, *arguments, **options)

            return run_instruction

        def train_one_batch(*arguments: object, **options: object) -> object:
            with marks.step():
                return train_batch(*arguments, **options)

        own = {
            kind: bracketed(run, _NAMES[kind.__name__]) if kind.__name__ in _NAMES else run
            for kind, run in engine._INSTRUCTION_MAP.items()
        }
        wraps = ObjectWraps()
        wraps.replace(engine, "_INSTRUCTION_MAP", own)
        wraps.replace(engine, "train_batch", train_one_batch)
        return wraps.undo
