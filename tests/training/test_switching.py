"""How the way to switch clocks is chosen."""

from __future__ import annotations

import threading

import pytest
from fake_clocks import FakeClocks
from running import HANGS_AFTER_S

from pfo_fs.device.shared_page import FOLLOWS, IDLE, PROGRESS
from pfo_fs.device.simulated.gpu import SimulatedKernels
from pfo_fs.training.step_parts import choose_switching


@pytest.mark.parametrize("asked", ["auto", "device"])
def test_clocks_of_a_simulated_gpu_follow_the_device(asked: str, clocks: FakeClocks, kernels: SimulatedKernels) -> None:
    assert choose_switching(asked, clocks, "simulated:a", kernels).mode == "device"
    assert clocks.words[FOLLOWS] == 1


def test_launch_leaves_the_page_to_the_callbacks(clocks: FakeClocks, kernels: SimulatedKernels) -> None:
    chosen = choose_switching("launch", clocks, "simulated:a", kernels)
    assert (chosen.mode, chosen.marker) == ("launch", None)
    assert clocks.words[FOLLOWS] == 0


@pytest.mark.parametrize("asked", ["auto", "device"])
@pytest.mark.parametrize("spec", ["none:", "nvml:GPU-nowhere"])
def test_without_a_device_of_torch_clocks_follow_the_callbacks_and_the_note_says_why(
    asked: str, spec: str, clocks: FakeClocks
) -> None:
    chosen = choose_switching(asked, clocks, spec)
    assert (chosen.mode, chosen.marker) == ("launch", None)
    assert "CUDA" in chosen.note
    assert clocks.words[FOLLOWS] == 0


def test_a_mark_is_written_when_the_simulated_device_gets_there(
    clocks: FakeClocks, kernels: SimulatedKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = choose_switching("device", clocks, "simulated:a", kernels).marker
    marker.set_plan([900], [0])
    gets_there = threading.Event()
    monkeypatch.setattr(kernels.stream, "_run", lambda *_: gets_there.wait(HANGS_AFTER_S))
    kernels.stream.launch("backward")
    marker.begin_step()
    assert clocks.words[PROGRESS] == IDLE
    gets_there.set()
    kernels.stream.synchronize()
    assert clocks.words[PROGRESS] != IDLE
