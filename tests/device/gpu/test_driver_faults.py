"""Whatever a driver refuses, and whenever: the clock process goes on, and what it has set is put back or noted."""

import signal
from collections.abc import Callable
from contextlib import closing
from unittest.mock import Mock

import pytest
from fake_nvml import ALWAYS, FUNCTIONS, Fault
from faulty_nvml import CODES, UUID, Bench
from hypothesis import given, settings
from hypothesis import strategies as st

from pfo_fs.device import shared_page
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.clocks.driver_calls import MOST_READS_PER_S, HostDriver
from pfo_fs.device.clocks.undo import GpuUndo, reset_left_by
from pfo_fs.device.clocks.undo_note import clock_note
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.device.metering.reporter import Reporter

Make = Callable[..., Bench]
ENERGY = {"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"}
LIMITS = {name for name in FUNCTIONS if "PowerManagement" in name}
SETS = {"nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"}
LISTS = {"nvmlDeviceGetSupportedMemoryClocks", "nvmlDeviceGetSupportedGraphicsClocks"}
OPENS = {"nvmlInit", "nvmlDeviceGetHandleByUUID"}
PASSES = (2, 9, 10, 18, 19, 27, 999, 777)
"""Codes of errors that may pass."""


def a_job(one: Bench, end_s: float = 60.0) -> int:
    one.ask(1.5, ask="limits")
    one.ask(2.0, ask="set", limit_w=200)
    for second in range(3, round(end_s) - 2):
        one.request_clock(second + 0.1, (1395, 0, 210)[second % 3])
        if second % 5 == 0:
            one.ask(second + 0.5, ask="energy")
    one.request_clock(end_s - 1.5, 1395)
    return one.run(end_s)


faults = st.builds(
    Fault,
    st.sampled_from(FUNCTIONS),
    st.sampled_from((*CODES, 0)),
    st.integers(1, 30),
    st.sampled_from((1, 3, 20, ALWAYS)),
)


@pytest.mark.slow
@settings(max_examples=35)
@given(st.lists(faults, min_size=1, max_size=2, unique_by=lambda fault: fault.function))
def test_whatever_fails_the_process_serves_until_training_ends_and_puts_back_or_notes_what_it_set(
    tmp_path_factory: pytest.TempPathFactory, found: list[Fault]
) -> None:
    with closing(Bench(tmp_path_factory.mktemp("notes"), *found)) as one:
        status = a_job(one)
        assert one.ended_s == pytest.approx(60, abs=0.1), "it ended with training, not before"
        assert one.nvml.lock_mhz == 0 or "clock" in one.notes()
        assert one.nvml.limit_mw == 400_000 or "power-limit" in one.notes()
        if status == 0:
            assert (one.nvml.lock_mhz, one.nvml.limit_mw, one.notes()) == (0, 400_000, set())
        failing = {fault.function for fault in found}
        if not failing & (SETS | LISTS | OPENS):
            assert {1395, 210, 0} <= set(one.nvml.set_mhz), "clocks do not depend on what fails"
        if not failing & (LIMITS | OPENS | ENERGY):
            assert all("error" not in answer for answer in one.answers[1:]), "limits and energy neither"
        for time_s, metrics in one.metrics:
            if "pfo_fs/power_w" in metrics:
                assert metrics["pfo_fs/power_w"] == pytest.approx(100 + 10 * (time_s - 0.5), abs=25)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.builds(
        Fault, st.sampled_from(sorted(SETS | ENERGY)), st.sampled_from(PASSES), st.integers(8, 20), st.integers(1, 3)
    )
)
def test_after_an_error_that_passes_everything_goes_on(tmp_path_factory: pytest.TempPathFactory, fault: Fault) -> None:
    with closing(Bench(tmp_path_factory.mktemp("notes"), fault)) as one:
        assert a_job(one) == 0
        assert one.nvml.set_mhz[-2:] == [1395, 0]
        late = [metrics for time_s, metrics in one.metrics if time_s > 40]
        assert all("pfo_fs/power_w" in metrics for metrics in late)


@pytest.mark.parametrize("code", [1, 4, 10, 15, 27, 999])
def test_a_reset_that_fails_is_tried_for_two_minutes_and_the_clock_is_told_as_it_is(bench: Make, code: int) -> None:
    one = bench(Fault("nvmlDeviceResetGpuLockedClocks", code, first=2))
    one.request_clock(2.0, 1395)
    one.request_clock(5.0, 0)
    assert one.run(20.0) == 1
    assert 120 <= one.now_s - one.ended_s < 140
    assert 15 < one.nvml.calls["nvmlDeviceResetGpuLockedClocks"] < 60
    clocks = [metrics["pfo_fs/clock_mhz"] for time_s, metrics in one.metrics if time_s > 7]
    assert clocks == pytest.approx([1395] * len(clocks)), "not the default"
    failures = [metrics["pfo_fs/undo_failures"] for time_s, metrics in one.metrics if time_s > 7]
    assert failures[0] > 1
    assert failures == sorted(failures)
    assert one.notes() == {"clock"}


def test_a_reset_without_an_effect_is_made_again(bench: Make) -> None:
    one = bench()
    one.at(4.0, lambda: setattr(one.nvml, "resets_without_effect", 3))
    one.request_clock(2.0, 1395)
    assert one.run(6.0) == 0
    assert (one.nvml.lock_mhz, one.notes()) == (0, set())
    assert one.nvml.calls["nvmlDeviceResetGpuLockedClocks"] == 5


def test_the_next_process_finishes_what_the_driver_has_refused(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench(Fault("nvmlDeviceSetPowerManagementLimit", 999, first=3))
    one.ask(1.0, ask="limits")
    one.ask(2.0, ask="set", limit_w=200)
    assert one.run(5.0) == 1
    assert (one.nvml.limit_mw, one.notes()) == (200_000, {"power-limit"})
    one.close()
    monkeypatch.setattr("pfo_fs.device.clocks.undo_note.start_of", lambda pid: "")  # that process has ended
    later = bench()
    later.nvml.limit_mw = 200_000
    assert later.run(2.0, leave_clocks=True) == 0
    assert (later.nvml.limit_mw, later.notes()) == (400_000, set())


def test_what_a_dead_process_has_left_is_reset_in_the_end(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench(Fault("nvmlDeviceResetGpuLockedClocks", 999, count=9))
    undo = GpuUndo(open_gpu(f"nvml:{UUID}")).clock
    for mhz in (1200, 900, 1200):
        undo.will_set(mhz, 0)
    monkeypatch.setattr("pfo_fs.device.clocks.undo_note.start_of", lambda pid: "")  # that process has ended
    one.nvml.lock_mhz, one.nvml.resets_without_effect = 900, 2
    assert reset_left_by(f"nvml:{UUID}", ClockOptions(clock_backend="nvml")) == ""
    assert one.nvml.lock_mhz == 0


def test_without_a_list_of_clocks_energy_and_power_limits_work(bench: Make) -> None:
    one = bench(Fault("nvmlDeviceGetSupportedMemoryClocks", 3))
    assert a_job(one) == 0
    hello, *answers = one.answers
    assert hello["clocks_mhz"] == []
    assert "memory clocks" in hello["message"]
    assert "does not support" in hello["message"]
    assert answers[0]["before_w"] == 400
    assert all("error" not in answer for answer in answers)
    assert one.nvml.calls["nvmlDeviceGetSupportedMemoryClocks"] == 1, "asked once"
    assert any("pfo_fs/power_w" in metrics for _, metrics in one.metrics)


def test_metrics_say_nothing_of_energy_while_it_cannot_be_read(bench: Make) -> None:
    both = [Fault(name, 15, first=40, count=10) for name in sorted(ENERGY)]
    one = bench(*both)
    a_job(one, 30.0)
    known = ["pfo_fs/power_w" in metrics for _, metrics in one.metrics]
    assert known[1]
    gap = known.index(False, 1)
    assert not any(known[gap : gap + 5])


def test_sigterm_while_the_driver_refuses_resets_as_soon_as_it_can(bench: Make) -> None:
    one = bench(Fault("nvmlDeviceResetGpuLockedClocks", 10, first=2, count=6))
    one.request_clock(2.0, 1395)
    one.at(4.0, lambda: signal.raise_signal(signal.SIGTERM))
    one.request_clock(8.0, 210)
    at_11_s: list[int] = []
    one.at(11.0, lambda: at_11_s.extend(one.nvml.set_mhz))
    assert one.run(12.0) == 0
    assert one.nvml.set_mhz == at_11_s == [0, 1395, 0]


def test_the_counter_may_fail_at_first_and_begin_anew(bench: Make) -> None:
    one = bench(Fault("nvmlDeviceGetTotalEnergyConsumption", 999, count=1))
    begin = one.nvml.nvmlDeviceGetTotalEnergyConsumption

    def anew(handle: int) -> int:
        return int(begin(handle)) - 50_100_000

    one.at(5.0, lambda: setattr(one.nvml, "nvmlDeviceGetTotalEnergyConsumption", anew))
    for second in (3, 8, 9):
        one.ask(second, ask="energy")
    one.run(12.0)
    before, after, later = (answer for answer in one.answers[1:])
    assert after["energy_j"] > before["energy_j"]
    assert after["breaks"] > before["breaks"]
    assert later["energy_j"] - after["energy_j"] == pytest.approx(185, rel=0.05)
    powers = [metrics["pfo_fs/power_w"] for time_s, metrics in one.metrics if time_s > 8]
    assert powers[-1] == pytest.approx(205, rel=0.1)


def test_gpus_of_a_host_are_together_read_no_more_than_the_cap(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDriver, "others", lambda self: 39)
    one = bench()
    read_s: list[float] = []

    def ticks(handle: int) -> int:
        read_s.append(one.now_s)
        return 50_000_000 + round(one.now_s / 0.1) * 10_000

    one.nvml.nvmlDeviceGetTotalEnergyConsumption = ticks  # type: ignore[method-assign]
    one.words[shared_page.MEASURING] = 1
    one.request_clock(1.0, 210)
    one.run(20.0)
    in_a_second = [sum(at <= other < at + 1 for other in read_s) for at in read_s if 3 < at < 18]
    assert 20 < max(in_a_second) <= MOST_READS_PER_S / 40 + 8


def test_a_counter_that_stands_still_is_not_believed(bench: Make) -> None:
    one = bench()
    one.at(3.0, lambda: setattr(one.nvml, "nvmlDeviceGetTotalEnergyConsumption", lambda handle: 50_345_000))
    one.run(20.0)
    assert one.metrics[-1][1]["pfo_fs/power_w"] == pytest.approx(285, rel=0.1)


def test_a_dry_run_writes_no_note_and_finishes_nothing(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench()
    clock_note(UUID).write(0, 900)
    monkeypatch.setenv("PFO_FS_DRY_RUN", "1")
    monkeypatch.setattr("pfo_fs.device.clocks.undo_note.start_of", lambda pid: "")
    assert a_job(one, 10.0) == 0
    assert (one.notes(), one.nvml.set_mhz) == ({"clock"}, [])


def test_a_clock_that_its_trainer_has_locked_itself_is_reset_too(bench: Make) -> None:
    one = bench()
    one.at(2.0, lambda: setattr(one.nvml, "lock_mhz", 900))
    assert one.run(5.0) == 0
    assert one.nvml.lock_mhz == 0


def test_measuring_that_fails_does_not_end_the_setting_of_clocks(
    bench: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Reporter, "progress", Mock(side_effect=RuntimeError("broken")))
    one = bench()
    assert a_job(one, 20.0) == 0
    assert {1395, 210, 0} <= set(one.nvml.set_mhz)
    assert capsys.readouterr().err.count("measuring has failed") == 1
