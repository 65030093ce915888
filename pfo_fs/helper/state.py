"""The host's helper as a state machine: no socket, no file and no time of its own, and no call that waits.

`process.py` runs it in the helper process, the simulator in virtual time. It is told what happens, and decides which
messages to send and which operations on the shared directory are needed.
"""

import errno
import logging
from typing import Literal

from pydantic import ValidationError

from pfo_fs.errors import PfoError, StoreError, first_problem
from pfo_fs.helper import operations as op
from pfo_fs.helper.job import Around, Client, Clients, Job, StartCoordinator
from pfo_fs.helper.power_limit_files import Asked
from pfo_fs.helper.rank_board import RankBoard
from pfo_fs.helper.resets import OwedResets
from pfo_fs.helper.watches import DirectoryHealth, ScheduleWatch, SwitchWatch
from pfo_fs.helper.write_queue import WriteQueue
from pfo_fs.ipc import messages as m
from pfo_fs.models import ProfilingResult, RankInfo
from pfo_fs.store import bodies

log = logging.getLogger("pfo_fs.helper")

_FIRST_CLIENT_WITHIN_S = 60.0
"""A helper whose first rank has died before it connected ends after a minute."""


class HelperState:
    """See the module's docstring. Call `time_passed` after every other method: it does what is due.

    Args:
        token: The job's secret, which clients must send first.
        poll_interval_s: Seconds between two polls of the directory; None: by the kind of file system.
    """

    def __init__(self, token: str, around: Around, poll_interval_s: float | None = None) -> None:
        self._around = around
        self._started_s = around.now()
        self._clients = Clients(token)
        self._job = Job()
        self._board = RankBoard(around)
        self._resets = OwedResets(self._board, around.reset_gpu)
        self._writes = WriteQueue(around)
        self._watch = ScheduleWatch(poll_interval_s, around)
        self._health = DirectoryHealth(around.now)
        self._switch = SwitchWatch(around)
        self._held: Literal["", "off", "removed", "lost"] = ""

    # ---- for the process around it

    @property
    def is_idle(self) -> bool:
        """Whether everything is written (or the job was removed), no operation runs, and no GPU is being reset."""
        is_written = self._switch.why == "removed" or self._writes.is_empty
        return is_written and self._health.is_idle and not self._resets.under_way

    def begin(self) -> None:
        """Does what comes before everything else."""
        self._run(op.OpenDirectory())

    def tell_first_rank(self, message: m.NewSchedule | m.LogLine) -> None:
        """Sends one rank of this host what the coordinator has published, or a log record: there is no output here."""
        self._tell_rank(min(self._clients.ranks(), default=-1), message)

    def coordinator_alive(self, lease_s: float) -> None:
        """The coordinator of this process has polled; ranks may follow the schedule for `lease_s`, 0 for ever."""
        for told in self._watch.lease(lease_s, 1):
            self._tell_training(told)

    def terminated(self) -> None:
        """This process got SIGTERM: a batch system ends the job."""
        self._job.terminated_at_s = self._around.now()

    def clocks_stopped(self, rank: int, gpu: m.GpuToReset) -> None:
        """The clock process of a rank is stopped: its GPU keeps what was set."""
        self._resets.begin(rank, gpu, "is stopped")

    def gpu_reset(self, rank: int, gpu: m.GpuToReset, problem: str) -> None:
        """An attempt to reset the GPU of a rank is over; `problem`: why the GPU is not reset, or ''."""
        self._resets.ended(rank, gpu, problem, again=bool(self._clients))

    def next_wake_s(self) -> float:
        """Returns when `time_passed` is due if nothing else happens first."""
        due = [self._writes.due_s(), self._switch.due_s(), self._around.now() + 5.0]
        if self._may_add_progress():  # else a record that waits for a hung file system would keep the loop awake
            due.append(self._board.due_s())
        if self._watches():
            due.append(self._watch.due_s())
        return min(at_s for at_s in due if at_s is not None)

    # ---- connections

    def message_arrived(self, number: int, message: m.ToHelper) -> None:
        """A message has come from the connection of this number."""
        client = self._clients.get(number)
        if client is None:
            client = self._clients.admit(number, message)
            if client is None:
                log.warning("the helper closes a connection that did not begin with the job's token")
                self._around.hang_up(number)
                return
            if client.role == "clocks" and self._job.is_open:
                self._around.send(number, m.ClocksHeld(why=self._held))
            if client.role == "training" and client.rank == 0:
                self._board.name = 0
            return
        try:
            self._on_known_message(number, client, message)
        except ValueError as error:
            wrong = " ".join(first_problem(error)) if isinstance(error, ValidationError) else error
            text = f"the helper cannot use a message ({type(message).__name__}) of rank {client.rank}: {wrong}"
            log.warning("%s", text)
            if isinstance(message, (m.CreateJob, m.JoinJob)):
                self._around.send(number, m.Refused(message=text))

    def _on_known_message(self, number: int, client: Client, message: m.ToHelper) -> None:
        rank = client.rank
        match message:
            case m.CreateJob(job=job, attempt=attempt):
                self._run(op.CreateJob(bodies.JobBody.model_validate(job), attempt))
            case m.JoinJob():
                self._on_join(message)
            case m.AllRanks(rank_infos=rank_infos):
                infos = tuple(RankInfo.model_validate(info) for info in rank_infos)
                self._start_coordinator(infos)
            case m.OrderSeen(instructions=instructions):
                info = self._board.infos.get(rank)
                if info is not None and not info.dp_rank and not info.tp_rank:  # the first rank of a stage is enough
                    self._writes.add(bodies.OrderBody(rank=rank, instructions=instructions))
            case m.ScheduleApplied(number=schedule_number, late=late):
                if rank == 0 and self._job.coordination == "local":
                    self._around.coordinate(message)
                if late:
                    self._job.late.add((rank, schedule_number))
            case m.ProblemSeen(message=text):
                self._board.note_problem(rank, text)
            case m.LoadsSeen(known=known):
                self._board.note_loads(rank, known)
            case m.ProgressReport():
                self._board.note_report(rank, message, client.gpu.spec if client.gpu is not None else "")
                times = self._board.iteration_times(rank, message)
                if times is not None and self._job.is_open:
                    self._writes.add(times)
            case m.MeasurementReport():
                self._on_measured(rank, message)
            case m.ClocksReleased():
                client.gpu, client.role = None, "gone"
            case m.ReadProfile() | m.SaveProfile():
                self._writes.add(message)
            case m.WatchSwitch():
                self._switch.start()
                if self._switch.is_known:
                    self._around.send(number, m.ClocksHeld(why=self._held))
            case m.Goodbye(reason=reason, message=text):
                client.role = "gone"
                self._on_training_ended(client, reason, text)
            case _:
                raise ValueError("it is not expected here")

    def client_gone(self, number: int) -> None:
        """A connection has ended."""
        client = self._clients.pop(number, None)
        if client is None:
            return
        if client.role == "training":
            text = f"the training process of rank {client.rank} ended without closing the optimizer"
            self._board.note_problem(client.rank, text)
            self._on_training_ended(client, "terminated", text)
        elif client.role == "clocks":
            self._board.note_death(client.rank)
            if client.gpu is not None:
                self._resets.begin(client.rank, client.gpu, "has died")

    # ---- joining and measuring

    def _on_join(self, message: m.JoinJob) -> None:
        body = bodies.RankBody.model_validate(message.rank_body)
        name = self._board.join(body.rank_info, message.helper_name, body.clock_backend)
        log.debug("rank %d joins; this host's progress record is %d", body.rank_info.rank, name)
        self._job.is_open = True
        self._job.coordination = message.coordination
        self._watch.restart()
        self._job.answered.discard(body.rank_info.rank)
        again = message.helper_name is not None
        polls_s = self._watch.interval_s(False), self._watch.interval_s(True)
        registration = op.RegisterRanks((body,), message.job_id, message.attempt, message.directory_id, again, polls_s)
        self._writes.add(registration)
        while self._job.early_results:
            self._on_measured(*self._job.early_results.popleft())

    def _on_measured(self, rank: int, message: m.MeasurementReport) -> None:
        if message.number < 0:
            return  # measured before the first schedule: no coordinator waits for it
        if not self._job.is_open:
            self._job.early_results.append((rank, message))
            return
        body = bodies.ResultBody(
            result=ProfilingResult.model_validate(message.result),
            first_step=message.first_step,
            late=(rank, message.number) in self._job.late,
        )
        self._writes.add(op.WriteResults(message.number, (body,)))

    def _on_training_ended(self, client: Client, reason: str, text: str) -> None:
        if (end := self._job.training_ended(client, reason, text, self._around.now())) is not None:
            self._writes.add(end)

    # ---- the shared directory

    def _run(self, operation: op.Operation) -> None:
        self._health.started()
        self._around.run(operation)

    def operation_done(self, operation: op.Operation, result: op.Result = None, error: PfoError | None = None) -> None:
        """The worker has carried an operation out; `error` is set if it failed."""
        self._health.finished()
        if isinstance(operation, Asked):
            self._writes.done(error, again=False)
            failed = m.LogLine(level=logging.WARNING, message=str(error))
            for message in result if isinstance(result, list) else [failed]:
                self._tell_rank(0, message)
            return
        if not isinstance(operation, op.ReadSwitch):  # that the switch can be read does not show that schedules can
            self._health.ended("write" if isinstance(operation, op.Write) else "read", error)
        if isinstance(operation, op.Write):
            self._on_written(operation, error, result)
            return
        match operation, result:
            case op.OpenDirectory(), bool(is_local):
                self._around.local_mount = is_local
            case op.CreateJob(), op.CreatedJob() as created:
                self._job.is_open = True
                self._switch.learn(op.SwitchFound(created.off))
                self._on_folder()
                self._on_created(created)
            case op.PollSchedule(), found:
                if isinstance(found, op.ScheduleFound):
                    self._on_found(found)
                self._watch.polled()
            case op.ReadSwitch(), _:
                was_known, asked_s = self._switch.is_known, self._watch.asked_s
                highest = max(self._clients.ranks(), default=0)
                self._switch.looked(result, highest_rank=highest, asked_s=asked_s)
                if self._switch.is_known and not was_known:
                    self._tell_training(m.ClocksHeld(why=self._switch.why))
            case op.CreateJob(), _ if error is not None:
                self._tell_rank(0, m.Refused(message=str(error)))

    def _on_created(self, created: op.CreatedJob) -> None:
        if not created.coordination:
            self._tell_rank(0, m.Refused(message=created.warning))
            return
        if created.warning:
            log.warning("%s", created.warning)
        self._job.coordination = created.coordination
        if created.coordination == "local":
            self._start_coordinator(None)
        job_id, directory_id = created.job_id, created.directory_id
        self._tell_rank(0, m.JobCreated(job_id=job_id, directory_id=directory_id, coordination=created.coordination))

    def _start_coordinator(self, rank_infos: tuple[RankInfo, ...] | None) -> None:
        self._job.coordinator = StartCoordinator(rank_infos)
        if self._job.has_folder:
            self._on_folder()

    def _on_folder(self) -> None:
        """The worker has the job's folder, which a coordinator needs: a helper that replaces one starts without it."""
        self._job.has_folder = True
        self._switch.start()
        if self._job.coordinator is not None:
            self._around.coordinate(self._job.coordinator)
            self._job.coordinator = None

    def _on_found(self, found: op.ScheduleFound) -> None:
        for told in self._watch.learn(found):
            self._tell_training(told)
        if self._board.name == 0:
            for level, text in self._watch.texts_for_log(found.current):
                log.log(level, "%s", text)

    def _on_written(self, write: op.Write, error: PfoError | None, result: object) -> None:
        if isinstance(write, (bodies.ProgressBody, bodies.IterationTimesBody)):  # a newer record follows anyway
            self._writes.done(error, again=False)
            if error is not None:
                self._board.not_written(write)
            return
        waits = self._writes.done(error)
        if isinstance(write, op.RegisterRanks):
            registered = result if isinstance(result, op.RanksRegistered) else op.RanksRegistered()
            if error is None:
                self._on_folder()
                self._switch.learn(op.SwitchFound(registered.off))
                self._hold()
            elif waits and isinstance(error, StoreError) and error.errno == errno.ENOENT:
                self._switch.learn(op.SwitchFound(gone=str(error)))  # no look at the switch is made before
            if self._held or write.again:  # the helper that died may have held a rank for a reason that has passed
                self._tell_training(m.ClocksHeld(why=self._held), clocks_too=True)
            for rank in (body.rank_info.rank for body in write.ranks):
                if rank in registered.taken:
                    self._tell_rank(rank, m.Refused(message=registered.taken[rank], taken=True))
                elif error is not None and not waits:
                    self._tell_rank(rank, m.Refused(message=str(error)))
                elif rank not in self._job.answered:
                    self._job.answered.add(rank)  # training must not wait until the registration can be written
                    name = self._board.name if self._board.name is not None else rank
                    self._tell_rank(rank, m.Joined(helper_name=name))
        elif error is not None and not waits:
            log.warning("the helper drops a record (%s): %s", type(write).__name__, error)

    # ---- what is due

    def _watches(self) -> bool:
        # A registration opens the job's folder, so no poll comes before it.
        joined = bool(self._board.infos) and not self._writes.gathers(op.RegisterRanks)
        return self._job.is_open and joined and self._job.coordination == "daemon"

    def _may_add_progress(self) -> bool:
        """Whether a progress record may be added to the queue: the job is open, and no other progress record waits."""
        return self._job.is_open and not self._writes.holds(bodies.ProgressBody)

    def time_passed(self) -> None:
        """Does what is due."""
        now_s = self._around.now()
        if self._may_add_progress():
            body = self._board.record(self._health.error, last=self._clients.have_gone)
            if body is not None:
                self._writes.add(body)
        write = self._writes.next(self._is_complete)
        if write is not None:
            self._run(write)
        if self._watches() and now_s >= self._watch.due_s():
            self._watch.polling()
            self._run(op.PollSchedule(self._watch.known, tuple(self._board.infos.values())))
        if now_s >= self._switch.due_s():
            self._run(op.ReadSwitch(thorough=self._switch.looking()))
        self._hold()
        if self._clients.have_gone or (not self._clients and now_s > self._started_s + _FIRST_CLIENT_WITHIN_S):
            self._around.stop()

    def _is_complete(self, write: op.Write) -> bool:
        """Whether all ranks of this host have added to a record, or none can any more."""
        if self._clients.have_gone:
            return True
        if isinstance(write, op.RegisterRanks):
            return self._board.infos.keys() >= self._clients.ranks()
        return not isinstance(write, op.WriteResults) or len(write.results) >= len(self._board.infos)

    def _hold(self) -> None:
        """Sends ranks and clock processes to default clocks while there is a reason, and back after that."""
        lost = self._job.coordination == "daemon" and self._health.is_lost
        why = self._switch.why or ("lost" if lost else "")
        if why != self._held:
            self._held = why
            self._tell_training(m.ClocksHeld(why=why), clocks_too=True)

    # ---- messages to training

    def _tell_training(self, message: m.Message, *, clocks_too: bool = False) -> None:
        numbers = self._clients.training() + (self._clients.clocks() if clocks_too else [])
        for number in numbers:
            self._around.send(number, message)

    def _tell_rank(self, rank: int, message: m.Message) -> None:
        for number in self._clients.training(rank):
            self._around.send(number, message)
