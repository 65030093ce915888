"""The clock process of one rank: sets the GPU's clocks, measures, watches over the trainer's life, and cleans up.

Started as `python -m pfo_fs.device.clock_process` by `clocks.ClockProcess`; what it needs comes as one JSON object in
the environment. It shares a page of memory with training (`page.py`) and has a doorbell (an eventfd) and a socket pair
to it, which also carries requests about power limits (`power_limits.py`). The end of that socket, or of the trainer's
process, is the trainer's death, whatever killed it: reset the clocks and the power limit, then leave. It lives in a
session of its own, ignores SIGINT and SIGHUP, and takes SIGTERM as word that the job is being ended: clocks back at
once, and for good.

No polling: a timer's wake-up costs 25 us of CPU on a small machine. The loop does all there is to do, says in the page
that it sleeps, looks once more, and waits for the doorbell, with a back-stop. No pydantic, torch or pandas here.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from bisect import bisect_left
from contextlib import suppress
from typing import Any

from pfo_fs.device import page
from pfo_fs.device.gpu import Gpu, NoGpu, open_gpu
from pfo_fs.device.limit_note import LimitNote
from pfo_fs.device.meter import StepMeter
from pfo_fs.device.page import MarkReader, SharedPage
from pfo_fs.device.power_limits import PowerLimits
from pfo_fs.device.priority import be_prompt
from pfo_fs.device.report import Reporter
from pfo_fs.errors import DeviceError
from pfo_fs.ipc.spawn import given_arguments

_LOOK_EVERY_NS = 100_000_000
"""How often marks and energy are read where nothing is measured: the back-stop of the sleep."""
_ASK_EVERY_NS = 2_000_000_000
"""How often the GPU is asked whether it is throttled."""
_READING_SHARE = 20
"""Readings that take t are at least 20 t apart: setting clocks must not queue behind a slow energy counter."""
_SOON_NS = 5_000_000
"""After a change of the clock, energy is read if the last reading is older than this."""
_GLANCES = 50
"""Looks at the target, 2 us in all, before going to sleep: being woken costs training 10 us, and us more than this."""


class ClockLoop:
    """The loop of the clock process.

    Args:
        gpu: The GPU to drive.
        shared: The page that is shared with training.
        doorbell: The eventfd that training rings.
        trainer: The socket whose end is the trainer's end.
        reporter: Takes results and progress.
        profile_steps: Steps that make one result.
        min_dwell_ms: Least time between two changes of the clock, releases excepted.
        why_clocks_stay: Why clocks cannot be set; empty if they can.
    """

    def __init__(
        self,
        gpu: Gpu,
        shared: SharedPage,
        doorbell: int,
        trainer: socket.socket,
        reporter: Reporter,
        *,
        profile_steps: int,
        min_dwell_ms: float,
        why_clocks_stay: str,
    ) -> None:
        self._gpu = gpu
        self._power_limits = PowerLimits(gpu)
        self._words = shared.words
        self._trainer = trainer
        self._reporter = reporter
        self._message = why_clocks_stay or None
        self._controls = not why_clocks_stay
        self._supported = sorted(gpu.supported_clocks_mhz())
        self._clock_for: dict[int, int] = {0: 0}
        self._target = 0  # the requested clock that is in force
        self._clock = 0  # what the GPU was told; another number if it does not offer the requested one
        self._dwell_ns = round(min_dwell_ms * 1e6)
        self._not_before_ns = 0
        self._marks = MarkReader(shared.words)
        self._meter = StepMeter(profile_steps, shared)
        self._measures = True
        self._energy_works = True
        self._reading_ns = 0
        self._ask_at_ns = 0
        self._why_throttled = ""
        self._next_look_ns = 0
        self._terminated = False
        self._poll = select.epoll()
        self._poll.register(doorbell, select.EPOLLIN | select.EPOLLET)  # edge-triggered: it need not be read
        self._poll.register(trainer, select.EPOLLIN | select.EPOLLRDHUP)
        self._signals = self._watch_signals()
        self._parent = -1

    # ---- life

    def watch_process(self, pid: int) -> None:
        """Takes the end of process `pid` for the trainer's end too, where the kernel can tell."""
        with suppress(OSError):
            self._parent = os.pidfd_open(pid)
            self._poll.register(self._parent, select.EPOLLIN)

    def _watch_signals(self) -> int:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._poll.register(reading, select.EPOLLIN)
        return reading

    def _on_sigterm(self, *_: object) -> None:
        self._terminated = True

    def serve(self) -> None:
        """Serves until the trainer has gone; the clocks are at their default afterwards, whatever happens."""
        try:
            while self._serve_once():
                pass
        finally:
            self._words[page.SLEEPING] = 0
            self._power_limits.restore()
            self._release()
            self._controls = False  # what a killed trainer last asked for still stands in the page

    def finish(self) -> None:
        """Measures what training has left behind, and sends it; says that the clocks are back at their default."""
        self._look(time.monotonic_ns(), everything=True)
        if self._measures:
            self._reporter.progress(self._meter.last_step, 0, self._message, now=True)
            self._reporter.released()
            self._reporter.finish(0.5)

    def _serve_once(self) -> bool:
        """Sets what is wanted, looks at marks if it is time, sleeps; returns False at the trainer's end."""
        words = self._words
        self._apply()
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_look_ns:
            self._look(now_ns)
            now_ns = time.monotonic_ns()
        wake_ns = self._next_look_ns
        if self._controls:
            target = self._target
            for _ in range(_GLANCES):
                if words[page.TARGET] != target:
                    break
            # From here to the second look at TARGET lies about a microsecond, in which both sides' stores get through;
            # should one ever not, the back-stop below notices.
            words[page.SLEEPING] = 1
            if self._not_before_ns > now_ns:
                wake_ns = min(wake_ns, max(self._not_before_ns, now_ns))
            wait_s = max(0, wake_ns - now_ns) / 1e9
            if words[page.TARGET] != self._target and self._not_before_ns <= now_ns:
                words[page.SLEEPING] = 0
                return True
        else:
            wait_s = max(0, wake_ns - now_ns) / 1e9
        events = self._poll.poll(wait_s)
        words[page.SLEEPING] = 0
        self._apply()
        return not events or self._trainer_lives(events)

    def _trainer_lives(self, events: list[tuple[int, int]]) -> bool:
        for fd, _ in events:
            if fd == self._trainer.fileno():
                with suppress(BlockingIOError):
                    try:
                        data = self._trainer.recv(4096, socket.MSG_DONTWAIT)
                        if not data:
                            return False
                        self._power_limits.take(data, self._trainer)
                    except ConnectionError:
                        return False
            elif fd == self._parent:
                return False
            elif fd == self._signals:
                with suppress(BlockingIOError):
                    os.read(fd, 4096)
                if self._terminated:
                    text = "the clock process got SIGTERM; the power limit is what it was before"
                    self._power_limits.refuse(text, self._trainer)
        return True

    # ---- clocks

    def _apply(self) -> None:
        """Sets the clock that is wanted now, if it is not in force."""
        target = self._words[page.TARGET]
        if self._terminated and self._controls:
            self._release()
            self._give_up("the clock process got SIGTERM; clocks stay at their default")
        if target == self._target or not self._controls:
            return
        if target and self._dwell_ns and time.monotonic_ns() < self._not_before_ns:
            return
        clock = self._clock_for.get(target)
        if clock is None:
            clock = self._clock_for[target] = self._offered(target)
        try:
            if clock != self._clock:
                if clock:
                    self._gpu.lock_clock_mhz(clock)
                else:
                    self._gpu.reset_clocks()
        except Exception as error:  # noqa: BLE001  whatever a driver raises, clocks go back and training goes on
            self._release()
            self._give_up(str(error) or repr(error))
            return
        if clock != self._clock:
            self._meter.clock_set(time.monotonic_ns(), clock)
        self._target, self._clock = target, clock
        self._words[page.CLOCK_MHZ] = clock
        if self._dwell_ns:
            self._not_before_ns = time.monotonic_ns() + self._dwell_ns
        if self._words[page.MEASURING] and time.monotonic_ns() - self._meter.curve.last_ns() > _SOON_NS:
            self._next_look_ns = 0  # the power changes here, so the energy curve has a corner

    def _offered(self, mhz: int) -> int:
        """Returns the lowest clock on offer that is not below `mhz`, or the highest: never slower than was asked."""
        clocks = self._supported
        return clocks[min(bisect_left(clocks, mhz), len(clocks) - 1)] if clocks else mhz

    def _release(self) -> None:
        if self._controls:
            with suppress(Exception):
                self._gpu.reset_clocks()
        if self._clock:
            self._meter.clock_set(time.monotonic_ns(), 0)
        self._target = self._clock = self._words[page.CLOCK_MHZ] = 0

    def _give_up(self, message: str) -> None:
        """No more changes of clocks; said once, here and to the helper."""
        self._controls = False
        self._message = message
        if not self._terminated:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"pfo-fs: {message}\n")

    # ---- measuring

    def _look(self, now_ns: int, *, everything: bool = False) -> None:
        """Measures and reports; should that ever fail, clocks are set all the same."""
        try:
            if self._measures:
                self._measure(now_ns, everything)
        except Exception as error:  # noqa: BLE001  the clocks are the first duty
            self._measures = False
            with suppress(OSError, ValueError):
                sys.stderr.write(f"pfo-fs: measuring has failed and ends; clocks are still set: {error!r}\n")
        pause_ns = self._meter.curve.pause_ns() if self._words[page.MEASURING] else _LOOK_EVERY_NS
        if self._marks.behind > 2048:
            pause_ns //= 10
        self._next_look_ns = now_ns + max(pause_ns, _READING_SHARE * self._reading_ns)

    def _measure(self, now_ns: int, everything: bool) -> None:
        """Reads the energy counter and the marks, and passes on what comes of them."""
        if self._energy_works:
            try:
                energy_j = self._gpu.energy_j()
                self._reading_ns = time.monotonic_ns() - now_ns
                self._meter.curve.add(now_ns + self._reading_ns // 2, energy_j)
            except Exception as error:  # noqa: BLE001  without energy, time is still measured
                self._energy_works = False
                self._meter.curve.no_more()
                self._message = self._message or f"no energy: {error}"
        marks = self._marks.read(everything=everything)
        if marks is None:
            self._meter.lost()
        else:
            for measured in self._meter.take(marks, everything=everything):
                if measured is not None:
                    self._reporter.measured(measured)
                self._apply()  # clocks do not wait for the arithmetic
            self._words[page.MEASURED_NUMBER] = self._meter.done_number
        self._reporter.progress(
            self._meter.last_step,
            self._clock,
            self._message,
            iteration_times=self._meter.pace,
            throttled=self._throttled(now_ns),
        )
        self._reporter.pump()

    def _throttled(self, now_ns: int) -> str:
        """What holds the clocks back, asked now and then."""
        if now_ns >= self._ask_at_ns:
            self._ask_at_ns = now_ns + _ASK_EVERY_NS
            with suppress(Exception):  # an old driver may not know; the pace tells as well
                self._why_throttled = self._gpu.throttled()
        return self._why_throttled


def _open(spec: str, leave_clocks: bool) -> tuple[Gpu, str]:
    """Opens the GPU and resets its clocks, for a job that crashed may have left them; says why clocks stay, if so."""
    try:
        gpu = open_gpu(spec)
        return gpu, "clocks are not this process's business" if leave_clocks else gpu.why_clocks_stay()
    except DeviceError as error:
        return NoGpu(str(error)), str(error)


def main() -> int:
    """Runs the clock process."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    given: dict[str, Any] = given_arguments()
    gpu, why_clocks_stay = _open(given["spec"], given["leave_clocks"])
    if given.get("reset_only"):  # opening has reset the clocks
        if given["power_limit_w"] is not None:
            with suppress(DeviceError):
                gpu.set_power_limit_w(given["power_limit_w"])
                LimitNote(gpu.uuid).remove(given["died"])
        return 0
    trainer = socket.socket(fileno=given["socket_fd"])
    loop = ClockLoop(
        gpu,
        SharedPage(given["page_fd"]),
        given["doorbell_fd"],
        trainer,
        Reporter(given["report_to"], given["rank"], given["token"], "" if why_clocks_stay else given["spec"]),
        profile_steps=given["profile_steps"],
        min_dwell_ms=given["min_dwell_ms"],
        why_clocks_stay=why_clocks_stay,
    )
    hello = {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "clocks_mhz": gpu.supported_clocks_mhz(),
        "message": why_clocks_stay,
    }
    with suppress(OSError):
        trainer.send(json.dumps(hello).encode() + b"\n", socket.MSG_NOSIGNAL)
    be_prompt()
    loop.watch_process(given["trainer_pid"])
    try:
        loop.serve()
        loop.finish()
    finally:
        with suppress(DeviceError):
            gpu.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
