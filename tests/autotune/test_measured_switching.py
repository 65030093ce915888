"""What a clock change costs in a job, from the reports of its clock processes."""

import math
from functools import partial

import pytest
from jobs import rank_infos

from pfo_fs.autotune.samples import measured_switching
from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import SwitchCosts

infos_of = partial(rank_infos, clocks=[1410, 900])


def report(**values: object) -> Switching:
    return Switching.model_validate({"mode": "device", "call_s": 0.005, "gpus": 1, **values})


def costs(reports: list[Switching | None], infos: list[RankInfo]) -> SwitchCosts | None:
    measured = {"iter_time": [1.0], "iter_energy": [1.0], "time_breakdown": {"forward": [[0.1]]}}
    results = [ProfilingResult(rank=rank, switching=each, **measured) for rank, each in enumerate(reports)]
    return measured_switching(results, infos)


@pytest.mark.parametrize("reports", [[None, None], [report(), report(mode="launch")]])
def test_where_clocks_of_a_rank_do_not_follow_the_device_changes_have_no_price(reports: list[Switching | None]) -> None:
    assert costs(reports, infos_of(2)) is None


def test_clocks_that_have_never_changed_have_an_assumed_price() -> None:
    found = costs([report(call_s=None)], infos_of(1))
    assert (found.driver_time_s, found.latency_s, found.latencies_s) == (0.005, 0.02, {})


def host(rank_info: RankInfo, number: int) -> RankInfo:
    return rank_info.model_copy(update={"host": f"node{number}"})


@pytest.mark.parametrize(
    ("infos", "gpus", "calls", "hosts"),
    [
        (infos_of(2, tp=8), 8, 8, [[0], [1]]),
        (infos_of(8), 4, 1, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([host(info, info.rank // 4) for info in infos_of(8)], 8, 1, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([host(info, info.dp_rank) for info in infos_of(2, dp=2)], 2, 1, [[0, 1]]),
    ],
    ids=["tensor parallelism", "stages on a host", "two jobs of one user share hosts", "placed round-robin"],
)
def test_ranks_of_a_host_share_its_driver(infos: list[RankInfo], gpus: int, calls: int, hosts: list[list[int]]) -> None:
    found = costs([report(gpus=gpus)] * len(infos), infos)
    assert found.calls == calls
    assert found.driver_time_s == pytest.approx(0.005 * calls)
    assert found.hosts_of(1 + max(each.pp_rank for each in infos)) == hosts


def test_the_slowest_call_and_the_lowest_limit_of_calls_count() -> None:
    reports: list[Switching | None] = [report(call_s=0.004), report(call_s=0.006, max_calls_per_s=50.0), report()]
    found = costs(reports, infos_of(3))
    assert found.driver_time_s == pytest.approx(0.006)
    assert found.max_calls_per_s == 50.0
    assert math.isinf(costs([report()], infos_of(1)).max_calls_per_s)


def test_a_clock_whose_latency_is_unknown_counts_with_the_median_of_the_others() -> None:
    assert costs([report(latencies_s={1410: 0.08})], infos_of(1)).latencies_s[900] == 0.08
