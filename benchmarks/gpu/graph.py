"""Part `graph`: marks inside a captured CUDA graph: whether the repeated numbers arrive in order, and what they cost.

Each replay repeats the same numbers, by which pfo-fs follows a whole iteration in one graph. Another process, which is
this module run as a script, looks at the word.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.analysis import spread
from benchmarks.gpu.cuda import DEVICE, gpu_spec, make_event, matmul
from benchmarks.gpu.load_fits import standard_error
from pfo_fs.device.shared_page import PROGRESS, SharedPage
from pfo_fs.errors import DeviceError
from pfo_fs.training.stream_marks import PAGE_BYTES, Driver, RegisteredPage

ROOT = Path(__file__).resolve().parents[2]
LAST = 0xFFFF_FFFF
"""This number ends the reader."""
INSTRUCTIONS = 12
REPLAYS = 100
MANY = 200
TURNS = 60

_Put = Callable[[int], None]


def measure() -> Iterator[dict[str, Any]]:
    """Captures iterations with marks in each way, and replays them."""
    gpu_spec()
    page = SharedPage.create()
    driver = Driver(ctypes.CDLL)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page.words)) + 8 * PROGRESS
    registered = RegisteredPage(address - address % PAGE_BYTES, DEVICE, driver)
    target = ctypes.c_uint64(registered.device_address + address % PAGE_BYTES)
    large, small = matmul(4096), matmul(512)
    for how in ("stream write", "memset"):
        put = _put(driver, how, target)
        try:
            marked = _capture(large, INSTRUCTIONS, 5, put)
        except (RuntimeError, DeviceError) as error:
            yield {"what": f"capture with marks by {how}", "error": str(error)}
            torch.cuda.synchronize()
            continue
        yield {"what": f"{how}: numbers of {REPLAYS} replays", **_order(page, marked, put)}
        plain = _capture(large, INSTRUCTIONS, 5, None)
        yield {"what": f"{how}: {INSTRUCTIONS} marks between pieces of 1 ms", **_cost(marked, plain, INSTRUCTIONS)}
        marked, plain = _capture(small, MANY, 1, put), _capture(small, MANY, 1, None)
        yield {"what": f"{how}: {MANY} marks between small kernels", **_cost(marked, plain, MANY)}
    registered.unregister()


def _put(driver: Driver, how: str, target: ctypes.c_uint64) -> _Put:
    """Returns a function that adds a mark to the current stream, captured or not."""
    stream_write, memset = (driver.function(name) for name in ("cuStreamWriteValue32_v2", "cuMemsetD32Async"))

    def put(number: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        value = ctypes.c_uint(number)
        if how == "stream write":
            error = stream_write(stream, target, value, ctypes.c_uint(0))
        else:
            error = memset(target, value, ctypes.c_size_t(1), stream)
        if error:
            raise DeviceError(f"the {how} failed with {driver.error_name(error)}")

    return put


def _capture(work: Callable[[], object], instructions: int, pieces: int, put: _Put | None) -> Any:
    graph = torch.cuda.CUDAGraph()
    work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for number in range(1, instructions + 1):
            if put is not None:
                put(number)
            for _ in range(pieces):
                work()
    return graph


def _order(page: SharedPage, graph: Any, put: _Put) -> dict[str, Any]:
    """Replays the graph again and again while another process looks; returns whether it saw all numbers by turns."""
    page.words[PROGRESS] = 0
    command = [sys.executable, "-m", "benchmarks.gpu.graph", str(page.fd)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    reader = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, pass_fds=[page.fd], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}
    )
    assert reader.stdout is not None
    try:
        if reader.stdout.readline() != "ready\n":
            raise RuntimeError("the reader did not start; its error is above")
        launches_us = []
        for _ in range(REPLAYS):
            began_ns = time.perf_counter_ns()
            graph.replay()
            launches_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        torch.cuda.synchronize()
        time.sleep(0.005)
        put(LAST)
        torch.cuda.synchronize()
        seen = json.loads(reader.communicate(timeout=20)[0])
    finally:
        reader.kill()
        reader.wait()
    expected = list(itertools.islice(itertools.cycle(range(1, INSTRUCTIONS + 1)), REPLAYS * INSTRUCTIONS))
    return {
        "written": len(expected),
        "seen": len(seen) - 1,  # without the last one, which ends the reader
        "in_order": seen[:-1] == expected,
        "out_of_turn": sum(late != early % INSTRUCTIONS + 1 for early, late in itertools.pairwise(seen[:-1])),
        "replay_call_us": spread(launches_us),
    }


def _cost(marked: Any, plain: Any, marks: int) -> dict[str, Any]:
    """Times replays of both graphs by turns."""
    times_us: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * TURNS):
        begin, end = make_event(), make_event()
        begin.record()
        (marked if turn % 2 else plain).replay()
        end.record()
        torch.cuda.synchronize()
        if turn > 3:
            times_us[bool(turn % 2)].append(float(begin.elapsed_time(end)) * 1e3)
    extra_us = median(times_us[True]) - median(times_us[False])
    error_us = (standard_error(times_us[True]) ** 2 + standard_error(times_us[False]) ** 2) ** 0.5
    return {
        "replay_us": spread(times_us[True]),
        "replay_without_marks_us": spread(times_us[False]),
        "one_mark_us": extra_us / marks,
        "one_mark_error_us": error_us / marks,
    }


def read_marks(fd: int) -> None:
    """Runs in the other process: prints all numbers that it sees, in order, when the last one is there."""
    words = SharedPage(fd).words
    seen: list[int] = []
    now = 0
    print("ready", flush=True)
    while now != LAST:
        if words[PROGRESS] != now:
            now = words[PROGRESS]
            seen.append(now)
    print(json.dumps(seen))


if __name__ == "__main__":
    read_marks(int(sys.argv[1]))
