"""Part `marks`: whether the device's numbers arrive in another process, in order, and how much later.

The other process is this module run as a script; it looks at the word every so many microseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfo_fs.device.shared_page import PROGRESS, SharedPage

ROOT = Path(__file__).resolve().parents[2]
LAST = 0xFFFF_FFFF
"""This number ends the reader."""
MARKS = 400
BATCH = 20
_TIMERSLACK = 29


def read_marks(fd: int, poll_us: int) -> None:
    """Runs in the other process: prints all numbers that it sees, with their times, when the last one is there."""
    ctypes.CDLL(None).prctl(_TIMERSLACK, 1000, 0, 0, 0)  # a sleep is otherwise 50 us longer
    words = SharedPage(fd).words
    seen: list[tuple[int, int]] = []
    rests, now = 0, 0
    print("ready", flush=True)
    began_ns = time.monotonic_ns()
    while now != LAST:
        if poll_us:
            time.sleep(poll_us / 1e6)
        rests += 1
        if words[PROGRESS] != now:
            now = words[PROGRESS]
            seen.append((now, time.monotonic_ns()))
    period_us = (time.monotonic_ns() - began_ns) / 1e3 / rests
    print(json.dumps({"seen": seen, "period_us": period_us}))


def measure() -> Iterator[dict[str, Any]]:
    """Tests each way of marking, and times marks between kernels of about a millisecond."""
    from benchmarks.gpu.calls import address_of
    from benchmarks.gpu.cuda import DEVICE, gpu_spec
    from pfo_fs.errors import DeviceError
    from pfo_fs.training.stream_marks import WAYS, open_stream_marks, self_test

    gpu_spec()
    for how in WAYS:
        page = SharedPage.create()
        try:
            marks = open_stream_marks(address_of(page, PROGRESS), DEVICE, ways=[how])
        except DeviceError as error:
            yield {"what": f"self-test of {how}", "works": False, "error": str(error)}
            continue
        reason = self_test(marks, lambda: page.words[PROGRESS])  # noqa: B023
        yield {"what": f"self-test of {how}", "works": not reason, "error": reason}
        for poll_us in (0, 50, 200):
            yield {"what": f"{how}, reader looks every {poll_us} us", **_delays(marks, page, poll_us)}
        marks.close()


def _delays(marks: Any, page: SharedPage, poll_us: int) -> dict[str, Any]:
    import torch

    from benchmarks.gpu.analysis import delays_us, spread
    from benchmarks.gpu.cuda import DeviceClock, Load, make_event, matmul

    page.words[PROGRESS] = 0
    load = Load(matmul(2048), chunk_ms=1.0)
    command = [sys.executable, "-m", "benchmarks.gpu.marks", str(page.fd), str(poll_us)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    reader = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, pass_fds=[page.fd], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}
    )
    assert reader.stdout is not None
    try:
        if reader.stdout.readline() != "ready\n":
            raise RuntimeError("the reader did not start; its error is above")
        clock = DeviceClock()
        events: list[tuple[int, Any]] = []
        for number in range(1, MARKS + 1):
            for _ in range(load.pieces):
                load.work()
            event = make_event()
            event.record()
            marks.write(number)
            events.append((number, event))
            if number % BATCH == 0:
                torch.cuda.synchronize()
        clock.anchor()
        time.sleep(0.005)  # until the reader has seen the number before the last one
        marks.write(LAST)
        torch.cuda.synchronize()
        found = json.loads(reader.communicate(timeout=20)[0])
    finally:
        reader.kill()
        reader.wait()
    recorded = [(number, clock.host_ns(event)) for number, event in events]
    delays, unseen = delays_us(recorded, [(number, at_ns) for number, at_ns in found["seen"]])
    numbers = [number for number, _ in found["seen"]]
    return {
        "marks": len(events),
        "unseen": unseen,
        "in_order": numbers == sorted(numbers),
        "delay_us": spread(delays),
        "looked_every_us": found["period_us"],
        "clock_uncertainty_us": clock.uncertainty_us,
    }


if __name__ == "__main__":
    read_marks(int(sys.argv[1]), int(sys.argv[2]))
