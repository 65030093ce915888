"""What only a real GPU can show. Nothing here changes a setting of the GPU: `python -m pytest -m gpu`."""

import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from running import HANGS_AFTER_S

from pfo_fs.device.gpu.find_gpu import find_gpu_spec
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.device.shared_page import PROGRESS, REPLAYED, TURN_SHIFT, SharedPage
from pfo_fs.training.stream_marks import DriverMarks, open_stream_marks, self_test

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda() -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here")
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    return torch


@pytest.fixture
def page() -> SharedPage:
    return SharedPage.create()


@pytest.fixture
def marks(cuda: Any, page: SharedPage) -> Iterator[DriverMarks]:
    address = ctypes.addressof(ctypes.c_char.from_buffer(page.words)) + 8 * PROGRESS
    opened = open_stream_marks(address, 0)
    yield opened
    opened.page.unregister()


def busy(torch: Any) -> Any:
    """Launches work for some 100 ms; returns a matrix that it uses."""
    a = torch.randn(4096, 4096, device="cuda")
    for _ in range(60):
        a = torch.matmul(a, a).clamp(-1, 1)
    return a


def test_a_number_arrives_only_after_the_work_before_it(cuda: Any, marks: DriverMarks, page: SharedPage) -> None:
    busy(cuda)
    cuda.cuda.synchronize()
    page.words[PROGRESS] = 0
    busy(cuda)
    before = cuda.cuda.Event()
    before.record()
    marks.write(1)
    while not before.query():
        # The number is read first: if it is there, the event before it must be complete.
        arrived = page.words[PROGRESS]
        assert not arrived or before.query()
    cuda.cuda.synchronize()
    assert page.words[PROGRESS] == 1


def test_the_call_does_not_wait_for_the_device(cuda: Any, marks: DriverMarks) -> None:
    busy(cuda)
    cuda.cuda.synchronize()
    busy(cuda)
    after = cuda.cuda.Event()
    marks.write(1)
    after.record()
    assert not after.query(), "the device has done all work before the call returned"
    cuda.cuda.synchronize()


def test_a_stream_of_its_own_gets_the_mark(cuda: Any, marks: DriverMarks, page: SharedPage) -> None:
    stream = cuda.cuda.Stream()
    with cuda.cuda.stream(stream):
        marks.write(5)
    stream.synchronize()
    assert page.words[PROGRESS] == 5


def test_a_thread_that_has_not_used_cuda_can_write(cuda: Any, marks: DriverMarks, page: SharedPage) -> None:
    errors: list[Exception] = []

    def write() -> None:
        try:
            marks.write(6)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    cuda.cuda.synchronize()
    assert (errors, page.words[PROGRESS]) == ([], 6)


def test_a_mark_that_is_captured_is_written_at_each_replay(cuda: Any, marks: DriverMarks, page: SharedPage) -> None:
    x = cuda.zeros(8, device="cuda")
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        x += 1
        assert marks.write(7)
    for replays in (1, 2):
        marks.write(8)
        cuda.cuda.synchronize()
        assert page.words[PROGRESS] == 8
        graph.replay()
        cuda.cuda.synchronize()
        assert (x[0].item(), page.words[PROGRESS]) == (replays, REPLAYED << TURN_SHIFT | 7)


def test_numbers_arrive_in_order_also_after_a_page_was_given_back(marks: DriverMarks, page: SharedPage) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(page.words)) + 8 * PROGRESS
    assert not self_test(marks, lambda: page.words[PROGRESS])
    marks.page.unregister()
    again = open_stream_marks(address, 0)
    reason = self_test(again, lambda: page.words[PROGRESS])
    again.page.unregister()
    assert not reason


def test_the_energy_counter_of_the_gpu_of_torch_rises(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_DRY_RUN", "1")
    gpu = open_gpu(find_gpu_spec(0))
    try:
        first_j = gpu.energy_j()
        deadline_s = time.monotonic() + HANGS_AFTER_S
        while gpu.energy_j() == first_j and time.monotonic() < deadline_s:
            busy(cuda)
            cuda.cuda.synchronize()
        assert gpu.energy_j() > first_j
    finally:
        gpu.close()
