"""The policy of the episodes."""

from __future__ import annotations

from dataclasses import replace

from pfo_fs.models import FrequencySchedule
from pfo_fs.scheduler import FrequencyScheduler, ScheduleGenerator, ScheduleRequest


class Learner(FrequencyScheduler):
    """Measures three windows, then runs; its clocks depend on all results so far and on the target."""

    observed_twice: list[str] = []  # noqa: RUF012

    def _run(self) -> ScheduleGenerator:
        seen: list[tuple[int, float]] = []
        while True:
            mhz = 1200 + 15 * (round(sum(time_s for _, time_s in seen)) % 10)
            clocks = [("forward", mhz), ("backward", mhz)]
            schedules = [FrequencySchedule(rank=info.rank, frequencies=clocks) for info in self.rank_infos]
            results = yield ScheduleRequest(schedules, "measure" if len(seen) < 3 * len(schedules) else "run")
            for result in results:
                key = result.rank, result.iter_time[0]
                if key in seen:
                    Learner.observed_twice.append(f"the policy observed the result {key} twice")
                seen.append(key)

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        if self.plan_inputs.target is None:
            return yielded
        slower = [
            one.model_copy(update={"frequencies": [(name, mhz - 600) for name, mhz in one.frequencies]})
            for one in yielded.schedules
        ]
        return replace(yielded, schedules=slower)
