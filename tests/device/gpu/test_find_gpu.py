"""Which GPU a training process uses."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from pfo_fs.device.gpu.find_gpu import find_gpu_spec
from pfo_fs.errors import DeviceError


def fake_torch(monkeypatch: pytest.MonkeyPatch, *, cuda: bool = True, name: str = "NVIDIA A100-SXM4-80GB",
               hip: str | None = None) -> None:  # fmt: skip
    uuids = ["aaaa", "bbbb"]
    torch = SimpleNamespace(
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(
            is_available=lambda: cuda,
            current_device=lambda: 1,
            get_device_properties=lambda i: SimpleNamespace(name=name, uuid=uuids[i]),
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PFO_FS_GPU", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "7")  # is not the index of a GPU


def test_torchs_current_device_is_named_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    assert find_gpu_spec() == "nvml:GPU-bbbb"
    assert find_gpu_spec(0) == "nvml:GPU-aaaa"


def test_without_cuda_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, cuda=False)
    assert find_gpu_spec() == "none"
    fake_torch(monkeypatch, hip="6.0")
    assert find_gpu_spec() == "none"
    monkeypatch.delitem(sys.modules, "torch")
    assert find_gpu_spec() == "none"


def test_mig_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, name="NVIDIA A100-SXM4-80GB MIG 1g.10gb")
    with pytest.raises(DeviceError, match="MIG"):
        find_gpu_spec()
    fake_torch(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(DeviceError, match="MIG"):
        find_gpu_spec()


def test_a_simulated_gpu_keeps_its_name_within_a_process_and_not_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    spec = find_gpu_spec()
    assert spec.startswith(f"simulated:gpu-{os.getpid()}-")
    assert find_gpu_spec(3) == spec
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, find_gpu_spec().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 200).decode() != spec


@pytest.mark.parametrize("value", ["none", "simulated:mine", "nvml:GPU-1234"])
def test_the_environment_variable_decides_before_torch(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    fake_torch(monkeypatch)
    monkeypatch.setenv("PFO_FS_GPU", value)
    assert find_gpu_spec() == value


@pytest.mark.parametrize("value", ["cuda:0", "simulated:../x", "nvml:", "1"])
def test_a_value_that_does_not_name_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PFO_FS_GPU", value)
    with pytest.raises(DeviceError, match="PFO_FS_GPU"):
        find_gpu_spec()
