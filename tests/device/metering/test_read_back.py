"""The clock that a GPU shows, and others who decide it, through NVML."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fake_nvml import UUIDS, FakeNvml
from faulty_nvml import Bench

from pfo_fs.device import shared_page
from pfo_fs.device.gpu.nvml import NvmlGpu
from pfo_fs.device.metering.read_back import LOOKS_LIKE, ReadBack, other_setters
from pfo_fs.device.metering.reporter import Reporter
from pfo_fs.doctor.checks import check_other_setters
from pfo_fs.errors import DevicePermissionError
from pfo_fs.ipc.messages import ProgressReport

MS = 1_000_000


def locked(top_mhz: int, mhz: int) -> ReadBack:
    read_back = ReadBack(NvmlGpu(UUIDS[0]), top_mhz)
    read_back.clock_set(0, mhz)
    return read_back


@pytest.mark.parametrize(
    ("top_mhz", "set_mhz", "shows_mhz", "reasons", "noticed"),
    [
        (1410, 900, 1410, 0x0, True),  # A100: a power profile, or DCGM, has set it back
        (1980, 1200, 1980, 0x4, True),  # H100: above, whatever else is said
        (2032, 1500, 990, 0x0, True),  # B200: another job has locked it lower
        (1980, 1980, 1410, 0x4, False),  # H100: the power limit
        (1980, 1500, 1200, 0x40, False),  # heat
        (1530, 1200, 135, 0x1, False),  # V100: idle
        (3090, 3090, 2700, 0x0, False),  # RTX: a clock on offer that it never reaches
        (3090, 2200, 1900, 0x400, False),  # RTX: its voltage
        (1980, 1200, 1215, 0x0, False),  # GH200: boost
        (2032, 1200, 1140, 0x0, False),
        (1980, 0, 1980, 0x0, False),  # the default clock
    ],
)
def test_a_clock_that_contradicts_what_was_set_is_noticed_unless_power_heat_or_idleness_explain_it(
    fake: FakeNvml, top_mhz: int, set_mhz: int, shows_mhz: int, reasons: int, noticed: bool
) -> None:
    read_back = locked(top_mhz, set_mhz)
    fake.clock_mhz, fake.reasons = shows_mhz, reasons
    found = [read_back.look(now_ms * MS, 1.0) for now_ms in range(600, 8_000, 100)]
    assert any(found) == bool(read_back.overruled) == noticed


@pytest.mark.parametrize("step_s", [0.1, 0.5, 2.0, 20.0])
def test_it_is_noticed_within_20_steps(fake: FakeNvml, step_s: float) -> None:
    read_back = locked(1410, 900)
    fake.clock_mhz, fake.reasons = 900, 0
    assert not any(read_back.look(now_ms * MS, step_s) for now_ms in range(0, 10_050, 50))  # just after a reading
    fake.clock_mhz = 1410
    assert any(read_back.look(now_ms * MS, step_s) for now_ms in range(10_050, 10_050 + round(20_000 * step_s), 50))


def test_a_clock_that_acts_late_contradicts_nothing(fake: FakeNvml) -> None:
    read_back = ReadBack(NvmlGpu(UUIDS[0]), 1410)
    fake.reasons = 0
    for now_ms in range(0, 60_000, 50):
        if now_ms % 450 == 0:
            read_back.clock_set(now_ms * MS, 600 + now_ms % 900)
            fake.clock_mhz = 1050 - now_ms % 900  # the one before
        assert read_back.look(now_ms * MS, 0.1) is None


def test_a_limit_that_the_driver_names_in_every_third_reading_only_contradicts_nothing(fake: FakeNvml) -> None:
    read_back = locked(1980, 1500)
    fake.clock_mhz = 1200
    for now_ms in range(600, 60_000, 100):
        fake.reasons = 0x4 * (now_ms % 300 == 0)
        assert read_back.look(now_ms * MS, 1.0) is None


def test_what_others_may_decide_is_named_in_the_status_and_by_doctor(fake: FakeNvml, tmp_path: Path) -> None:
    for number, name in enumerate(["python", "eard", "nv-hostengine"]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    gpu = NvmlGpu(UUIDS[0])
    assert other_setters(gpu, tmp_path) == ["dcgm", "ear"]
    fake.profiles, fake.smooths, fake.processes, fake.reasons = 4, 1, 2, 0x4
    assert other_setters(gpu, tmp_path) == list(LOOKS_LIKE)
    told = {check.found: check.hint for check in check_other_setters([gpu])}
    assert {LOOKS_LIKE["profile"], LOOKS_LIKE["smoothing"], LOOKS_LIKE["job"], f"{UUIDS[0]}: power limit"} <= {*told}
    assert all(told.values()), "what to do"
    read_back = locked(1410, 900)
    fake.clock_mhz = 1410
    why = next(filter(None, (read_back.look(now_ms * MS, 1.0) for now_ms in range(600, 3000, 50))))
    assert isinstance(why, DevicePermissionError)
    assert "1410 MHz although 900 MHz were set: it looks like a workload power profile or" in read_back.overruled


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[ProgressReport]:
    found: list[ProgressReport] = []
    monkeypatch.setattr(Reporter, "progress", lambda self, report, now=False: found.append(report))
    return found


def a_step(words: memoryview, now_ns: int, step: int) -> None:
    """Marks a step of half a second under a schedule that is new after every third step."""
    marks = ((now_ns, shared_page.STEP_BEGIN | step << 8), (step // 3, shared_page.NUMBER))
    for first, code in (*marks, (now_ns + 500 * MS, shared_page.STEP_END)):
        at = shared_page.RING + 2 * words[shared_page.HEAD]
        words[at], words[at + 1] = first, code
        words[shared_page.HEAD] += 1


def test_a_gpu_that_others_set_is_left_to_them_and_nothing_counts_as_measured_meanwhile(
    bench: Callable[..., Bench],
    monkeypatch: pytest.MonkeyPatch,
    reports: list[ProgressReport],
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured: list[int] = []
    monkeypatch.setattr(Reporter, "measured", lambda self, result, switching=None: measured.append(result.number))
    one = bench()
    one.at(30.0, lambda: setattr(one.nvml, "arbitrated", lambda mhz: 1410))
    one.request_clock(1.0, 210)
    for step in range(390):
        one.at(2.0 + step, partial(a_step, one.words, round((3.0 + step) * 1e9), step))
    one.run(400.0)
    assert one.nvml.set_mhz == [0, 210, 0, 210, 0, 210, 0], "set three times, a minute apart, and left alone then"
    seen = [report.overruled for report in reports]
    assert seen == sorted(seen), "until the end"
    assert "although 210 MHz were set" in reports[-1].message
    assert measured == list(range(9)), "nothing later"
    warnings = capsys.readouterr().err
    assert (warnings.count("although 210 MHz were set"), warnings.count("it is not tried again")) == (2, 1)


def test_a_clock_reset_once_is_set_again_later(bench: Callable[..., Bench], reports: list[ProgressReport]) -> None:
    one = bench()
    one.at(5.0, lambda: setattr(one.nvml, "lock_mhz", 0))
    one.request_clock(1.0, 210)
    one.run(100.0)
    assert one.nvml.set_mhz == [0, 210, 0, 210, 0]
    assert any(report.overruled for report in reports)
    assert (reports[-1].overruled, reports[-1].message) == (False, "")
