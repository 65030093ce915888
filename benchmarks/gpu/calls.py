"""Part `calls`: what CUDA events and stream marks cost the training thread, each call by itself."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.analysis import spread
from benchmarks.gpu.cuda import DEVICE, gpu_spec, make_event
from pfo_fs.device.shared_page import PROGRESS, SharedPage
from pfo_fs.errors import DeviceError
from pfo_fs.training.stream_marks import WAYS, open_stream_marks

BATCH = 200  # a stream holds about 1,000 operations; then launches wait for the device
BATCHES = 50


def address_of(page: SharedPage, word: int = PROGRESS) -> int:
    """Returns the address of a word of the page in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(page.words)) + 8 * word


def cost_us(call: Callable[[], object]) -> dict[str, float]:
    """Times single calls, in batches after which the device is waited for."""
    costs: list[float] = []
    now = time.perf_counter_ns
    for _ in range(BATCHES):
        for _ in range(BATCH):
            began_ns = now()
            call()
            costs.append((now() - began_ns) / 1e3)
        torch.cuda.synchronize()
    return spread(costs[BATCH:])


def measure() -> Iterator[dict[str, Any]]:
    """Times each call, from an idle stream and from one that is busy."""
    gpu_spec()
    events = [make_event() for _ in range(BATCH)]
    for event in events:
        event.record()
    torch.cuda.synchronize()
    turn = iter(range(10**9))
    number = iter(range(1, 10**9))
    yield {"what": "two readings of the clock, part of all others", "cost_us": cost_us(lambda: None)}
    yield {"what": "event.record", "cost_us": cost_us(lambda: events[next(turn) % BATCH].record())}
    yield {"what": "event.query", "cost_us": cost_us(lambda: events[next(turn) % BATCH].query())}
    yield {"what": "event.elapsed_time", "cost_us": cost_us(lambda: events[0].elapsed_time(events[1]))}
    yield {"what": "making an event", "cost_us": cost_us(make_event)}
    page = SharedPage.create()
    for how in WAYS:
        try:
            marks = open_stream_marks(address_of(page), DEVICE, ways=[how])
        except DeviceError as error:
            yield {"what": how, "error": str(error)}
            continue
        yield {"what": f"mark by {how}, default stream", "cost_us": cost_us(lambda: marks.write(next(number)))}  # noqa: B023
        with torch.cuda.stream(torch.cuda.Stream()):
            yield {"what": f"mark by {how}, own stream", "cost_us": cost_us(lambda: marks.write(next(number)))}  # noqa: B023
        yield {"what": f"current stream for {how}", "cost_us": cost_us(marks.current_stream)}
        marks.close()
