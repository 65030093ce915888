"""`LoadClocks`: clocks from loads, for every training loop in which ranks wait for each other at the end of a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pfo_fs.errors import PfoError, plain_text
from pfo_fs.guard import Guard, InTraining
from pfo_fs.loads.choice import LOST_TIME
from pfo_fs.training.load_decider import Orders
from pfo_fs.training.optimizer import PFOFileOptimizer
from pfo_fs.training.step_loads import StepLoads, join_loads

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.utils.hooks import RemovableHandle

    from pfo_fs.device.simulated.gpu import SimulatedKernels

_WORK = "work"
"""The one instruction of a step, for `schedule.yaml`, reports and profiles."""
WAITS_IN_BACKWARDS = (
    "ranks wait for each other in the backward of each micro-batch, where gradients are reduced, so that loads of a "
    "step explain little: use no_sync() for all backwards of a step but the last one; with DeepSpeed, ZeRO stage 1"
)
_UNMARKED = 10
"""After ten steps in a row in which nothing has marked the end of the work, there is a warning."""


class _StepOptimizer(PFOFileOptimizer):
    """An optimizer whose ranks may run different numbers of steps: no schedule is broadcast to them."""

    _broadcasts = False

    def follow_loads(self, lost_time: float, orders: Orders, profile_path: str | None) -> StepLoads:
        """Gives each step that has no schedule one clock, which is chosen from the step's loads."""
        job = self._joined
        self._loads = join_loads(self.parallel_dims, lost_time, orders, profile_path, job, self._problem, self._link)
        return self._loads


class LoadClocks(InTraining):
    """Lowers the clocks of ranks with less work in a step, so that all end it together; training takes hardly longer.

    For loops in which a rank waits for the others once in a step, such as DDP. (Pipelines: `pfo_fs.attach` with
    `loads=`.) Make one on every rank, after `init_process_group`; making it is a collective call:

        with pfo_fs.LoadClocks("/shared/pfo", model=ddp_model) as clocks:
            for micro_batches in loader:
                clocks.step(loads=[pfo_fs.loads.tokens(batch) for batch in micro_batches])
                ...  # forward, backward, optimizer.step()

    In the first steps all ranks are at default clocks, and `LoadClocks` learns how the time of a step depends on loads.
    If loads explain too little, ranks stay at default clocks, and the status says so. An error of any kind is one
    warning, and training goes on at default clocks.

    Args:
        shared_dir: The directory that all ranks, the daemon and users share.
        model: The `torch.nn.Module` whose backward ends a rank's own work, such as the `DistributedDataParallel`. None:
            call `work_ended` in each step, where this rank would begin to wait for others. Do the same if the backward
            runs from a CUDA graph.
        orders: In a pipeline, what each of its ranks runs in a step, in order: (stage, instruction, micro-batch). All
            ranks of a pipeline get one clock. It is enough if one rank gives the loads; the others give None. Call
            `work_ended` after a rank's last instruction.
        lost_time: Relative: clocks may make training longer by this share on average.
        profile_path: A file, on rank 0's host, that keeps what was learned: the next start of the job begins from it.
        strict: Raise errors in place of a warning.
        options: Other arguments of `PFOFileOptimizer`, such as `device`, `clock_backend`.
    """

    def _start_as_nothing(self, strict: bool = False) -> None:
        """Makes all methods do nothing, until the job is joined."""
        self._guard = Guard(self.go_without, strict=strict, what="clocks from loads")
        self._loads: StepLoads | None = None
        self._hooks: list[RemovableHandle] = []
        self._parameters: list[Tensor] = []  # of the model, until its forward or a step without an end is seen
        self._in_step = self._in_backward = self._closed = self._has_misread = False
        self._given_loads = self._backwards_left = self._unmarked = 0
        self._by_backward = False  # whether the model's last backward has ended the step's work
        self.optimizer: PFOFileOptimizer = PFOFileOptimizer.nothing()

    def __init__(
        self,
        shared_dir: str | bytes | os.PathLike[str],
        *,
        model: Module | None = None,
        orders: Orders = (),
        lost_time: float = LOST_TIME,
        profile_path: str | os.PathLike[str] | None = None,
        strict: bool = False,
        **options: object,
    ) -> None:
        self._start_as_nothing(strict)
        with self._guard:
            # No plan uses the durations of the instruction; one measured step shows that training marks it.
            places = {} if orders else {"pp_degree": 1, "tp_degree": 1}
            given = {**places, "scheduler": "Manual", "profile_steps": 1, **options}
            self.optimizer = optimizer = _StepOptimizer(shared_dir, strict=strict, **given)  # type: ignore[arg-type]
            if not optimizer.follows:
                return  # the optimizer has said why
            try:
                path = None if profile_path is None else os.path.abspath(os.fspath(profile_path))
                self._loads = optimizer.follow_loads(float(lost_time), orders, path)
                if model is not None:
                    self._hooks.append(model.register_forward_hook(self._on_forward))
                    self._parameters = [tensor for tensor in model.parameters() if tensor.requires_grad]
            except BaseException as error:
                if self._guard.strict or not isinstance(error, Exception):
                    optimizer.close("crashed", str(error))
                raise

    def step(self, loads: Iterable[object] | None, ahead: Sequence[Iterable[object] | None] = ()) -> None:
        """Begins a step.

        Args:
            loads: The load of each of this rank's micro-batches: a number, or a short sequence of numbers (features),
                of the same length for all of them; `pfo_fs.loads` reads them from what training has. If it is None, or
                cannot be a load, this step has default clocks.
            ahead: The loads of the next steps, if they are known: the clock of such a step is then known when it
                begins. All ranks give the same number of steps.
        """
        with self._guard:
            if self._closed or self._loads is None:
                return
            self._note_end()
            told = [self._listed(step_loads) for step_loads in (loads, *(self._listed(ahead) or ()))]
            self._loads.give(told)
            self._given_loads = len(told[0] or ()) or self._given_loads  # as many micro-batches as before, if not known
            self._backwards_left = self._given_loads
            self._in_step, self._in_backward, self._by_backward = True, False, False
            self.optimizer.on_step_begin()
            self.optimizer.on_instruction_begin(_WORK)

    def _note_end(self) -> None:
        """Ends the step before if it is still open, because the program has not marked its end."""
        if not self._in_step:
            return
        # A compiled module calls no hooks: the gradients of its parameters tell of its backward. (With activation
        # checkpointing, these gradients come in nested backwards.)
        self._hooks += [tensor.register_hook(self._on_gradient) for tensor in self._parameters]
        self._parameters = []
        self._unmarked += 1
        if self._unmarked == _UNMARKED:
            seen = self._given_loads - self._backwards_left
            self.warn(
                "the end of a rank's own work is not marked, so all ranks stay at default clocks: give LoadClocks the "
                "model=, or call work_ended() before this rank waits for others"
                if not self._hooks
                else f"{self._given_loads} loads were given for the last step, but model= has seen {seen} backwards: "
                "give a load for each micro-batch; where the backward does not go through what model= returns, or runs "
                "from a CUDA graph, call work_ended()"
            )
        self._end_step()

    def _listed(self, values: Iterable[object] | None) -> list[object] | None:
        """Returns the values as a list; None for None, and if their reader raises an error."""
        try:
            return None if values is None else list(values)
        except Exception as error:  # noqa: BLE001  a step whose load makes no sense has no load
            self.misread(error)
            return None

    def misread(self, error: Exception) -> None:
        """Warns once that loads of a step cannot be read, since later errors often differ in a tensor's shape only."""
        if not self._has_misread and self._loads is not None:
            self._has_misread = True
            why = str(error) if isinstance(error, PfoError) else f"{type(error).__name__}: {error}"
            self._loads.misread(plain_text(f"steps whose loads cannot be read have default clocks: {why}"))

    def warn(self, text: str) -> None:
        """Warns once of each text, here and in the job's status."""
        if self._loads is not None:
            self._loads.warn(f"clocks from loads: {text}")

    def work_ended(self) -> None:
        """Marks the end of this rank's own work in the step: from here on it may wait for others."""
        with self._guard:
            if self._in_step:
                self._unmarked = 0
            self._end_step()

    def _end_step(self) -> None:
        if self._in_step:
            self._in_step = False
            self.optimizer.on_instruction_end(_WORK)
            self.optimizer.on_step_end()

    def _on_forward(self, module: Module, _inputs: object, output: object) -> None:
        """Arranges that the end of this forward's backward is marked."""
        if _is_recorded():
            return
        with self._guard:
            if self._in_step:
                if _watch_backward(output, partial(self._on_gradient, waits=_reduces_in_backward(module))):
                    self._parameters = []
            elif self._by_backward and _watch_backward(output):
                self._by_backward = False
                self.warn(
                    f"a forward came after the backwards of {self._given_loads} loads had ended the step's work: give "
                    "a load for each micro-batch"
                )

    def _on_gradient(self, _gradient: Tensor, waits: bool = False) -> None:
        """Arranges that the end of the backward that has just begun is marked, once even with several outputs.

        The engine of autograd runs callbacks in the order in which they were queued. DistributedDataParallel queues its
        wait for the other ranks later, when the last gradient is there.
        """
        if self._in_backward or not self._in_step or _is_recorded():
            return
        with self._guard:
            import torch

            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._on_backward, waits))

    def _on_backward(self, waits: bool) -> None:
        self._in_backward = False
        self._backwards_left -= 1
        if self._backwards_left > 0 and waits:
            self.warn(WAITS_IN_BACKWARDS)
        if self._backwards_left <= 0:
            self._by_backward = self._in_step
            self.work_ended()

    def metrics(self) -> dict[str, float]:
        """Returns averages over the steps since the last call, for a logger (docs/reports.md).

        On rank 0 also what is known of loads: `pfo_fs/loads_explain`; `pfo_fs/loads_saving` and `pfo_fs/loads_late`,
        with `..._error`; and the number of control steps that they are measured against, `pfo_fs/loads_controls`.
        """
        averages = self.optimizer.metrics()
        averages.pop("pfo_fs/saving", None)  # a comparison with steps of other loads says nothing
        state = self._loads.state if self._loads is not None else None
        if state is not None:
            known = {"explain": state.explained, "controls": state.controls or None}
            known |= {"saving": state.saved, "saving_error": state.saved_error}
            known |= {"late": state.late, "late_error": state.late_error}
            averages |= {f"pfo_fs/loads_{name}": value for name, value in known.items() if value is not None}
        return averages

    @property
    def status_text(self) -> str:
        """On rank 0, what is known of loads; empty elsewhere, and before it is known."""
        state = self._loads.state if self._loads is not None else None
        return "" if state is None else state.text

    def simulated_kernels(self) -> SimulatedKernels | None:
        """The computing side of this rank's simulated GPU (`PFO_FS_GPU=simulated`); None on real ones."""
        return self.optimizer.simulated_kernels()

    def go_without(self, error: Exception) -> None:
        """Leaves the clocks alone from here on, after an error."""
        self._loads, self._in_step = None, False
        self._unhook()
        self.optimizer.go_without(error)

    def _unhook(self) -> None:
        self._parameters = []
        while self._hooks:
            self._hooks.pop().remove()

    def close(self) -> None:
        """Resets the clocks and leaves the job."""
        with self._guard:
            self._end_step()
            self._unhook()
            self._closed = True
        self.optimizer.close()

    def _end(self, error: BaseException | None) -> None:
        self.optimizer._end(error)  # tells the scheduler how training has ended
        self.close()


def _is_recorded() -> bool:
    """Returns whether the present calls are recorded to run later: compiled, traced, or in a CUDA graph."""
    import torch

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def _reduces_in_backward(module: Module) -> bool:
    """Returns whether the next backward of a DistributedDataParallel or a DeepSpeed engine reduces gradients."""
    stage = getattr(module, "zero_optimization_stage", None)
    return bool(getattr(module, "require_backward_grad_sync", False)) or (callable(stage) and stage() >= 2)


def _watch_backward(output: object, began: Callable[[Tensor], None] | None = None) -> bool:
    """Calls `began` when the backward of a model's output begins; False if it has no backward, as in evaluations."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
    tensor = next(tensors, None)
    if tensor is not None and began is not None:
        tensor.register_hook(began)
    return tensor is not None
