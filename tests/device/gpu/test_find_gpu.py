"""Which GPU a training process uses, and which GPUs CUDA_VISIBLE_DEVICES means: those that torch and CUDA use."""

import os
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import UUIDS, FakeNvml
from hypothesis import example, given
from hypothesis import strategies as st

from pfo_fs.device.gpu.find_gpu import find_gpu_spec, uuid_of_visible_device, visible_uuids
from pfo_fs.errors import DeviceError


def fake_torch(monkeypatch: pytest.MonkeyPatch, *, cuda: bool = True, name: str = "NVIDIA A100-SXM4-80GB",
               hip: str | None = None, **pci: int) -> None:  # fmt: skip
    uuids = ["aaaa", "bbbb"]
    torch = SimpleNamespace(
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(
            is_available=lambda: cuda,
            current_device=lambda: 1,
            get_device_properties=lambda i: SimpleNamespace(name=name, uuid=uuids[i], **pci),
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PFO_FS_GPU", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "7")  # is not the index of a GPU


def test_the_gpu_is_torchs_by_its_uuid_and_without_cuda_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without_torch:
        without_torch.delitem(sys.modules, "torch", raising=False)
        assert find_gpu_spec() == "none"
    fake_torch(monkeypatch)
    assert (find_gpu_spec(), find_gpu_spec(0)) == ("nvml:GPU-bbbb", "nvml:GPU-aaaa")
    for without in ({"cuda": False}, {"hip": "6.0"}):
        fake_torch(monkeypatch, **without)  # type: ignore[arg-type]
        assert find_gpu_spec() == "none"
    fake_torch(monkeypatch, hip="6.4", pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    assert find_gpu_spec() == "amd:0000:c1:00.0"


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
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as in a forked child
    assert find_gpu_spec() != spec


@pytest.mark.parametrize("value", ["none", "simulated:mine", "nvml:GPU-1234", "cuda:0", "simulated:../x", "nvml:", "1"])
def test_the_environment_variable_decides_before_torch(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    fake_torch(monkeypatch)
    monkeypatch.setenv("PFO_FS_GPU", value)
    if value in ("none", "simulated:mine", "nvml:GPU-1234"):
        assert find_gpu_spec() == value
    else:
        with pytest.raises(DeviceError, match="PFO_FS_GPU"):
            find_gpu_spec()


entries = st.one_of(
    st.sampled_from([*UUIDS, "GPU-a", "GPU-aaaa1", "GPU-b", "GPU-", "GPU-c", "gpu-aaaa1", "MIG-1", "", " ", "-", "1x"]),
    st.integers(-2, 4).map(str),
    st.integers(0, 3).map(lambda number: f" {number} "),
    st.text("GPU-ab12, ", max_size=6),
)


@example("GPU-bbbb3333-0000,GPU-b")
@given(st.none() | st.lists(entries, max_size=4).map(",".join).filter(lambda text: not text.startswith("MIG-")))
def test_any_list_is_read_as_torch_reads_it(variable: str | None) -> None:
    cuda = pytest.importorskip("torch").cuda
    with pytest.MonkeyPatch.context() as context:
        fake = FakeNvml()
        context.setitem(sys.modules, "pynvml", fake)
        if variable is not None:
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
        assert [uuid_of_visible_device(index) for index in range(len(torchs))] == torchs
        with pytest.raises(DeviceError, match="not visible"):
            uuid_of_visible_device(len(torchs))
        assert fake.open == 0


def test_ambiguous_ordinals_and_mig_slices_are_refused(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA puts the fastest GPU first, and counts slices; NVML goes by the bus: an ordinal could be the neighbour's."""
    fake.host.gpus[1].name = b"NVIDIA A40"
    with pytest.raises(DeviceError, match="CUDA_DEVICE_ORDER"):
        uuid_of_visible_device(0)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert uuid_of_visible_device(1) == UUIDS[1]
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    fake.mig = True
    with pytest.raises(DeviceError, match="name GPUs by UUID"):
        uuid_of_visible_device(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    assert uuid_of_visible_device(0) == UUIDS[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-aaaa,{UUIDS[0]}")
    with pytest.raises(DeviceError, match="MIG slice"):
        uuid_of_visible_device(0)
