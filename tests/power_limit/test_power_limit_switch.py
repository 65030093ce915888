"""`pfo-fs off --all` holds power-limit optimizers: the earlier limits are restored, and nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from power_limit_fakes import FakeGpu, FakeMonitor, limits_set
from running import wait_for
from typer.testing import CliRunner

from pfo_fs.cli import app
from pfo_fs.device.metering.reporter import Reporter
from pfo_fs.ipc.messages import ProgressReport
from pfo_fs.power_limit import Energy, EnergyMonitor, GlobalPowerLimitOptimizer
from pfo_fs.power_limit.rank_gpus import RankGpus
from pfo_fs.power_limit.states import Done
from pfo_fs.reports.status import collect_status
from pfo_fs.store import SharedDirectory


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> tuple[RankGpus, FakeGpu]:
    gpu = FakeGpu()
    monkeypatch.setattr("pfo_fs.power_limit.rank_gpus.gpus_of", lambda *_: [gpu])
    return RankGpus(FakeMonitor(lambda: (1.0, 2.0))), gpu


def test_while_off_no_level_is_set_and_the_newest_one_is_after_that(gpus: tuple[RankGpus, FakeGpu]) -> None:
    rank, gpu = gpus
    rank.set_level(300)
    rank.hold(True)
    rank.set_level(250)
    rank.hold(True)
    assert (gpu.levels, gpu.given_back) == ([300], 1)
    rank.hold(False)
    assert (gpu.levels, gpu.given_back) == ([300, 250], 1)


@pytest.mark.parametrize("held_at", ["before", "in", "after"])
def test_a_window_with_a_step_at_another_level_says_so(gpus: tuple[RankGpus, FakeGpu], held_at: str) -> None:
    rank, _ = gpus
    if held_at == "before":
        rank.hold(True)
    rank.begin_window(300)
    if held_at == "in":
        rank.hold(True)
        rank.hold(False)
    window = rank.end_window()
    if held_at == "after":
        rank.hold(True)
    assert bool(window.dropped) == (held_at != "after")


def test_a_clock_process_that_counts_no_steps_gives_a_sign_of_life_or_the_job_would_count_as_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr("pfo_fs.device.metering.reporter.time", SimpleNamespace(monotonic=lambda: now.s))
    reporter = Reporter("of a scheduled job", 0, "token")

    def takes(at_s: float) -> bool:
        now.s = at_s
        return reporter.progress(ProgressReport(step=-1, number=-1))

    assert [takes(at_s) for at_s in (0.0, 100.0)] == [True, False]
    reporter.start("of a job with a power limit", 0, "token")
    assert [takes(at_s) for at_s in (110.0, 130.0, 172.0, 173.0)] == [True, False, True, False]


@pytest.mark.slow
def test_off_restores_the_limits_of_a_running_job_and_on_sets_them_again(sim_dir: Path, tmp_path: Path) -> None:
    monitor = EnergyMonitor(specs=["simulated:a"])
    kernels = monitor.simulated_kernels(time_scale=20)
    options: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 1, "pl_step": 100}
    with GlobalPowerLimitOptimizer(monitor, Energy(), shared_dir=tmp_path / "pfo", **options) as optimizer:

        def step_until(condition: Callable[[], bool]) -> None:
            def one() -> bool:
                optimizer.on_step_begin()
                kernels.run("forward")
                optimizer.on_step_end()
                return condition()

            wait_for(one)

        def switch(*arguments: str) -> dict[str, Any]:
            result = CliRunner().invoke(app, [*arguments, "-d", str(tmp_path / "pfo"), "--wait", "--json"])
            assert result.exit_code == 0, result.output
            (job,) = json.loads(result.output)["jobs"]
            return cast("dict[str, Any]", job)

        step_until(lambda: isinstance(optimizer.state, Done))
        chosen, before = limits_set(sim_dir)[-1], max(limits_set(sim_dir))
        assert chosen < before
        told = CliRunner().invoke(app, ["target", "latest", "--slowdown", "1.1", "-d", str(tmp_path / "pfo")])
        assert (told.exit_code, "the job sets one power limit itself" in told.output) == (3, True)
        job = switch("off", "--all")  # no step begins meanwhile: the clock processes follow by themselves
        assert (job["held_ranks"], job["ranks"]) == ([0], 1)
        assert limits_set(sim_dir)[-1] == before
        step_until(lambda: True)
        assert limits_set(sim_dir)[-1] == before
        assert switch("on", "--all")["held_ranks"] == []
        step_until(lambda: limits_set(sim_dir)[-1] == chosen)
        assert switch("off", job["job_id"])["held_ranks"] == [0]
    shared = SharedDirectory.open(tmp_path / "pfo")
    wait_for(lambda: collect_status(shared).jobs[0].state == "ended", what="the job's end")
    (row,) = collect_status(shared).jobs
    assert row.job is not None
    assert (row.job.coordination, row.job.scheduler, row.last_error) == ("none", "power_limit", "")
    monitor.close()
