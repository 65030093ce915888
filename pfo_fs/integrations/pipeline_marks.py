"""What the adapters of frameworks with a pipeline have in common.

An adapter of a framework has three methods (`PipelineAdapter`). `attach_pipeline` makes the optimizer from them.
examples/colossalai_adapter.py is a complete adapter.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, ParamSpec, Protocol, TypeVar

from pfo_fs.errors import ConfigError, InstructionMismatch
from pfo_fs.guard import Guard, InTraining
from pfo_fs.integrations.load_steps import LoadSteps, MicroBatches, StepLoads, check_loads
from pfo_fs.ipc.collectives import Collectives, agree
from pfo_fs.planner.pipeline import Instruction
from pfo_fs.training import optimizer
from pfo_fs.training.load_clocks import LoadClocks

Given = ParamSpec("Given")
Result = TypeVar("Result")


class PipelineMarks:
    """An adapter reports here where training is. Outside of a step, as in evaluations, instructions are ignored.

    Args:
        order: What this rank runs in one step.
        guard: Keeps errors out of training; without a guard, errors are raised.

    Attributes:
        guard: The guard; an adapter's own code inside of a step belongs into it.
        in_step: Whether a step has begun and its last instruction has not ended.
        running: The name of the instruction that runs; None between two instructions.
        before_step: Called before each step.
        holds_step: Whether a step goes on after its last instruction, until `end_step`.
    """

    def __init__(
        self, opt: optimizer.PFOFileOptimizer | LoadSteps, order: Sequence[Instruction], guard: Guard | None = None
    ) -> None:
        self.in_step = False
        self.running: str | None = None
        self.before_step: Callable[[], object] = lambda: None
        self.holds_step = False
        self._opt = opt
        self._order = order
        self._position = 0
        self._order_is_over = False  # the step was ended because all of the order had run
        self._runs_longer = False  # a step has run more instructions than the order
        self._began_ns = 0
        self._stage = 0
        self._kernels = opt.simulated_kernels()
        self.guard = guard or Guard(lambda _: None, strict=True)

    def read_loads(self, micro_batches: MicroBatches) -> None:
        """Reads the loads of the next step, if clocks come from loads; an adapter calls this if it can."""
        if isinstance(self._opt, LoadSteps):
            self._opt.read(micro_batches)

    def follow(self, order: Sequence[Instruction]) -> None:
        """From the next step on, this rank runs another order."""
        self._order, self._runs_longer = order, False

    def begin_step(self) -> None:
        """Begins a step; a step that an error has left open ends first."""
        self.end_step()
        with self.guard:
            self.before_step()
        self.in_step, self._position = True, 0
        self._opt.on_step_begin()

    def end_step(self) -> None:
        self._order_is_over = False
        self._end_step()

    def _end_step(self) -> None:
        if self.in_step:
            self.in_step, self.running = False, None
            self._opt.on_step_end()

    def begin(self, name: str, stage: int | None = None) -> bool:
        """Begins an instruction; outside of a step or inside of another instruction, begins none and returns False.

        Args:
            name: `forward`, `backward`, ...
            stage: The stage; if None, the stage of the next instruction of this rank's order.
        """
        if not self.in_step or self.running is not None:
            self._runs_longer |= self._order_is_over
            return False
        if stage is None:
            stage = self._order[self._position].stage if self._position < len(self._order) else None
        self.running, self._stage, self._began_ns = name, stage or 0, time.monotonic_ns()
        self._opt.on_instruction_begin(name, stage=stage)
        return True

    def end(self, name: str) -> None:
        """Ends an instruction; the last one of this rank's order ends the step too, unless an earlier step had more."""
        if self.running != name:
            return
        if self._kernels is not None:  # on a simulated GPU an instruction takes the time that its clock gives it
            with self.guard:
                self._kernels.run(name, self._stage, self._began_ns)
        self._opt.on_instruction_end(name)
        self.running = None
        self._position += 1
        if self._position == len(self._order) and not (self._runs_longer or self.holds_step):
            self._order_is_over = True
            self._end_step()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Brackets a step; after an error inside it, the clocks go to their default too."""
        self.begin_step()
        try:
            yield
        except BaseException:
            with suppress(InstructionMismatch):  # missing instructions are not the cause of the error
                self.end_step()
            raise
        self.end_step()

    def around(self, run: Callable[Given, Result], name: str, stage: int | None = None) -> Callable[Given, Result]:
        def run_instruction(*arguments: Given.args, **options: Given.kwargs) -> Result:
            began = self.begin(name, stage)
            try:
                return run(*arguments, **options)
            finally:
                if began:
                    self.end(name)

        return run_instruction


class ObjectWraps:
    """Attributes that are replaced on objects, never on classes, until `undo`."""

    _in_place: ClassVar[dict[int, object]] = {}
    """All values that replace others now, by identity."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, object, object]] = []

    @classmethod
    def check(cls, thing: object, written_for: str, *names: str) -> None:
        """Raises ConfigError if one of these attributes is missing, or is replaced already.

        Args:
            written_for: The framework, and its version, whose objects have these attributes.
        """
        kind = type(thing).__name__
        for name in names:
            if not hasattr(thing, name):
                raise ConfigError(f"this {kind} has no {name}: pfo-fs was written for {written_for}")
            if id(vars(thing).get(name)) in cls._in_place:
                raise ConfigError(
                    f"this {kind} is attached already, and one job can follow it; close() the first attachment before "
                    "you attach again"
                )

    def replace(self, thing: object, name: str, value: object) -> None:
        self._replaced.append((thing, name, value, vars(thing).get(name, _ABSENT)))
        self._in_place[id(value)] = value
        setattr(thing, name, value)

    def undo(self) -> None:
        """Sets everything back, except what another program has replaced since."""
        while self._replaced:
            thing, name, value, before = self._replaced.pop()
            self._in_place.pop(id(value), None)
            if vars(thing).get(name) is not value:
                continue
            if before is _ABSENT:
                delattr(thing, name)
            else:
                setattr(thing, name, before)


_ABSENT = object()


_STABLE_STEPS = 20
"""The scheduler is told of another order after this many steps in a row: profiling takes several windows of steps."""


class PipelineAdapter(Protocol):
    """What pfo-fs needs to know of a framework."""

    def parallel_dims(self) -> dict[str, int]:
        """`pp_rank`, `pp_degree`, and the same of `dp` and `tp`, as arguments of `PFOFileOptimizer`.

        All ranks call this, or none, so it may exchange values.
        """

    def orders(self) -> Sequence[Sequence[Instruction]]:
        """For each rank of the pipeline, its instructions in one step; empty if only the first step will show them."""

    def install(self, marks: PipelineMarks) -> Callable[[], None]:
        """Makes the framework's objects call `marks`; returns the function that undoes that."""


AnyAttachment = TypeVar("AnyAttachment", bound="Attachment")


class Attachment(InTraining):
    """An optimizer that follows a framework's steps until `close`.

    Unless `strict`, an error of any kind is one warning, and training goes on at default clocks: then nothing is
    followed, and all methods can be called and do nothing.
    """

    def _start_as_nothing(self, strict: bool = False) -> None:
        """Follows nothing, until `_follow`."""
        self._guard = Guard(self._go_without, strict=strict)
        self._undo: Callable[[], None] | None = None
        self._adapter: PipelineAdapter | None = None
        self.optimizer = optimizer.PFOFileOptimizer.nothing()
        self.orders: Sequence[Sequence[Instruction]] = []
        self.marks = PipelineMarks(self.optimizer, [], self._guard)
        self._told_orders: Sequence[Sequence[Instruction]] = []  # the orders that the scheduler knows
        self._same_steps = 0
        self._clocks: LoadClocks | None = None
        self._load_steps: LoadSteps | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing is followed: `close` was called, or something has failed."""
        return self._undo is None

    @classmethod
    def make(
        cls: type[AnyAttachment],
        find: Callable[[], PipelineAdapter],
        shared_dir: str | os.PathLike[str],
        options: Mapping[str, object],
    ) -> AnyAttachment:
        """Makes the optimizer of an adapter; see `attach_pipeline`."""
        made = cls.__new__(cls)
        made._start_as_nothing(bool(options.get("strict", False)))
        with made._guard:
            made._follow(find, shared_dir, options)
        return made

    def _follow(
        self, find: Callable[[], PipelineAdapter], shared_dir: str | os.PathLike[str], options: Mapping[str, object]
    ) -> None:
        adapter = self._adapter = self._on_all_ranks(find, options)
        dims = adapter.parallel_dims()

        def orders_of() -> Sequence[Sequence[Instruction]]:
            if dims["pp_degree"] == 1:
                raise ConfigError(
                    "the pipeline has one stage, so no rank waits for another and no clock can be lowered for free: "
                    "use the power-limit optimizer (GlobalPowerLimitOptimizer)"
                )
            check_loads(options.get("loads"), orders := adapter.orders())
            return orders

        orders = self._on_all_ranks(orders_of, options)
        own = orders[dims["pp_rank"]] if orders else []
        given = {**dims, **options, "strict": self._guard.strict}
        loads = given.pop("loads", None)
        steps: optimizer.PFOFileOptimizer | LoadSteps
        if loads is None:
            self.optimizer = steps = optimizer.PFOFileOptimizer(shared_dir, **given)  # type: ignore[arg-type]
        else:
            self._clocks = LoadClocks(shared_dir, orders=orders, **given)  # type: ignore[arg-type]
            self._load_steps = steps = LoadSteps(self._clocks, loads if callable(loads) else None)
            self.optimizer = self._clocks.optimizer
        if not self.optimizer.follows:
            return  # it has said why
        try:
            if own and loads is None:
                self.optimizer.expect_order([(name, stage) for stage, name, _ in own])
            self.orders = self._told_orders = orders
            self.marks = PipelineMarks(steps, own, self._guard)
            self._undo = adapter.install(self.marks)
        except BaseException:
            (self._clocks or self.optimizer).close()
            raise

    def _on_all_ranks(self, work: Callable[[], Result], options: Mapping[str, object]) -> Result:
        """Returns what `work` returns; an error on one rank is raised on all ranks."""
        ranks = Collectives(0, 1, None) if options.get("world_size") == 1 else Collectives.of_program()
        try:
            result = work()
        except Exception as error:
            agree(ranks, error, self._guard)
            raise
        agree(ranks, None, self._guard)
        return result

    def follow_orders(self, orders: Sequence[Sequence[Instruction]]) -> None:
        """Sets the orders of the next step; the scheduler is told of other orders once they have run for some steps.

        Until then, steps of other orders run at default clocks and are not measured.

        Args:
            orders: The instructions of each rank of the pipeline; all ranks give the same orders for a step. Equal
                orders must be the same list object.
        """
        if orders is not self.orders:
            self.orders, self._same_steps = orders, 0
            self.marks.follow(orders[self.optimizer.parallel_dims.pp_rank])
        self._same_steps += 1
        if self._clocks is not None:
            return
        if orders is not self._told_orders and self._same_steps > _STABLE_STEPS:
            self._told_orders = orders
            self.optimizer.expect_order([(name, at) for at, name, _ in orders[self.optimizer.parallel_dims.pp_rank]])
        self.optimizer.runs_other_order(orders is not self._told_orders)

    def give_loads(self, loads: StepLoads, ahead: Sequence[StepLoads] = ()) -> None:
        """Gives the loads of the next step, for `attach(..., loads=True)`; one rank of a pipeline is enough.

        Args:
            loads: The load of each micro-batch of this rank's pipeline, in their order; see `LoadClocks.step`.
            ahead: The loads of the steps after it, if they are known. All ranks of a job give the same number of steps.
        """
        if self._load_steps is not None:
            self._load_steps.given = (loads, *ahead)
        elif not self.closed:
            self.optimizer._problem("give_loads() changes nothing: call attach() with loads=True")

    def _go_without(self, error: Exception) -> None:
        """Takes everything off the framework's objects, and the optimizer out of training."""
        undo, self._undo = self._undo, None
        if undo is not None:
            with suppress(Exception):
                undo()
        (self._clocks or self.optimizer).go_without(error)

    def metrics(self) -> dict[str, float]:
        """Returns averages over the steps since the last call, for a logger (docs/reports.md)."""
        return (self._clocks or self.optimizer).metrics()

    @property
    def status_text(self) -> str:
        """On rank 0 of a job with clocks from loads, what is known of them; else empty."""
        return "" if self._clocks is None else self._clocks.status_text

    def close(self) -> None:
        """Takes everything off the framework's objects, resets the clocks, and leaves the job."""
        undo, self._undo = self._undo, None
        if undo is not None:
            with self._guard:
                undo()
            with suppress(InstructionMismatch):  # an error may have left a step open
                self.marks.end_step()
        (self._clocks or self.optimizer).close()

    def _end(self, error: BaseException | None) -> None:
        self.optimizer._end(error)  # tells the scheduler how training has ended
        self.close()


def attach_pipeline(adapter: PipelineAdapter, shared_dir: str | os.PathLike[str], **options: object) -> Attachment:
    """Follows the steps of a framework; a collective call of all ranks.

    Args:
        shared_dir: The directory that all ranks, the daemon and users share.
        options: Other arguments of `PFOFileOptimizer`, and `loads` as for `attach`. With `strict`, errors are raised,
            such as a ConfigError where the pipeline has one stage; without, they are one warning, and training goes on.
    """
    return Attachment.make(lambda: adapter, shared_dir, options)
