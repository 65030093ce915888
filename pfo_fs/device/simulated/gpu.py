"""A simulated GPU for the demo, the tests and users without hardware: time and power follow the clock (`physics.py`).

The GPU's state is a small file that two processes map. The clock process writes the clock; the process that computes
writes the power from now on. The energy at any time follows exactly from both, so the counter needs no updates.
"""

import fcntl
import math
import mmap
import os
import random
import re
import stat
import time
from contextlib import suppress

from pfo_fs.device.gpu.interface import ActionLog, ClockSeen, GpuSettings
from pfo_fs.device.simulated.physics import Coefficients, GpuModel, gpu_model, node_physics
from pfo_fs.device.simulated.stream import SimulatedStream
from pfo_fs.errors import DeviceError, DevicePermissionError, NotOffered


def simulated_model() -> GpuModel:
    """Returns the model of GPU that is simulated: `PFO_FS_SIM_MODEL`, or an A100."""
    return gpu_model(os.environ.get("PFO_FS_SIM_MODEL") or "A100", "PFO_FS_SIM_MODEL: ")


# ---- the state that the two processes share

_MAGIC_WORD = 0x70666F_5E0002
# Written by the process that sets the clock. 0 MHz is the default clock, 0 mW the default limit.
_MAGIC, _CLOCK_MHZ, _CHANGED_NS, _LIMIT_MW = 0, 1, 2, 3
_OLD_MHZ, _ACTS_NS = 4, 5  # the clock until the one in `_CLOCK_MHZ` acts, and when that is
_VERSION, _MARK_NS, _ENERGY_J, _POWER_W, _UNTIL_NS = 8, 9, 10, 11, 12  # written by the process that computes
_STATE_WORDS = 16
_GPU_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def simulation_dir() -> str:
    """Returns the folder of the simulated GPUs, made if it is missing: `PFO_FS_SIM_DIR`, or a folder in memory.

    Raises:
        DeviceError: Another user owns it.
    """
    folder = os.environ.get("PFO_FS_SIM_DIR")
    if not folder:
        memory = "/dev/shm"  # noqa: S108  the owner of the folder in it is checked below
        base = memory if os.access(memory, os.W_OK) else os.environ.get("TMPDIR") or "/var/tmp"  # noqa: S108
        folder = os.path.join(base, f"pfo-fs-sim-{os.geteuid()}")
    with suppress(FileExistsError):
        os.makedirs(folder, mode=0o700)
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise DeviceError(f"{folder} is not a folder of this user; set PFO_FS_SIM_DIR to one that is")
    return folder


class _State:
    """The mapped state of the simulated GPU `name`; the first process that opens it makes the file."""

    def __init__(self, name: str) -> None:
        if not _GPU_NAME.fullmatch(name):
            raise DeviceError(f"{name!r} cannot name a simulated GPU; use letters, digits and ._-")
        folder, self._idle_w = simulation_dir(), simulated_model().blocking_power_w
        self.path = os.path.join(folder, f"{name}.state")
        self.log_path = os.path.join(folder, f"{name}.log")
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            if os.fstat(fd).st_size == 0:
                os.ftruncate(fd, _STATE_WORDS * 8)
            self._map = mmap.mmap(fd, _STATE_WORDS * 8)
            self.words = memoryview(self._map).cast("q")
            self.numbers = memoryview(self._map).cast("d")
            if self.words[_MAGIC] == 0:
                self.words[_MARK_NS] = self.words[_UNTIL_NS] = time.monotonic_ns()
                self.numbers[_POWER_W] = self._idle_w
                self.words[_MAGIC] = _MAGIC_WORD  # last: if this process is killed before, the next one does it all
        except ValueError:
            raise DeviceError(f"{self.path} is not the state of a simulated GPU") from None
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # the mapping keeps the file open
            os.close(fd)
        if self.words[_MAGIC] != _MAGIC_WORD:
            raise DeviceError(f"{self.path} is not the state of a simulated GPU of this release")

    def energy_at(self, now_ns: int) -> float:
        """Returns the energy consumed until `now_ns`, in joules."""
        words, numbers = self.words, self.numbers
        for _ in range(1000):
            version = words[_VERSION]
            mark_ns, until_ns = words[_MARK_NS], words[_UNTIL_NS]
            energy_j, power_w = numbers[_ENERGY_J], numbers[_POWER_W]
            if version % 2 == 0 and words[_VERSION] == version:
                break
            time.sleep(0)  # the process that computes is writing
        busy_ns = min(now_ns, until_ns) - mark_ns
        idle_ns = max(0, now_ns - max(until_ns, mark_ns))
        return energy_j + power_w * max(0, busy_ns) / 1e9 + self._idle_w * idle_ns / 1e9

    def clock_mhz(self) -> int:
        """Returns the clock that acts now, in MHz; 0 for the default one."""
        return self.words[_CLOCK_MHZ if time.monotonic_ns() >= self.words[_ACTS_NS] else _OLD_MHZ]

    def go_on(self, mark_ns: int, power_w: float, until_ns: int) -> None:
        """Sets the power from `mark_ns` on: `power_w` until `until_ns`, blocking power after that."""
        energy_j = self.energy_at(mark_ns)
        self.words[_VERSION] += 1
        self.words[_MARK_NS], self.words[_UNTIL_NS] = mark_ns, until_ns
        self.numbers[_ENERGY_J], self.numbers[_POWER_W] = energy_j, power_w
        self.words[_VERSION] += 1

    def close(self) -> None:
        self.words.release()
        self.numbers.release()
        self._map.close()


class SimulatedGpu:
    """A simulated GPU as the process that sets its clock sees it (`Gpu`).

    Each change of clock or power limit is a line in `<name>.log` beside the state. Closing the GPU removes both files,
    unless `PFO_FS_SIM_DIR` is set. `PFO_FS_SIM_FAULT` makes calls fail: `permission`, all that set; `lock:N`, those
    that lock a clock, from the N-th on; `limit:N`, the N-th that sets a power limit.

    Args:
        name: Letters, digits and `._-`; the process that computes passes the same to `SimulatedKernels`.
    """

    clock_backend = "simulated"
    energy_breaks = 0

    def __init__(self, name: str) -> None:
        self._state = _State(name)
        self._log = ActionLog(self._state.log_path)
        self._clocks = simulated_model().clocks_mhz
        self._node = node_physics(os.environ.get("PFO_FS_SIM_NODE") or "none")
        self._driver = -1
        if self._node.serial:  # one file for all GPUs of the simulated node
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._driver = os.open(os.path.join(simulation_dir(), "driver.lock"), flags, 0o600)
        self.name = f"simulated {simulated_model().name}"
        self.uuid = f"SIM-{name}"
        self._open = True
        self._last_j = 0.0
        fault, _, count = os.environ.get("PFO_FS_SIM_FAULT", "").partition(":")
        self._refuses = fault == "permission"
        self._locks_left = int(count or 1) - 1 if fault == "lock" else -1
        self._limits_left = int(count or 1) if fault == "limit" else -1

    def supported_clocks_mhz(self) -> list[int]:
        return list(self._clocks)

    def try_reset(self) -> str:
        try:
            self.reset_clocks()
        except DevicePermissionError as error:
            return str(error)
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        if self._refuses:
            raise DevicePermissionError("simulated: this user may not lock GPU clocks")
        if self._locks_left == 0:
            raise NotOffered(f"simulated: {mhz} MHz could not be set")
        self._locks_left -= 1
        if mhz not in self._clocks:
            raise DeviceError(f"{self.name}: {mhz} MHz is not among its clocks")
        self._set(mhz)
        self._log.write("lock", mhz)

    def reset_clocks(self) -> None:
        """Goes back to the default clock, the highest."""
        if self._refuses:
            raise DevicePermissionError("simulated: this user may not lock GPU clocks")
        self._set(0)
        self._log.write("reset", 0)

    def shows_clock(self, mhz: int) -> bool | None:
        return bool(self._in_use().words[_CLOCK_MHZ])

    def _set(self, mhz: int) -> None:
        words = self._in_use().words
        if self._node.call_s:
            self._wait_for_driver(mhz)
        if words[_CLOCK_MHZ] != mhz:
            now_ns = time.monotonic_ns()
            if now_ns >= words[_ACTS_NS]:
                words[_OLD_MHZ] = words[_CLOCK_MHZ]
            acts_ns = now_ns + round(self._node.latency_s(mhz) * 1e9)
            words[_ACTS_NS] = words[_CHANGED_NS] = acts_ns
            words[_CLOCK_MHZ] = mhz

    def _wait_for_driver(self, mhz: int) -> None:
        """Takes as long as a call of the driver, which makes one call at a time for all GPUs of the node."""
        if self._driver >= 0:
            fcntl.flock(self._driver, fcntl.LOCK_EX)
        try:
            time.sleep(self._node.call_time_s(mhz, random.random(), random.random()))
        finally:
            if self._driver >= 0:
                fcntl.flock(self._driver, fcntl.LOCK_UN)

    def _in_use(self) -> _State:
        if not self._open:
            raise DeviceError(f"{self.uuid} was closed; open it again")
        return self._state

    def power_limit_range_w(self) -> tuple[float, float]:
        return simulated_model().power_limits_w

    def power_limit_w(self) -> float:
        return self._in_use().words[_LIMIT_MW] / 1000 or self.power_limit_range_w()[1]

    def set_power_limit_w(self, limit_w: float) -> None:
        if self._refuses:
            raise DevicePermissionError("simulated: this user may not set power limits")
        self._limits_left -= 1
        if self._limits_left == 0:
            raise NotOffered(f"simulated: {limit_w:g} W could not be set")
        lowest_w, highest_w = self.power_limit_range_w()
        if not lowest_w <= limit_w <= highest_w:
            raise DeviceError(f"{self.name}: {limit_w:g} W is not within {lowest_w:g} to {highest_w:g} W")
        words = self._in_use().words
        words[_CHANGED_NS] = time.monotonic_ns()
        words[_LIMIT_MW] = round(limit_w * 1000)
        self._log.write_limit(limit_w)

    def settings(self) -> GpuSettings:
        return GpuSettings(self._in_use().words[_CLOCK_MHZ], self.power_limit_w(), self.power_limit_range_w()[1])

    def energy_j(self) -> float:
        # The process that computes sees a change of the clock a little late, and then corrects the past energy.
        self._last_j = max(self._last_j, self._in_use().energy_at(time.monotonic_ns()))
        return self._last_j

    def clock_seen(self) -> ClockSeen:
        return ClockSeen(self._state.clock_mhz() or self._clocks[0])

    def other_setters(self) -> list[str]:
        return []

    def close(self) -> None:
        """Unmaps the state; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        if self._driver >= 0:
            os.close(self._driver)
        self._log.close()
        if not os.environ.get("PFO_FS_SIM_DIR"):
            for path in (self._state.path, self._state.log_path):
                with suppress(OSError):
                    os.unlink(path)
        self._state.close()


class SimulatedKernels:
    """A simulated GPU as the process that computes sees it: time and power of instructions follow the clock.

        kernels = SimulatedKernels(name, stages=8)
        kernels.run("forward", stage=0)               # waits until it is done
        kernels.stream.launch("forward", stage=0)     # does not wait

    Args:
        name: The name in the GPU's spec, `simulated:<name>`.
        stages: Stages of the whole pipeline; the last one takes longer.
        time_scale: How many times faster than a real GPU; energies shrink by the same factor, so that relative savings
            stay the same. None: `PFO_FS_SIM_TIME_SCALE`, or 1.
    """

    def __init__(self, name: str, *, stages: int = 8, time_scale: float | None = None) -> None:
        self._state = _State(name)
        self._last = stages - 1
        scale = float(os.environ.get("PFO_FS_SIM_TIME_SCALE") or 1) if time_scale is None else time_scale
        if not 0 < scale < math.inf:
            raise DeviceError(f"time scale {scale} must be positive")
        self.time_scale = scale
        self._gpu = simulated_model()
        self._mhz = self._gpu.clocks_mhz[0]
        self._limit_mw = 0
        self._free = self._model = self._gpu.coefficients("forward")  # without, and with, the power limit
        self._mark_ns = 0
        self._left = 0.0  # share of the instruction that is still to do at `_mark_ns`
        self.stream = SimulatedStream(self.run)

    def model(self, instruction: str, stage: int) -> Coefficients:
        """Returns how time and power of an instruction follow the clock on this GPU, its time scale included."""
        model = self._gpu.coefficients(instruction, last_stage=stage == self._last)
        return model._replace(time_ref_s=model.time_ref_s / self.time_scale)

    def run(self, instruction: str, stage: int = 0, started_ns: int | None = None, work: float = 1.0) -> None:
        """Sleeps until the instruction is done; a change of the clock in the meantime changes its end.

        Args:
            started_ns: `time.monotonic_ns()` when the instruction began, if that was earlier; None for now.
            work: How many times its usual duration the instruction takes.
        """
        self.start(instruction, stage, started_ns, work)
        self.finish()

    @property
    def ended_ns(self) -> int:
        """When the last instruction ends or has ended on the device, as `time.monotonic_ns()`."""
        return self._state.words[_UNTIL_NS]

    def start(self, instruction: str, stage: int = 0, started_ns: int | None = None, work: float = 1.0) -> None:
        """Begins an instruction, as launching a kernel does; `finish` waits for it."""
        model = self.model(instruction, stage)
        self._free = model._replace(time_ref_s=model.time_ref_s * work)
        self._read_clock()
        self._left = 1.0
        begin_ns = time.monotonic_ns() if started_ns is None else started_ns
        self._go_on(max(begin_ns, self._state.words[_MARK_NS], self._state.words[_UNTIL_NS]))

    def finish(self) -> None:
        """Waits until the instruction is done, following the clock."""
        pause_ns = 500_000
        while True:
            now_ns = time.monotonic_ns()
            until_ns = self._state.words[_UNTIL_NS]
            if self._clock_mhz() != self._mhz or self._state.words[_LIMIT_MW] != self._limit_mw:
                changed_ns = min(max(self._state.words[_CHANGED_NS], self._mark_ns), now_ns)
                if changed_ns < until_ns:
                    self._left -= (changed_ns - self._mark_ns) / (self._model.time_s(self._mhz) * 1e9)
                    self._read_clock()
                    self._go_on(changed_ns)
                    until_ns = self._state.words[_UNTIL_NS]
            if now_ns >= until_ns:
                return
            time.sleep(min(until_ns - now_ns, pause_ns) / 1e9)
            pause_ns = min(pause_ns * 2, 4_000_000)

    def _clock_mhz(self) -> int:
        return self._state.clock_mhz() or self._gpu.clocks_mhz[0]

    def _read_clock(self) -> None:
        self._mhz, self._limit_mw = self._clock_mhz(), self._state.words[_LIMIT_MW]
        limited = self._limit_mw > 0
        self._model = self._free.within(self._limit_mw / 1000, self._gpu.clocks_mhz[-1]) if limited else self._free

    def _go_on(self, mark_ns: int) -> None:
        self._mark_ns = mark_ns
        until_ns = mark_ns + round(max(0.0, self._left) * self._model.time_s(self._mhz) * 1e9)
        self._state.go_on(mark_ns, self._model.power_w(self._mhz), until_ns)

    def close(self) -> None:
        self.stream.close()
        self._state.close()
