"""The profile file and the shared directory, which only a helper process touches."""

from __future__ import annotations

import errno
import json
import os
import random
import secrets
import signal
import stat
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from power_limit_fakes import FakeGpu, FakeMonitor, make_optimizer, state_of

from pfo_fs import power_limit as pl
from pfo_fs.errors import PlanError, StoreError
from pfo_fs.helper.power_limit_files import write_file
from pfo_fs.power_limit.file_client import FileClient
from pfo_fs.store import Files, OffSwitch
from pfo_fs.store.power_limit_folder import PowerLimitFolder

pytestmark = pytest.mark.usefixtures("sim_dir")

WaitFor = Callable[..., Any]
OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 1, "pl_step": 50}
NUMBERS = {300: (10.0, 3000.0), 250: (10.5, 2700.0), 200: (11.5, 2500.0), 150: (14.0, 2450.0), 100: (20.0, 2900.0)}


def numbers_at(gpu: FakeGpu) -> Callable[[], tuple[float, float]]:
    return lambda: NUMBERS[gpu.levels[-1]]


def make(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[pl.GlobalPowerLimitOptimizer, FakeGpu]:
    gpu = FakeGpu()
    return make_optimizer(monkeypatch, FakeMonitor(numbers_at(gpu)), gpu, **{**OPTIONS, **options})


# ---- the profile


@given(
    st.lists(
        st.builds(
            pl.PowerLimitMeasurement,
            power_limit=st.integers(1, 10_000),
            energy=st.floats(1e-6, 1e12),
            time=st.floats(1e-6, 1e9),
        ),
        min_size=1,
        unique_by=lambda measurement: measurement.power_limit,
    )
)
def test_a_profile_is_the_same_after_writing_and_reading(measurements: list[pl.PowerLimitMeasurement]) -> None:
    assert pl.parse_profile(pl.profile_text(measurements), "p.json") == measurements


@given(st.one_of(st.text(), st.binary()))
def test_any_text_is_a_profile_or_a_plan_error(text: str | bytes) -> None:
    with pytest.raises(PlanError, match=r"^p\.json "):
        pl.parse_profile(text, "p.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSON"),
        ('{"measurements": []}', "at least 1"),
        ('{"measurements": [{"power_limit": 0, "energy": 1, "time": 1}]}', r"measurements\.0\.power_limit"),
        ('{"measurements": [{"power_limit": 1, "energy": NaN, "time": 1}]}', "energy"),
        ('{"measurements": [{"power_limit": 1, "energy": 1}]}', "time: Field required"),
        ('{"measurements": "' + "x" * (160 << 10) + '"}', "larger than 160 KiB"),
        ("[" * 100_000, "JSON"),
        ('{"measurements": [' + ", ".join(2 * ['{"power_limit": 150, "energy": 1, "time": 1}']) + "]}", "150 W twice"),
    ],
)
def test_a_malformed_profile_is_an_error_that_names_the_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=words):
        make(monkeypatch, profile_path=path, strict=True)
    assert path.read_text() == text


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_file_that_is_not_a_profile_is_an_error_and_is_not_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(random.Random(0).randbytes(size))
    content = path.read_bytes()
    with pytest.raises(PlanError, match=r"model\.safetensors is"):
        make(monkeypatch, profile_path=path, strict=True)
    assert path.read_bytes() == content


def test_a_profile_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    path = tmp_path / "p.json"
    path.write_text("what was there")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_file(path, b"new", replace=True)
    assert path.read_text() == "what was there"
    assert list(tmp_path.glob("*p.json*")) == [path]


def test_a_profile_that_could_not_be_read_in_time_is_not_written_over(tmp_path: Path, wait_for: WaitFor) -> None:
    path = tmp_path / "p.json"
    path.write_text("not a profile")
    files = FileClient(path, None, "", secrets.token_hex(16), timeout_s=0.0)
    files.save([measured(100)])
    files.close()
    assert path.read_text() == "not a profile"
    path.unlink()
    files = FileClient(path, None, "", secrets.token_hex(16), timeout_s=0.0)
    files.save([measured(100)])
    files.close()
    assert pl.parse_profile(path.read_text(), "p.json") == [measured(100)]


def test_a_profile_of_a_thousand_measurements_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    measurements = [measured(level, level / 7) for level in range(1, 1001)]
    path.write_text(pl.profile_text(measurements))
    files = FileClient(path, None, "", secrets.token_hex(16))
    files.save(measurements[::-1])
    assert json.loads(path.read_text())["measurements"][0]["power_limit"] == 1000
    files.close()
    assert files.profile == measurements


@pytest.mark.parametrize("search", ["full", "coarse-to-fine"])
def test_a_choice_that_is_none_of_the_limits_is_one_warning_and_the_end_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, search: str
) -> None:
    monkeypatch.setattr(pl.Energy, "select", lambda *_: 117)
    optimizer, _ = make(monkeypatch, optimum_selector=pl.Energy(), search=search)
    for _ in range(50):
        optimizer.on_step_begin()
    assert "117 W" in str(optimizer.state)
    assert len(caplog.records) == 1
    optimizer.close()


def test_a_profile_of_another_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"measurements": [{"power_limit": 450, "energy": 1, "time": 1}]}')
    with pytest.raises(PlanError, match=r"450 W .* 100 to 300 W; is the profile another GPU's"):
        make(monkeypatch, profile_path=path, strict=True)


def test_a_profile_that_cannot_be_read_is_one_warning_and_limits_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "p.json")
    optimizer, _ = make(monkeypatch, profile_path=tmp_path / "p.json")
    for _ in range(20):
        optimizer.on_step_begin()
    optimizer.close()
    assert state_of(optimizer) == ("Done", 250, None)
    assert "not a plain file" in caplog.text
    assert len(caplog.records) == 1


def test_a_folder_that_is_not_there_is_one_warning_and_the_limit_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer, _ = make(monkeypatch, profile_path=tmp_path / "missing" / "p.json")
    for _ in range(20):
        optimizer.on_step_begin()
    optimizer.close()
    assert state_of(optimizer) == ("Done", 250, None)
    assert not (tmp_path / "missing").exists()
    assert "p.json cannot be written: No such file" in caplog.text
    assert len(caplog.records) == 1


def test_a_helper_that_hangs_is_not_waited_for_longer_than_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a mount that does not answer."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr("pfo_fs.power_limit.file_client._FIRST_LOOK_S", 0.1)
    files = FileClient(tmp_path / "p.json", tmp_path / "shared", "key", secrets.token_hex(16), timeout_s=0.2)
    assert files._link.client is not None
    helper = files._link.client.process
    assert files.profile is None
    files.close(0.1)
    assert "does the shared directory hang" in caplog.text
    assert len(caplog.records) == 1
    assert helper is not None
    helper.kill()
    helper.wait()


def test_a_helper_that_dies_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pfo_fs.helper.link._REVIVE_EVERY_S", 0.1)
    files = FileClient(None, tmp_path / "shared", "key", secrets.token_hex(16))
    assert files._link.client is not None
    assert files._link.client.process is not None
    os.kill(files._link.client.process.pid, signal.SIGKILL)
    wait_for(lambda: (files.poll(), caplog.records)[1])
    files.publish(pl.PowerLimitMeasurement(power_limit=1, energy=1, time=1))
    client = files._link.client
    wait_for(lambda: (files.poll(), not client.lost)[1], "the next helper")
    files.close()
    assert len(caplog.records) == 1


def test_after_a_helper_was_killed_another_one_watches_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    monkeypatch.setattr("pfo_fs.helper.link._REVIVE_EVERY_S", 0.1)
    files = FileClient(None, tmp_path / "shared", "key", secrets.token_hex(16))
    assert files._link.client is not None
    assert files._link.client.process is not None
    os.kill(files._link.client.process.pid, signal.SIGKILL)
    OffSwitch(Files(tmp_path / "shared")).turn_off("all")
    wait_for(lambda: (files.poll(), files.is_off)[1])
    assert not files.shares
    files.close()


def test_without_files_there_is_no_helper() -> None:
    assert FileClient(None, None, "key", "token")._link.client is None


# ---- the shared directory


def finish(*jobs: pl.GlobalPowerLimitOptimizer) -> None:
    """Runs steps until all jobs have chosen."""
    while not all(isinstance(job.state, pl.Done) for job in jobs):
        for job in jobs:
            job.on_step_begin()
            time.sleep(0.001)  # a step takes some time


def measured(level: int, energy_j: float = 1.0) -> pl.PowerLimitMeasurement:
    return pl.PowerLimitMeasurement(power_limit=level, energy=energy_j, time=1.0)


def test_records_are_seen_once_by_all_and_the_first_one_stays(tmp_path: Path) -> None:
    one, two = (PowerLimitFolder(Files(tmp_path / "shared", create=True), "key") for _ in range(2))
    one.publish(measured(300, 1))
    two.publish(measured(300, 2))
    two.publish(measured(250, 3))
    for folder in (one, two):
        found, _ = folder.updates()
        assert {m.power_limit: m.energy for m in found} == {300: 1, 250: 3}
        assert folder.updates() == ([], [])


def test_what_cannot_be_read_hides_nothing_that_can(tmp_path: Path) -> None:
    one, two = (PowerLimitFolder(Files(tmp_path / "shared", create=True), "key") for _ in range(2))
    folder = tmp_path / "shared" / "power-limit" / "key"
    (folder / "150.json").mkdir()
    os.mkfifo(folder / "170.json")
    one.publish(measured(100))
    one.publish(measured(300))
    for _ in range(2):
        found = two.updates()
        assert {m.power_limit for m in found.measurements} in ({100, 300}, set())


def test_limits_that_other_jobs_have_begun_with_are_reported(tmp_path: Path) -> None:
    one, two = (PowerLimitFolder(Files(tmp_path / "shared", create=True), "key") for _ in range(2))
    one.announce(300)
    two.announce(300)
    two.announce(250)
    assert sorted(one.updates().begun) == [250, 300]
    assert one.updates().begun == []


def test_files_that_are_not_records_are_passed_over(tmp_path: Path) -> None:
    folder = PowerLimitFolder(Files(tmp_path / "shared", create=True), "key")
    folder.publish(measured(300))
    place = tmp_path / "shared" / "power-limit" / "key"
    (place / "250.json").write_text('{"power_limit": 250}')
    (place / "200.json").write_bytes((place / "300.json").read_bytes())  # says 300
    (place / "150.json").write_bytes(b"x" * 64)
    (place / "notes.txt").write_text("for people")
    (place / "result-0123456789abcdef.json").write_text("{}")  # releases before this one left their choices
    found = folder.updates().measurements
    assert [m.power_limit for m in found] == [300]


@pytest.mark.parametrize("key", ["../x", "", "a/b"])
def test_keys_that_are_not_folder_names_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError):
        PowerLimitFolder(Files(tmp_path / "shared", create=True), key)


def test_the_profile_is_there_when_the_state_becomes_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    optimizer, _ = make(monkeypatch, profile_path=path, optimum_selector=pl.Energy())
    while not isinstance(optimizer.state, pl.Done):
        optimizer.on_step_begin()
    assert pl.parse_profile(path.read_bytes(), str(path))
    optimizer.close()


def test_a_later_job_measures_the_chosen_limit_and_the_highest_one_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, _ = make(monkeypatch, shared_dir=tmp_path / "shared", optimum_selector=pl.Energy())
    finish(first)
    first.close()
    assert state_of(first) == ("Done", 150, None)
    for selector, level in ((pl.Energy(), 150), (pl.Time(), 300)):
        later, gpu = make(monkeypatch, shared_dir=tmp_path / "shared", optimum_selector=selector)
        finish(later)
        assert state_of(later) == ("Done", level, None)
        assert set(gpu.levels) == {300, level}
        later.close()


def slower_below(gpu: FakeGpu, levels: list[int]) -> Callable[[], tuple[float, float]]:
    """Windows in which each limit below the highest one is five times slower, at the same power."""
    return lambda: (1.0, 300.0) if gpu.levels[-1] == max(levels) else (5.0, 1500.0)


@pytest.mark.parametrize("selector", [pl.MaxSlowdownConstraint(1.0), pl.Energy(), pl.ZeusCost(0.5)], ids=repr)
@pytest.mark.parametrize("search", ["full", "coarse-to-fine"])
def test_a_limit_that_another_user_has_invented_stays_for_one_window(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, selector: pl.OptimumSelector, search: str
) -> None:
    first, _ = make(monkeypatch, shared_dir=tmp_path / "first", optimum_selector=selector, search=search)
    key = next((tmp_path / "first" / "power-limit").iterdir()).name
    first.close()
    evil = PowerLimitFolder(Files(tmp_path / "shared", create=True), key)
    for level in (300, 250, 200, 150, 100):
        evil.publish(pl.PowerLimitMeasurement(power_limit=level, energy=float(level), time=1.0))
    gpu = FakeGpu()
    monitor = FakeMonitor(slower_below(gpu, [300]))
    options = {**OPTIONS, "shared_dir": tmp_path / "shared", "optimum_selector": selector, "search": search}
    victim, _ = make_optimizer(monkeypatch, monitor, gpu, **options)
    finish(victim)
    assert state_of(victim) == ("Done", 300, None)
    assert gpu.levels.count(100) <= 1
    victim.close()


@pytest.mark.slow
def test_jobs_at_the_same_time_share_the_work_and_end_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wait_for: WaitFor
) -> None:
    jobs = [make(monkeypatch, shared_dir=tmp_path / "shared")[0] for _ in range(2)]
    folder = next((tmp_path / "shared" / "power-limit").iterdir())

    def all_know(level: int) -> bool:
        """Whether each job knows that this limit is taken, or measured."""
        open_files = [job._chooser.files for job in jobs if not isinstance(job.state, pl.Done)]
        for files in open_files:
            files.poll()
        return all(level in files.begun and files.measurements.keys() >= written() for files in open_files)

    def written() -> set[int]:
        return {int(path.stem) for path in folder.glob("[0-9]*.json")}

    windows = [0, 0]
    for turn in range(40):
        job = jobs[turn % 2]
        measured_w = job.state.current_power_limit if isinstance(job.state, pl.Profiling) else None
        job.on_step_begin()
        if measured_w is not None:  # a window was complete
            windows[turn % 2] += 1
            wait_for(lambda level=measured_w: level in written())
        if isinstance(job.state, pl.Warmup):
            wait_for(lambda level=job.state.current_power_limit: all_know(level))
    assert {state_of(job) for job in jobs} == {("Done", 250, None)}
    assert sum(windows) <= 5 + 1 + 1 + 4, "both may begin and end with one limit, and both check the best and highest"
    assert all(windows)
    for job in jobs:
        job.close()


def test_a_full_sweep_is_not_content_with_the_choice_of_a_search_that_measured_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"shared_dir": tmp_path / "shared", "optimum_selector": pl.Energy(), "pl_step": 20}
    coarse, full = make(monkeypatch, **options, search="coarse-to-fine")[0], make(monkeypatch, **options)[0]
    monkeypatch.setattr(coarse.monitor, "_numbers", lambda: (10.0, 100.0))
    monkeypatch.setattr(full.monitor, "_numbers", lambda: (10.0, 200.0))
    finish(coarse)
    finish(full)
    assert len(coarse.measurements) < len(full.measurements) == len(full.power_limits)
    coarse.close()
    full.close()


def test_jobs_of_other_gpus_or_other_steps_do_not_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for gpu, options in (
        (FakeGpu(), {}),
        (FakeGpu(name="Other GPU-1"), {}),
        (FakeGpu(highest=350), {}),
        (FakeGpu(), {"profile_steps": 2}),
    ):
        optimizer, _ = make_optimizer(
            monkeypatch, FakeMonitor([]), gpu, shared_dir=tmp_path / "shared", **{**OPTIONS, **options}
        )
        assert type(optimizer.state).__name__ == "Ready"
        optimizer.close()
    assert len(list((tmp_path / "shared" / "power-limit").iterdir())) == 4


def test_a_directory_that_cannot_be_used_is_one_warning_and_everything_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    optimizer, _ = make(monkeypatch, shared_dir=tmp_path / "shared")
    for _ in range(20):
        optimizer.on_step_begin()
    optimizer.close()
    assert state_of(optimizer) == ("Done", 250, None)
    assert "all users of the host may write there" in caplog.text
    assert len(caplog.records) == 1


JOB = textwrap.dedent("""
    import json, sys, time
    from pfo_fs.power_limit import Done, Energy, EnergyMonitor, GlobalPowerLimitOptimizer
    monitor = EnergyMonitor(specs=["simulated:" + sys.argv[1]])
    kernels = monitor.simulated_kernels(time_scale=20)
    with GlobalPowerLimitOptimizer(
        monitor, Energy(), warmup_steps=1, profile_steps=4, pl_step=50, shared_dir=sys.argv[2]
    ) as optimizer:
        windows = 0
        while not isinstance(optimizer.state, Done):
            known = optimizer.state
            optimizer.on_step_begin()
            windows += type(known).__name__ == "Profiling" and optimizer.state is not known
            kernels.run("forward")
            kernels.run("backward")
            print("step", flush=True)
        print(json.dumps([optimizer.state.optimal_power_limit, windows]), flush=True)
    monitor.close()
""")


@pytest.mark.slow
def test_real_jobs_share_and_do_not_wait_for_one_that_is_killed(tmp_path: Path, processes: Any) -> None:
    victim, *jobs = (processes.python("-c", JOB, name, str(tmp_path / "shared")) for name in "abc")
    victim.stdout.readline()
    victim.kill()
    results = [json.loads(job.communicate()[0].splitlines()[-1]) for job in jobs]
    assert len({level for level, _ in results}) == 1
    later = processes.python("-c", JOB, "d", str(tmp_path / "shared"))
    level, windows = json.loads(later.communicate()[0].splitlines()[-1])
    assert (level, windows <= 2) == (results[0][0], True), "it measures that level and the highest one"
    folder = next((tmp_path / "shared" / "power-limit").iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
