"""The simulated GPU: its model, its clocks and energies, its stream."""

import csv
import json
import threading
from pathlib import Path
from random import Random

import pytest
from clock import VirtualTime
from running import HANGS_AFTER_S

from pfo_fs.device.gpu.interface import DryRunGpu
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.device.simulated.gpu import SimulatedGpu, SimulatedKernels
from pfo_fs.device.simulated.physics import A100, MODELS, PRESETS, gpu_model, node_physics
from pfo_fs.device.simulated.stream import SimulatedEvent, SimulatedStream
from pfo_fs.errors import ConfigError, DeviceError

pytestmark = pytest.mark.usefixtures("sim_dir")


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return VirtualTime(monkeypatch, "pfo_fs.device.simulated")


def test_an_instruction_takes_the_time_and_energy_of_its_clock(passing: VirtualTime) -> None:
    gpu = SimulatedGpu("a")
    kernels = SimulatedKernels("a", stages=8, time_scale=5)
    gpu.lock_clock_mhz(900)
    t0, e0 = passing.now_ns / 1e9, gpu.energy_j()
    kernels.run("forward", stage=7)
    t1, e1 = passing.now_ns / 1e9, gpu.energy_j()
    model = kernels.model("forward", 7)
    assert model.time_s(900) == pytest.approx(A100.coefficients("forward", last_stage=True).time_s(900) / 5)
    assert t1 - t0 >= model.time_s(900)
    idle_j = A100.blocking_power_w * (t1 - t0 - model.time_s(900))
    assert e1 - e0 == pytest.approx(model.power_w(900) * model.time_s(900) + idle_j, rel=0.03)


def test_a_clock_that_changes_while_an_instruction_runs_changes_the_rest_of_it(passing: VirtualTime) -> None:
    gpu = SimulatedGpu("a")
    kernels = SimulatedKernels("a", time_scale=1)
    gpu.lock_clock_mhz(1410)
    model = kernels.model("forward", 0)
    start_ns, e0 = passing.now_ns, gpu.energy_j()
    kernels.start("forward")
    passing.sleep(0.02)
    gpu.lock_clock_mhz(600)
    changed_ns = gpu._state.words[2]
    kernels.finish()
    end_ns = gpu._state.words[12]
    share = (changed_ns - start_ns) / 1e9 / model.time_s(1410)
    assert (end_ns - changed_ns) / 1e9 == pytest.approx((1 - share) * model.time_s(600), abs=0.002)
    expected_j = model.power_w(1410) * share * model.time_s(1410) + model.power_w(600) * (end_ns - changed_ns) / 1e9
    idle_j = A100.blocking_power_w * (passing.now_ns - end_ns) / 1e9
    assert gpu.energy_j() - e0 == pytest.approx(expected_j + idle_j, rel=0.03)


def test_a_foreign_state_file_is_refused(sim_dir: Path) -> None:
    (sim_dir / "a.state").write_bytes(b"x" * 128)
    with pytest.raises(DeviceError, match="release"):
        SimulatedGpu("a")
    (sim_dir / "b.state").write_bytes(b"x")
    with pytest.raises(DeviceError, match="not the state"):
        SimulatedGpu("b")


def test_a_dry_run_reads_everything_and_sets_nothing(sim_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_DRY_RUN", "1")
    monkeypatch.setenv("PFO_FS_DRY_RUN_LOG", str(sim_dir / "dry.log"))
    gpu = open_gpu("simulated:a")
    assert isinstance(gpu, DryRunGpu)
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(900)
    gpu.reset_clocks()
    logged = [json.loads(line) for line in (sim_dir / "dry.log").read_text().splitlines()]
    assert [(line["action"], line["mhz"]) for line in logged] == [("lock", 900), ("reset", 0)]
    assert 900 in gpu.supported_clocks_mhz()
    assert gpu.energy_j() >= 0
    assert (sim_dir / "a.log").read_text() == ""


def test_unknown_specs_are_refused() -> None:
    for spec in ("", "nvml", "nvml:", "simulated:", "cuda:0"):
        with pytest.raises(DeviceError, match="does not name a GPU"):
            open_gpu(spec)
    assert open_gpu("none").supported_clocks_mhz() == []


@pytest.fixture
def stream(kernels: SimulatedKernels) -> SimulatedStream:
    return kernels.stream


class Gate:
    def __init__(self, stream: SimulatedStream) -> None:
        self._open = threading.Event()
        self.done: list[object] = []
        stream.launch("forward", work=8)  # else it may be over before the next call
        stream.call(lambda: self._open.wait(HANGS_AFTER_S) and None)
        self._stream = stream

    def note(self, what: object) -> None:
        self._stream.call(lambda: self.done.append(what))

    def open(self) -> None:
        self._open.set()


def test_a_launch_returns_before_the_device_has_begun_and_work_is_done_in_order(stream: SimulatedStream) -> None:
    gate = Gate(stream)
    for number in range(5):
        gate.note(number)
        stream.launch("forward")
    assert gate.done == []
    gate.open()
    stream.synchronize()
    assert gate.done == [0, 1, 2, 3, 4]


def test_an_event_is_ready_when_the_device_gets_there_each_time_that_it_is_recorded(stream: SimulatedStream) -> None:
    before, event = SimulatedEvent(stream), SimulatedEvent(stream)
    before.record()
    event.record()
    assert event.query()
    gate = Gate(stream)
    event.record()
    assert not event.query()
    gate.open()
    stream.synchronize()
    assert event.query()
    assert before.elapsed_time(event) > 0


def test_what_is_not_done_when_the_stream_is_closed_is_dropped(stream: SimulatedStream) -> None:
    gate = Gate(stream)
    gate.note("never")
    stream.close()
    gate.note("after the close")
    gate.open()
    stream.synchronize()
    assert gate.done == ["after the close"]


@pytest.mark.parametrize(
    ("name", "file", "time_error", "energy_error"),
    [("A100", "gpt3-175b+a100_sxm_bf16", 0.0285, 0.0295), ("A40", "gpt3-175b+a40_bf16", 0.0485, 0.0425)],
)
def test_time_and_energy_follow_the_measured_profile_within_the_stated_error(
    shared_data: Path, name: str, file: str, time_error: float, energy_error: float
) -> None:
    rows = list(csv.DictReader((shared_data / "profiles" / f"{file}.csv").read_text().splitlines()))
    assert len(rows) > 600
    for row in rows:
        model = gpu_model(name).coefficients(row["instruction"], last_stage=row["stage"] == "7")
        mhz = int(row["frequency"])
        assert model.time_s(mhz) == pytest.approx(float(row["time"]), rel=time_error)
        assert model.time_s(mhz) * model.power_w(mhz) == pytest.approx(float(row["energy"]), rel=energy_error)


@pytest.mark.parametrize("name", MODELS)
def test_a_lower_clock_is_never_faster_and_never_takes_more_power(name: str) -> None:
    model = gpu_model(name)
    for instruction in ("forward", "backward", "backward_weight", "something else"):
        coefficients = model.coefficients(instruction)
        times = [coefficients.time_s(mhz) for mhz in model.clocks_mhz]
        powers = [coefficients.power_w(mhz) for mhz in model.clocks_mhz]
        assert times == sorted(times)
        assert powers == sorted(powers, reverse=True)
        assert powers[-1] > model.blocking_power_w


@pytest.mark.parametrize(("mhz", "median_s"), [(135, 0.0032), (975, 0.0045), (1530, 0.0053), (0, 0.0053)])
def test_calls_take_as_long_as_published(mhz: int, median_s: float) -> None:
    rnd = Random(1)
    took_s = sorted(PRESETS["A100 node"].call_time_s(mhz, rnd.random(), rnd.random()) for _ in range(20_000))
    assert took_s[10_000] == pytest.approx(median_s, rel=0.05)
    assert 0.010 < took_s[19_800] < took_s[-1] < 0.0125
    assert PRESETS["kind"].call_time_s(mhz, 0.0, 0.0) == 0


def test_a_node_without_a_name_of_ours_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"'DGX'.*A100 node"):
        node_physics("DGX")
    assert node_physics("kind").latency_s(900) == 0.010
