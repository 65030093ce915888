"""Measures what changes of the clock cost on this node: the content of the file that planners and jobs read.

Clock processes set the clocks, as in training: they take turns at the driver, and reset the clocks however this
process ends. On the first GPU, equal pieces of work run one after the other meanwhile. What they take says when each
clock acts, by the same model as in training (`pfo_fs/device/clocks/latency_model.py`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timezone
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING

import pfo_fs
from pfo_fs.device import shared_page
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clocks.driver_calls import BUSY_SHARE, HostDriver, driver_file
from pfo_fs.device.clocks.latency_model import SETTLED_NS, LatencyModel
from pfo_fs.errors import DeviceError
from pfo_fs.switching_file import CallTime, MeasuredSwitching

if TYPE_CHECKING:
    import torch

_TARGETS, _ROUNDS = 12, 4
"""The number of clocks, spread over the range, and of changes to each. The first round shows what work takes."""
_CALLS = 40
"""Calls of each further GPU."""
_WORK_S = 0.005
"""A piece of work takes about this long at the highest clock: training's instructions are as short."""
_BEFORE_NS, _AFTER_NS = 30_000_000, SETTLED_NS + 60_000_000
"""Work runs for this long before and after each change."""
_CALL_WITHIN_S = 10.0

Work = Callable[[], tuple[int, int]]
"""Runs a piece of work; returns when the device has begun and ended it, in ns of `time.monotonic_ns`."""


@contextmanager
def held_gpus(specs: Sequence[str]) -> Iterator[list[ClockProcess]]:
    """Starts a clock process for each GPU, which resets its clocks at the end of the context, or of this process.

    Raises:
        DeviceError: Another process of pfo-fs sets clocks on this node, or clocks cannot be set.
    """
    with ExitStack() as stack:
        driver = HostDriver(driver_file())
        stack.callback(driver.close)
        others = driver.others()
        if others:
            raise DeviceError(
                f"{others} other process(es) of pfo-fs set clocks on this node, and both would be "
                "disturbed; measure when no job runs here"
            )
        gpus: list[ClockProcess] = []
        stack.callback(_end, gpus)
        gpus.extend(map(ClockProcess, specs))
        for gpu in gpus:
            problem = gpu.message
            if gpu.info.clock_backend == "dry run":
                problem = "PFO_FS_DRY_RUN is set; unset it to measure"
            if problem:
                raise DeviceError(f"{gpu.spec}: clocks cannot be set: {problem}")
        yield gpus


def _end(gpus: Sequence[ClockProcess]) -> None:
    """Has all clock processes reset their GPUs at the same time, and waits some seconds for that."""
    for gpu in gpus:
        gpu.leave()
    for gpu in gpus:
        gpu.close()


def measure_switching(
    gpus: Sequence[ClockProcess], say: Callable[[str], None] = lambda text: None
) -> MeasuredSwitching:
    """Measures; the clocks are left as the last call has set them. `say` is told when a part begins.

    Raises:
        DeviceError: The GPUs have fewer than two clocks in common, or a clock cannot be set.
    """
    clocks_mhz = sorted(set.intersection(*(set(gpu.info.clocks_mhz) for gpu in gpus)))
    if len(clocks_mhz) < 2:
        raise DeviceError(f"{gpus[0].info.gpu_name}: the GPUs share {len(clocks_mhz)} clocks; two are needed")
    calls_s: list[float] = []
    for number, gpu in enumerate(gpus[1:], 2):
        say(f"calls of GPU {number} of {len(gpus)} ...")
        calls_s += [_set(gpu, clocks_mhz[-(count % 2)], lambda: None) for count in range(_CALLS)]
    not_measured, latency_s = "", dict[int, float]()
    try:
        with _work_on(gpus[0].spec) as work:
            latency_s = _measure_latencies(gpus[0], clocks_mhz, work, calls_s, say)
    except NoWork as error:
        not_measured = str(error)
        calls_s += [_set(gpus[0], clocks_mhz[-(count % 2)], lambda: None) for count in range(_CALLS)]
    ordered = sorted(calls_s)
    return MeasuredSwitching(
        call_s=CallTime(median=round(median(ordered), 6), p99=round(ordered[len(ordered) * 99 // 100], 6)),
        max_calls_per_s=float(f"{BUSY_SHARE / median(ordered):.3g}"),
        latency_s=dict(sorted(latency_s.items())),
        not_measured=not_measured,
        gpus=len(gpus),
        gpu=gpus[0].info.gpu_name,
        clock_backend=gpus[0].info.clock_backend,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        pfo_fs=pfo_fs.__version__,
    )


def _measure_latencies(
    gpu: ClockProcess, clocks_mhz: Sequence[int], work: Work, calls_s: list[float], say: Callable[[str], None]
) -> dict[int, float]:
    """Returns, for each clock whose latency shows, the time from the return of a call until it acts, in s.

    `clocks_mhz`: lowest first. `calls_s` gets the duration of each call.
    """
    model = LatencyModel(top_mhz=clocks_mhz[-1])
    order_mhz = order_of_changes(clocks_mhz, _TARGETS, _ROUNDS)
    for done, mhz in enumerate(order_mhz, 1):
        say(f"when a clock acts: change {done} of {len(order_mhz)} ...")
        ran: list[tuple[int, int]] = []
        _work_until(time.monotonic_ns() + _BEFORE_NS, work, ran)
        calls_s.append(_set(gpu, mhz, lambda: ran.append(work())))  # noqa: B023  called before the next change
        returned_ns = shared_page.last_change(gpu.words)[0]
        _work_until(returned_ns + _AFTER_NS, work, ran)
        model.clock_was_set(returned_ns, mhz)
        for began_ns, ended_ns in ran:
            model.ran(0, began_ns, ended_ns)
    return model.learned_s


def _work_until(end_ns: int, work: Work, ran: list[tuple[int, int]]) -> None:
    while time.monotonic_ns() < end_ns:
        ran.append(work())


def _set(gpu: ClockProcess, mhz: int, meanwhile: Callable[[], object]) -> float:
    """Has a clock set that is not in force; returns how long the call took, in s, with waking the clock process.

    Raises:
        DeviceError: It is not set in time.
    """
    began_ns = time.monotonic_ns()
    gpu.words[shared_page.TARGET] = mhz
    gpu.ring_doorbell()
    while True:
        meanwhile()
        returned_ns, now_mhz = shared_page.last_change(gpu.words)
        if returned_ns >= began_ns and now_mhz == mhz:
            return (returned_ns - began_ns) / 1e9
        if time.monotonic_ns() - began_ns > _CALL_WITHIN_S * 1e9 or not gpu.alive():
            raise DeviceError(f"{gpu.spec}: {mhz} MHz were not set within {_CALL_WITHIN_S:g} s; look at the log")
        time.sleep(0.0001)


def order_of_changes(clocks_mhz: Sequence[int], count: int, rounds: int) -> list[int]:
    """Returns an even number of clocks, up to `count`, spread over the range, each once per round.

    Clocks of the lower and of the upper half alternate, so that durations before and after a change differ.

    `clocks_mhz`: those on offer, lowest first; two or more.
    """
    count, chance = min(count, len(clocks_mhz)) // 2 * 2, random.Random(0)
    spread = [clocks_mhz[round(place * (len(clocks_mhz) - 1) / (count - 1))] for place in range(count)]
    low, high = spread[: count // 2], spread[count // 2 :]
    order: list[int] = []
    for _ in range(rounds):
        chance.shuffle(low)
        chance.shuffle(high)
        order += [mhz for pair in zip(high, low, strict=True) for mhz in pair]
    return order


# ---- work whose begin and end are known


class NoWork(DeviceError):
    """This process cannot give the GPU work."""


def _work_on(spec: str) -> AbstractContextManager[Work]:
    kind, _, name = spec.partition(":")
    return _simulated_work(name) if kind == "simulated" else _torch_work(spec)


@contextmanager
def _simulated_work(name: str) -> Iterator[Work]:
    from pfo_fs.device.simulated.gpu import SimulatedKernels, simulated_model

    kernels = SimulatedKernels(name, time_scale=simulated_model().coefficients("forward").time_ref_s / _WORK_S)

    def work() -> tuple[int, int]:
        began_ns = time.monotonic_ns()
        kernels.run("forward", started_ns=began_ns)
        return began_ns, kernels.ended_ns

    try:
        yield work
    finally:
        kernels.close()


@contextmanager
def _torch_work(spec: str) -> Iterator[Work]:
    """Matrix products in 32-bit floating point: bound by the clock, and far from the power limit.

    Raises:
        NoWork: torch cannot use this GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise NoWork(f"torch cannot be imported ({error}): pip install torch") from None
    if not torch.cuda.is_available():
        raise NoWork("this torch has no CUDA device; install a torch with CUDA")
    device = _torch_device(torch, spec)
    factors = [torch.randn(1024, 1024, device=device) for _ in range(2)]
    product = torch.empty_like(factors[0])

    def run(products: int) -> tuple[int, int]:
        began_ns = time.monotonic_ns()  # the device is idle: it begins at once
        for _ in range(products):
            torch.mm(*factors, out=product)
        torch.cuda.synchronize(device)
        return began_ns, time.monotonic_ns()

    run(200)  # also makes the GPU leave its idle clock
    began_ns, ended_ns = run(200)
    products = max(1, round(200 * _WORK_S * 1e9 / (ended_ns - began_ns)))
    yield lambda: run(products)


def _torch_device(torch: ModuleType, spec: str) -> torch.device:
    for index in range(torch.cuda.device_count()):
        if spec.endswith(str(torch.cuda.get_device_properties(index).uuid)):
            return torch.device("cuda", index)
    raise NoWork(f"torch does not see the GPU {spec}; look at CUDA_VISIBLE_DEVICES")
