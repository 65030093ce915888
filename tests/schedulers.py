"""Schedulers that daemons under test load by `schedulers:Name`."""

from __future__ import annotations

import os
import signal
import threading
import time

from running import HANGS_AFTER_S

from pfo_fs.models import MAX_INSTRUCTIONS, FrequencySchedule
from pfo_fs.scheduler import FrequencyScheduler, ScheduleGenerator, ScheduleRequest


def at(mhz: int, scheduler: FrequencyScheduler, *names: str) -> list[FrequencySchedule]:
    """All instructions of all ranks at one clock."""
    clocks = [(name, mhz) for name in names or ("forward",)]
    return [FrequencySchedule(rank=info.rank, frequencies=clocks) for info in scheduler.rank_infos]


class ThreeSteps(FrequencyScheduler):
    """Yields three schedules; each depends on the results of all before."""

    def _run(self) -> ScheduleGenerator:
        mhz = 1410
        for _ in range(3):
            results = yield at(mhz, self, "forward", "backward")
            mhz -= 15 * round(max(result.iter_time[0] for result in results))


class LongSchedules(FrequencyScheduler):
    """Seven of the longest schedules, all different."""

    def _run(self) -> ScheduleGenerator:
        yield [FrequencySchedule(rank=rank, frequencies=[("forward", rank)] * MAX_INSTRUCTIONS) for rank in range(7)]


class Thoughtful(FrequencyScheduler):
    """Plans, for jobs that say so in their metadata, until a file is there."""

    def _run(self) -> ScheduleGenerator:
        if self.job_info.job_metadata == "think":
            while not os.path.exists(os.environ["THOUGHT_THROUGH"]):
                time.sleep(0.01)
        yield at(1200, self)


class FollowsStraggler(FrequencyScheduler):
    """900 MHz while a straggler is announced, else 1200."""

    def _run(self) -> ScheduleGenerator:
        while True:
            yield []

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        mhz = 900 if self.plan_inputs.straggler else 1200
        return ScheduleRequest(at(mhz, self, "forward", "backward"))


class SlowFirst(FrequencyScheduler):
    """The first one that is made plans until it is let go; all others answer at once."""

    made: list[SlowFirst] = []  # noqa: RUF012
    go_on = threading.Event()

    def _run(self) -> ScheduleGenerator:
        SlowFirst.made.append(self)
        if len(SlowFirst.made) == 1:
            SlowFirst.go_on.wait(HANGS_AFTER_S)
        yield at(1200, self)


class Misbehaves(FrequencyScheduler):
    """Takes what it can get as soon as it has results: the job's metadata say of what."""

    def _run(self) -> ScheduleGenerator:
        yield at(1200, self)
        takes = self.job_info.job_metadata
        if takes == "memory":
            held = []
            while True:
                held.append(bytearray(1 << 20))
        while takes == "processor time":
            pass
        if takes == "time":
            time.sleep(600)
        if takes == "a signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        if takes == "the process":
            os._exit(3)
        if takes == "an exit":
            raise SystemExit("as asked")
        if takes == "an error":
            raise ZeroDivisionError("as asked")
        yield at(1005, self)
