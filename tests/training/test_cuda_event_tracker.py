"""Marks with the times of a device that runs behind the training thread (a fake one: there is no GPU here)."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from fake_clocks import FakeClocks

from pfo_fs.device import shared_page
from pfo_fs.training import cuda_event_tracker
from pfo_fs.training.cuda_event_tracker import CudaEventTracker

MS = 1_000_000
F, B = "forward", "backward"


class Device:
    """Training in virtual time, on a device with a queue of kernels and events."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000 * MS
        self.captures = False
        self.clocks = FakeClocks()
        self.tracker = CudaEventTracker(self.clocks, lambda: Event(self), is_capturing=lambda: self.captures)
        self.free_ns = 0
        self.made = 0
        self.synchronisations = 0

    def launch(self, duration_ms: float) -> None:
        self.free_ns = max(self.free_ns, self.now_ns) + round(duration_ms * MS)

    def wait(self) -> None:
        self.now_ns = max(self.now_ns, self.free_ns)

    def run_step(self, step: int, *, waits: bool) -> None:
        """Launches a forward of 10 ms and a backward of 20 ms within 1 ms; with `waits`, for the device at the end."""
        self.tracker.step_begin(step, 0)
        for name, duration_ms in ((F, 10), (B, 20)):
            self.tracker.begin(name)
            self.launch(duration_ms)
            self.now_ns += MS // 2
            self.tracker.end(name)
        if waits:
            self.wait()
        self.tracker.step_end()


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_ns: int | None = None
        device.made += 1

    def record(self) -> None:
        self.at_ns = max(self.device.free_ns, self.device.now_ns)

    def query(self) -> bool:
        return self.at_ns is not None and self.device.now_ns >= self.at_ns

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query(), "CUDA raises if an event is not ready"
        return (other.at_ns - self.at_ns) / MS

    def synchronize(self) -> None:
        self.device.synchronisations += 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(cuda_event_tracker, "monotonic_ns", lambda: device.now_ns)
    monkeypatch.setattr("pfo_fs.training.instruction_tracker.monotonic_ns", lambda: device.now_ns)
    return device


def spans_ms(found: list[tuple[int, int]], *kinds: int) -> list[float]:
    """Durations between marks of two kinds."""
    begins, ends = ([first for first, code in found if code & 0xFF == kind] for kind in kinds)
    return [(end - begin) / MS for begin, end in zip(begins, ends, strict=True)]


def test_instructions_take_as_long_as_on_the_device_not_as_their_launch(device: Device) -> None:
    began_ns = device.now_ns
    device.run_step(0, waits=True)
    found = device.clocks.marks()
    assert spans_ms(found, shared_page.BEGIN, shared_page.END) == [pytest.approx(10), pytest.approx(20)]
    begins = [first for first, code in found if code & 0xFF == shared_page.BEGIN]
    assert begins == [began_ns, began_ns + 10 * MS], "on the clock of all other marks"
    assert [code & 0xFF for _, code in found] == [
        shared_page.STEP_BEGIN, shared_page.NUMBER, shared_page.BEGIN, shared_page.END,
        shared_page.BEGIN, shared_page.END, shared_page.LAST_END, shared_page.STEP_END,
    ]  # fmt: skip
    assert device.synchronisations == 0


def test_marks_wait_for_the_device_and_stay_in_order(device: Device) -> None:
    device.run_step(0, waits=False)
    assert device.clocks.marks() == [], "its events are not ready"
    device.run_step(1, waits=True)
    steps = [code >> 8 for _, code in device.clocks.marks() if code & 0xFF == shared_page.STEP_BEGIN]
    assert steps == [0, 1]


def test_the_span_of_a_step_is_the_devices_whether_it_is_measured_or_not(device: Device) -> None:
    """A host that launches ahead would make unmeasured steps look a thousand times faster."""
    for step in range(3):
        device.run_step(step, waits=False)
        device.wait()
        device.clocks.words[shared_page.MEASURED_NUMBER] = 0
    # Those of the last step come with the next one.
    steps_ms = spans_ms(device.clocks.marks(), shared_page.STEP_BEGIN, shared_page.LAST_END)
    assert steps_ms == [pytest.approx(30), pytest.approx(30)]


def test_steps_that_are_not_measured_cost_two_events_each(device: Device) -> None:
    device.clocks.words[shared_page.MEASURED_NUMBER] = 0
    for step in range(5):
        device.run_step(step, waits=True)
    assert device.made <= 3
    kinds = [shared_page.STEP_BEGIN, shared_page.NUMBER, shared_page.LAST_END, shared_page.STEP_END]
    assert device.clocks.kinds() == kinds * 5


@pytest.mark.parametrize("method", ["record", "query", "elapsed_time"])
def test_whatever_cuda_raises_training_goes_on_with_marks_of_its_own(
    device: Device, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Event, method, Mock(side_effect=RuntimeError("CUDA error: device not ready")))
    for step in range(3):
        device.run_step(step, waits=True)
    kinds = device.clocks.kinds()
    assert kinds.count(shared_page.STEP_END) == 3
    assert kinds.count(shared_page.BEGIN) == 6
    assert caplog.text.count("device not ready") == 1


def test_no_event_is_touched_while_a_graph_is_captured(device: Device) -> None:
    """It would break the capture."""
    device.run_step(0, waits=False)
    made = device.made
    device.captures = True
    with pytest.MonkeyPatch.context() as patch:
        for method in ("record", "query", "elapsed_time"):
            patch.setattr(Event, method, lambda *_: pytest.fail("an event is used in a capture"))
        for step in (1, 2):
            device.run_step(step, waits=True)
    device.captures = False
    device.run_step(3, waits=True)
    found = [code for _, code in device.clocks.marks() if code & 0xFF == shared_page.STEP_END]
    assert [code >> 8 for code in found] == [0, shared_page.UNMARKED, shared_page.UNMARKED, 0]
    assert device.made <= made + 1


def test_a_device_that_never_answers_holds_no_more_than_some_steps(device: Device) -> None:
    device.free_ns = device.now_ns + 10**15
    for step in range(100):
        device.run_step(step, waits=False)
    assert len(device.tracker._held) <= 16


def test_a_step_of_very_many_instructions_is_not_measured_and_asks_for_few_events(device: Device) -> None:
    for step in range(3):
        device.tracker.step_begin(step, 0)
        for _ in range(20_000):
            device.tracker.begin(F)
            device.tracker.end(F)
        device.tracker.step_end()
        device.wait()
    assert device.made < 20_000
    ends = [code >> 8 for _, code in device.clocks.marks() if code & 0xFF == shared_page.STEP_END]
    assert ends
    assert all(end & shared_page.UNMARKED for end in ends)
