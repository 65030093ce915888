"""The generator that `observe` and `next_schedule` drive."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from scheduler_jobs import make_job, result_of, schedule_of

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule
from pfo_fs.scheduler import FrequencyScheduler, ScheduleGenerator, ScheduleRequest
from pfo_fs.settings import PFOSettings


class Descending(FrequencyScheduler):
    """Two schedules, then the end; remembers what it was told."""

    def _run(self) -> ScheduleGenerator:
        self.heard = []
        for mhz in (1200, 900):
            results = yield [schedule_of(info.rank, ["forward"], lambda _, mhz=mhz: mhz) for info in self.rank_infos]
            self.heard.append([result.rank for result in results])


def make(cls: type[FrequencyScheduler], **args: Any) -> Any:
    job, infos = make_job(pp=2)
    return cls(job, list(reversed(infos)), PFOSettings(), **args)


def clocks(scheduler: FrequencyScheduler) -> list[int]:
    return [schedule.frequencies[0][1] for schedule in scheduler.next_schedule()]


class Overridden(Descending):
    """Zeus's other style."""

    def next_schedule(self) -> list[FrequencySchedule]:
        return []


class Silent(FrequencyScheduler):
    def _run(self) -> ScheduleGenerator:
        if self.world_size > 100:
            yield []


class Wrong(FrequencyScheduler):
    def __init__(self, *args: Any, yields: Any) -> None:
        super().__init__(*args)
        self.yields = yields

    def _run(self) -> ScheduleGenerator:
        yield self.yields


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: make(Overridden), r"Overridden overrides next_schedule\(\).*_run"),  # nothing would be published
        (lambda: make(Descending).observe([result_of(0)]), r"Descending: observe\(\) before request\(\).* 1 results"),
        (lambda: make(Silent).next_schedule(), r"Silent\._run ended before its first `yield`"),
        *(
            (lambda wrong=wrong: make(Wrong, yields=wrong).next_schedule(), r"_run yielded .* must yield a list of Fre")
            for wrong in (None, 7, [("forward", 1200)], {"rank": 0})
        ),
    ],
)
def test_a_scheduler_that_is_wrong_or_used_wrongly_says_how(use: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        use()


def test_a_generator_gets_results_by_rank_and_its_last_schedule_stays_in_force_when_it_has_ended() -> None:
    scheduler = make(Descending)
    seen = [scheduler.done]
    assert [info.rank for info in scheduler.rank_infos] == [0, 1]
    for expected in (1200, 900, 900, 900):
        assert clocks(scheduler) == clocks(scheduler) == [expected, expected]
        scheduler.observe([result_of(1), result_of(0)])
        seen.append(scheduler.done)
    assert seen == [False, False, True, True, True]
    assert scheduler.heard == [[0, 1]] * 2, "results after the end are not looked at"


# ---- what must be published


class Asking(FrequencyScheduler):
    """Yields what it was given, one after another."""

    def __init__(self, *args: Any, yields: list[Any]) -> None:
        super().__init__(*args)
        self.yields = yields
        self.heard: list[list[int]] = []

    def _run(self) -> ScheduleGenerator:
        for one in self.yields:
            results = yield one
            self.heard.append([result.rank for result in results])


AT_1200 = [FrequencySchedule(rank=0, frequencies=[("forward", 1200)])]


@pytest.mark.parametrize("yielded", [AT_1200, ScheduleRequest(AT_1200, revision=7)])
def test_a_plain_list_is_a_request_to_run_and_the_revision_is_not_the_policys(yielded: Any) -> None:
    assert make(Asking, yields=[yielded]).request() == ScheduleRequest(AT_1200, "run", "", False, revision=0)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e-30, 1e30])
def test_a_result_with_a_time_that_cannot_be_does_not_reach_the_policy(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make(Asking, yields=[AT_1200])
    scheduler.request()
    scheduler.observe([result_of(0), result_of(1).model_copy(update={"iter_time": [seconds]})])  # not validated
    assert scheduler.heard == [[0]]
    assert "result of rank 1 is left out: it holds impossible values" in caplog.text
