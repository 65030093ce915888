"""What a clock change costs in a job, from the reports of its clock processes."""

from __future__ import annotations

import math

import pytest

from pfo_fs.autotune.measured_switching import measured_switching
from pfo_fs.models import ProfilingResult, RankInfo, Switching


def info(rank: int, pp_rank: int, dp_rank: int = 0, tp_rank: int = 0) -> RankInfo:
    return RankInfo(rank=rank, dp_rank=dp_rank, pp_rank=pp_rank, tp_rank=tp_rank, available_frequencies=[1410, 900])


def result(rank: int, switching: Switching | None, seconds: float = 0.1) -> ProfilingResult:
    return ProfilingResult(
        rank=rank, iter_time=[1.0], iter_energy=[1.0], time_breakdown={"forward": [[seconds]]}, switching=switching
    )


def report(**values: object) -> Switching:
    return Switching.model_validate({"mode": "device", "call_s": 0.005, "gpus": 1, **values})


def test_without_reports_nothing_is_known() -> None:
    assert measured_switching([result(0, None)], [info(0, 0)]) is None


def test_clocks_that_have_never_changed_have_an_assumed_price() -> None:
    found = measured_switching([result(0, report(call_s=None))], [info(0, 0)])
    assert found is not None
    assert found.driver_time_s == 0.005
    assert found.latency_s == 0.02


def test_clocks_of_which_one_does_not_follow_the_device_have_no_price() -> None:
    results = [result(0, report()), result(1, report(mode="launch"))]
    assert measured_switching(results, [info(0, 0), info(1, 1)]) is None


def test_tensor_parallel_ranks_of_a_host_change_together_and_keep_its_driver_busy_for_all_their_calls() -> None:
    infos = [info(rank, rank // 8, tp_rank=rank % 8) for rank in range(16)]
    found = measured_switching([result(rank, report(gpus=8)) for rank in range(16)], infos)
    assert found is not None
    assert found.calls == 8
    assert found.driver_time_s == pytest.approx(0.04)
    assert found.hosts_of(2) == [[0], [1]]


def test_stages_on_one_host_share_its_driver() -> None:
    infos = [info(rank, rank) for rank in range(8)]
    found = measured_switching([result(rank, report(gpus=4)) for rank in range(8)], infos)
    assert found is not None
    assert found.calls == 1
    assert found.hosts_of(8) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_slowest_call_and_the_lowest_limit_of_calls_count() -> None:
    reports = [report(call_s=0.004), report(call_s=0.006, max_calls_per_s=50.0), report()]
    found = measured_switching(
        [result(rank, each) for rank, each in enumerate(reports)], [info(n, n) for n in range(3)]
    )
    assert found is not None
    assert found.driver_time_s == pytest.approx(0.006)
    assert found.max_calls_per_s == 50.0
    free = measured_switching([result(0, report())], [info(0, 0)])
    assert free is not None
    assert math.isinf(free.max_calls_per_s)


def test_a_clock_whose_latency_is_unknown_counts_with_the_median_of_the_others() -> None:
    found = measured_switching([result(0, report(latencies_s={1410: 0.08}))], [info(0, 0)])
    assert found is not None
    assert found.latencies_s[900] == 0.08
    unknown = measured_switching([result(0, report())], [info(0, 0)])
    assert unknown is not None
    assert unknown.latencies_s == {}


def test_ranks_that_say_on_which_host_they_are_share_a_driver_with_the_ranks_there_only() -> None:
    """Two jobs of one user with four GPUs each share each host: the clock processes see eight GPUs."""
    infos = [info(rank, rank).model_copy(update={"host": f"node{rank // 4}"}) for rank in range(8)]
    found = measured_switching([result(rank, report(gpus=8)) for rank in range(8)], infos)
    assert found is not None
    assert found.hosts_of(8) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_hosts_are_told_by_name_also_where_ranks_are_placed_round_robin() -> None:
    infos = [
        info(rank, rank // 2, dp_rank=rank % 2).model_copy(update={"host": f"node{rank % 2}"}) for rank in range(4)
    ]
    found = measured_switching([result(rank, report(gpus=2)) for rank in range(4)], infos)
    assert found is not None
    assert found.calls == 1
    assert found.hosts_of(2) == [[0, 1]]
