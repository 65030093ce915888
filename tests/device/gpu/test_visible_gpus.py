"""Which GPU CUDA_VISIBLE_DEVICES means: the one that torch and CUDA use, or an error that says why it is not known."""

from __future__ import annotations

import sys

import pytest
from fake_nvml import UUIDS, FakeNvml
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device.gpu.find_gpu import uuid_of_visible_device, visible_uuids
from pfo_fs.errors import DeviceError


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("GPU-bbbb", [2]),
        ("GPU-aaaa", []),
        ("0,0", []),
        ("0,1,0", []),
        (f"{UUIDS[1]},0", [1]),
        (f"0,{UUIDS[1]}", [0]),
        ("0,MIG-1234,1", [0]),
        (f"{UUIDS[1]},{UUIDS[1]}", []),
        (f"GPU-bbbb,{UUIDS[2]}", []),
        (f"{UUIDS[1]}, {UUIDS[2]}", [1]),
        (f" {UUIDS[1]}", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("7", []),
        ("1,7,2", [1]),
        ("1gpu2,2ampere", [1, 2]),
        ("+1,-0", [1, 0]),
        ("no-dev", []),
        ("1,,2", [1]),
    ],
)
def test_the_visible_gpus_are_those_of_torch(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: list[int]
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_uuids() == [UUIDS[place] for place in expected]
    for index, place in enumerate(expected):
        assert uuid_of_visible_device(index) == UUIDS[place]
    with pytest.raises(DeviceError, match="not visible"):
        uuid_of_visible_device(len(expected))
    assert fake.open == 0


entries = st.one_of(
    st.sampled_from([*UUIDS, "GPU-a", "GPU-aaaa1", "GPU-b", "GPU-", "GPU-c", "gpu-aaaa1", "MIG-1", "", " ", "-", "1x"]),
    st.integers(-2, 4).map(str),
    st.integers(0, 3).map(lambda number: f" {number} "),
    st.text("GPU-ab12, ", max_size=6),
)


@given(st.lists(entries, max_size=4).map(",".join).filter(lambda text: not text.startswith("MIG-")))
def test_any_list_is_read_as_torch_reads_it(variable: str) -> None:
    cuda = pytest.importorskip("torch").cuda
    with pytest.MonkeyPatch.context() as context:
        context.setitem(sys.modules, "pynvml", FakeNvml())
        context.setenv("CUDA_VISIBLE_DEVICES", variable)
        context.setattr(cuda, "_raw_device_uuid_nvml", lambda: UUIDS)
        context.setattr(cuda, "_raw_device_count_nvml", lambda: len(UUIDS))
        try:
            found = cuda._parse_visible_devices()
        except ValueError:  # a sign without digits: torch fails, and CUDA sees nothing there
            return
        if found and isinstance(found[0], str):
            found = cuda._transform_uuid_to_ordinals(found, UUIDS)
        torchs = [UUIDS[place] for place in found[: max(0, cuda._device_count_nvml())]]
        assert visible_uuids() == torchs, variable


def test_a_list_of_mig_slices_is_refused(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-aaaa,{UUIDS[0]}")
    with pytest.raises(DeviceError, match="MIG slice"):
        uuid_of_visible_device(0)


def test_ordinals_on_a_host_with_mig_are_ambiguous_and_uuids_are_not(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.mig = True
    with pytest.raises(DeviceError, match="name GPUs by UUID"):
        uuid_of_visible_device(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    assert uuid_of_visible_device(0) == UUIDS[1]


def test_ordinals_among_different_gpus_need_the_bus_order(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA puts the fastest first, NVML goes by the bus: an ordinal could mean the neighbour's GPU."""
    fake.names = ["NVIDIA A100", "NVIDIA A40", "NVIDIA A100"]
    with pytest.raises(DeviceError, match="CUDA_DEVICE_ORDER"):
        uuid_of_visible_device(0)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert uuid_of_visible_device(1) == UUIDS[1]
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    assert uuid_of_visible_device(0) == UUIDS[1]
