"""The processes of a fast episode: the product's own state machines, without sockets, threads and waiting."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.faults import Calls, Killed
from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.daemon import Daemon
from pfo_fs.errors import PfoError, RecordError, StoreError
from pfo_fs.guard import WarnOnce
from pfo_fs.helper import operations as op
from pfo_fs.helper.job import Around, StartCoordinator
from pfo_fs.helper.link import HelperLink
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m
from pfo_fs.models import RankInfo
from pfo_fs.store import Files
from pfo_fs.training.schedule_feed import BroadcastFeed, ScheduleFeed, ScheduleSwitcher

if TYPE_CHECKING:
    from benchmarks.chaos.world import World

TOKEN = "chaos"
PROFILE_STEPS = 2
_LISTENS_AGAIN_S = 1.0


class Place:
    """Where one process may run: it is there or not, stopped or not, and has its own view of the file system."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.frozen_until_s = -math.inf
        self.is_inside = False  # stopped between two system calls of a turn that has not ended
        self.calls = self.new_calls()

    def new_calls(self) -> Calls:
        return Calls(self.world.random, lambda: self.world.freeze_inside(self), links=self.world.links)

    @property
    def is_frozen(self) -> bool:
        return self.is_inside or self.world.now_s < self.frozen_until_s

    @property
    def is_there(self) -> bool:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError


class DaemonFiles(Files):
    """A daemon's files, whose ages are told by the world's clock: a file is as old as the first look at its content."""

    def __init__(self, world: World, calls: Calls) -> None:
        super().__init__(world.root, create=True, calls=calls)
        self._world = world

    def now_s(self, path: str) -> float:
        super().now_s(path)  # it may fail
        return self._world.now_s

    def changed_s(self, path: str) -> float:
        changed_s = super().changed_s(path)
        if self._world.changed.get(path, (0.0, 0.0))[0] != changed_s:
            self._world.changed[path] = changed_s, self._world.now_s
        return self._world.changed[path][1]


class DaemonPlace(Place):
    """A host on which a daemon may run."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.daemon: Daemon | None = None
        self._due_s = 0.0

    @property
    def is_there(self) -> bool:
        return self.daemon is not None

    def start(self) -> None:
        if self.daemon is None and not self.is_inside:
            self.calls = self.new_calls()
            with suppress(StoreError):
                files = DaemonFiles(self.world, self.calls)
                self.daemon = Daemon(files, self.world.settings, monotonic=self.world.time)
                self._due_s = self.world.now_s

    def turn(self) -> None:
        """What `Daemon.run` does between two waits."""
        daemon = self.daemon
        if daemon is None or self.is_frozen or self.world.now_s < self._due_s:
            return
        try:
            daemon._shared.make_folders()
            wait_s = daemon._do_what_is_due()
        except Killed:
            self.kill()
            return
        except (StoreError, RecordError):
            daemon._leader.forget_silence()
            if daemon._jobs is not None:
                daemon._jobs.restart_timers()
            wait_s = 1.0
        self._due_s = self.world.now_s + wait_s

    def stop(self) -> None:
        """As SIGTERM does."""
        daemon = self.daemon
        if daemon is not None:
            with suppress(Killed):
                daemon._resign()
            self.kill()

    def kill(self) -> None:
        self.daemon = None
        self.calls.dead = True


class Operations(op.DirectoryOperations):
    """The helper's operations with the calls of its simulated process."""

    def __init__(self, root: str, calls: Calls, scheduler: str) -> None:
        super().__init__(root, "helper", scheduler)
        self.calls = calls

    def files(self, root: str, *, create: bool = False) -> Files:
        """Opens the directory; `world.patched` puts this in the place of `Files` in the helper's module."""
        return Files(root, create=create, calls=self.calls)


class AroundHelper(Around):
    """What the state of a host's helper has around it."""

    def __init__(self, host: HostPlace) -> None:
        super().__init__(host.world.time, host.number)
        self._host = host

    def send(self, client: int, message: Any) -> None:
        if client in self._host.inboxes:
            self._host.inboxes[client].append(message)

    def run(self, operation: op.Operation) -> None:
        self._host.tasks.append(operation)

    def coordinate(self, what: StartCoordinator | m.ScheduleApplied) -> None:
        if isinstance(what, StartCoordinator):
            self._host.start_coordinator(what)
        else:
            self._host.told = what

    def reset_gpu(self, rank: int, gpu: m.GpuToReset, pause_s: float = 0.0) -> None:
        self._host.world.ranks[int(gpu.spec)].set_clock(0)
        assert self._host.state is not None
        self._host.events.append(partial(self._host.state.gpu_reset, rank, gpu, ""))

    def stop(self) -> None:
        self._host.stops = True


class HostPlace(Place):
    """A host of the job: its helper, and what its processes have sent to the helper."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world)
        self.number = number
        self.state: HelperState | None = None
        self.inboxes: dict[int, list[m.ToTraining]] = {}
        self.next_client = 0
        self.impaired_until_s = -math.inf
        self.events: deque[Callable[[], None]] = deque()
        self.tasks: deque[op.Operation] = deque()
        self._coordinator: Coordinator | None = None
        self.told: m.ScheduleApplied | None = None
        self.stops = False

    @property
    def is_there(self) -> bool:
        return self.state is not None

    @property
    def is_impaired(self) -> bool:
        """Whether this host may not have received what was published in time."""
        return (
            not self.is_there or self.is_frozen or not self.calls.is_healthy or self.world.now_s < self.impaired_until_s
        )

    def start(self) -> None:
        if self.is_inside:
            return
        self.calls = self.new_calls()
        self.operations = Operations(self.world.root, self.calls, self.world.settings.scheduler)
        self.state = HelperState(TOKEN, AroundHelper(self))
        self.events.clear()
        self.tasks.clear()
        self.inboxes.clear()
        self._coordinator = self.told = None
        self.stops = False
        self.state.begin()

    def kill(self) -> None:
        if self.state is not None:
            self.world.killed_helpers.append(self.state)
        self.state, self.calls.dead = None, True
        self.events.clear()  # what was in the sockets is lost
        self.tasks.clear()

    def connect(self, rank: int, role: Any, gpu: m.GpuToReset | None = None) -> int | None:
        """Returns the number of a new connection; None if no helper listens."""
        if self.state is None:
            return None
        self.next_client += 1
        if role == "training":
            self.inboxes[self.next_client] = []
        self.send(self.next_client, m.Hello(rank=rank, role=role, token=TOKEN, gpu=gpu))
        return self.next_client

    def send(self, client: int, message: m.ToHelper) -> None:
        if self.state is not None:
            self.events.append(partial(self.state.message_arrived, client, message))

    def hang_up(self, client: int) -> None:
        if self.state is not None:
            self.events.append(partial(self.state.client_gone, client))

    def turn(self) -> None:
        """What the helper's loop and its worker do."""
        if self.state is None or self.is_frozen:
            return
        try:
            while self.events:
                self.events.popleft()()
            self.state.time_passed()
            self._work(len(self.tasks))
            self._work(3)
            self._schedule()
        except Killed:
            self.kill()
        if self.stops and self.state is not None and self.state.is_idle and not self.tasks and not self.events:
            self.state = None

    def _work(self, most: int) -> None:
        """Carries out some of the operations that wait."""
        for _ in range(most):
            if not self.tasks:
                return
            operation, result, problem = self.tasks.popleft(), None, None
            self.world.current = self.operations
            try:
                result = self.operations.execute(operation)
            except PfoError as error:
                problem = error
            if self.state is not None:
                self.state.operation_done(operation, result, problem)
                self.state.time_passed()

    # ---- the coordinator of a job without a daemon

    def start_coordinator(self, action: StartCoordinator) -> None:
        with suppress(PfoError):
            self._coordinator = Coordinator(
                self.operations.another_view(),
                self.world.settings,
                kind="local",
                rank_infos=action.rank_infos,
                on_publish=self._published,
                lead_s=0.0,
                monotonic=self.world.time,
            )

    def _published(self, number: int, start_step: int, schedules: Any, term: Any) -> None:
        if self.state is not None:
            self.state.tell_first_rank(op.new_schedule(number, start_step, schedules, term))

    def _schedule(self) -> None:
        if self._coordinator is not None:
            if self.told is not None:
                self._coordinator.applied(self.told.number, self.told.step)
            self._coordinator.poll()
            if self.state is not None:
                self.state.coordinator_alive(self._coordinator.lease[0])


class Client:
    """A training process's connection to its helper (`HelperClient`)."""

    def __init__(self, host: HostPlace, rank: int, *, may_start: bool) -> None:
        self.host, self.rank, self.may_start = host, rank, may_start
        self.lost = True
        self.number = -1
        self._helper: HelperState | None = None
        if may_start:
            host.start()
        self._connect()

    def _connect(self) -> bool:
        number = self.host.connect(self.rank, "training")
        if number is None:
            return False
        self.number, self._helper, self.lost = number, self.host.state, False
        return True

    @property
    def helper(self) -> HelperState | None:
        """The helper at the other end; None if the connection is lost."""
        return None if self._is_lost() else self._helper

    def _is_lost(self) -> bool:
        self.lost = self.lost or self.host.state is not self._helper
        return self.lost

    def poll(self) -> m.ToTraining | None:
        if self._is_lost():
            return None
        inbox = self.host.inboxes[self.number]
        return inbox.pop(0) if inbox else None

    def send(self, message: m.Message) -> bool:
        if self._is_lost():
            return False
        self.host.send(self.number, message)  # type: ignore[arg-type]
        return True

    def how_it_ended(self) -> str:
        return ""

    def revive(self, joining: list[m.Message]) -> bool:
        if not self._connect():
            if self.may_start and self.host.state is None:
                self.host.start()
            if not self._connect():
                return False
        for message in joining:
            self.send(message)
        return True

    def wait_for(self, kind: type[m.NewSchedule], timeout_s: float) -> None:
        raise AssertionError("the world waits")

    def close(self) -> None:
        if not self._is_lost():
            self.host.hang_up(self.number)
        self.lost = True


class Broadcaster:
    """The broadcaster of one rank (`ScheduleBroadcaster`); `World.broadcast` is what all of them share."""

    lost = False

    def __init__(self, world: World) -> None:
        self._world = world

    def offer(self, packet: bytes) -> None:
        self._world.offered = packet

    def step_begin(self, step: int, iter_time_s: float | None) -> bytes | None:
        return self._world.broadcast if step == self._world.broadcast_step else None

    def close(self) -> None:
        pass


class Rank:
    """One training process with its clock process and GPU.

    Attributes:
        log: For each step, the number of the schedule in force, and whether clocks were at their default nevertheless.
        gpu_log: The clocks that the GPU was set to, in MHz; 0 is the default.
        measured: Numbers of schedules whose results were sent, with the helper that got them.
        killed_as_a_whole: Training, its clock process and the helper of its host were killed.
    """

    def __init__(self, world: World, host: HostPlace, info: RankInfo) -> None:
        self.world, self.host, self.info = world, host, info
        self.number = info.rank
        self.log: dict[int, tuple[int, bool]] = {}
        self.gpu_log = [0]
        self.measured: list[tuple[int, HelperState]] = []
        self.is_training = True
        self.clocks_alive = True
        self.killed_as_a_whole = False
        self.frozen_until_s = -math.inf
        self.late: set[int] = set()
        warn = WarnOnce()
        self.link = HelperLink(warn, world.time)
        self.feed: ScheduleFeed | None = None
        self._warn = warn
        self._switcher = ScheduleSwitcher(self._set_schedule, lambda text: None)
        self._wanted_mhz = 0
        self._clocks_client: int | None = None
        self._clocks_helper: HelperState | None = None
        self._connects_at_s = self._reports_at_s = -math.inf
        self._window = (-1, -1, 0)  # the number that is measured, the first step of it, and the number of steps
        self._sent: set[int] = set()
        self._results: deque[m.MeasurementReport] = deque(maxlen=64)

    @property
    def is_frozen(self) -> bool:
        return self.world.now_s < self.frozen_until_s

    def make_feed(self, coordination: str) -> None:
        if coordination == "daemon":
            self.feed = ScheduleFeed(self.number, self._switcher, monotonic=self.world.time)
        else:
            broadcaster: Any = Broadcaster(self.world)
            self.feed = BroadcastFeed(self.number, self._switcher, broadcaster, self._warn, monotonic=self.world.time)

    @property
    def clock_mhz(self) -> int:
        return self.gpu_log[-1]

    def set_clock(self, mhz: int) -> None:
        if self.gpu_log[-1] != mhz:
            self.gpu_log.append(mhz)

    def _set_schedule(self, schedule: m.NewSchedule | None) -> None:
        plan = None if schedule is None else schedule.plan_of(self.number)
        self._wanted_mhz = plan.frequencies[0][1] if plan is not None and plan.frequencies else 0

    # ---- training, as `PFOFileOptimizer` does it

    def step(self, step: int) -> None:
        """One step; what the clock process sees of it follows at once."""
        assert self.feed is not None
        self.feed.step_begin(step, 1.0, self.link.poll())
        applied = self._switcher.step_begin(step)
        if applied is not None:
            late = 0 < applied.start_step < step
            if late:
                self.late.add(applied.number)
            self.link.send_kept(m.ScheduleApplied(number=applied.number, step=step, late=late))
        number = self._switcher.number
        self.log[step] = (number, not self.clocks_alive or self._switcher.measured_number != number)
        if step == 0:
            self.link.send_kept(m.OrderSeen(instructions=[("forward", None), ("backward", None)]))
        if self.clocks_alive:
            self.set_clock(self._wanted_mhz)
            self._measure(step, self._switcher.measured_number)
        elif self.gpu_log[-1]:
            self.set_clock(0)  # training sees that the clock process is gone, and starts another one that resets

    def goodbye(self, reason: Any) -> None:
        """Training ends in order: clocks go back first, then the helper hears of it."""
        if self.clocks_alive:
            self.clocks_end()
        self.link.leave(m.Goodbye(reason=reason))
        self.is_training = False

    def kill(self) -> None:
        """SIGKILL of training: the kernel closes its sockets, by which the clock process notices."""
        self.is_training = False
        self.link.close()
        self.killed_as_a_whole = not self.clocks_alive and not self.host.is_there
        if self.clocks_alive:
            self.clocks_end()

    # ---- the clock process

    def _measure(self, step: int, number: int) -> None:
        now_s = self.world.now_s
        if number != self._window[0]:
            self._window = (number, step, 0)
        self._window = (number, self._window[1], self._window[2] + 1)
        if number >= 0 and self._window[2] > PROFILE_STEPS and number not in self._sent:
            self._sent.add(number)
            time_s = number + 1 + self.number / 10
            result = {"rank": self.number, "iter_time": [time_s] * PROFILE_STEPS, "iter_energy": [1.0] * PROFILE_STEPS}
            self._results.append(m.MeasurementReport(number=number, first_step=self._window[1] + 1, result=result))
        if not self._is_connected():
            return
        assert self._clocks_client is not None
        assert self._clocks_helper is not None
        while self._results:
            report = self._results.popleft()
            self.measured.append((report.number, self._clocks_helper))
            self.host.send(self._clocks_client, report)
        if now_s >= self._reports_at_s:
            self._reports_at_s = now_s + 1.0
            report_ = m.ProgressReport(step=step, number=number, iter_time=self.world.step_s)
            self.host.send(self._clocks_client, report_)

    def _is_connected(self) -> bool:
        if self._clocks_helper is not None and self._clocks_helper is self.host.state:
            return True
        self._clocks_helper = None
        if self.world.now_s < self._connects_at_s:
            return False
        self._connects_at_s = self.world.now_s + _LISTENS_AGAIN_S
        self._clocks_client = self.host.connect(self.number, "clocks", m.GpuToReset(str(self.number)))
        self._clocks_helper = self.host.state if self._clocks_client is not None else None
        return self._clocks_client is not None

    def clocks_end(self) -> None:
        """The clock process resets its GPU, sends what it still has, and ends."""
        self.clocks_alive = False
        self.set_clock(0)
        if self._is_connected() and self._clocks_client is not None and self._clocks_helper is not None:
            for report in self._results:
                self.measured.append((report.number, self._clocks_helper))
                self.host.send(self._clocks_client, report)
            self.host.send(self._clocks_client, m.ClocksReleased())
            self.host.hang_up(self._clocks_client)

    def kill_clocks(self) -> None:
        """SIGKILL of the clock process: the clock stays as it is until another process resets it."""
        if self.clocks_alive:
            self.clocks_alive = False
            if self._clocks_client is not None and self._clocks_helper is self.host.state:
                self.host.hang_up(self._clocks_client)
