"""How the way to switch clocks is chosen."""

from __future__ import annotations

import threading

import pytest
from fake_clocks import FakeClocks
from running import HANGS_AFTER_S

from pfo_fs.device.shared_page import FOLLOWS, IDLE, PROGRESS
from pfo_fs.device.simulated.gpu import SimulatedKernels
from pfo_fs.training.step_parts import choose_switching


@pytest.mark.parametrize(
    ("asked", "spec", "mode", "note"),
    [
        ("auto", "simulated:a", "device", "simulated"),
        ("device", "simulated:a", "device", "simulated"),
        ("launch", "simulated:a", "launch", ""),
        ("auto", "none:", "launch", "CUDA"),
        ("device", "nvml:GPU-nowhere", "launch", "CUDA"),
    ],
)
def test_clocks_follow_the_device_if_they_can_and_otherwise_the_callbacks_and_the_note_says_why(
    clocks: FakeClocks, kernels: SimulatedKernels, asked: str, spec: str, mode: str, note: str
) -> None:
    chosen = choose_switching(asked, clocks, spec, kernels if spec == "simulated:a" else None)
    assert (chosen.mode, chosen.marker is None) == (mode, mode == "launch")
    assert note in chosen.note
    assert clocks.words[FOLLOWS] == (mode == "device")


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
