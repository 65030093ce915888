"""The helper process: does all input and output on shared files for training, which never touches them itself.

It serves all ranks of a job on one host, whichever optimizer they have. Sockets and timers run in the main thread,
files in the thread of a worker: a call on a hung mount lasts for an unlimited time, but training is still served, and
goes to default clocks when the directory has not answered for long. Where no daemon schedules the job, the helper of
rank 0 does, by a coordinator in a third thread: planning takes seconds.
`client.HelperClient` starts the helper in a session of its own. The helper ends when the last training process that it
serves has gone; a thread that hangs does not keep it from ending, and training does not wait for it."""

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from pfo_fs.coordination import Coordinator
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.clocks.undo import reset_left_by
from pfo_fs.device.gpu.spec import load_all_ways
from pfo_fs.errors import PfoError, StoreError, plain_text
from pfo_fs.helper.job import Around, StartCoordinator
from pfo_fs.helper.operations import DirectoryOperations, Operation, new_schedule
from pfo_fs.helper.resets import LOOK_EVERY_S, Resets
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport
from pfo_fs.ipc.started import OwnOutput, on_sigterm
from pfo_fs.models import FrequencySchedule
from pfo_fs.settings import PFOSettings, load_settings
from pfo_fs.turns import Term

log = logging.getLogger("pfo_fs.helper")

_LAST_WRITES_WITHIN_S = 600.0
"""The helper runs for at most this time after its last client, to write what it still has."""
_LONGEST_PAUSE_S = 2.0
"""The longest pause between two polls of the coordinator, so that it soon reads a file that a person has edited."""


def reset_gpu(gpu: m.GpuToReset) -> str:
    """Puts back what a clock process has left on its GPU; returns why that is not done, or ''."""
    return reset_left_by(gpu.spec, ClockOptions(clock_backend=gpu.clock_backend, leave_clocks=gpu.leave_clocks))


class HelperLoop(Around):
    """Runs a helper's state, and is the `Around` of this state.

    Args:
        prepare_resets, reset: As for `Resets`.
        output: What this process writes to its standard error, for training's log.
    """

    def __init__(
        self,
        token: str,
        operations: DirectoryOperations,
        settings: PFOSettings,
        prepare_resets: Callable[[], None] = load_all_ways,
        reset: Callable[[m.GpuToReset], str] = reset_gpu,
        output: OwnOutput | None = None,
    ) -> None:
        super().__init__()
        self.state = HelperState(token, self, settings.poll_interval)
        self._output = output
        self._operations = operations
        self._posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._coordinator = CoordinatorThread(operations, settings, self)
        self._tasks: SimpleQueue[Operation | None] = SimpleQueue()
        self._connections: dict[int, socket.socket] = {}
        self._resets = Resets(
            prepare_resets, reset, lambda *ended: self.post(self.state.gpu_reset, *ended), self.state.clocks_stopped
        )
        self._selector = selectors.DefaultSelector()
        self._stop_by_s: float | None = None

    def post(self, do: Callable[..., object], *arguments: Any) -> None:
        """Makes the main thread do something; any thread may call this."""
        self._posted.put(partial(do, *arguments))
        with suppress(BlockingIOError):  # a full pipe wakes the main thread anyway
            os.write(self._wake_writer, b"x")

    def serve(self, server: socket.socket) -> None:
        """Serves until the last client has gone; then until all is written, for at most ten minutes."""
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._take_posted)
        threading.Thread(target=self._work, daemon=True, name="shared directory").start()
        self.state.begin()
        self.state.time_passed()
        while not self._look_for_end():
            wait_s = min(self.state.next_wake_s() - time.monotonic(), LOOK_EVERY_S)
            ready = self._selector.select(max(0.0, wait_s))
            for key, _ in ready:
                if callable(key.data):
                    key.data(key.fileobj)
                else:
                    self._receive(key.data)
            self._resets.look(time.monotonic())
            self.state.time_passed()
            text = self._output.new_text() if self._output is not None else ""
            if text:
                log.warning("the helper process says: %s", text)
        self._coordinator.tell(None)
        self._tasks.put(None)
        server.close()
        self._selector.close()

    def _look_for_end(self) -> bool:
        if self._stop_by_s is None:
            return False
        if self._connections:
            self._stop_by_s = None  # another client has come
            return False
        return self.state.is_idle or time.monotonic() > self._stop_by_s

    # ---- the worker's thread

    def _work(self) -> None:
        while (operation := self._tasks.get()) is not None:
            result, problem = None, None
            try:
                result = self._operations.execute(operation)
            except PfoError as error:
                problem = error
            except Exception as error:
                log.exception("the helper could not carry out %s", type(operation).__name__)
                problem = StoreError(errno.EIO, f"{type(error).__name__}: {error}")
            self.post(self.state.operation_done, operation, result, problem)

    # ---- the main thread: what the state asks for

    def run(self, operation: Operation) -> None:
        self._tasks.put(operation)

    def coordinate(self, what: StartCoordinator | m.ScheduleApplied) -> None:
        self._coordinator.tell(what)

    def reset_gpu(self, rank: int, gpu: m.GpuToReset, pause_s: float = 0.0) -> None:
        self._resets.start(rank, gpu, pause_s)

    def stop(self) -> None:
        if self._stop_by_s is None:
            self._stop_by_s = time.monotonic() + _LAST_WRITES_WITHIN_S

    def send(self, client: int, message: m.Message) -> None:
        connection = self._connections.get(client)
        if connection is None:
            return
        packet = transport.encode(message)
        try:
            connection.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                log.error("%s of %d KiB is too large for a local socket", type(message).__name__, len(packet) >> 10)

    # ---- the main thread: what happens

    def _take_posted(self, reader: int) -> None:
        with suppress(BlockingIOError):
            os.read(reader, 4096)
        while True:
            try:
                self._posted.get_nowait()()
            except Empty:
                return

    def _accept(self, server: socket.socket) -> None:
        try:
            with transport.refusals_named("accept4"):
                connection, _ = server.accept()
            transport.check_peer(connection)
        except transport.CallRefused:
            raise  # the helper ends, and training reads why
        except OSError as error:
            log.debug("a connection was refused: %s", error)
            return
        transport.enlarge(connection)
        number = connection.fileno()
        self._connections[number] = connection
        self._selector.register(connection, selectors.EVENT_READ, number)

    def _receive(self, client: int) -> None:
        connection = self._connections.get(client)
        if connection is None:
            return
        try:
            packet = transport.receive(connection, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not packet:
            self.hang_up(client)
            self.state.client_gone(client)
            return
        try:
            message: m.ToHelper = transport.decode(packet, m.ToHelper)
        except ValueError as error:
            log.warning("the helper drops a packet that it cannot read: %s", error)
            return
        self._resets.hear(client, message, connection)
        self.state.message_arrived(client, message)

    def hang_up(self, client: int) -> None:
        self._resets.gone(client)
        connection = self._connections.pop(client, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()


class CoordinatorThread:
    """Runs one coordinator after the other: a new one when all ranks are known."""

    def __init__(self, operations: DirectoryOperations, settings: PFOSettings, loop: HelperLoop) -> None:
        self._operations = operations
        self._settings = settings
        self._loop = loop
        self._inbox: SimpleQueue[StartCoordinator | m.ScheduleApplied | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(self, what: StartCoordinator | m.ScheduleApplied | None) -> None:
        """Starts scheduling (afresh when all ranks are known), or says what rank 0 follows; None ends the thread."""
        self._inbox.put(what)
        if self._thread is None and what is not None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="coordinator")
            self._thread.start()

    def _run(self) -> None:
        coordinator: Coordinator | None = None
        applied: m.ScheduleApplied | None = None  # a new coordinator may know this number only after its first poll
        pause_s = _LONGEST_PAUSE_S
        while True:
            try:
                told = self._inbox.get(timeout=pause_s)
            except Empty:
                pass
            else:
                if told is None:
                    return
                if isinstance(told, m.ScheduleApplied):
                    applied = told
                else:
                    coordinator = self._new(told) or coordinator
            if coordinator is not None:
                if applied is not None:
                    coordinator.applied(applied.number, applied.step)
                pause_s = min(coordinator.poll(), _LONGEST_PAUSE_S)
                self._loop.post(self._loop.state.coordinator_alive, coordinator.lease[0])

    def _new(self, action: StartCoordinator) -> Coordinator | None:
        try:
            return Coordinator(
                self._operations.another_view(),
                self._settings,
                kind="local",
                rank_infos=action.rank_infos,
                on_publish=self._publish,
                lead_s=0.0,
            )
        except PfoError as error:
            log.warning("this job cannot be scheduled here: %s", error)
            return None

    def _publish(self, number: int, start_step: int, schedules: list[FrequencySchedule], term: Term) -> None:
        self._loop.post(self._loop.state.tell_first_rank, new_schedule(number, start_step, schedules, term))


class _ToTraining(logging.Handler):
    """Sends log records to one training process of this host, which logs them as its own."""

    def __init__(self, loop: HelperLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        line = m.LogLine(level=record.levelno, message=plain_text(record.getMessage()))
        self._loop.post(self._loop.state.tell_first_rank, line)


def main(given: dict[str, Any]) -> None:
    """Runs the helper process; SIGTERM does not end it, since it ends when the training processes have gone."""
    settings = load_settings(of_job=True, **given.get("settings", {}))
    operations = DirectoryOperations(given["shared_dir"], f"{socket.gethostname()}:{os.getpid()}", settings.scheduler)
    loop = HelperLoop(given["token"], operations, settings, output=OwnOutput())
    logging.basicConfig(level=logging.INFO, handlers=[_ToTraining(loop)], force=True)
    on_sigterm(lambda *_: loop.post(loop.state.terminated))
    loop.serve(socket.socket(fileno=given["server_fd"]))
    os._exit(0)  # a thread that hangs in the file system is not waited for
