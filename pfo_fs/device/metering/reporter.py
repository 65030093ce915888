"""The clock process's messages to the host's helper. Sending never waits and never raises.

While the helper does not read, the newest 64 results are kept and older ones are dropped.
"""

import errno
import math
import socket
import time
from collections import deque
from contextlib import suppress

from pfo_fs.device.metering.meter import Measured
from pfo_fs.ipc import messages, transport

_RETRY_S = 1.0
"""While no helper listens, a connection is tried this often."""
_PROGRESS_EVERY_S = 1.0
"""Progress is sent at most this often: people do not read it more often, and helpers do not write it more often."""
_SIGN_OF_LIFE_S = 60.0
"""Progress without steps is sent again after this time: a job silent for `--max-job-idle-time` is ended."""
_MAX_WAITING = 64


class Reporter:
    """Sends results and progress of one rank.

    Args:
        address: The helper's first abstract socket address; None to send nothing.
        gpu: The GPU that this process sets; None if it sets none. If this process dies without `released`, the helper
            resets the GPU.
    """

    def __init__(self, address: str | None, rank: int, token: str, gpu: messages.GpuToReset | None = None) -> None:
        self._address = address
        self._rank = rank
        self._token = token
        self._gpu = gpu
        self._greeted = False
        self._socket: socket.socket | None = None
        self._retry_at_s = 0.0
        self._results: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._newest: list[bytes] = []  # the last report of progress, and the farewell
        self._progress_at_s = 0.0
        self._reported: tuple[object, ...] = ()
        self._again_after_s = math.inf

    def start(self, address: str, rank: int, token: str) -> None:
        """Begins to report in a job in which training gets a helper only later; the arguments are those of the class.

        Such a job counts no steps here: what has not changed is reported again from time to time, as a sign of life.
        """
        self._address, self._rank, self._token, self._again_after_s = address, rank, token, _SIGN_OF_LIFE_S

    def measured(self, measured: Measured, switching: messages.SwitchingReport | None = None) -> None:
        """Queues a result; leaves out its later iterations if it does not fit into one packet."""
        steps = measured.steps
        while steps:
            packet = transport.encode(measured._replace(steps=steps).report(self._rank, switching))
            if len(packet) <= transport.MAX_PACKET_BYTES:
                self._results.append(packet)
                return
            steps = steps[: len(steps) // 2]

    def progress(self, report: messages.ProgressReport, *, now: bool = False) -> bool:
        """Takes a report of this rank's progress, at most once a second and only if something has changed.

        Returns:
            Whether the report was taken; it is sent by `send_waiting`.
        """
        state = (report.step, report.message, report.throttled, report.undo_owed, report.undo_failures, report.held)
        now_s = time.monotonic()
        is_old = state == self._reported and now_s < self._progress_at_s + self._again_after_s
        if self._address is None or is_old or (now_s < self._progress_at_s and not now):
            return False
        self._reported, self._progress_at_s = state, now_s + _PROGRESS_EVERY_S
        self._newest = [transport.encode(report)]
        return True

    def released(self) -> None:
        self._newest.append(transport.encode(messages.ClocksReleased()))

    def send_waiting(self) -> bool:
        """Sends as much as it can without waiting; returns whether everything is sent."""
        if self._address is None or (self._greeted and not self._results and not self._newest):
            return True
        try:
            if self._socket is None and not self._connect():
                return False
            while self._results:
                self._send(self._results[0])
                self._results.popleft()
            while self._newest:
                self._send(self._newest[0])
                del self._newest[0]
            return True
        except BlockingIOError:
            return False
        except OSError:
            self._disconnect()
            return False

    def why_held(self) -> str | None:
        """Returns the newest `ClocksHeld.why` that the helper has sent since the last call; None if it sent nothing."""
        why = None
        while self._socket is not None:
            try:
                packet = self._socket.recv(4096, socket.MSG_DONTWAIT)
                if not packet:
                    self._disconnect()
                    break
                why = transport.decode(packet, messages.ClocksHeld).why
            except BlockingIOError:
                break
            except ValueError:
                continue
            except OSError:
                self._disconnect()
        return why

    def _send(self, packet: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:  # a packet that is too large once is always too large: it is dropped
                raise

    def finish(self, deadline_s: float) -> None:
        """Sends the remaining messages, within `deadline_s` seconds."""
        until = time.monotonic() + deadline_s
        self._retry_at_s = 0.0
        while not self.send_waiting() and time.monotonic() < until:
            time.sleep(0.01)
        self._disconnect()

    def _connect(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._retry_at_s:
            return False
        self._retry_at_s = now_s + _RETRY_S
        assert self._address is not None
        self._socket = transport.connect_to_helper(transport.names_of_helper(self._address, self._token))
        self._socket.setblocking(False)
        hello = messages.Hello(rank=self._rank, role="clocks", token=self._token, gpu=self._gpu)
        self._socket.send(transport.encode(hello), socket.MSG_NOSIGNAL)
        self._greeted = True
        return True

    def _disconnect(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
            self._reported = ()  # a new helper knows nothing
