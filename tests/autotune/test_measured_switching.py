"""What a clock change costs in a job, from the reports of its clock processes."""

import math

import pytest

from pfo_fs.autotune.samples import measured_switching
from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import SwitchCosts


def info(rank: int, pp_rank: int, dp_rank: int = 0, tp_rank: int = 0) -> RankInfo:
    return RankInfo(rank=rank, dp_rank=dp_rank, pp_rank=pp_rank, tp_rank=tp_rank, available_frequencies=[1410, 900])


def report(**values: object) -> Switching:
    return Switching.model_validate({"mode": "device", "call_s": 0.005, "gpus": 1, **values})


def costs(reports: list[Switching | None], infos: list[RankInfo]) -> SwitchCosts | None:
    measured = {"iter_time": [1.0], "iter_energy": [1.0], "time_breakdown": {"forward": [[0.1]]}}
    results = [ProfilingResult(rank=rank, switching=each, **measured) for rank, each in enumerate(reports)]
    return measured_switching(results, infos)


@pytest.mark.parametrize("reports", [[None, None], [report(), report(mode="launch")]])
def test_where_clocks_of_a_rank_do_not_follow_the_device_changes_have_no_price(reports: list[Switching | None]) -> None:
    assert costs(reports, [info(0, 0), info(1, 1)]) is None


def test_clocks_that_have_never_changed_have_an_assumed_price() -> None:
    found = costs([report(call_s=None)], [info(0, 0)])
    assert (found.driver_time_s, found.latency_s, found.latencies_s) == (0.005, 0.02, {})


def host(rank_info: RankInfo, number: int) -> RankInfo:
    return rank_info.model_copy(update={"host": f"node{number}"})


@pytest.mark.parametrize(
    ("infos", "gpus", "calls", "hosts"),
    [
        ([info(rank, rank // 8, tp_rank=rank % 8) for rank in range(16)], 8, 8, [[0], [1]]),
        ([info(rank, rank) for rank in range(8)], 4, 1, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([host(info(rank, rank), rank // 4) for rank in range(8)], 8, 1, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([host(info(rank, rank // 2, dp_rank=rank % 2), rank % 2) for rank in range(4)], 2, 1, [[0, 1]]),
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
    found = costs(reports, [info(n, n) for n in range(3)])
    assert found.driver_time_s == pytest.approx(0.006)
    assert found.max_calls_per_s == 50.0
    assert math.isinf(costs([report()], [info(0, 0)]).max_calls_per_s)


def test_a_clock_whose_latency_is_unknown_counts_with_the_median_of_the_others() -> None:
    assert costs([report(latencies_s={1410: 0.08})], [info(0, 0)]).latencies_s[900] == 0.08
