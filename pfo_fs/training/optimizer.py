"""`PFOFileOptimizer`: what runs inside training.

The training process makes no call on the shared directory and none on the GPU's clocks. It has two helpers: the clock
process of its rank (`device/clock_process.py`) and the host's helper for the shared directory (`helper.py`). In a step
it writes words into a page shared with the former and looks, once, into a socket from the latter.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import secrets
import socket
import sys
import time
import weakref
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

import pfo_fs
from pfo_fs.device import ClockProcess, find_gpu_spec
from pfo_fs.errors import ConfigError, CoordinationError, InstructionMismatch, PfoError
from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc import messages, transport
from pfo_fs.ipc.messages import Message, NewSchedule, RankPlan, ToTraining
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.settings import load_settings
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.parallel_dims import ParallelDims, find_parallel_dims
from pfo_fs.training.schedule_broadcaster import ScheduleBroadcaster
from pfo_fs.training.schedule_switcher import PendingSchedule, ScheduleSwitcher

if TYPE_CHECKING:
    from pfo_fs.device import SimulatedKernels

log = logging.getLogger("pfo_fs")

_REQUEST_TIMEOUT_S = 20.0
_REVIVE_EVERY_S = 2.0
"""Between two tries to replace a helper that died."""


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

    Nothing here stops training or makes it wait, unless `strict`: without a schedule, a daemon, a shared directory or
    the right to set clocks, there is one warning and training goes on at default clocks.

    Args:
        shared_dir: The directory that all ranks, the daemon and people meet in.
        rank, world_size, local_rank: This process; from `torch.distributed` or the launcher if None.
        dp_rank, pp_rank, tp_rank, dp_degree, pp_degree, tp_degree: Its place; from `mesh` if None. The degree of the
            pipeline is never guessed.
        mesh: A `torch.distributed.DeviceMesh` with named dimensions, `pp` among them.
        device: CUDA device index of this process; the current device if None.
        job_metadata: Text that describes the job; part of its folder's name.
        model_key: What is trained, as precisely as it matters for time and power (model, micro-batch size, sequence
            length, precision): later jobs with the same key, on the same GPUs, start with this one's profile.
            `job_metadata` if None.
        coordination: `daemon`, `local` (rank 0 schedules, `torch.distributed` carries it), or `auto`: whichever is
            there, the daemon first.
        scheduler, scheduler_args: The job's own wish; otherwise what the daemon, or `PFO_FS_*`, says.
        profile_steps: Iterations measured for each schedule.
        device_events: Whether instructions are timed by CUDA events, in the iterations that are measured: the true
            begin and end on the device, with no synchronisation. None: where the GPU is a CUDA device.
        wait_for_schedule_s: How long to wait here for the first schedule, at most. Later ones never make anybody wait.
        strict: Raise where there would be a warning.

    Raises:
        ConfigError: Something is missing or contradictory; the message says what to pass.
        PfoError: With `strict`, whatever else goes wrong.
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
        wait_for_schedule_s: float = 5.0,
        strict: bool = False,
    ) -> None:
        if coordination not in ("auto", "daemon", "local"):
            raise ConfigError(f"coordination is {coordination!r}; it can be 'auto', 'daemon' or 'local'")
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
        settings = load_settings(scheduler=scheduler, scheduler_args=scheduler_args, profile_steps=profile_steps)
        if scheduler is not None or coordination == "local":
            from pfo_fs.scheduler import check_scheduler_args, load_scheduler

            check_scheduler_args(load_scheduler(settings.scheduler), settings.scheduler_args)
        self.job_id: str | None = None
        self.coordination: Literal["daemon", "local", "off"] = "off"
        self.step = -1
        self._strict = strict
        self._shared_dir = os.path.abspath(shared_dir)
        self._dist: Any = self._torch_distributed()
        self._profile_steps = settings.profile_steps
        self._settings = settings.model_dump(mode="json", exclude_unset=True)
        self._helper: HelperClient | None = None
        self._broadcaster: ScheduleBroadcaster | None = None
        self._switcher: ScheduleSwitcher[RankPlan] = ScheduleSwitcher(self._set_schedule, self._warn)
        self._lease_until_s = math.inf  # `_end_lease` then, unless there is word from whoever schedules
        self._plan: NewSchedule | None = None  # rank 0 of `local`: what the broadcaster was given last
        self._told_order = False
        self._joining: list[Message] = []  # what a new helper must be told
        self._revive_at = 0.0
        self._warned: set[str] = set()
        self._step_began = 0.0
        self._iter_time_s: float | None = None
        self._closed = False

        job: dict[str, Any] = {}
        if self.parallel_dims.rank == 0:
            token = secrets.token_hex(16)
            job = {"token": token, "address": f"pfo-fs-{token[:12]}", "kind": "off", "why": ""}
            self._clocks = self._start_clocks(job, device)  # gets ready while the job's folder is made
            self._create_job(job, job_metadata, model_key, coordination, scheduler)
        job = self._from_rank_0(job)
        if self.parallel_dims.rank != 0:
            self._clocks = self._start_clocks(job, device)
        self._tracker = self._make_tracker(device_events)
        # The hot path goes straight to the tracker; the methods below are there for readers and type checkers.
        self.__dict__.update(on_instruction_begin=self._tracker.begin, on_instruction_end=self._tracker.end)
        atexit.register(_close_at_exit, weakref.ref(self))
        self._join(job, wait_for_schedule_s)
        if self._clocks.message:
            self._fail(f"rank {self.parallel_dims.rank}: {self._clocks.message}")

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
        now = time.monotonic()
        if self._step_began:
            self._iter_time_s = now - self._step_began
        self._step_began = now
        helper = self._helper
        if helper is not None:
            while (message := helper.poll()) is not None:
                self._handle(message)
            if helper.lost and now >= self._revive_at:
                self._revive(helper, now)
        if self._clocks.lost and "clocks" not in self._warned:
            self._warned.add("clocks")  # it has said so itself
            text = f"rank {self.parallel_dims.rank}: there is no clock process any more; the clock stays at its default"
            self._tell(messages.ProblemSeen(message=text))
        if now >= self._lease_until_s:
            self._end_lease()
        if self._broadcaster is not None:
            packet = self._broadcaster.step_begin(step, self._iter_time_s)
            if packet is not None:
                self._expect(transport.decode(packet, NewSchedule), step)
        applied = self._switcher.step_begin(step)
        if applied is not None:
            late = 0 < applied.start_step < step
            self._tell(messages.ScheduleApplied(number=applied.number, step=step, late=late))
        self._tracker.step_begin(step, self._switcher.measured_number)

    def on_step_end(self) -> None:
        """Marks the end of an iteration, after its last instruction; the clocks go back to the top."""
        if self._closed:
            return
        self._tracker.step_end()
        if not self._told_order:
            order = self._tracker.observed_order
            if order:
                self._told_order = True
                self._tell(messages.OrderSeen(instructions=order))

    def on_instruction_begin(self, name: str, *, stage: int | None = None, microbatch: int | None = None) -> None:
        """Marks the beginning of an instruction and sets the clock that the schedule gives it.

        Args:
            name: `forward`, `backward`, or whatever the schedule calls it.
            stage: The stage it belongs to, where this rank holds several.
            microbatch: Its micro-batch; for people, the order is what counts.
        """
        raise NotImplementedError  # bound to the tracker in `__init__`

    def on_instruction_end(self, name: str) -> None:
        """Marks the end of an instruction."""
        raise NotImplementedError  # bound to the tracker in `__init__`

    def close(self, reason: str = "finished", message: str = "") -> None:
        """Gives the clocks back and says goodbye; waits for neither the shared directory nor the daemon."""
        if self._closed:
            return
        self._closed = True
        self._clocks.close()
        self._tell(messages.Goodbye(reason=reason, message=message))
        if self._helper is not None:
            self._helper.close()
            self._helper = None
        if self._broadcaster is not None:
            self._broadcaster.close()
            self._broadcaster = None

    def __enter__(self) -> PFOFileOptimizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(*_how_it_ended(error))

    # ---- setting up

    def _torch_distributed(self) -> Any:
        if self.parallel_dims.world_size == 1:
            return None
        import torch.distributed as dist

        if not dist.is_initialized():
            raise ConfigError("call torch.distributed.init_process_group before making a PFOFileOptimizer")
        return dist

    def _from_rank_0(self, value: dict[str, Any]) -> dict[str, Any]:
        if self._dist is None:
            return value
        box = [value]
        self._dist.broadcast_object_list(box, src=0)
        return box[0]

    def simulated_kernels(self) -> SimulatedKernels | None:
        """The computing side of this rank's simulated GPU (`PFO_FS_GPU=simulated`); None on real ones."""
        kind, _, name = self._clocks.spec.partition(":")
        if kind != "simulated":
            return None
        from pfo_fs.device import SimulatedKernels

        return SimulatedKernels(name, stages=self.parallel_dims.pp_degree)

    def _make_tracker(self, device_events: bool | None) -> InstructionTracker:
        steps, mismatch = self._profile_steps, self._on_mismatch
        if device_events is None:
            device_events = self._clocks.spec.startswith("nvml:") and "torch" in sys.modules
        if device_events:
            from functools import partial

            import torch

            from pfo_fs.training.cuda_event_tracker import CudaEventTracker

            if torch.cuda.is_available():
                make_event = partial(torch.cuda.Event, enable_timing=True)
                return CudaEventTracker(self._clocks, make_event, profile_steps=steps, on_mismatch=mismatch)
        return InstructionTracker(self._clocks, profile_steps=steps, on_mismatch=mismatch)

    def _start_clocks(self, job: dict[str, Any], device: int | None) -> ClockProcess:
        try:
            spec = find_gpu_spec(device)
        except PfoError as error:
            self._fail(str(error), error)
            spec = "none"
        return ClockProcess(
            spec,
            rank=self.parallel_dims.rank,
            report_to=job["address"],
            token=job["token"],
            profile_steps=self._profile_steps,
        )

    def _create_job(
        self,
        job: dict[str, Any],
        metadata: str | None,
        model_key: str | None,
        coordination: Literal["auto", "daemon", "local"],
        scheduler: str | None,
    ) -> None:
        """Rank 0: makes the job's folder and settles who schedules it; `job["why"]` says why not if that fails."""
        place = self.parallel_dims
        attempt = secrets.token_hex(8)
        try:
            info = JobInfo(
                pp_degree=place.pp_degree,
                dp_degree=place.dp_degree,
                tp_degree=place.tp_degree,
                world_size=place.world_size,
                job_metadata=metadata,
            )
        except ValidationError as error:
            raise ConfigError(f"the job cannot be described: {error.errors()[0]['msg']}") from None
        body = {
            "job_info": info.model_dump(),
            "coordination": coordination,
            "scheduler": self._settings.get("scheduler", "") if scheduler else "",
            "scheduler_args": self._settings.get("scheduler_args", {}) if scheduler else {},
            "model_key": (model_key or "")[:200],
            "profile_steps": self._profile_steps,
            "host": socket.gethostname(),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {"pfo_fs": pfo_fs.__version__, "python": sys.version.split()[0], **_torch_version()},
        }
        try:
            self._helper = self._connect(job, at_once=True)
            created = self._helper.request(
                messages.CreateJob(job=body, attempt=attempt), messages.JobCreated, _REQUEST_TIMEOUT_S
            )
            job.update(job_id=created.job_id, attempt=attempt)
            chosen = self._helper.request(
                messages.ChooseCoordination(mode=coordination), messages.CoordinationChosen, _REQUEST_TIMEOUT_S
            )
            job["kind"] = chosen.coordination
        except (PfoError, OSError) as error:
            job["why"] = str(error)

    def _connect(self, job: dict[str, Any], *, at_once: bool) -> HelperClient:
        return HelperClient(
            job["address"],
            self._shared_dir,
            job["token"],
            self.parallel_dims.rank,
            self._settings,
            start_at_once=at_once,
        )

    def _join(self, job: dict[str, Any], wait_s: float) -> None:
        """Registers this rank and gets the first schedule, if it comes in time."""
        place = self.parallel_dims
        if job["kind"] == "off":
            self._fail(f"no job could be made in {self._shared_dir}: {job['why']}; training goes on without")
            return
        self.job_id, self.coordination = job["job_id"], job["kind"]
        info = RankInfo(
            rank=place.rank,
            dp_rank=place.dp_rank,
            pp_rank=place.pp_rank,
            tp_rank=place.tp_rank,
            available_frequencies=self._clocks.available_clocks_mhz,
        )
        body = {
            "rank_info": info.model_dump(),
            "nonce": secrets.token_hex(8),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "gpu_name": self._clocks.gpu_name,
            "gpu_uuid": self._clocks.gpu_uuid,
            "message": self._clocks.message,
        }
        join = messages.JoinJob(job_id=job["job_id"], attempt=job["attempt"], coordination=job["kind"], rank_body=body)
        self._joining = [join]
        try:
            if self._helper is None:
                self._helper = self._connect(job, at_once=place.local_rank in (0, None))
            self._helper.request(join, messages.Joined, _REQUEST_TIMEOUT_S)
        except (PfoError, OSError) as error:
            self._fail(f"rank {place.rank} could not join job {self.job_id}: {error}", error)
        if self.coordination == "local":
            self._start_local(info, wait_s)
        elif self._helper is not None:
            message = self._helper.wait_for(NewSchedule, wait_s)
            if message is not None:
                self._handle(message)
        if place.rank == 0:
            log.info("job %s in %s, scheduled by %s", self.job_id, self._shared_dir, self.coordination)

    def _start_local(self, info: RankInfo, wait_s: float) -> None:
        """No daemon: rank 0's helper schedules; who the ranks are, and what they do, goes by torch.distributed."""
        place = self.parallel_dims
        infos = [info.model_dump()]
        if self._dist is not None:
            gathered: list[Any] | None = [None] * place.world_size if place.rank == 0 else None
            self._dist.gather_object(infos[0], gathered, dst=0)
            infos = gathered or []
            self._broadcaster = self._make_broadcaster()
        plan: NewSchedule | None = None
        if place.rank == 0 and self._helper is not None:
            self._joining.append(messages.AllRanks(rank_infos=infos))
            self._helper.send(self._joining[-1])
            answer = self._helper.wait_for(NewSchedule, wait_s)
            plan = answer if isinstance(answer, NewSchedule) else None
        if self._broadcaster is not None:
            packet = self._broadcaster.first(transport.encode(plan) if plan else None)
            plan = transport.decode(packet, NewSchedule) if packet else None
        if plan is not None and (self._broadcaster is not None or self._dist is None):
            self._expect(plan, 0)

    def _make_broadcaster(self) -> ScheduleBroadcaster | None:
        """All ranks have one, or none has: with one missing, the others would wait for it."""
        broadcaster, problem = None, ""
        try:
            broadcaster = ScheduleBroadcaster(self.parallel_dims.rank)
        except (RuntimeError, ValueError) as error:
            problem = f"rank {self.parallel_dims.rank}: {error}"
        problems: list[Any] = [None] * self.parallel_dims.world_size
        self._dist.all_gather_object(problems, problem)
        problems = [text for text in problems if text]
        if problems:
            self._fail(f"torch.distributed cannot carry schedules, so clocks stay at their default: {problems[0]}")
            return None
        return broadcaster

    # ---- news

    def _handle(self, message: ToTraining) -> None:
        if isinstance(message, NewSchedule):
            if self.coordination == "daemon":
                if message.number > self._switcher.newest:  # else it comes again, from a new helper or for another rank
                    self._expect(message, message.start_step)
            elif self._broadcaster is not None:
                self._plan = message
                self._broadcaster.offer(transport.encode(message))
            elif self._dist is None:
                self._expect(message, self.step)
        elif isinstance(message, messages.DirectoryLost):
            text = "the shared directory has not answered for long; default clocks until it does"
            self._switcher.suspend("directory lost", text)
        elif isinstance(message, messages.DirectoryBack):
            self._resume("directory lost")
        elif isinstance(message, messages.LeaseRenewed):
            self._renew_lease(message.lease_s)
        elif isinstance(message, messages.LogLine):
            log.log(message.level, "%s", message.message)
        elif isinstance(message, messages.Refused):
            self._warn(message.message, message.message)

    def _set_schedule(self, schedule: RankPlan | None) -> None:
        if schedule is None or not schedule.frequencies:
            self._tracker.set_schedule(None, None)
        else:
            self._tracker.set_schedule(schedule.frequencies, schedule.stages)

    def _resume(self, why: str) -> None:
        self._warned.discard(why)
        self._switcher.resume(why)

    def _renew_lease(self, lease_s: float) -> None:
        """There is word of whoever schedules: what is in force holds for `lease_s` without another; 0 for ever."""
        self._lease_until_s = time.monotonic() + lease_s if lease_s else math.inf
        if "hold" in self._warned:
            self._resume("hold")
            if self._broadcaster is not None and self._plan is not None:
                self._broadcaster.offer(transport.encode(self._plan))

    def _end_lease(self) -> None:
        """Nobody would say that a straggler is gone, and its pace is not kept for ever."""
        self._lease_until_s = math.inf
        text = "no word from whoever follows the straggler; default clocks until there is"
        if self._broadcaster is None:
            self._switcher.suspend("hold", text)
        elif self._plan is not None:
            self._warn(text, "hold")
            self._broadcaster.offer(transport.encode(NewSchedule(number=-1)))

    def _expect(self, schedule: NewSchedule, start_step: int) -> None:
        """A schedule has arrived; this rank's part of it comes into force at `start_step`."""
        mine = schedule.plan_of(self.parallel_dims.rank) or RankPlan([])
        self._switcher.expect(PendingSchedule(schedule.number, start_step, schedule.steps, mine))

    def _on_mismatch(self, position: int, expected: str, got: str) -> None:
        text = (
            f"rank {self.parallel_dims.rank}, step {self.step}, instruction {position}: the schedule expects "
            f"{expected}, training ran {got}; clocks are released for the rest of the step "
            f"(schedule {self.schedule_number})"
        )
        self._tell(messages.ProblemSeen(message=text))
        if self._strict:
            raise InstructionMismatch(text)
        log.warning("%s", text)

    def _revive(self, helper: HelperClient, now: float) -> None:
        """The helper has died; another one takes its place without anybody waiting for it."""
        self._revive_at = now + _REVIVE_EVERY_S
        self._warn("the helper process for the shared directory has died; another one is started", "helper")
        if helper.revive(self._joining):
            self._warned.discard("helper")

    def _tell(self, message: Message) -> None:
        if self._helper is not None:
            self._helper.send(message)

    def _fail(self, text: str, error: BaseException | None = None) -> None:
        if self._strict:
            if isinstance(error, PfoError):
                raise error
            raise CoordinationError(text)
        self._warn(text, text)

    def _warn(self, text: str, key: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning("%s", text)


def _torch_version() -> dict[str, str]:
    """The version of torch, if training has it: kernels change with it, and profiles with them."""
    torch = sys.modules.get("torch")
    return {"torch": str(torch.__version__)} if torch is not None else {}


def _close_at_exit(reference: weakref.ref[PFOFileOptimizer]) -> None:
    optimizer = reference()
    if optimizer is not None:
        optimizer.close(*_how_it_ended(getattr(sys, "last_value", None)))


def _how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Reason and message of the end of training."""
    if error is None:
        return "finished", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    text = " ".join(str(error).split())
    return "crashed", f"{type(error).__name__}{': ' if text else ''}{text}"[:300]
