"""`PFOFileOptimizer`: what runs inside training.

The training process never accesses the shared directory or the GPU's clocks. Two other processes do: the clock process
of its rank (`device/clock_process.py`) and the host's helper for the shared directory (`helper/`). In a step, training
writes words into a page that it shares with the clock process, and reads once from the helper's socket.

The optimizer only connects parts: `joining.py` joins the job, a `ScheduleFeed` receives schedules, the
`ScheduleSwitcher` decides which one is in force at a step, and the `InstructionTracker` follows it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pfo_fs.device.step_metrics import StepMetrics
from pfo_fs.errors import InstructionMismatch
from pfo_fs.ipc import messages
from pfo_fs.ipc.messages import RankPlan
from pfo_fs.training import joining
from pfo_fs.training.collectives import Collectives
from pfo_fs.training.end_reason import how_it_ended
from pfo_fs.training.helper_link import HelperLink
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.job_request import JobRequest, checked_clock_backend, checked_clock_calls, checked_settings
from pfo_fs.training.parallel_dims import ParallelDims, find_parallel_dims
from pfo_fs.training.schedule_switcher import PendingSchedule, Resume, ScheduleSwitcher
from pfo_fs.training.switching import ChosenSwitching, Switching, checked_switching, choose_switching
from pfo_fs.training.warn_once import WarnOnce

if TYPE_CHECKING:
    from pfo_fs.device import ClockProcess, SimulatedKernels

log = logging.getLogger("pfo_fs")

_optimizers: weakref.WeakSet[PFOFileOptimizer] = weakref.WeakSet()


class PFOFileOptimizer:
    """Follows a frequency schedule in pipeline-parallel training, coordinated through a shared directory.

    Make one on every rank, after `init_process_group`; making it is a collective call. Then:

        with PFOFileOptimizer("/shared/pfo", mesh=mesh) as opt:
            for batch in loader:
                opt.on_step_begin()
                ...
                opt.on_instruction_begin("forward")
                ...  # one forward of one micro-batch
                opt.on_instruction_end("forward")
                ...
                opt.on_step_end()

    Unless `strict`, no problem stops training or makes it wait: without a schedule, a daemon, a shared directory or the
    permission to set clocks, it logs one warning and goes on at default clocks. In a process that is forked from
    training, such as a worker of a data loader, all methods do nothing.

    Args:
        shared_dir: The directory that all ranks, the daemon and users share.
        rank, world_size, local_rank: The numbers of this process; from `torch.distributed` or the launcher if None.
        dp_rank, pp_rank, tp_rank, dp_degree, pp_degree, tp_degree: The place of this process; from `mesh` if None.
        mesh: A `torch.distributed.DeviceMesh` with named dimensions, `pp` among them.
        device: CUDA device index of this process; the current device if None.
        job_metadata: Text that describes the job; part of its folder's name.
        model_key: What is trained, as precisely as it matters for time and power (model, micro-batch size, sequence
            length, precision): later jobs with the same key, on the same GPUs, start with this one's profile.
            `job_metadata` if None.
        coordination: `daemon`, `local` (rank 0 schedules and broadcasts by `torch.distributed`), or `auto`: a daemon if
            one answers, otherwise local.
        scheduler, scheduler_args: The scheduler that this job requests; by default the daemon's, or that of `PFO_FS_*`.
        profile_steps: Iterations measured for each schedule.
        device_events: Whether instructions are timed by CUDA events, in the iterations that are measured: the true
            begin and end on the device, with no synchronisation. None: if the GPU is a CUDA device.
        switching: When clocks are switched: `device`, as the device gets through the instructions that training has
            launched; `launch`, at the callbacks; `sync`, at the callbacks, which wait for the device (slow; to
            compare). `auto`: `device` where it passes a test at the start, otherwise `launch`.
        clock_backend: The way to set clocks: `auto`, `nvml`, `zeusd`, `sudo`, `geopm`, `slurm-step`, or `none`;
            `PFO_FS_CLOCK_BACKEND`, or `auto`, if None. docs/clock-backends.md describes them.
        max_clock_calls_per_s: Most calls per second, of all GPUs of a host together, that set clocks: they can delay
            NCCL. `PFO_FS_MAX_CLOCK_CALLS_PER_S`, or as many as the driver has room for, if None. It has no effect
            where clocks are switched at the callbacks (`launch`).
        wait_for_schedule_s: The longest wait for the first schedule. Training never waits for later ones.
        strict: Raise an error instead of logging a warning. While the job is set up, rank 0's value counts, and all
            ranks raise the same error.

    Raises:
        ConfigError: Something is missing or contradictory, on this rank or another; the message says what to pass.
        PfoError: With `strict`, any other problem.
    """

    def __init__(
        self,
        shared_dir: str | os.PathLike[str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        dp_rank: int | None = None,
        pp_rank: int | None = None,
        tp_rank: int | None = None,
        dp_degree: int | None = None,
        pp_degree: int | None = None,
        tp_degree: int | None = None,
        mesh: Any = None,
        device: int | None = None,
        job_metadata: str | None = None,
        model_key: str | None = None,
        coordination: Literal["auto", "daemon", "local"] = "auto",
        scheduler: str | None = None,
        scheduler_args: dict[str, Any] | None = None,
        profile_steps: int | None = None,
        device_events: bool | None = None,
        switching: Switching = "auto",
        clock_backend: str | None = None,
        max_clock_calls_per_s: float | None = None,
        wait_for_schedule_s: float = 5.0,
        strict: bool = False,
    ) -> None:
        try:
            self.parallel_dims: ParallelDims = find_parallel_dims(
                rank=rank,
                world_size=world_size,
                local_rank=local_rank,
                dp_rank=dp_rank,
                pp_rank=pp_rank,
                tp_rank=tp_rank,
                dp_degree=dp_degree,
                pp_degree=pp_degree,
                tp_degree=tp_degree,
                mesh=mesh,
            )
            settings = checked_settings(coordination, scheduler, scheduler_args, profile_steps)
            checked_switching(switching)
            clock_backend = checked_clock_backend(clock_backend)
            checked_clock_calls(max_clock_calls_per_s)
        except Exception as error:
            all_ranks = Collectives.of_program()
            if world_size != 1 and all_ranks.world_size > 1:
                joining.refuse(all_ranks, error)
            raise
        dims = self.parallel_dims
        self.step = -1
        self._strict = strict
        self._warn = WarnOnce()
        self._link = HelperLink(self._warn)
        self._iteration = _IterationTimer()
        request = JobRequest(
            shared_dir=os.path.abspath(shared_dir),
            settings=settings,
            own_scheduler=scheduler is not None,
            coordination=coordination,
            job_metadata=job_metadata,
            model_key=model_key,
            device=device,
            wait_for_schedule_s=wait_for_schedule_s,
            strict=strict,
            clock_backend=clock_backend,
            max_clock_calls_per_s=max_clock_calls_per_s,
        )
        collectives = Collectives.of_job(dims.rank, dims.world_size)
        joined = joining.JobJoiner(dims, request, collectives, self._link, self._warn).join()
        self.job_id: str | None = joined.job_id
        self.coordination: Literal["daemon", "local", "off"] = joined.coordination
        self._clocks: ClockProcess = joined.clocks
        self._feed = joined.feed
        self._switcher: ScheduleSwitcher[RankPlan] = ScheduleSwitcher(self._set_schedule, self._on_suspend)
        self._kernels = self._open_kernels()
        self._switching = self._choose_switching(switching, device)
        self._tracker = self._make_tracker(device_events, settings.profile_steps)
        self._metrics = StepMetrics([self._clocks.words])
        self._closed = False
        # The hot path goes straight to the tracker; the methods below are there for readers and type checkers.
        self.__dict__.update(on_instruction_begin=self._tracker.begin, on_instruction_end=self._tracker.end)
        _optimizers.add(self)
        atexit.register(_close_at_exit, weakref.ref(self))

    @property
    def schedule_number(self) -> int:
        """The schedule in force; -1 before the first one."""
        return self._switcher.number

    # ---- training calls these

    def on_step_begin(self) -> None:
        """Marks the beginning of an iteration; a schedule that is due comes into force here."""
        if self._closed:
            return
        self.step = step = self.step + 1
        self._metrics.step_begins()
        iter_time_s = self._iteration.begin()
        if self._clocks.lost and self._warn.is_first("clock process lost"):  # `self._clocks` has logged it
            text = f"rank {self.parallel_dims.rank}: there is no clock process any more; the clock stays at its default"
            self._link.send(messages.ProblemSeen(message=text))
            if self._switching.marker is not None:
                self._switching.marker.stop()
        for update in self._feed.step_begin(step, iter_time_s, self._link.poll()):
            if isinstance(update, PendingSchedule) and update.number == self._switcher.number:
                self._link.send_again(messages.ScheduleApplied)  # a new helper has not received it
            elif isinstance(update, Resume):
                self._warn.forget(update.reason)
            self._switcher.take(update)
        applied = self._switcher.step_begin(step)
        if applied is not None:
            late = 0 < applied.start_step < step
            self._link.send_kept(messages.ScheduleApplied(number=applied.number, step=step, late=late))
        self._tracker.step_begin(step, self._switcher.measured_number)

    def on_step_end(self) -> None:
        """Marks the end of an iteration, after its last instruction.

        The clocks go to their default, or, where the next iteration usually begins at once, to that of its first
        instruction (docs/switching.md).

        Raises:
            InstructionMismatch: With `strict`, if instructions of the schedule are left over.
        """
        if self._closed:
            return
        self._tracker.step_end()
        order = self._tracker.take_new_order()
        if order:
            self._link.send_kept(messages.OrderSeen(instructions=order))

    def on_instruction_begin(self, name: str, *, stage: int | None = None, microbatch: int | None = None) -> None:
        """Marks the beginning of an instruction and sets the clock that the schedule gives it.

        Args:
            name: `forward`, `backward`, or another name in the schedule.
            stage: The stage of the instruction, where this rank holds several.
            microbatch: Not used: instructions are matched by their order.

        Raises:
            InstructionMismatch: With `strict`, if the schedule expects another instruction.
        """
        raise NotImplementedError  # bound to the tracker in `__init__`

    def on_instruction_end(self, name: str) -> None:
        """Marks the end of an instruction."""
        raise NotImplementedError  # bound to the tracker in `__init__`

    def metrics(self) -> dict[str, float]:
        """Returns averages over the steps since the last call, for a logger (docs/frameworks/metrics.md)."""
        return self._metrics.since_last(max(self._clocks.available_clocks_mhz, default=None))

    def expect_order(self, instructions: Sequence[tuple[str, int | None]]) -> None:
        """Tells the scheduler what this rank runs in a step, (name, stage) each, before the first step has shown it."""
        self._tracker.expect_order(instructions)
        self._link.send_kept(messages.OrderSeen(instructions=list(instructions)))

    def close(self, reason: str = "finished", message: str = "") -> None:
        """Resets the clocks and leaves the job; waits for neither the shared directory nor the daemon."""
        if self._closed:
            return
        self._closed = True
        if self.step < 0 and reason == "finished":
            self._problem("training has ended without a step: call on_step_begin() and on_step_end() in each iteration")
        self._clocks.close()
        self._link.send(messages.Goodbye(reason=reason, message=message))
        self._link.close()
        self._feed.close()

    @property
    def switching(self) -> str:
        """When clocks are switched: `device`, `launch` or `sync`."""
        marker = self._switching.marker
        return self._switching.mode if marker is None or marker.works else "launch"

    def simulated_kernels(self) -> SimulatedKernels | None:
        """The computing side of this rank's simulated GPU (`PFO_FS_GPU=simulated`); None on real ones."""
        return self._kernels

    def _open_kernels(self) -> SimulatedKernels | None:
        kind, _, name = self._clocks.spec.partition(":")
        if kind != "simulated":
            return None
        from pfo_fs.device import SimulatedKernels

        return SimulatedKernels(name, stages=self.parallel_dims.pp_degree)

    def __enter__(self) -> PFOFileOptimizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(*how_it_ended(error))

    # ---- parts

    def _choose_switching(self, asked: str, device: int | None) -> ChosenSwitching:
        if not self._clocks.available_clocks_mhz:
            return ChosenSwitching("launch", None, "")  # no clock is set: marks would cost time for nothing
        chosen = choose_switching(
            asked, self._clocks, self._clocks.spec, self._kernels, device=device, on_problem=self._problem
        )
        if chosen.note:
            log.info("rank %d switches clocks at %s time: %s", self.parallel_dims.rank, chosen.mode, chosen.note)
        if chosen.mode != asked != "auto":
            self._problem(f"switching={asked!r} does not work here, clocks follow the callbacks: {chosen.note}")
        return chosen

    def _make_tracker(self, device_events: bool | None, profile_steps: int) -> InstructionTracker:
        make_event = self._event_maker(device_events)
        options: dict[str, Any] = {
            "profile_steps": profile_steps,
            "on_mismatch": self._on_mismatch,
            "on_wrong_marks": self._problem,
            "marker": self._switching.marker,
        }
        if make_event is None:
            return InstructionTracker(self._clocks, **options)
        from pfo_fs.training.cuda_event_tracker import CudaEventTracker

        return CudaEventTracker(self._clocks, make_event, **options)

    def _event_maker(self, device_events: bool | None) -> Callable[[], Any] | None:
        """Returns what makes an event with timing on the device; None if the training thread's times are used."""
        if self._kernels is not None:
            from pfo_fs.device.simulated_stream import SimulatedEvent

            return partial(SimulatedEvent, self._kernels.stream)
        if device_events is None:
            device_events = self._clocks.spec.startswith("nvml:") and "torch" in sys.modules
        if device_events:
            import torch

            if torch.cuda.is_available():
                return partial(torch.cuda.Event, enable_timing=True)
        return None

    def _set_schedule(self, schedule: RankPlan | None) -> None:
        if schedule is None or not schedule.frequencies:
            self._tracker.set_schedule(None, None)
        else:
            self._tracker.set_schedule(schedule.frequencies, schedule.stages)

    # ---- problems

    def _on_suspend(self, text: str, reason: str) -> None:
        self._warn(text, reason)

    def _on_mismatch(self, position: int, expected: str, got: str) -> None:
        text = (
            f"rank {self.parallel_dims.rank}, step {self.step}, instruction {position}: the schedule expects "
            f"{expected}, training ran {got}; clocks are released for the rest of the step "
            f"(schedule {self.schedule_number})"
        )
        self._link.send(messages.ProblemSeen(message=text))
        if self._strict:
            raise InstructionMismatch(text)
        log.warning("%s", text)

    def _problem(self, text: str) -> None:
        """Logs a warning, and sends it to the helper for the job's status; each text once."""
        text = f"rank {self.parallel_dims.rank}: {text}"
        if self._warn(text):
            self._link.send(messages.ProblemSeen(message=text))

    def _forget(self) -> None:
        """Makes all methods do nothing in a forked child: job, helper, clock process and page belong to the parent."""
        self._closed = True
        self._link.forget()
        self._tracker.disconnect()


class _IterationTimer:
    """Times iterations from the begin of one step to the begin of the next."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def begin(self) -> float | None:
        """Begins an iteration; returns how long the one before took, in s; None for the first."""
        now_s = time.monotonic()
        took_s = now_s - self._began_s if self._began_s else None
        self._began_s = now_s
        return took_s


def _forget_in_forked_child() -> None:
    for optimizer in list(_optimizers):
        optimizer._forget()


os.register_at_fork(after_in_child=_forget_in_forked_child)


def _close_at_exit(reference: weakref.ref[PFOFileOptimizer]) -> None:
    optimizer = reference()
    if optimizer is not None:
        optimizer.close(*how_it_ended(getattr(sys, "last_value", None)))
