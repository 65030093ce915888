"""Runs a helper's state: sockets and timers in the main thread, files and scheduling in two threads of their own.

A file system that hangs blocks the worker, but not the sockets and timers: training is still served, and goes to
default clocks when the directory has not answered for a long time. A thread that hangs does not stop the process from
ending.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pfo_fs.errors import PfoError, StoreError
from pfo_fs.helper import events as e
from pfo_fs.helper.job import TERMINATES_WITHIN_S
from pfo_fs.helper.operations import DirectoryOperations, Operation
from pfo_fs.helper.resets import LOOK_EVERY_S, Resets
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport
from pfo_fs.ipc.process_end import got_sigterm_within, open_trace_of_peer
from pfo_fs.ipc.started import OwnOutput

if TYPE_CHECKING:
    from pfo_fs.helper.process import CoordinatorThread

log = logging.getLogger("pfo_fs.helper")

_LAST_WRITES_WITHIN_S = 600.0
"""The helper runs for at most this time after its last client, to write what it still has."""


class HelperLoop:
    """See the module's docstring.

    Args:
        coordinator: Makes the coordinator of a job without a daemon, which posts events by its argument.
        prepare_resets, reset: As for `Resets`.
        output: What this process writes to its standard error, for training's log.
    """

    def __init__(
        self,
        state: HelperState,
        operations: DirectoryOperations,
        coordinator: Callable[[Callable[[e.Event], None]], CoordinatorThread],
        prepare_resets: Callable[[], None],
        reset: Callable[[m.GpuToReset], str],
        output: OwnOutput | None = None,
    ) -> None:
        self._output = output
        self._state = state
        self._operations = operations
        self._events: SimpleQueue[e.Event] = SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._coordinator = coordinator(self.post)
        self._tasks: SimpleQueue[Operation | None] = SimpleQueue()
        self._connections: dict[int, socket.socket] = {}
        self._traces: dict[int, int] = {}  # of SIGTERM, by connection
        self._resets = Resets(prepare_resets, reset, self.post)
        self._selector = selectors.DefaultSelector()
        self._stop_by_s: float | None = None

    def post(self, event: e.Event) -> None:
        """Gives an event to the main thread; any thread may call this."""
        self._events.put(event)
        with suppress(BlockingIOError):  # a full pipe wakes the main thread anyway
            os.write(self._wake_writer, b"x")

    def serve(self, server: socket.socket) -> None:
        """Serves until the last client has gone and all is written, or the directory does not answer."""
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._take_posted)
        threading.Thread(target=self._work, daemon=True, name="shared directory").start()
        self._do(self._state.first_actions())
        while not self._look_for_end():
            wait_s = min(self._state.next_wake_s() - time.monotonic(), LOOK_EVERY_S)
            ready = self._selector.select(max(0.0, wait_s))
            for key, _ in ready:
                if callable(key.data):
                    key.data(key.fileobj)
                else:
                    self._receive(key.data)
            self._handle(e.TimePassed())
            self._resets.look(time.monotonic())
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
        return self._state.is_idle or time.monotonic() > self._stop_by_s

    # ---- the worker's thread

    def _work(self) -> None:
        while (operation := self._tasks.get()) is not None:
            try:
                done = e.OperationDone(operation, self._operations.execute(operation))
            except PfoError as error:
                done = e.OperationDone(operation, error=error)
            except Exception as error:
                log.exception("the helper could not carry out %s", type(operation).__name__)
                done = e.OperationDone(operation, error=StoreError(errno.EIO, f"{type(error).__name__}: {error}"))
            self.post(done)

    # ---- the main thread

    def _handle(self, event: e.Event) -> None:
        self._do(self._state.handle(event, time.monotonic()))

    def _do(self, actions: list[e.Action]) -> None:
        for action in actions:
            match action:
                case e.Send(client, message):
                    self.send(client, message)
                case e.Run(operation):
                    self._tasks.put(operation)
                case e.StartCoordinator() | m.ScheduleApplied():
                    self._coordinator.tell(action)
                case e.ResetGpu(rank, gpu, pause_s):
                    self._resets.start(rank, gpu, pause_s)
                case e.HangUp(client):
                    self._close(client)
                case e.Stop():
                    if self._stop_by_s is None:
                        self._stop_by_s = time.monotonic() + _LAST_WRITES_WITHIN_S

    def send(self, client: int, message: m.Message) -> None:
        """Sends without waiting; a client that does not read misses the message."""
        connection = self._connections.get(client)
        if connection is None:
            return
        packet = transport.encode(message)
        try:
            connection.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                log.error("%s of %d KiB is too large for a local socket", type(message).__name__, len(packet) >> 10)

    def _take_posted(self, reader: int) -> None:
        with suppress(BlockingIOError):
            os.read(reader, 4096)
        while True:
            try:
                event = self._events.get_nowait()
            except Empty:
                return
            self._handle(event)

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
            self._tell_sigterm(client)
            self._close(client)
            self._handle(e.ClientGone(client))
            return
        try:
            message: m.ToHelper = transport.decode(packet, m.ToHelper)
        except ValueError as error:
            log.warning("the helper drops a packet that it cannot read: %s", error)
            return
        self._resets.hear(client, message, connection)
        if isinstance(message, m.Hello) and message.sigterm_trace >= 0 and client not in self._traces:
            trace = open_trace_of_peer(connection, message.sigterm_trace)
            if trace is not None:
                self._traces[client] = trace
        elif isinstance(message, m.Goodbye):
            self._tell_sigterm(client)
        self._handle(e.MessageArrived(client, message))

    def _tell_sigterm(self, client: int) -> None:
        """Tells the state, before it learns how training has ended, that this training process got SIGTERM."""
        trace = self._traces.get(client)
        if trace is not None and got_sigterm_within(trace, TERMINATES_WITHIN_S):
            self._handle(e.Terminated(client))

    def _close(self, client: int) -> None:
        trace = self._traces.pop(client, None)
        if trace is not None:
            os.close(trace)
        self._resets.gone(client)
        connection = self._connections.pop(client, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()
