"""The durations of a job's latest iterations, as they would be at the highest clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

from pfo_fs.autotune.instruction_runs import numbered_iterations, steps_of
from pfo_fs.models import RankInfo
from pfo_fs.reports.collect import JobData, Window, results_of
from pfo_fs.reports.forecast import Forecast

Array = Any
"""An array of numpy, which is not typed here."""

LEAST_STEPS = 10
"""The fewest iterations from which loads are learned."""
_STEPS, _MOST_VALUES = 60, 2_000_000
"""The latest 60 iterations are read, as many as clocks from loads learn from, or fewer with more than two million
durations; but always ten."""


def recorded_steps(data: JobData, forecast: Forecast | None) -> list[Array]:
    """Returns durations in s, (nodes, pipelines), of the latest iterations that all pipelines recorded.

    Nodes are in the order of the ranks' instructions. Empty if pipelines run different instructions, or if ranks are
    missing.

    Args:
        data: The job.
        forecast: Its model, which says how durations follow the clock; without it, only those at the highest clock
            count.
    """
    pipelines = _pipelines(data)
    per_step = sum(len(data.orders[info.rank]) for info in pipelines[0]) * len(pipelines) if pipelines else 0
    if not per_step:
        return []
    found: list[Array] = []
    most = max(LEAST_STEPS, min(_STEPS, _MOST_VALUES // per_step))
    for window in reversed(data.windows):
        if window.measured is not None and len(found) < most:
            found += islice(_of_window(data, window, pipelines, forecast), most - len(found))
    return found


def _pipelines(data: JobData) -> list[list[RankInfo]]:
    """The first rank of each stage, by pipeline; empty if one is missing, or runs something else than its stage."""
    job = data.job.job_info
    place = {
        (info.dp_rank, info.pp_rank): info for info in data.infos if info.tp_rank == 0 and info.rank in data.orders
    }
    if len(place) < job.dp_degree * job.pp_degree:
        return []
    found = [[place[dp, pp] for pp in range(job.pp_degree)] for dp in range(job.dp_degree)]
    orders = [[data.orders[info.rank] for info in infos] for infos in found]
    return found if all(order == orders[0] for order in orders) else []


def _of_window(
    data: JobData, window: Window, pipelines: Sequence[Sequence[RankInfo]], forecast: Forecast | None
) -> Iterator[Array]:
    """The iterations of one window, the latest first; none if durations at its clocks cannot be compared."""
    import numpy as np

    results = results_of(data, window.number, [info for infos in pipelines for info in infos])
    columns: list[dict[int, list[float]]] = []
    for infos in pipelines:
        by_step: list[dict[int, list[float]]] = []
        for info in infos:
            if info.rank not in results:
                return
            result, ran = results[info.rank].result, data.entries(info.rank, window)
            longer = [_longer(info, name, stage, forecast) for name, stage, _ in ran]
            steps, rows = steps_of(result), {}
            for number, runs in numbered_iterations(result, ran):
                clocks = [run.clock_mhz or mhz for run, (_, _, mhz) in zip(runs, ran, strict=True)]
                rows[steps[number]] = [run.time_s / at(mhz) for run, at, mhz in zip(runs, longer, clocks, strict=True)]
            by_step.append(rows)
        common = set.intersection(*map(set, by_step))
        columns.append({step: [time_s for rows in by_step for time_s in rows[step]] for step in common})
    for step in sorted(set.intersection(*map(set, columns)), reverse=True):
        times_s: Array = np.array([column[step] for column in columns]).T
        if np.isfinite(times_s).all() and (times_s > 0).all():
            yield times_s


def _longer(info: RankInfo, name: str, stage: int, forecast: Forecast | None) -> Callable[[int], float]:
    """From a clock to how many times as long an instruction takes as at the highest one; NaN: that is not known."""
    import numpy as np

    top_mhz = max(info.available_frequencies, default=0)
    rows = forecast.wide.profile.measurements.get((stage, name), ()) if forecast is not None else ()
    clocks, times_s = [row.frequency_mhz for row in rows[::-1]], [row.time_s for row in rows[::-1]]

    @cache
    def times_longer(mhz: int) -> float:
        if mhz in (0, top_mhz):
            return 1.0
        return float(np.interp(mhz, clocks, times_s, left=np.nan)) / times_s[-1] if rows else math.nan

    return times_longer
