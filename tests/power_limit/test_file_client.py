"""The profile file and the directory with the switch, which only a helper process touches."""

import errno
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import pfo_fs
from hypothesis import given
from hypothesis import strategies as st
from power_limit_fakes import FakeGpu, FakeMonitor, limits_set, make_optimizer, state_of
from replaced_calls import refuses
from running import HANGS_AFTER_S, wait_for

from pfo_fs import power_limit as pl
from pfo_fs.device.metering.reporter import Reporter
from pfo_fs.errors import PlanError
from pfo_fs.helper.power_limit_files import write_file
from pfo_fs.ipc.messages import ProgressReport
from pfo_fs.power_limit import Energy, EnergyMonitor, GlobalPowerLimitOptimizer
from pfo_fs.power_limit.file_client import FileClient
from pfo_fs.power_limit.rank_gpus import RankGpus
from pfo_fs.power_limit.states import Done
from pfo_fs.reports.status import collect_status
from pfo_fs.store import Files, OffSwitch, SharedDirectory

pytestmark = pytest.mark.usefixtures("sim_dir")
OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 1, "pl_step": 50}
NUMBERS = {300: (10.0, 3000.0), 250: (10.5, 2700.0), 200: (11.5, 2500.0), 150: (14.0, 2450.0), 100: (20.0, 2900.0)}


def make(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[pl.GlobalPowerLimitOptimizer, FakeGpu]:
    gpu = FakeGpu()
    return make_optimizer(monkeypatch, FakeMonitor(lambda: NUMBERS[gpu.levels[-1]]), gpu, **{**OPTIONS, **options})


@given(st.dictionaries(st.integers(1, 10_000), st.tuples(st.floats(1e-6, 1e12), st.floats(1e-6, 1e9)), min_size=1))
def test_a_profile_is_the_same_after_writing_and_reading(numbers: dict[int, tuple[float, float]]) -> None:
    measured = [pl.PowerLimitMeasurement(power_limit=w, energy=j, time=s) for w, (j, s) in numbers.items()]
    assert pl.parse_profile(pl.profile_text(measured), "p.json") == measured


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"^p\.json .*JSON"),
        (b"\xff\0", r"^p\.json .*JSON"),
        ('{"measurements": []}', "at least 1"),
        ('{"measurements": [{"power_limit": 0, "energy": 1, "time": 1}]}', r"measurements\.0\.power_limit"),
        ('{"measurements": [{"power_limit": 1, "energy": NaN, "time": 1}]}', "energy"),
        ('{"measurements": [{"power_limit": 1, "energy": 1}]}', "time is missing"),
        ('{"measurements": "' + "x" * (160 << 10) + '"}', "larger than 160 KiB"),
        ("[" * 100_000, "JSON"),
        ('{"measurements": [' + ", ".join(2 * ['{"power_limit": 150, "energy": 1, "time": 1}']) + "]}", "150 W twice"),
    ],
)
def test_a_malformed_profile_is_an_error_that_names_the_place(text: str | bytes, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        pl.parse_profile(text, "p.json")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('"power_limit": 450', r"450 W .* 100 to 300 W; is the profile another GPU's"),
        ('"clock": 250', "a profile of clocks, but the knob is 'power_limit'"),
        ('"voltage": 1', "is missing"),
    ],
)
def test_a_wrong_profile_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str, words: str) -> None:
    path, text = tmp_path / "p.json", f'{{"measurements": [{{{entry}, "energy": 1, "time": 1}}]}}'
    path.write_text(text)
    with pytest.raises(PlanError, match=words):
        make(monkeypatch, profile_path=path, strict=True)
    assert path.read_text() == text


def test_a_profile_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    path.write_text("what was there")
    monkeypatch.setattr(os, "fsync", refuses(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"new", replace=True)
    assert path.read_text() == "what was there"
    assert list(tmp_path.glob("*p.json*")) == [path]


def test_a_profile_that_could_not_be_read_in_time_is_not_written_over(tmp_path: Path) -> None:
    path, measured = tmp_path / "p.json", [pl.PowerLimitMeasurement(power_limit=100, energy=1.0, time=1.0)]

    def save(timeout_s: float) -> str:
        files = FileClient(path, None, secrets.token_hex(16), timeout_s=timeout_s)
        files.save(measured, HANGS_AFTER_S)
        files.close()
        return path.read_text()

    path.write_text("not a profile")
    assert save(0.0) == "not a profile"
    path.unlink()
    assert pl.parse_profile(save(60.0), "p.json") == measured


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"profile_path": "fifo"}, "not a plain file"),
        ({"profile_path": "missing/p.json"}, "p.json cannot be written: No such file"),
        ({"shared_dir": "open to all"}, "all users of the host may write there"),
    ],
)
def test_files_that_cannot_be_used_are_one_warning_and_the_limit_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, str], said: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "open to all").mkdir()
    (tmp_path / "open to all").chmod(0o777)
    optimizer, _ = make(monkeypatch, **{name: tmp_path / path for name, path in given.items()})
    for _ in range(20):
        optimizer.on_step_begin()
    optimizer.close()
    assert state_of(optimizer) == ("Done", 250, None)
    assert not (tmp_path / "missing").exists()
    assert said in caplog.text
    assert len(caplog.records) == 1


def test_a_helper_that_hangs_is_not_waited_for_longer_than_said(
    tmp_path: Path,
    interpreter: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a mount that does not answer."""
    interpreter("exec sleep 1000")
    monkeypatch.setattr("pfo_fs.power_limit.file_client._JOINS_WITHIN_S", 0.1)
    files = FileClient(tmp_path / "p.json", tmp_path / "shared", secrets.token_hex(16), timeout_s=0.2)
    helper = files._link.client.process
    assert files.profile is None
    assert files.create_job(1, "power_limit") is None
    files.close()
    assert "does the shared directory hang" in caplog.text
    assert len(caplog.records) == 1
    helper.kill()
    helper.wait()


def test_after_a_helper_was_killed_there_is_one_warning_and_another_one_watches_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pfo_fs.helper.link._REVIVE_EVERY_S", 0.1)
    files = FileClient(None, tmp_path / "shared", secrets.token_hex(16))
    files.join(files.create_job(1, "clock"), "a GPU")
    assert not files.is_off
    os.kill(files._link.client.process.pid, signal.SIGKILL)
    wait_for(lambda: (files.poll(), caplog.records)[1])
    assert len(caplog.records) == 1
    OffSwitch(Files(tmp_path / "shared")).turn_off("all")
    wait_for(lambda: (files.poll(), files.is_off)[1])
    files.close()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> tuple[RankGpus, FakeGpu]:
    gpu = FakeGpu()
    monkeypatch.setattr("pfo_fs.power_limit.rank_gpus.gpus_of", lambda *_: [gpu])
    return RankGpus(FakeMonitor(lambda: (1.0, 2.0))), gpu


def test_while_off_no_level_is_set_though_a_gpu_refused_one_and_then_the_newest(gpus: tuple[RankGpus, FakeGpu]) -> None:
    rank, gpu = gpus
    rank.set_level(300)
    rank.hold(True)
    rank.set_level(250)
    rank.hold(True)
    assert (gpu.levels, gpu.given_back) == ([300], 1)
    rank.hold(False)
    assert (gpu.levels, gpu.given_back) == ([300, 250], 1)
    gpu.trouble = "busy"  # other GPUs of the rank may be at that level
    rank.check()
    rank.hold(True)
    assert gpu.given_back == 2


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


def test_a_clock_process_without_steps_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
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
    options = {**OPTIONS, "pl_step": 100}
    with GlobalPowerLimitOptimizer(monitor, Energy(), shared_dir=tmp_path / "pfo", **options) as optimizer:

        def step_until(condition: Callable[[], bool]) -> None:
            def one() -> bool:
                optimizer.on_step_begin()
                kernels.run("forward")
                return condition()

            wait_for(one)

        def switch(*arguments: str) -> dict[str, Any]:
            (job,) = pfo_fs(*arguments, "-d", tmp_path / "pfo", "--wait", "--json").answer["jobs"]
            return dict(job)

        step_until(lambda: isinstance(optimizer.state, Done))
        chosen, before = limits_set(sim_dir)[-1], max(limits_set(sim_dir))
        assert chosen < before
        told = pfo_fs("target", "latest", "--slowdown", 1.1, "-d", tmp_path / "pfo")
        assert (told.returncode, "the job sets one power limit itself" in told.said) == (3, True)
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
    assert (row.job.coordination, row.job.scheduler, row.last_error) == ("none", "power_limit", "")
    monitor.close()
