"""The clock process of one rank: sets the GPU's clocks, measures, and resets the clocks when its trainer ends.

The trainer is the training process, whose `clock_client.ClockProcess` starts the clock process. Both share a page of
memory (`shared_page.py`); training wakes the clock process through a doorbell (`ipc/system_calls.py`), and sends it
requests about power limits over a socket pair (`power_limits.py`). When that socket closes or the trainer ends,
whatever killed it, the clock process resets the clocks and the power limit, and ends. SIGTERM means that the job is
being ended: the clock process resets both at once and sets neither after that. SIGTSTP stops it, SIGCONT lets it go
on (`own_process.py`); it ignores other signals (`ipc/started.py`).

Where clocks are switched at training's callbacks, the clock process does not poll on a timer: a wake-up by a timer
costs 25 us of CPU on a small machine. The loop does all work that is due, writes into the page that it sleeps, checks
the page once more, and waits for the doorbell or the time of the next measurement. Where clocks follow the device, it
looks at the device's progress shortly before something is due (`clock_follower.py`). It imports neither pydantic nor
torch nor pandas, so that it starts fast.

`measuring.py` measures; CONTRIBUTING.md follows a clock from the plan to the GPU.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pfo_fs.device import shared_page
from pfo_fs.device.clock_start import DRY_RUN_NS, ClockInfo, ClockOptions
from pfo_fs.device.clocks.clock_requests import ClockRequests
from pfo_fs.device.clocks.clock_setter import ClockSetter
from pfo_fs.device.clocks.driver_calls import HostDriver, driver_file
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.clocks.own_process import Stops, has_ended, raise_priority
from pfo_fs.device.clocks.power_limits import SAYS, PowerLimits
from pfo_fs.device.clocks.undo import LEFT_TO, UNDO_FOR_S, GpuUndo, reset_left_by
from pfo_fs.device.gpu.interface import CAP_ACTS_S, POWER_CAP, Gpu
from pfo_fs.device.gpu.spec import open_to_set
from pfo_fs.device.metering.measuring import Measuring
from pfo_fs.device.metering.reporter import Reporter
from pfo_fs.device.shared_page import SharedPage
from pfo_fs.errors import DeviceError, NotOffered
from pfo_fs.ipc.messages import GpuToReset, SwitchingReport
from pfo_fs.ipc.started import OwnOutput
from pfo_fs.ipc.transport import refusals_named

if TYPE_CHECKING:
    from pfo_fs.device.load_exchange import LoadExchange

_SHORT_NS = 2_000_000
"""A wait shorter than this is a plain sleep, because a wait for events takes whole milliseconds."""
_EVENTS_EVERY_NS = 5_000_000
"""While all waits are that short, the process looks this often for events, such as the trainer's end."""
_HELD_NS = 20_000_000
"""While the clock must not change, the device's progress is looked at only every 20 ms."""
_STOPS_WITHIN_S = 1.0
"""After SIGTSTP, the process tries for this time to put all back: Slurm sends SIGSTOP two seconds after SIGTSTP."""
_GLANCES = 50
"""The target is read this many times (2 us) before a sleep: a wake-up costs training 10 us, and this process more."""


class ClockLoop:
    def __init__(
        self,
        gpu: Gpu,
        shared: SharedPage,
        doorbell: int,
        trainer: socket.socket,
        loads: socket.socket,
        reporter: Reporter,
        options: ClockOptions,
        why_clocks_stay: str,
    ) -> None:
        self._output = OwnOutput()
        self._is_capped = gpu.clock_backend == POWER_CAP
        top_mhz = max(gpu.supported_clocks_mhz(), default=0)
        self._words = words = shared.words
        path = "" if why_clocks_stay else driver_file()
        self._driver = HostDriver(path, options.max_clock_calls_per_s)
        known_ns = dict.fromkeys(gpu.supported_clocks_mhz(), DRY_RUN_NS) if gpu.clock_backend == "dry run" else None
        self._latencies = LatencyModel(self._driver, known_ns, top_mhz, options.tp_degree)
        self._requests = ClockRequests(words, self._latencies, round(2e9 * CAP_ACTS_S) if self._is_capped else 0)
        self._undo = GpuUndo(gpu)
        self._setter = ClockSetter(
            gpu, words, self._undo.clock, self._clock_was_set, why_clocks_stay=why_clocks_stay, driver=self._driver
        )
        self._power_limits = PowerLimits(gpu, self._undo.limit, reporter.start, self._why_clocks_stay)
        self._measuring = Measuring(
            gpu, shared, options, self._setter, self._undo, self._driver, reporter, self._apply, self._switching
        )
        self._asked_events_ns = 0
        self._trainer = trainer
        self._poll = select.epoll()
        self._poll.register(doorbell, select.EPOLLIN | select.EPOLLET)  # edge-triggered: an eventfd need not be read
        self._pipe = doorbell if stat.S_ISFIFO(os.fstat(doorbell).st_mode) else -1
        self._poll.register(trainer, select.EPOLLIN | select.EPOLLRDHUP)
        self._stops = Stops(self._on_sigterm)
        self._poll.register(self._stops.fd, select.EPOLLIN)
        self._parent = -1
        self._loads = loads
        self._exchange: LoadExchange | None = None
        self._poll.register(loads, select.EPOLLIN)

    def watch_process(self, pid: int, lifeline: int) -> None:
        """Watches whether process `pid`, the trainer, is stopped, and whether it has ended (where pidfds exist)."""
        self._stops.watch(pid, lifeline)
        with suppress(AttributeError, OSError):
            self._parent = os.pidfd_open(pid)
            self._poll.register(self._parent, select.EPOLLIN)

    def _on_sigterm(self) -> None:
        self._setter.terminated = True

    def take_over(self) -> None:
        """Puts back the settings that an ended process has left on the GPU."""
        self._undo.take_over(clock_is_reset=self._setter.controls)

    def serve(self) -> None:
        """Serves until the trainer has ended; clocks and power limit are reset afterwards, also after an error."""
        try:
            while self._serve_once():
                pass
        finally:
            self._words[shared_page.SLEEPING] = 0
            self._setter.release_for_good()  # the page still holds the last request of a killed trainer
            self._power_limits.restore()
            self._driver.close()
            if self._exchange is not None:
                self._exchange.close()  # `finish` may take long; the other ranks need not wait for loads of this one

    def finish(self) -> bool:
        """Measures the marks that training left, sends the result, and tries refused resets again.

        Returns:
            Whether everything is put back; if not, a note tells the next process on this host.
        """
        self._measuring.finish()
        problem = self._undo.finish(UNDO_FOR_S, self._measuring.report)
        message = f"{problem}; given up after {UNDO_FOR_S:g} s: {LEFT_TO}" if problem else ""
        self._measuring.report(message, released=not problem)
        self._words[shared_page.ALL_BACK] = -1 if problem else 1
        return not problem

    def _clock_was_set(self, t_ns: int, mhz: int, waited_ns: int) -> None:
        self._latencies.clock_was_set(t_ns, mhz, waited_ns)
        self._measuring.clock_was_set(t_ns, mhz, t_ns + self._latencies.latency(mhz).middle_ns)

    def _why_clocks_stay(self) -> DeviceError | None:
        message, again = self._setter.message, self._setter.controls
        return None if not message else DeviceError(message) if again else NotOffered(message)

    def _switching(self, each_clock: bool) -> SwitchingReport | None:
        if not self._setter.controls:
            return None
        mode = "device" if self._requests.follows and not self._is_capped else "launch"
        ahead_us = self._words[shared_page.LEAD_US]
        report = self._latencies.switching(mode, None if ahead_us < 0 else ahead_us / 1e6, each_clock=each_clock)
        if self._is_capped:
            report["latency_s"] = CAP_ACTS_S
        return report

    def _apply(self) -> None:
        self._setter.apply(self._wanted)

    def _wanted(self) -> int:
        wanted = self._requests.wanted(time.monotonic_ns())
        return 0 if self._measuring.held or self._stops.trainer_stopped else wanted

    def _serve_once(self) -> bool:
        """Sleeps until something is due, sets the clock that is wanted then, and does the rest of what is due.

        Returns:
            False at the trainer's end.
        """
        events = self._sleep()
        self._apply()
        if events and not self._answer_events(events):
            return False
        if self._stops.asked:
            self._stop()
        if self._stops.over:
            return self._go_on()
        now_ns = time.monotonic_ns()
        self._stops.look(now_ns)
        self._setter.go_on(now_ns)
        self._power_limits.undo.go_on(now_ns)
        if now_ns >= self._measuring.next_look_ns:
            self._measuring.poll(now_ns)
            self._tell_output()
        if self._measuring.held and self._power_limits.undo.is_done:
            self._power_limits.restore()  # training sets its limit again when it may
        return True

    def _sleep(self) -> list[tuple[int, int]]:
        """Sleeps until something is due, or training rings; returns the events of descriptors."""
        now_ns, setter = time.monotonic_ns(), self._setter
        wake_ns = min(self._measuring.next_look_ns, self._undo.due_ns)
        if setter.not_before_ns > now_ns:
            wake_ns = min(wake_ns, setter.not_before_ns)
        if setter.controls and not self._stops.trainer_stopped:
            if self._requests.follows:
                follow_ns = self._requests.wake_ns(now_ns)
                wake_ns = min(
                    wake_ns, max(follow_ns, now_ns + _HELD_NS) if setter.not_before_ns > now_ns else follow_ns
                )
                if wake_ns - now_ns < _SHORT_NS and now_ns - self._asked_events_ns < _EVENTS_EVERY_NS:
                    time.sleep(max(0, wake_ns - now_ns) / 1e9)
                    return []
                wake_ns -= _SHORT_NS // 2
            if not self._fall_asleep(now_ns):
                return []
        events = self._poll.poll(max(0, wake_ns - now_ns) / 1e9)
        self._words[shared_page.SLEEPING] = 0
        self._asked_events_ns = time.monotonic_ns()
        return events

    def _stop(self) -> None:
        """Puts everything back, as SIGTSTP asks, and stops; another job may get the GPU."""
        self._setter.release()
        self._power_limits.pause()
        self._undo.finish(_STOPS_WITHIN_S)
        self._stops.stop()

    def _go_on(self) -> bool:
        """Makes all settings anew after a stop: the GPU may have been reset. Returns whether the trainer lives."""
        self._stops.over = False
        self._measuring.interrupted()
        if has_ended(self._trainer):
            return False  # `serve` resets the clocks then
        self._setter.release()
        self._power_limits.resume()
        return True

    def _tell_output(self) -> None:
        """Sends training what this process, or a library in it, has written, as a line that begins with `SAYS`."""
        if text := self._output.new_text():
            with suppress(OSError):
                self._trainer.send(f"{SAYS}{text}\n".encode(), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def _fall_asleep(self, now_ns: int) -> bool:
        """Tells training that it must ring the doorbell; returns False if a request has come in the meantime.

        Training stores its request and then reads SLEEPING; this process stores SLEEPING and then reads the request.
        About a microsecond passes before that second read, so one of the two sees the other's store; if neither does,
        the wait that follows ends at the next measurement.
        """
        words, setter = self._words, self._setter
        if self._requests.follows:
            if not self._requests.waits():
                return True  # the device has not done everything yet: training need not ring
            words[shared_page.SLEEPING] = 1
            has_come = not self._requests.waits()
        else:
            target = setter.target
            for _ in range(_GLANCES):
                if words[shared_page.TARGET] != target and not self._measuring.held:
                    break
            words[shared_page.SLEEPING] = 1
            requested = 0 if self._measuring.held else words[shared_page.TARGET]
            has_come = requested != target and setter.may_set(requested, now_ns)
        if has_come:
            words[shared_page.SLEEPING] = 0
        return not has_come

    def _answer_events(self, events: list[tuple[int, int]]) -> bool:
        """Answers requests and signals; returns False if the trainer has ended."""
        for fd, _ in events:
            if fd == self._trainer.fileno():
                if not self._take_requests():
                    return False
            elif fd == self._parent:
                return False
            elif fd == self._pipe:
                with suppress(BlockingIOError):
                    os.read(fd, 65_536)  # a full pipe would wake no process
            elif fd == self._stops.fd:
                self._stops.take_signals()
                if self._setter.terminated:
                    text = "the clock process got SIGTERM; power limit and clock are what they were before"
                    self._power_limits.refuse(text, self._trainer)
            elif self._exchange_loads(fd):
                self._apply()
        return True

    def _exchange_loads(self, fd: int) -> bool:
        """Exchanges loads with the other ranks; returns whether the clock of the running step changes."""
        if self._exchange is None:
            if has_ended(self._loads):
                self._poll.unregister(self._loads)
                return False
            from pfo_fs.device.load_exchange import LoadExchange  # most jobs have no loads

            self._exchange = LoadExchange(self._loads, self._words, self._poll)
        return self._exchange.answer(fd)

    def _take_requests(self) -> bool:
        """Answers requests about power limits and energy; returns False if the socket has been closed."""
        try:
            data = self._trainer.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if data:
            self._power_limits.take(data, self._trainer)
        return bool(data)


def main(given: dict[str, Any]) -> int | str:
    spec, options = given["spec"], ClockOptions(**given["options"])
    if given.get("reset_only"):
        problem = reset_left_by(spec, options, given["power_limit_w"])
        if "page_fd" in given:
            SharedPage(given["page_fd"]).words[shared_page.ALL_BACK] = int(not problem)
        return problem or 0  # a text becomes the last words of this process
    gpu, why_clocks_stay = open_to_set(spec, options.leave_clocks, options.clock_backend)
    trainer, loads = (socket.socket(fileno=given[name]) for name in ("socket_fd", "loads_fd"))
    to_reset = GpuToReset(spec, options.clock_backend, leave_clocks=bool(why_clocks_stay)) if gpu.uuid else None
    reporter = Reporter(options.report_to, options.rank, options.token, to_reset)
    page = SharedPage(given["page_fd"])
    loop = ClockLoop(gpu, page, given["doorbell_fd"], trainer, loads, reporter, options, why_clocks_stay)
    clocks_mhz = [] if why_clocks_stay else gpu.supported_clocks_mhz()
    hello = ClockInfo(gpu.name, gpu.uuid, clocks_mhz, why_clocks_stay, gpu.clock_backend)
    with refusals_named("sendto"), suppress(ConnectionError):
        trainer.send(json.dumps(hello._asdict()).encode() + b"\n", socket.MSG_NOSIGNAL)
    raise_priority()
    if not options.tries_only:
        loop.take_over()
    loop.watch_process(given["trainer_pid"], given["lifeline_fd"])
    try:
        loop.serve()
        return 0 if loop.finish() else 1
    finally:
        trainer.close()
        loads.close()
        with suppress(DeviceError):
            gpu.close()
