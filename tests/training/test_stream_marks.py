"""Stream marks, against a driver that does at once what it is told (fake_libcuda.c), and when they are used."""

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_clocks import FakeClocks
from running import HANGS_AFTER_S

from pfo_fs.device.shared_page import FOLLOWS, IDLE, PROGRESS, REPLAYED, TURN_SHIFT, SharedPage
from pfo_fs.device.simulated.gpu import SimulatedKernels
from pfo_fs.errors import DeviceError
from pfo_fs.training.step_parts import choose_switching
from pfo_fs.training.stream_marks import DriverMarks, open_stream_marks, self_test

STREAM = 0x7F12_3456_7890  # a handle is a pointer: it needs more than 32 bits


class FakeDriver:
    """CUDA's driver, and a page that it writes into."""

    def __init__(self, path: Path, page: SharedPage) -> None:
        self.path, self.page = str(path), page
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(page.words))
        self._library = ctypes.CDLL(self.path)
        self._library.fake_reset()

    def get(self, name: str) -> int:
        kind = ctypes.c_uint64 if name in {"registered", "registered_bytes", "last_stream"} else ctypes.c_int
        return int(kind.in_dll(self._library, f"fake_{name}").value)

    def set(self, **values: int) -> None:
        for name, value in values.items():
            ctypes.c_int.in_dll(self._library, f"fake_{name}").value = value

    def marks(self, *, shift: int = 0, device: int = 0, library: str | None = None) -> DriverMarks:
        address, path = self.address + 8 * PROGRESS + shift, library or self.path
        return open_stream_marks(address, device, library=path, timeout_s=0.05, current_stream=lambda: STREAM)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed, and the stand-in for CUDA's driver is C")
    path = tmp_path_factory.mktemp("libcuda") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", path, source], check=True)
    return path


@pytest.fixture
def driver(library: Path, page: SharedPage) -> FakeDriver:
    return FakeDriver(library, page)


def test_a_written_number_is_the_word_in_the_page_that_is_registered_and_changes_nothing_beside_it(
    driver: FakeDriver,
) -> None:
    others = driver.page.words.tolist()
    driver.marks().write(2**32 - 1)
    others[PROGRESS] = 2**32 - 1
    assert driver.page.words.tolist() == others
    assert driver.get("last_stream") == STREAM
    assert (driver.get("registered"), driver.get("registered_bytes")) == (driver.address, 4096)
    assert driver.get("flags") == 0x01 | 0x02, "for all contexts, and mapped"


@pytest.mark.parametrize(
    ("fault", "given", "reason"),
    [
        ({"write_error": 801}, {}, r"cannot write .*CUDA_ERROR_NOT_SUPPORTED \(801\)"),
        ({"write_error": 999}, {}, r"cannot write .*CUDA error 999"),
        ({"loses_writes": 1}, {}, "the number 0 did not arrive in time"),
        ({}, {"library": "missing.so"}, r"CUDA's driver cannot be loaded .*missing\.so"),
        ({}, {"library": "libc.so.6"}, "has no cuInit; pfo-fs needs the driver of CUDA 12"),
        ({}, {"device": 5}, r"cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE \(101\)"),
        ({}, {"shift": 2}, "not aligned"),
    ],
)
def test_what_does_not_work_is_an_error_that_says_why_and_the_page_is_given_back(
    driver: FakeDriver, fault: dict[str, int], given: dict[str, Any], reason: str
) -> None:
    driver.page.words[PROGRESS] = 5
    driver.set(**fault)
    with pytest.raises(DeviceError, match=reason):
        driver.marks(**given)
    assert not driver.get("registered")
    assert not driver.get("retained")


def test_a_number_that_is_captured_says_so_in_place_of_its_turn(driver: FakeDriver) -> None:
    marks = driver.marks()
    assert not marks.write(3 << TURN_SHIFT | 4)
    driver.set(capturing=1)
    assert marks.write(3 << TURN_SHIFT | 4)
    assert driver.page.words[PROGRESS] == REPLAYED << TURN_SHIFT | 4
    driver.set(write_error=901)  # the capture has failed, which the program hears at its end
    assert marks.write(5)


def test_a_thread_that_has_no_context_writes_in_the_one_of_the_device(driver: FakeDriver) -> None:
    marks = driver.marks()
    driver.set(needs_context=1)
    marks.write(9)
    assert driver.page.words[PROGRESS] == 9
    assert driver.get("context_depth") == 0


def test_unregister_waits_for_the_device_before_the_page_is_given_back(driver: FakeDriver) -> None:
    marks = driver.marks()
    marks.page.unregister()
    marks.page.unregister()
    assert driver.get("synchronized") == 1
    assert not driver.get("registered")
    assert not driver.get("retained")


def out_of_order(read: list[int], word: int) -> int:
    read.append(word)
    return word if word < 16 else [20, 18][min(read.count(word) - 1, 1)]


@pytest.mark.parametrize(
    ("sees", "reason"),
    [
        (lambda _, word: word, ""),
        (lambda _, word: 2 * word, "after 0, the number 2 arrived"),
        (out_of_order, "after 20, the number 18 arrived"),
    ],
)
def test_the_self_test_sees_what_is_wrong_and_leaves_the_word_as_it_was(
    driver: FakeDriver, sees: Callable[[list[int], int], int], reason: str
) -> None:
    words, read = driver.page.words, list[int]()
    words[PROGRESS] = before = 0 if reason else 77
    said = self_test(driver.marks(), lambda: sees(read, words[PROGRESS]))
    assert reason in said
    assert bool(said) == bool(reason)
    assert words[PROGRESS] == before


# ---- how the way to switch clocks is chosen


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
