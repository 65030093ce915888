"""`PFOFileOptimizer`: what runs inside training.

The training process never accesses the shared directory or the GPU's clocks. Two other processes do: the clock process
of its rank (`device/clock_process.py`) and the host's helper for the shared directory (`helper/`). In a step, training
writes words into a page that it shares with the clock process, and reads once from the helper's socket.

The optimizer only connects parts: `joining.py` joins the job, a `ScheduleFeed` receives schedules, the
`ScheduleSwitcher` decides which schedule is in force at a step, and the `InstructionTracker` follows that schedule.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pfo_fs.errors import InstructionMismatch
from pfo_fs.guard import Guard, WarnOnce, ZeusCallbacks, reason_of, takes_any_call
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages
from pfo_fs.ipc.collectives import Collectives, agree
from pfo_fs.ipc.messages import NewSchedule
from pfo_fs.ipc.process_end import at_process_end, how_it_ended, in_forked_children
from pfo_fs.training import joining
from pfo_fs.training.job_request import (
    JobRequest,
    checked_device,
    checked_directory,
    checked_settings,
    in_our_order,
    text_of,
)
from pfo_fs.training.parallel_dims import ALONE, find_parallel_dims
from pfo_fs.training.schedule_feed import ScheduleFeed, ScheduleSwitcher
from pfo_fs.training.step_parts import StepParts, Switching
from pfo_fs.turns import half_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pfo_fs.device.simulated.gpu import SimulatedKernels
    from pfo_fs.training.step_loads import StepLoads

log = logging.getLogger("pfo_fs")


class PFOFileOptimizer(ZeusCallbacks):
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

    Unless `strict`, no error (such as an invalid argument) stops training or makes it wait: the optimizer logs one
    warning with the reason, and training goes on at default clocks. If one rank cannot take part, none does: all
    methods can be called and do nothing. The same holds in a process that is forked from training, such as a worker of
    a data loader.

    Attributes:
        follows: Whether this process has joined a job; if not, all methods do nothing.

    Args:
        shared_dir: The directory that all ranks, the daemon and users share. The positional arguments that follow are
            those of Zeus's `PipelineFrequencyOptimizer`; they may also be given without `shared_dir`.
        rank, world_size: From `torch.distributed` or the launcher if None.
        dp_rank, pp_rank, tp_rank, dp_degree, pp_degree, tp_degree: The place of this process; from `mesh` if None.
        mesh: A `torch.distributed.DeviceMesh` with named dimensions, `pp` among them.
        device, device_id: CUDA device index of this process (`device_id` in Zeus); the current device if None.
        server_url: The shared directory, if `shared_dir` is None; otherwise not used, because there is no server.
        job_metadata: Text that describes the job; part of its folder's name.
        coordination: `daemon`, `local` (rank 0 schedules and broadcasts by `torch.distributed`), or `auto`: a daemon if
            one answers, otherwise local.
        scheduler, scheduler_args: The scheduler that this job requests; by default the daemon's, or that of `PFO_FS_*`.
        profile_steps: Iterations measured for each schedule.
        switching: When clocks are switched. `device`: when the device reaches an instruction that training has
            launched. `launch`: at the callbacks. `auto`: `device` if it passes a test at the start, else `launch`.
        clock_backend: The way to set clocks, such as `nvml`, or `none`; `PFO_FS_CLOCK_BACKEND`, or `auto`, if None.
            docs/clock-backends.md describes all of them.
        max_clock_calls_per_s: At most this many calls per second set clocks, for all GPUs of a host together: the calls
            can delay NCCL. If None: `PFO_FS_MAX_CLOCK_CALLS_PER_S`, or as many as the driver has room for. It has no
            effect where clocks are switched at the callbacks (`launch`).
        wait_for_schedule_s: The longest wait for the first schedule. Training never waits for later ones.
        strict: Raise an error instead of logging a warning. While the job is set up, rank 0's value counts, and all
            ranks raise the same error.

    Raises:
        ConfigError: With `strict`: something is missing or contradictory, on this rank or another; the message says
            what to pass.
        InstructionMismatch: With `strict`, from the callbacks: the schedule expects another or a further instruction,
            or callbacks are missing or in a wrong order.
        PfoError: With `strict`, any other problem.
    """

    _broadcasts = True

    def _start_as_nothing(self, strict: bool = False) -> None:
        """Makes all methods do nothing, until `_follow`."""
        self.parallel_dims = ALONE
        self.job_id: str | None = None
        self.coordination: Literal["daemon", "local", "off"] = "off"
        self.step = -1
        self._closed = True  # until all ranks have joined
        self._guard = Guard(self.go_without, strict=strict)
        self._warn = WarnOnce()
        self._link = HelperLink(self._warn)
        self._step_began_s = math.nan
        self._switcher = ScheduleSwitcher(self._set_schedule, lambda text: log.warning("%s", text))
        self._feed = ScheduleFeed(0, self._switcher)
        self._loads: StepLoads | None = None
        self._only_exchanges = False  # after an error: this rank only takes part in the exchange of schedules
        self.follows = False

    @takes_any_call(in_our_order)
    def __init__(
        self,
        shared_dir: str | bytes | os.PathLike[str] | None = None,
        rank: int | None = None,
        dp_rank: int | None = None,
        pp_rank: int | None = None,
        tp_rank: int | None = None,
        device_id: int | None = None,
        dp_degree: int | None = None,
        pp_degree: int | None = None,
        tp_degree: int | None = None,
        world_size: int | None = None,
        server_url: str | None = None,
        job_metadata: str | None = None,
        *,
        mesh: DeviceMesh | None = None,
        device: int | None = None,
        coordination: Literal["auto", "daemon", "local"] = "auto",
        scheduler: str | None = None,
        scheduler_args: dict[str, Any] | None = None,
        profile_steps: int | None = None,
        switching: Switching = "auto",
        clock_backend: str | None = None,
        max_clock_calls_per_s: float | None = None,
        wait_for_schedule_s: float = 5.0,
        strict: bool = False,
    ) -> None:
        self._start_as_nothing(strict)
        with self._guard:
            all_ranks = Collectives.of_program() if world_size != 1 else Collectives(0, 1, None)
            error: Exception | None = None
            try:
                if self.wrong_call is not None:
                    raise self.wrong_call
                dims = find_parallel_dims(
                    rank=rank,
                    world_size=world_size,
                    dp_rank=dp_rank,
                    pp_rank=pp_rank,
                    tp_rank=tp_rank,
                    dp_degree=dp_degree,
                    pp_degree=pp_degree,
                    tp_degree=tp_degree,
                    mesh=mesh,
                )
                request = JobRequest(
                    shared_dir=checked_directory(shared_dir, server_url),
                    settings=checked_settings(coordination, scheduler, scheduler_args, profile_steps),
                    own_scheduler=scheduler is not None or scheduler_args is not None,
                    coordination=coordination,
                    job_metadata=text_of(job_metadata),
                    device=checked_device(device, device_id),
                    wait_for_schedule_s=wait_for_schedule_s,
                    switching=switching,
                    clock_backend=clock_backend or os.environ.get("PFO_FS_CLOCK_BACKEND") or "auto",
                    max_clock_calls_per_s=max_clock_calls_per_s,
                    broadcasts=self._broadcasts,
                )
                collectives = Collectives.of_job(dims.rank, dims.world_size)
            except Exception as found:  # noqa: BLE001  the other ranks must hear of it
                error = found
            agree(all_ranks, error, self._guard)
            self.parallel_dims = dims
            self._switcher.half = half_of(dims.pp_rank, dims.dp_rank)
            make_parts = partial(
                StepParts.make,
                request=request,
                dims=dims,
                on_problem=self._problem,
                on_mismatch=self._on_mismatch,
                on_wrong_marks=self._on_wrong_marks,
                takes_error=self._guard.handle,
            )
            joiner = joining.JobJoiner(
                dims, request, collectives, self._link, self._switcher, self._warn, strict=self._guard.strict
            )
            self._follow(joiner.join(make_parts))

    def _follow(self, joined: joining.JoinedJob) -> None:
        """Follows the job that all ranks have joined."""
        self._joined, self.job_id, self.coordination = joined, joined.job_id, joined.coordination
        self._clocks, self._feed, self._parts = joined.clocks, joined.feed, joined.parts
        self._tracker = joined.parts.tracker
        self.follows, self._closed = True, False
        # The hot path goes straight to the tracker; the methods below do nothing.
        self.__dict__.update(on_instruction_begin=self._tracker.begin, on_instruction_end=self._tracker.end)
        in_forked_children(self._forget)
        at_process_end(self._end)

    @property
    def schedule_number(self) -> int:
        """The schedule in force; -1 before the first one."""
        return self._switcher.number

    def on_step_begin(self) -> None:
        """Marks the beginning of an iteration; a schedule that is due comes into force here."""
        if self._closed and not self._only_exchanges:
            return
        with self._guard:
            self.step += 1
            began_s, self._step_began_s = self._step_began_s, time.monotonic()
            iter_time_s = self._step_began_s - began_s if self.step else None
            if self._only_exchanges:
                self._feed.step_begin(self.step, iter_time_s, ())
            else:
                self._begin_step(self.step, iter_time_s)

    def _begin_step(self, step: int, iter_time_s: float | None) -> None:
        self._parts.metrics.step_begins()
        if self._clocks.lost and self._warn.note("clock process lost"):  # `self._clocks` has logged it
            text = f"there is no clock process any more{self._clocks.how_it_ended}; no clock is set any more"
            self._link.send(messages.ProblemSeen(message=f"rank {self.parallel_dims.rank}: {text}"))
            if (marker := self._parts.switching.marker) is not None:
                marker.stop()
        self._feed.step_begin(step, iter_time_s, self._link.poll())
        applied = self._switcher.step_begin(step)
        if applied is not None:
            late = 0 < applied.start_step < step
            self._link.send_kept(messages.ScheduleApplied(number=applied.number, step=step, late=late))
        switcher = self._switcher
        if self._loads is None:
            number, until = switcher.measured_number, switcher.measured_until
            self._tracker.step_begin(step, number, until=until, turn=switcher.turn(step))
        else:
            self._loads.begin(self._tracker, step, switcher)

    def on_step_end(self) -> None:
        """Marks the end of an iteration, after its last instruction.

        The clocks go to their default. If the next iteration usually begins at once, they go to the clock of its first
        instruction instead (docs/switching.md).
        """
        if self._closed:
            return
        with self._guard:
            self._tracker.step_end()
            order = self._tracker.take_new_order()
            if order:
                self._link.send_kept(messages.OrderSeen(instructions=order))

    def on_instruction_begin(self, name: str, *, stage: int | None = None) -> None:
        """Marks the beginning of an instruction and sets the clock that the schedule gives it."""
        # Bound to the tracker by `_follow`.

    def on_instruction_end(self, name: str) -> None:
        """Marks the end of an instruction; bound to the tracker, too."""

    def metrics(self) -> dict[str, float]:
        """Returns averages over the steps since the last call, for a logger (docs/reports.md)."""
        with self._guard:
            if self.follows:
                return self._parts.metrics.since_last(max(self._clocks.info.clocks_mhz, default=None))
        return {}

    def runs_other_order(self, is_other: bool) -> None:
        """Tells whether the next steps run another order than the scheduler was told of (`expect_order`)."""
        if not self._closed:
            self._tracker.other_order = is_other

    def expect_order(self, instructions: Sequence[tuple[str, int | None]]) -> None:
        """Tells the scheduler (name, stage) of a step's instructions: before step 0, and when they change for good."""
        if not self._closed:
            with self._guard:
                self._tracker.expect_order(instructions)
                self._link.send_kept(messages.OrderSeen(instructions=list(instructions)))

    def close(self, reason: str = "finished", message: str = "") -> None:
        """Resets the clocks and leaves the job; waits for neither the shared directory nor the daemon."""
        if not self._closed:
            self._closed = True
            with self._guard:
                if self._loads is not None:
                    self._loads.close()
                if self.step < 0 and reason == "finished":
                    text = "training has ended without a step: call on_step_begin() and on_step_end() in each iteration"
                    self._problem(text)
                self._clocks.close()
            with suppress(Exception):  # a helper that cannot be told sees that the connection is gone
                self._link.leave(messages.Goodbye(reason=reason, message=message))
        self._only_exchanges = False
        with self._guard:
            self._feed.close()

    @property
    def switching(self) -> str:
        """When clocks are switched: `device` or `launch`."""
        return self._parts.switching.mode if self.follows else "launch"

    def simulated_kernels(self) -> SimulatedKernels | None:
        """The computing side of this rank's simulated GPU (`PFO_FS_GPU=simulated`); None on real ones."""
        return self._parts.kernels if self.follows else None

    def _set_schedule(self, schedule: NewSchedule | None) -> None:
        plan = None if schedule is None else schedule.plan_of(self.parallel_dims.rank)
        if plan is None or not plan.frequencies:
            self._tracker.set_schedule(None)
        else:
            self._tracker.set_schedule(plan.frequencies, plan.stages, in_turns=bool(schedule and schedule.turns))

    # ---- problems

    def _on_mismatch(self, position: int, expected: str, got: str) -> None:
        text = (
            f"rank {self.parallel_dims.rank}, step {self.step}, instruction {position}: the schedule expects "
            f"{expected}, training ran {got}; clocks are released for the rest of the step "
            f"(schedule {self.schedule_number})"
        )
        self._link.send(messages.ProblemSeen(message=text))
        if self._guard.strict:
            raise InstructionMismatch(text)
        log.warning("%s", text)

    def _on_wrong_marks(self, text: str) -> None:
        if self._guard.strict:
            raise InstructionMismatch(f"rank {self.parallel_dims.rank}: {text}")
        self._problem(text)

    def _problem(self, text: str) -> None:
        """Logs a warning, and sends it to the helper for the job's status; each text once."""
        text = f"rank {self.parallel_dims.rank}: {text}"
        if self._warn(text):
            self._link.send(messages.ProblemSeen(message=text))

    def go_without(self, error: Exception) -> None:
        """Leaves the job after an error, with clocks at their default.

        The exchange of schedules goes on: without this rank, the others would wait for it.
        """
        if self._closed:
            return  # the job was never joined, or is left already
        self._closed = self._only_exchanges = True
        text = f"rank {self.parallel_dims.rank}: {reason_of(error)}"
        for leave in (
            *((self._loads.close,) if self._loads is not None else ()),
            self._clocks.leave,
            self._tracker.disconnect,
            partial(self._link.send, messages.ProblemSeen(message=text)),
            partial(self._link.leave, messages.Goodbye(reason="finished")),
        ):
            with suppress(Exception):
                leave()

    def _end(self, error: BaseException | None) -> None:
        self.close(*how_it_ended(error))

    def _forget(self) -> None:
        """Makes all methods do nothing in a forked child: job, helper, clock process and page belong to the parent."""
        self._closed, self._only_exchanges, self.follows = True, False, False
        self._link.forget()
        self._tracker.disconnect()
