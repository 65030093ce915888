"""The helper process of a host: does all input and output on the shared directory for the ranks of this host.

The training processes never touch the directory: a hung mount blocks whoever asks it, for as long as it likes, and
that must be this process. It lives in its own session, ends when the last training process has gone, and is left
behind when the mount does not let it go.

Started as `python -m pfo_fs.helper.host_helper`; everything it needs comes as one JSON object in `PFO_FS_HELPER`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from pydantic import ValidationError

from pfo_fs.coordination import Coordinator
from pfo_fs.errors import AlreadyClaimed, PfoError, RecordError, StoreError
from pfo_fs.helper.directory_health import DirectoryHealth
from pfo_fs.helper.iteration_time_log import IterationTimeLog
from pfo_fs.ipc import messages, transport
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.settings import PFOSettings, load_settings
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies, is_local

log = logging.getLogger("pfo_fs.helper.host_helper")

FALLBACK_AFTER_S = 600.0
"""After so long without an answer of the shared directory, ranks go back to default clocks until it answers."""
_FIRST_CLIENT_WITHIN_S = 60.0
_MAX_PENDING_WRITES = 1000


class Client:
    """One connection: a training process or a clock process."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank = -1
        self.role = ""

    def send(self, message: Any) -> None:
        """Sends without waiting; a client that does not read misses it."""
        packet = transport.encode(message)
        try:
            self.connection.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                log.error(
                    "a message of %d KiB (%s) is too large for a local socket",
                    len(packet) >> 10,
                    type(message).__name__,
                )


class HostHelper:
    """See the module's docstring.

    Args:
        shared: The shared directory; or why it cannot be used, which is then the answer to all that is asked of it.
        token: What clients must say first.
        settings: For scheduling in this process, where no daemon does.
        local_mount: Whether the directory is on a local file system: then looking often costs nobody anything.
    """

    def __init__(
        self, shared: SharedDirectory | StoreError, token: str, settings: PFOSettings, *, local_mount: bool
    ) -> None:
        self._shared = shared
        self._folder: JobFolder | None = None
        self.kind: Literal["daemon", "local", ""] = ""
        self._token = token
        self._settings = settings
        self._local_mount = local_mount
        self._interval_s = settings.poll_interval or (0.25 if local_mount else 2.0)
        self._clients: dict[int, Client] = {}
        self._had_clients = False
        self._ranks: dict[int, RankInfo] = {}
        self._trainers: dict[int, Client] = {}
        self._name: int | None = None
        self._coordinator: Coordinator | None = None
        self._known = (-1, -1)  # (generation, number) of the newest schedule that was handed out
        self._held: tuple[float, int] | None = None  # `Coordinator.hold`, as the ranks know it
        self._progress: dict[int, bodies.RankProgress] = {}
        self._progress_at: dict[int, float] = {}
        self._progress_dirty = False
        self._iteration_times: dict[int, IterationTimeLog] = {}
        self._late: set[tuple[int, int]] = set()
        self._pending: list[Callable[[], None]] = []
        self._directory_health = DirectoryHealth()
        self._released = False
        self._too_early: deque[tuple[Client, Any]] = deque(maxlen=_MAX_PENDING_WRITES)
        self._ended = False
        self._passed_on = ""
        self._started = time.monotonic()
        self._next_poll = self._next_progress = self._started

    @property
    def shared(self) -> SharedDirectory:
        """The shared directory.

        Raises:
            StoreError: It cannot be used.
        """
        if isinstance(self._shared, StoreError):
            raise self._shared
        return self._shared

    @property
    def folder(self) -> JobFolder:
        """The job's folder.

        Raises:
            ValueError: Nobody has created or joined a job yet.
        """
        if self._folder is None:
            raise ValueError("there is no job yet")
        return self._folder

    # ---- the loop

    def serve(self, server: socket.socket) -> None:
        """Serves until the last client has gone."""
        server.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                wait_s = max(0.0, min(self._next_poll, self._next_progress) - now)
                for key, _ in selector.select(min(wait_s, 5.0)):
                    if key.fileobj is server:
                        self._accept(server, selector)
                    else:
                        self._receive(key.data, selector)
                now = time.monotonic()
                if now >= self._next_poll:
                    self._next_poll = time.monotonic() + self._poll(now)
                if now >= self._next_progress:
                    self._write_progress(now)
                if not self._clients and (self._had_clients or now - self._started > _FIRST_CLIENT_WITHIN_S):
                    break
        self._progress_dirty = bool(self._progress)
        self._write_progress(time.monotonic())
        self._flush()

    def _accept(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = server.accept()
            transport.check_peer(connection)
        except OSError as error:
            log.debug("a connection was refused: %s", error)
            return
        transport.enlarge(connection)
        client = Client(connection)
        self._clients[connection.fileno()] = client
        self._had_clients = True
        selector.register(connection, selectors.EVENT_READ, client)

    def _receive(self, client: Client, selector: selectors.BaseSelector) -> None:
        try:
            packet = transport.receive(client.connection, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if packet:
            try:
                self._handle(client, transport.decode(packet, messages.ToHelper))
                return
            except PermissionError as error:
                log.warning("%s", error)
            except PfoError as error:
                client.send(messages.Refused(message=str(error), taken=isinstance(error, AlreadyClaimed)))
                return
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                log.warning("a message of rank %d was not understood: %s", client.rank, error)
                return
        selector.unregister(client.connection)
        self._clients.pop(client.connection.fileno(), None)
        client.connection.close()
        if client.role == "trainer":
            self._trainers.pop(client.rank, None)
            self._update_progress(client.rank, error=f"the training process of rank {client.rank} died without a word")
            if client.rank == 0:
                self._end("crashed", "the training process of rank 0 went away without closing the optimizer")

    # ---- messages

    def _handle(self, client: Client, message: Any) -> None:
        if not client.role:
            if not isinstance(message, messages.Hello) or message.token != self._token:
                raise PermissionError("a client did not give the job's token")
            client.rank, client.role = message.rank, "trainer" if message.role == "training" else "clock"
            if client.role == "trainer":
                self._trainers[client.rank] = client
                self._name = 0 if client.rank == 0 else (client.rank if self._name is None else self._name)
            return
        handlers: dict[type, Callable[[Client, Any], None]] = {
            messages.CreateJob: self._on_create,
            messages.ChooseCoordination: self._on_coordinate,
            messages.JoinJob: self._on_join,
            messages.AllRanks: self._on_ranks,
            messages.OrderSeen: self._on_order,
            messages.ScheduleApplied: self._on_applied,
            messages.ProblemSeen: self._on_problem,
            messages.Goodbye: self._on_bye,
            messages.ProgressReport: self._on_progress,
            messages.MeasurementReport: self._on_measured,
        }
        if type(message) not in handlers:
            raise ValueError("a second greeting")
        handlers[type(message)](client, message)

    def _on_create(self, client: Client, message: Any) -> None:
        """Rank 0: make the job's folder."""
        body = bodies.JobBody.model_validate(message.job)
        scheduler = body.scheduler or self._scheduler_of_daemon(body.coordination) or self._settings.scheduler
        body.job_info.set_job_id(scheduler.rpartition(":")[2])
        self._folder = self.shared.create_job(body, message.attempt)
        client.send(messages.JobCreated(job_id=self.folder.job_id))

    def _scheduler_of_daemon(self, coordination: str) -> str:
        if coordination == "local":
            return ""
        with suppress(PfoError):
            daemon = self.shared.read_daemon()
            if daemon is not None and not daemon.stopped:
                return daemon.scheduler
        return ""

    def _on_coordinate(self, client: Client, message: Any) -> None:
        """Rank 0: settle who schedules the job; whoever claims it first does."""
        mode = message.mode
        self.kind = "daemon" if mode == "daemon" else "local"
        if mode == "auto" and self._a_daemon_claims_it():
            self.kind = "daemon"
        elif mode != "daemon":
            mine = bodies.ClaimBody(kind="local", nonce=self.folder.attempt or "")
            self.kind = self.folder.claim_coordinator(mine).kind
        if self.kind == "local":
            self._coordinator = Coordinator(
                self.folder, self._settings, kind="local", on_publish=self._hand_to_rank_0, lead_s=0.0
            )
        client.send(messages.CoordinationChosen(coordination=self.kind or "local"))

    def _a_daemon_claims_it(self) -> bool:
        daemon = self.shared.read_daemon()
        if daemon is None or daemon.stopped:
            return False
        deadline = time.monotonic() + max(1.5, 3 * daemon.interval_s)
        while time.monotonic() < deadline:
            # By listing: an NFS client remembers for half a minute that a name was not there.
            if "coordinator.json" in self.folder.names():
                return True
            time.sleep(0.01 if self._local_mount else 0.1)
        log.warning("the daemon on %s has not answered; rank 0 schedules this job itself", daemon.host)
        return False

    def _on_join(self, client: Client, message: Any) -> None:
        """Any rank: register."""
        body = bodies.RankBody.model_validate(message.rank_body)
        if self._folder is None:
            self._folder = self.shared.job(message.job_id)
            self._folder.attempt = message.attempt
        self.kind = message.coordination
        self._known = (-1, -1)  # what was handed out before this rank came, it does not have
        self._held = None
        self._ranks[body.rank_info.rank] = body.rank_info
        self._progress.setdefault(body.rank_info.rank, bodies.RankProgress(rank=body.rank_info.rank))
        try:
            self.folder.register_rank(body)
        except AlreadyClaimed:
            raise
        except StoreError as error:
            self._later(lambda: self.folder.register_rank(body), error)
        client.send(messages.Joined())
        self._next_poll = 0.0
        while self._too_early:
            self._on_measured(*self._too_early.popleft())

    def _on_ranks(self, client: Client, message: Any) -> None:
        """Rank 0, where no daemon schedules: all ranks, gathered by torch.distributed."""
        infos = [RankInfo.model_validate(info) for info in message.rank_infos]
        self._coordinator = Coordinator(
            self.folder,
            self._settings,
            kind="local",
            rank_infos=infos,
            on_publish=self._hand_to_rank_0,
            lead_s=0.0,
        )
        self._next_poll = 0.0

    def _on_order(self, client: Client, message: Any) -> None:
        info = self._ranks.get(client.rank)
        if info is None or info.dp_rank or info.tp_rank:
            return  # there is no job, or the first rank of the stage speaks for all
        body = bodies.OrderBody(rank=client.rank, instructions=message.instructions)
        self._write(lambda: self.folder.write_order(body))

    def _on_applied(self, client: Client, message: Any) -> None:
        if client.rank == 0 and self._coordinator is not None:
            self._coordinator.applied(message.number, message.step)
        if message.late:
            self._late.add((client.rank, message.number))

    def _on_problem(self, client: Client, message: Any) -> None:
        self._update_progress(client.rank, error=message.message[:4000])

    def _on_progress(self, client: Client, message: Any) -> None:
        fields: dict[str, Any] = {
            "step": message.step,
            "number": message.number,
            "iter_time": message.iter_time_s,
            "iter_energy": message.iter_energy_j,
            "clock_mhz": message.clock_mhz,
        }
        if message.message:
            fields["error"] = message.message[:4000]
        now = time.monotonic()
        self._progress_at[client.rank] = now
        self._update_progress(client.rank, **fields)
        self._follow_iteration_times(client.rank, message, now)

    def _follow_iteration_times(self, rank: int, message: Any, now: float) -> None:
        """A pipeline's first rank tells how long iterations take; any other only that its GPU is throttled."""
        info = self._ranks.get(rank)
        if info is None or self._folder is None:
            return
        log_ = self._iteration_times.setdefault(rank, IterationTimeLog(1.0 if self._local_mount else 5.0))
        first = info.pp_rank == 0 and info.tp_rank == 0
        steps = message.iteration_times
        log_.add(steps if first else [], message.throttled[:200])
        if log_.due(now):
            body = bodies.IterationTimesBody(rank=rank, steps=log_.steps, throttled=log_.throttled)
            try:
                self.folder.write_iteration_times(body)
                log_.written(now)
            except StoreError as error:
                self._directory_health.failed("write", error)

    def _update_progress(self, rank: int, **fields: Any) -> None:
        known = self._progress.get(rank, bodies.RankProgress(rank=rank))
        self._progress[rank] = bodies.RankProgress.model_validate({**known.model_dump(), **fields})
        self._progress_dirty = True

    def _on_measured(self, client: Client, message: Any) -> None:
        number = message.number
        if number < 0:
            return  # measured before the first schedule, which tells nobody anything
        if self._folder is None:
            self._too_early.append((client, message))  # a new helper, which the clock process has found before training
            return
        body = bodies.ResultBody(
            result=ProfilingResult.model_validate(message.result),
            first_step=message.first_step,
            late=(client.rank, number) in self._late,
        )
        self._write(lambda: self.folder.write_result(number, body))

    def _on_bye(self, client: Client, message: Any) -> None:
        client.role = "gone"
        self._trainers.pop(client.rank, None)
        if client.rank == 0:
            self._end(message.reason, message.message)

    # ---- the shared directory

    def _poll(self, now: float) -> float:
        """Looks for news once; returns the seconds until the next look."""
        if self._folder is None or not self._ranks:
            return 0.1
        self._flush()
        if self._coordinator is not None:
            delay = self._coordinator.poll()
            self._pass_on_lease(self._coordinator.hold)
            return min(delay, self._interval_s) if self._coordinator.state != "waiting" else delay
        if self.kind != "daemon":
            return 1.0
        try:
            self._look_for_schedule()
        except (StoreError, RecordError) as error:
            self._directory_health.failed("read", error)
        else:
            self._directory_health.succeeded("read")
        self._fall_back()
        return self._pause(now)

    def _pause(self, now: float) -> float:
        """Often while the first schedule is awaited, later as seldom as the site's metadata server deserves."""
        age = now - self._started
        if self._known[1] < 0 and age < 30:
            return 0.02 if self._local_mount and age < 5 else min(self._interval_s, 0.2 + age / 10)
        return self._interval_s * random.uniform(0.8, 1.2)

    def _look_for_schedule(self) -> None:
        if self._known[1] < 0 and "current.json" not in self.folder.names():
            return
        current = self.folder.read_current()
        if current is not None and self._name == 0 and current.state != "ended":
            self._pass_on(current.message or (current.yaml_problem and f"schedule.yaml: {current.yaml_problem}"))
        if current is not None and current.number >= 0:
            self._pass_on_lease((current.lease_s, current.heartbeat))
        if current is None or current.number < 0 or (current.generation, current.number) <= self._known:
            return
        if current.number != self._known[1]:
            index = self.folder.read_index(current.number)
            if index is None:
                return
            schedules = {rank: self.folder.read_schedule(index, info) for rank, info in self._ranks.items()}
            for rank, schedule in schedules.items():
                trainer = self._trainers.get(rank)
                if trainer is not None:
                    mine = [schedule] if schedule else []
                    trainer.send(new_schedule(index.number, index.start_step, mine, index.steps))
        self._known = (current.generation, current.number)

    def _pass_on(self, message: str) -> None:
        """What the daemon has to say about the job is also said in its own log."""
        if message and message != self._passed_on:
            log.warning("%s", message)
        self._passed_on = message

    def _pass_on_lease(self, hold: tuple[float, int]) -> None:
        """Ranks look to it themselves that they do not follow a straggler for longer than they hear of it."""
        if hold == self._held:
            return
        self._held = hold
        if hold[1] or not hold[0]:  # else somebody says how long it holds who does not follow the straggler
            lease_s = hold[0] and hold[0] + 2 * self._interval_s  # this helper does not look all the time
            self._tell_trainers(messages.LeaseRenewed(lease_s=lease_s))

    def _hand_to_rank_0(self, number: int, schedules: list[FrequencySchedule], steps: int) -> None:
        trainer = self._trainers.get(0)
        if trainer is not None:
            trainer.send(new_schedule(number, 0, schedules, steps))

    def _write_progress(self, now: float) -> None:
        if self._folder is None or self._name is None:
            self._next_progress = now + 0.5  # nobody has come yet
            return
        slow = 1.0 if self._local_mount else 5.0
        self._next_progress = now + (slow if self._name == 0 else 12 * slow) * random.uniform(0.9, 1.1)
        if not self._progress_dirty:
            return
        ranks = [
            progress.model_copy(update={"step_age_s": now - self._progress_at.get(rank, now)})
            for rank, progress in self._progress.items()
        ]
        body = bodies.ProgressBody(ranks=ranks, store_error=self._directory_health.error[:4000])
        try:
            self.folder.write_progress(body, self._name)
            self._progress_dirty = False
            self._directory_health.succeeded("write")
        except StoreError as error:
            self._directory_health.failed("write", error)

    def _end(self, reason: str, message: str) -> None:
        if self._folder is None or self._ended:
            return
        self._ended = True
        body = bodies.EndBody.model_validate({"reason": reason, "message": message})
        self._write(lambda: self.folder.write_end(body))

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StoreError as error:
            self._later(write, error)

    def _later(self, write: Callable[[], None], error: StoreError) -> None:
        self._directory_health.failed("write", error)
        if len(self._pending) < _MAX_PENDING_WRITES:
            self._pending.append(write)

    def _flush(self) -> None:
        while self._pending:
            try:
                self._pending[0]()
            except StoreError as error:
                self._directory_health.failed("write", error)
                return
            self._pending.pop(0)

    def _fall_back(self) -> None:
        """Default clocks while nobody can say otherwise for long."""
        lost = self._directory_health.unread_s() > FALLBACK_AFTER_S
        if lost != self._released:
            self._released = lost
            self._tell_trainers(messages.DirectoryLost() if lost else messages.DirectoryBack())

    def tell_one_trainer(self, message: Any) -> None:
        """Tells the training process with the lowest rank on this host, if one is left."""
        if self._trainers:
            self._trainers[min(self._trainers)].send(message)

    def _tell_trainers(self, message: Any) -> None:
        for trainer in self._trainers.values():
            trainer.send(message)


def new_schedule(
    number: int, start_step: int, schedules: list[FrequencySchedule], steps: int = 0
) -> messages.NewSchedule:
    """What ranks are told of a new schedule: each different plan once."""
    plans: list[messages.RankPlan] = []
    places: dict[str, int] = {}
    ranks: dict[int, int] = {}
    for schedule in schedules:
        key = schedule.model_dump_json(exclude={"rank"})
        if key not in places:
            places[key] = len(plans)
            plans.append(messages.RankPlan(schedule.frequencies, schedule.stages))
        ranks[schedule.rank] = places[key]
    return messages.NewSchedule(number=number, start_step=start_step, steps=steps, plans=plans, ranks=ranks)


def main() -> int:
    """Runs the helper process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the training processes have gone, not before
    given = json.loads(os.environ.pop("PFO_FS_HELPER"))
    try:
        server = transport.listen(given["address"])
    except OSError:
        return 0  # another process of this host was faster
    sys.path += [entry for entry in given.get("path", []) if entry not in sys.path]
    settings = load_settings(**given.get("settings", {}))
    root = given["shared_dir"]
    shared: SharedDirectory | StoreError
    try:
        shared = SharedDirectory(Files(root), f"{socket.gethostname()}:{os.getpid()}")
    except StoreError as error:
        shared = error
    helper = HostHelper(shared, given["token"], settings, local_mount=is_local(root))
    # No output of its own: a helper that a hung mount holds must not keep a launcher's pipes open.
    logging.basicConfig(level=logging.INFO, handlers=[_ToTrainer(helper)], force=True)
    helper.serve(server)
    return 0


class _ToTrainer(logging.Handler):
    """Log records go to one training process of this host, which logs them as its own."""

    def __init__(self, helper: HostHelper) -> None:
        super().__init__()
        self._helper = helper

    def emit(self, record: logging.LogRecord) -> None:
        self._helper.tell_one_trainer(messages.LogLine(level=record.levelno, message=record.getMessage()))


if __name__ == "__main__":
    sys.exit(main())
