"""Megatron-Core's pipeline schedules, with and without interleaving.

In a training loop of your own:

    pfo = megatron.attach(model, "/shared/pfo", num_microbatches=8)
    forward_backward_func = pfo.forward_backward(get_forward_backward_func())

With Megatron-LM's `pretrain`, which hides its loop:

    model_provider, forward_step = megatron.hooks(model_provider, forward_step, "/shared/pfo")

Nothing of Megatron is patched: it starts and stops timers around each forward and backward, and `config.timers` is a
public field for any callable that returns such timers. The program's own timers are still started and stopped.
`megatron.training` replaces `config.timers` around an evaluation; the wrapped functions put the timers back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.pipeline_marks import Attachment, ObjectWraps, PipelineAdapter, PipelineMarks
from pfo_fs.planner.pipeline import Instruction

if TYPE_CHECKING:
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.timers import Timer, Timers
    from megatron.core.transformer.module import MegatronModule

Result = TypeVar("Result")

_NAMES = {"forward-compute": "forward", "backward-compute": "backward"}
_STEP = "forward-backward"


def config_of(model: MegatronModule | list[MegatronModule]) -> ModelParallelConfig:
    """The configuration that Megatron's schedules read; some programs give each model its own copy."""
    try:
        from megatron.core.utils import get_model_config
    except ImportError as error:
        raise ConfigError(f"megatron-core cannot be imported ({error}); is it installed here?") from error
    return get_model_config(model[0] if isinstance(model, list) else model)


class MegatronPipeline:
    """Megatron's place in the job, and the order of its instructions.

    Raises:
        ConfigError: Megatron runs in a way that pfo-fs cannot follow, or the number of micro-batches is not known.
    """

    def __init__(
        self,
        model: MegatronModule | list[MegatronModule],
        num_microbatches: int | None = None,
        *,
        hides_loop: bool = False,
    ) -> None:
        self.config = config_of(model)
        ObjectWraps.check(self.config, "megatron-core 0.16 to 0.19", "timers")
        _refuse_unmarkable(self.config, hides_loop=hides_loop)
        number = _num_microbatches(after_ramp_up=True) if num_microbatches is None else num_microbatches
        if number is None:
            raise ConfigError("the number of micro-batches of a step is not known: pass num_microbatches=")
        self.num_microbatches = number

    def parallel_dims(self) -> dict[str, int]:
        from megatron.core import parallel_state

        return {
            "pp_rank": parallel_state.get_pipeline_model_parallel_rank(),
            "pp_degree": parallel_state.get_pipeline_model_parallel_world_size(),
            "dp_rank": parallel_state.get_data_parallel_rank(with_context_parallel=True),
            "dp_degree": parallel_state.get_data_parallel_world_size(with_context_parallel=True),
            "tp_rank": parallel_state.get_tensor_model_parallel_rank(),
            "tp_degree": parallel_state.get_tensor_model_parallel_world_size(),
        }

    def orders(self, num_microbatches: int | None = None) -> list[list[Instruction]]:
        """For each rank of the pipeline, its instructions in one step.

        Raises:
            ImportError: This version of Megatron-Core has no functions that tell the order.
        """
        from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table

        count, config = num_microbatches or self.num_microbatches, self.config
        ranks, chunks = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size
        group = config.microbatch_group_size_per_vp_stage or ranks
        table = get_schedule_table(count, chunks or 1, group)

        def order(rank: int) -> list[Instruction]:
            # The function asks its communicator for sizes only, so any rank can ask for the order of another.
            communicator = SimpleNamespace(
                pp_group=SimpleNamespace(size=lambda: ranks, rank=lambda: rank),
                virtual_pipeline_model_parallel_size=chunks,
            )
            _, _, warm_up, _ = get_pp_rank_microbatches(count, chunks or 1, group, p2p_communicator=communicator)
            forwards = [Instruction(chunk * ranks + rank, "forward", m) for m, chunk in table]
            backwards = [Instruction(((chunks or 1) - 1 - chunk) * ranks + rank, "backward", m) for m, chunk in table]
            paired = [both for pair in zip(forwards[warm_up:], backwards, strict=False) for both in pair]
            return forwards[:warm_up] + paired + backwards[len(forwards) - warm_up :]

        return [order(rank) for rank in range(ranks)]

    def install(self, marks: PipelineMarks) -> Callable[[], None]:
        return _arm(self.config, marks)


def attach(
    model: MegatronModule | list[MegatronModule],
    shared_dir: str | os.PathLike[str],
    *,
    num_microbatches: int | None = None,
    hides_loop: bool = False,
    **options: object,
) -> MegatronAttachment:
    """`pfo_fs.attach` for a Megatron model, after `initialize_model_parallel`.

    Args:
        model: The model of this rank, or the list of its chunks.
        shared_dir, options: As for `pfo_fs.attach`.
        num_microbatches: Micro-batches of one step; if None, what `megatron.core.num_microbatches_calculator` says.
        hides_loop: Whether the program's calls of its schedule cannot be wrapped, as in `pretrain`.
    """
    pipeline = partial(MegatronPipeline, model, num_microbatches, hides_loop=hides_loop)
    return MegatronAttachment.make(pipeline, shared_dir, options)


def hooks(
    model_provider: Callable[..., MegatronModule],
    forward_step: Callable[..., Result],
    shared_dir: str | os.PathLike[str],
    **options: object,
) -> tuple[Callable[..., MegatronModule], Callable[..., Result]]:
    """Returns the two functions for Megatron-LM's `pretrain`, wrapped so that its steps are followed.

    All ranks call `model_provider`, so pfo-fs joins the job in its first call.
    """
    attached: list[MegatronAttachment] = []

    @wraps(model_provider)
    def provide(*arguments: object, **keywords: object) -> MegatronModule:
        model = model_provider(*arguments, **keywords)
        if not attached:
            attached.append(attach(model, shared_dir, hides_loop=True, **options))  # type: ignore[arg-type]
        return model

    @wraps(forward_step)
    def step(*arguments: object, **keywords: object) -> Result:
        function = attached[0].forward_step(forward_step) if attached else forward_step
        return function(*arguments, **keywords)

    return provide, step


class MegatronAttachment(Attachment):
    """An `Attachment` whose functions put the timers back if the program has replaced them."""

    def _start_as_nothing(self, strict: bool = False) -> None:
        super()._start_as_nothing(strict)
        self._armed: dict[int, Callable[[], None]] = {}  # what takes out the timers, by the configuration's id
        self._given: int | None = None  # the number of micro-batches that the wrapped function got last
        self._orders_of: dict[int, Sequence[Sequence[Instruction]]] = {}

    def _follow(
        self, find: Callable[[], PipelineAdapter], shared_dir: str | os.PathLike[str], options: Mapping[str, object]
    ) -> None:
        """See `Attachment`; also follows the number of micro-batches, which changes while it ramps up."""
        super()._follow(find, shared_dir, options)
        adapter = self._adapter
        assert isinstance(adapter, MegatronPipeline)
        self._orders_of[adapter.num_microbatches] = self.orders

        def follow_number() -> None:
            number = _num_microbatches() if self._given is None else self._given
            if number is not None and not self.closed:
                if number not in self._orders_of:
                    self._orders_of[number] = adapter.orders(number)
                self.follow_orders(self._orders_of[number])

        self.marks.before_step = follow_number
        self.marks.holds_step = _is_in_one_graph(adapter.config)

    def forward_backward(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns the `function` that Megatron gave, wrapped so that its steps are followed; an error ends the step."""

        @wraps(function)
        def run(*arguments: Any, **options: Any) -> Result:
            if options.get("forward_only") or self.closed or not _training():
                return function(*arguments, **options)
            with self._guard:
                self._arm(config_of(options["model"] if "model" in options else arguments[2]))
                self._given = options.get("num_microbatches", arguments[3] if len(arguments) > 3 else None)
            if self.marks.holds_step:  # a replay starts and stops no timers
                with self.marks.step():
                    return function(*arguments, **options)
            try:
                return function(*arguments, **options)
            finally:
                self.marks.end_step()

        return run

    def forward_step(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns a `forward_step_func`, wrapped to follow steps, for loops that hide their call of the schedule."""

        @wraps(function)
        def run(data_iterator: object, model: MegatronModule, *arguments: object) -> Result:
            if self.closed or not _training():
                return function(data_iterator, model, *arguments)
            with self._guard:
                if self._arm(config_of(model)) and not self.marks.in_step:
                    self.marks.begin_step()  # the program had replaced the timers: they have not seen this step begin
            self.marks.begin("forward")
            try:
                return function(data_iterator, model, *arguments)
            except BaseException:
                self.marks.end_step()
                raise

        return run

    def close(self) -> None:
        """Takes the timers out of every configuration, resets the clocks, and leaves the job."""
        with self._guard:
            for undo in self._armed.values():
                undo()
        super().close()

    def _arm(self, config: ModelParallelConfig) -> bool:
        """Puts the timers into a configuration that does not have them; returns whether it did."""
        if isinstance(config.timers, _Timers):
            return False
        self._armed.pop(id(config), lambda: None)()  # forgets the timers that the program has replaced
        self._armed[id(config)] = _arm(config, self.marks)
        return True


def _arm(config: ModelParallelConfig, marks: PipelineMarks) -> Callable[[], None]:
    wraps = ObjectWraps()
    wraps.replace(config, "timers", _Timers(marks, config.timers))
    return wraps.undo


class _Timers:
    """Megatron's timers, which also mark steps, forwards and backwards."""

    def __init__(self, marks: PipelineMarks, inner: Timers | None) -> None:
        self.inner = inner
        self._marks = marks
        self._of = {
            timer: _Timer(partial(marks.begin, name), partial(marks.end, name)) for timer, name in _NAMES.items()
        }
        self._of[_STEP] = _Timer(marks.begin_step, marks.end_step)
        self._other = _Timer(lambda: None, lambda: None)

    def __call__(self, name: str, *arguments: object, **options: object) -> _Timer | Timer:
        inner = None if self.inner is None else self.inner(name, *arguments, **options)
        own = self._of.get(name)
        if own is None or not _training() or (name == _STEP and self._marks.holds_step):
            return self._other if inner is None else inner
        return own if inner is None else _Timer(own.begin, own.end, inner)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def __reduce__(self) -> tuple[Callable[[Result], Result], tuple[Timers | None]]:
        return _itself, (self.inner,)  # a copy of the configuration has the program's own timers


def _itself(thing: Result) -> Result:
    return thing


class _Timer:
    """A timer that calls `begin` and `end`, and starts and stops another."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object], inner: Timer | None = None) -> None:
        self.begin, self.end, self._inner = begin, end, inner

    def start(self, *arguments: object, **options: object) -> None:
        self.begin()
        if self._inner is not None:
            self._inner.start(*arguments, **options)

    def stop(self, *arguments: object, **options: object) -> None:
        if self._inner is not None:
            self._inner.stop(*arguments, **options)
        self.end()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def _training() -> bool:
    """Whether gradients are computed: evaluations of Megatron run without."""
    import torch

    return bool(torch.is_grad_enabled())


def _num_microbatches(*, after_ramp_up: bool = False) -> int | None:
    """Micro-batches of Megatron's next step, or of the steps after `--rampup-batch-size`; None: not known."""
    from megatron.core import num_microbatches_calculator as calculators

    with suppress(AttributeError):  # the calculator is None
        now = int(calculators.get_num_microbatches())
        calculator = getattr(calculators, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None)
        samples = getattr(calculator, "global_batch_size", None)
        samples_each = getattr(calculator, "micro_batch_times_data_parallel_size", None)
        return max(now, samples // samples_each) if after_ramp_up and samples and samples_each else now
    return None


def _is_in_one_graph(config: ModelParallelConfig) -> bool:
    """Whether all forwards and backwards of a step are captured into one CUDA graph."""
    scope = getattr(config, "cuda_graph_scope", None)
    graphs = [getattr(config, "cuda_graph_impl", None), *(scope if isinstance(scope, list | tuple) else [scope])]
    return "full_iteration" in [getattr(graph, "name", graph) for graph in graphs]


def _refuse_unmarkable(config: ModelParallelConfig, *, hides_loop: bool) -> None:
    """Raises ConfigError where Megatron runs forwards and backwards without its timers."""
    if hides_loop and _is_in_one_graph(config):
        raise ConfigError(
            "with cuda_graph_impl=full_iteration, steps replay a CUDA graph without calling forward_step: set "
            "cuda_graph_impl to transformer_engine or local, or wrap the FullCudaGraphWrapper of a loop of your own "
            "in forward_backward()"
        )
    if getattr(config, "overlap_moe_expert_parallel_comm", False):
        raise ConfigError(
            "with overlap_moe_expert_parallel_comm, Megatron runs a forward and a backward at once and times only the "
            "forward: switch it off, or use the power-limit optimizer (GlobalPowerLimitOptimizer)"
        )
