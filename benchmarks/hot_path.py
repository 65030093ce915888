"""What an instruction's begin + end costs the training thread, and how late the clock is set: Zeus 0.16 and pfo-fs.

    python benchmarks/hot_path.py [--json FILE] [--calls N] [--rounds N]

Needs `pip install -e '.[benchmark]'`; no GPU: on both sides the device is a stand-in that writes down each call with
its time. Zeus runs its own `PipelineFrequencyOptimizer.on_instruction_begin/end` and its own `FrequencyController`,
thread and child process included; only `get_gpus` and `sync_execution` are replaced, and the HTTP server is left out.
Ours is `InstructionTracker` with the real clock process; `PFOFileOptimizer.on_instruction_begin/end` are the tracker's.

Each measurement runs in a process of its own. Every instruction has another clock than the one before. The lag is from
the call to the clock being set; a clock that is overtaken by a newer one counts as set when the newer one is. CPU per
call is what the calls take in the training thread, plus all other threads and the child process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import _common as common

STEP = 192  # instructions of a step: 96 micro-batches, forward and backward


class Situation(NamedTuple):
    """How training behaves between two instructions."""

    title: str
    apart_s: float
    sleeping: bool
    share: float  # of the calls asked for


SITUATIONS = {
    "back_to_back": Situation("calls back to back", 0.0, False, 1.0),
    "0.2ms_busy": Situation("0.2 ms apart, Python busy", 0.0002, False, 0.2),
    "1ms_busy": Situation("1 ms apart, Python busy", 0.001, False, 0.05),
    "1ms_sleeping": Situation("1 ms apart, sleeping", 0.001, True, 0.05),
}
SYSTEMS = {"zeus": "Zeus 0.16", "ours": "pfo-fs", "ours_measuring": "pfo-fs, measuring"}


def schedule() -> list[tuple[str, int]]:
    """Returns one step in 1F1B order, each clock different from its neighbours', the last from the first's."""
    names = ["forward"] * 8 + ["backward", "forward"] * 88 + ["backward"] * 8
    return [(name, 900 + 15 * (i % 2) + 30 * (name == "forward")) for i, name in enumerate(names)]


# ---- the two sides


class Side(NamedTuple):
    """One system under test."""

    begin: Callable[[str], None]
    end: Callable[[str], None]
    step_begin: Callable[[int], None]
    step_end: Callable[[], None]
    child_pid: int
    log: Path
    close: Callable[[], None]


def zeus_side(folder: Path) -> Side:
    """Zeus's own code on a stand-in device."""
    from zeus.optimizer.pipeline_frequency import frequency_controller, optimizer

    from pfo_fs.device.gpu.interface import ActionLog

    log_path = folder / "zeus.log"

    class StandIn:
        def __init__(self) -> None:
            self.log = ActionLog(str(log_path))

        def get_supported_memory_clocks(self, _: int) -> list[int]:
            return [1593]

        def get_supported_graphics_clocks(self, *_: int) -> list[int]:
            return list(range(210, 1411, 15))

        def set_gpu_locked_clocks(self, _: int, low: int, __: int) -> None:
            self.log.write("lock", low)

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *args: None

    frequency_controller.get_gpus = StandIn  # type: ignore[assignment]
    optimizer.sync_execution = lambda *args, **kwargs: None  # type: ignore[assignment]
    zeus = object.__new__(optimizer.PipelineFrequencyOptimizer)
    zeus.device_id = 0
    zeus.frequency_controller = frequency_controller.FrequencyController(device_id=0)
    zeus.freq_schedule = schedule()
    zeus.freq_schedule_iter = iter(zeus.freq_schedule)
    process = zeus.frequency_controller._proc

    def close() -> None:
        zeus.frequency_controller.end()
        process.join(20)
        if process.is_alive():
            process.kill()

    return Side(
        zeus.on_instruction_begin,
        zeus.on_instruction_end,
        lambda step: zeus.on_step_begin(),
        zeus.on_step_end,
        int(process.pid or 0),
        log_path,
        close,
    )


def our_side(folder: Path, *, measuring: bool) -> Side:
    """The tracker and the clock process on a simulated GPU."""
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.device.shared_page import MEASURED_NUMBER
    from pfo_fs.training.instruction_tracker import InstructionTracker

    os.environ["PFO_FS_SIM_DIR"] = str(folder)
    clocks = ClockProcess("simulated:bench")
    assert not clocks.message, clocks.message

    def fail(position: int, expected: str, got: str) -> None:
        raise AssertionError((position, expected, got))

    tracker = InstructionTracker(clocks, profile_steps=10**6, on_mismatch=fail)
    tracker.set_schedule(schedule())

    def step_begin(step: int) -> None:
        # A new schedule number every step never gets its result, so measuring goes on; number 0 is marked as done.
        number = 1 + step if measuring else 0
        if not measuring:
            clocks.words[MEASURED_NUMBER] = 0
        tracker.step_begin(step, number)

    assert clocks.pid is not None
    log = folder / "bench.log"
    return Side(tracker.begin, tracker.end, step_begin, tracker.step_end, clocks.pid, log, clocks.close)


# ---- one measurement, in its own process


def cpu_ns(pid: int | str, leave_out: int = 0) -> int:
    """Returns the CPU time of a process's threads but one, in nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) != leave_out:
            total += int((task / "schedstat").read_text().split()[0])
    return total


def pause(situation: Situation) -> None:
    """What training does between two calls."""
    if situation.sleeping:
        time.sleep(situation.apart_s)
    elif situation.apart_s:
        until = time.perf_counter() + situation.apart_s
        while time.perf_counter() < until:
            pass


def drive(side: Side, situation: Situation, steps: int) -> dict[str, Any]:
    """Runs the steps; returns costs per call and the times at which clocks were asked for."""
    order = [name for name, _ in schedule()]
    begin, end, now, cpu = side.begin, side.end, time.monotonic_ns, time.thread_time_ns
    costs: list[int] = []
    calls: list[int] = []
    cpu_ns = 0
    for step in range(steps):
        side.step_begin(step)
        for name in order:
            if situation.apart_s:
                pause(situation)
                cpu_ns -= cpu()
            t0 = now()
            begin(name)
            end(name)
            t1 = now()
            if situation.apart_s:
                cpu_ns += cpu()
            calls.append(t0)
            costs.append(t1 - t0)
        side.step_end()
    if situation.apart_s:
        for _ in calls:  # what reading the clocks costs
            cpu_ns += cpu()
            now()
            now()
            cpu_ns -= cpu()
    else:
        cpu_ns = sum(costs)  # back to back, reading a thread's CPU clock would take longer than the call
    return {"costs": costs, "calls": calls, "cpu_ns": max(0, cpu_ns)}


def wait_until_quiet(path: Path, limit_s: float = 30.0) -> None:
    """Waits until a log has not grown for half a second."""
    until, size = time.monotonic() + limit_s, -1
    while time.monotonic() < until:
        before, size = size, path.stat().st_size if path.exists() else 0
        if size == before > 0:
            return
        time.sleep(0.5)


def measure(system: str, key: str, calls: int) -> dict[str, Any]:
    """One system in one situation."""
    situation = SITUATIONS[key]
    steps = max(3, round(calls * situation.share / STEP))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        side = zeus_side(folder) if system == "zeus" else our_side(folder, measuring=system == "ours_measuring")
        drive(side, SITUATIONS["back_to_back"], 5)
        wait_until_quiet(side.log)
        own = threading.get_native_id()
        child_before, others_before = cpu_ns(side.child_pid), cpu_ns("self", own)
        begin_ns = time.monotonic_ns()
        driven = drive(side, situation, steps)
        wait_until_quiet(side.log)
        child_ns = cpu_ns(side.child_pid) - child_before
        others_ns = cpu_ns("self", own) - others_before
        sets = [json.loads(line) for line in side.log.read_text().splitlines()]
        side.close()
    set_ns = [entry["t_ns"] for entry in sets if entry["t_ns"] > begin_ns]
    lags = lags_ns(driven["calls"], set_ns, in_order=system == "zeus")
    count = len(driven["calls"])
    own_ns = driven["cpu_ns"]
    return {
        "system": system,
        "situation": key,
        "calls": count,
        "clock_changes_made": len(set_ns),
        "cost_us": percentiles(driven["costs"], 1e3),
        "lag_ms": percentiles(lags, 1e6),
        "cpu_us_per_call": {
            "training_thread": own_ns / count / 1e3,
            "other_threads": others_ns / count / 1e3,
            "child": child_ns / count / 1e3,
            "all": (own_ns + others_ns + child_ns) / count / 1e3,
        },
    }


def lags_ns(calls: list[int], set_ns: list[int], *, in_order: bool) -> list[int]:
    """Returns the time from each call until its clock, or a newer one, was set.

    Zeus sets every clock in order, so its k-th change answers the k-th call; we set the newest, so the first change
    after a call answers it.
    """
    if in_order:
        return [made - asked for asked, made in zip(calls, set_ns, strict=False)]
    places = (bisect_left(set_ns, asked) for asked in calls)
    return [set_ns[place] - asked for asked, place in zip(calls, places, strict=True) if place < len(set_ns)]


def percentiles(values: list[int], unit: float) -> dict[str, float]:
    """Returns median, 99th percentile and maximum in a unit of this many nanoseconds."""
    ranked = sorted(values)
    last = len(ranked) - 1
    return {
        "median": ranked[last // 2] / unit,
        "p99": ranked[round(last * 0.99)] / unit,
        "max": ranked[last] / unit,
    }


# ---- all of them


def run_worker(system: str, key: str, calls: int) -> dict[str, Any]:
    """Measures in a fresh process."""
    command = [sys.executable, __file__, "--worker", system, key, "--calls", str(calls)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def middle_round(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median over rounds of each figure."""
    result = dict(rounds[0])
    for group in ("cost_us", "lag_ms", "cpu_us_per_call"):
        result[group] = {key: sorted(one[group][key] for one in rounds)[len(rounds) // 2] for key in rounds[0][group]}
    result["rounds"] = len(rounds)
    return result


def show(results: list[dict[str, Any]]) -> None:
    """Prints the table."""
    rows = []
    for result in results:
        cost, lag, cpu = result["cost_us"], result["lag_ms"], result["cpu_us_per_call"]
        rows.append(
            [
                f"{SITUATIONS[result['situation']].title}: {SYSTEMS[result['system']]}",
                *(f"{cost[key]:.2f}" for key in ("median", "p99")),
                *(f"{lag[key]:.3f}" for key in ("median", "p99", "max")),
                *(f"{cpu[key]:.1f}" for key in ("training_thread", "other_threads", "child", "all")),
            ]
        )
    columns = ["", "cost us\nmedian", "\np99", "lag ms\nmedian", "\np99", "\nmax"]
    columns += ["CPU us/call\nthread", "\nothers", "\nchild", "\nall"]
    common.show("begin + end of one instruction", columns, rows, width=130)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--calls", type=int, default=100_032, help="calls back to back; other situations take a share")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, of which the median is shown")
    parser.add_argument("--only", nargs="*", choices=list(SITUATIONS), default=list(SITUATIONS))
    parser.add_argument("--worker", nargs=2, metavar=("SYSTEM", "SITUATION"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(measure(*given.worker, given.calls)))
        return
    results = []
    for key in given.only:
        rounds: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS}
        for _ in range(given.rounds):
            for system in SYSTEMS:  # side by side, so that a slow minute of the machine meets all of them
                rounds[system].append(run_worker(system, key, given.calls))
        results += [middle_round(rounds[system]) for system in SYSTEMS]
        print(f"measured: {SITUATIONS[key].title}", file=sys.stderr)
    show(results)
    common.write_json(given.json, common.machine(), results)


if __name__ == "__main__":
    main()
