"""Finds the GPU that a process uses, by its UUID and without CUDA.

CUDA_VISIBLE_DEVICES is understood as torch (`torch.cuda.device_count`) and CUDA understand it: a list that begins with
`GPU-` names GPUs by the start of their UUIDs; any other list names GPUs by ordinals, and only the digits at the start
of an entry count; a list ends at the first entry that names nothing, and a list with a repeated entry names nothing at
all.
"""

import os
import re
import secrets
import sys
from functools import cache
from types import ModuleType
from typing import NamedTuple

from pfo_fs.device.gpu.driver_errors import call, mig_divides, pynvml, text_of
from pfo_fs.errors import DeviceError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ORDINAL, _BY_UUID = re.compile(r"\+?[0-9]+|-0+(?![0-9])"), re.compile(r"(?s)GPU-.*")


def find_gpu_spec(device: int | None = None) -> str:
    """Returns the spec of the GPU that this process trains on.

    Call it after `torch.cuda.set_device`. If `PFO_FS_GPU` is set, it decides: `simulated`, `simulated:<name>`, `none`,
    `nvml:<UUID>` or `amd:<PCI address>`. Otherwise torch's device is used if torch is imported and has CUDA or ROCm.
    LOCAL_RANK is never used as the index of a GPU.

    Args:
        device: CUDA device index of this process; torch's current device if None.

    Returns:
        `nvml:<UUID>`, `amd:<PCI address>`, `none`, or `simulated:<name>`, with the same name each time in one process.

    Raises:
        DeviceError: The device is a MIG slice (a part of a GPU that shares its clocks with other parts);
            `PFO_FS_GPU` has another value; or `uuid_of_visible_device` raises it.
    """
    asked = os.environ.get("PFO_FS_GPU", "")
    kind, _, name = asked.partition(":")
    if asked == "simulated":
        return f"simulated:{_simulated_name(os.getpid())}"
    if asked == "none" or (kind == "simulated" and _NAME.fullmatch(name)) or (kind in ("nvml", "amd") and name):
        return asked
    if asked:
        raise DeviceError(
            f"PFO_FS_GPU={asked!r}: use simulated, simulated:<name>, nvml:<UUID>, amd:<PCI address> or none"
        )
    torch = sys.modules.get("torch")
    if torch is not None:
        return _spec_from_torch(torch, device)
    if device is not None:
        return f"nvml:{uuid_of_visible_device(device)}"
    return "none"


@cache
def _simulated_name(pid: int) -> str:
    return f"gpu-{pid}-{secrets.token_hex(4)}"


def _spec_from_torch(torch: ModuleType, device: int | None) -> str:
    if not torch.cuda.is_available():
        return "none"
    index = torch.cuda.current_device() if device is None else device
    properties = torch.cuda.get_device_properties(index)
    if getattr(torch.version, "hip", None) is not None:
        if not hasattr(properties, "pci_bus_id"):  # torch before 2.7
            return "none"
        return f"amd:{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    if "MIG" in properties.name.split() or os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        raise DeviceError(
            f"CUDA device {index} ({properties.name}) is a MIG slice: its clocks and energy are the whole GPU's, so "
            f"pfo-fs does not use it; train on whole GPUs, or set PFO_FS_GPU=none"
        )
    text = str(properties.uuid)
    return f"nvml:{text}" if text.startswith("GPU-") else f"nvml:GPU-{text}"


# ---- the GPUs that are visible


class _AllGpus(NamedTuple):
    """The GPUs in NVML's order: their UUIDs, their different names, and whether MIG divides one of them."""

    uuids: list[str]
    names: set[str]
    divided: bool


def uuid_of_visible_device(index: int) -> str:
    """Returns the UUID of CUDA device `index` of this process.

    Raises:
        DeviceError: No such device is visible, it is a MIG slice, or CUDA's ordinal is ambiguous: GPUs of different
            kinds without CUDA_DEVICE_ORDER=PCI_BUS_ID (CUDA then puts the fastest first), or one that MIG divides.
    """
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = _all_gpus()
    places, by_ordinal = _visible(variable, gpus.uuids)
    if not 0 <= index < len(places):
        raise DeviceError(
            f"CUDA device {index} is not visible: CUDA_VISIBLE_DEVICES={variable!r} leaves {len(places)} of "
            f"{len(gpus.uuids)} GPUs"
        )
    if by_ordinal and gpus.divided:
        raise DeviceError(
            f"MIG divides a GPU of this host, and CUDA then counts slices too: name GPUs by UUID in "
            f"CUDA_VISIBLE_DEVICES, so that CUDA device {index} is unambiguous"
        )
    if by_ordinal and len(gpus.names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise DeviceError(
            f"GPUs of different kinds ({', '.join(sorted(gpus.names))}): set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name "
            f"GPUs by UUID in CUDA_VISIBLE_DEVICES, so that CUDA device {index} is unambiguous"
        )
    return gpus.uuids[places[index]]


def visible_uuids() -> list[str]:
    """Returns the UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves to this process.

    Raises:
        DeviceError: NVML does not work, or CUDA_VISIBLE_DEVICES begins with a MIG slice.
    """
    uuids = _all_gpus().uuids
    return [uuids[place] for place in _visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)[0]]


def _visible(variable: str | None, uuids: list[str]) -> tuple[list[int], bool]:
    """Returns the places of the visible GPUs in NVML's order, and whether they were named by ordinals."""
    if variable is None:
        return list(range(len(uuids))), True
    if variable.startswith("MIG-"):
        raise DeviceError(f"CUDA_VISIBLE_DEVICES names a MIG slice ({variable}); pfo-fs needs whole GPUs")
    by_ordinal = not variable.startswith("GPU-")
    places: list[int] = []
    named: list[str | int] = []
    is_over = False
    for entry in variable.split(","):
        found = _ORDINAL.match(entry.strip()) if by_ordinal else _BY_UUID.match(entry)
        if found is None:
            break
        name = int(found[0]) if by_ordinal else found[0]
        if name in named:
            return [], by_ordinal
        named.append(name)
        meant = [place for place, uuid in enumerate(uuids) if place == name or uuid.startswith(str(name))]
        is_over = is_over or len(meant) != 1
        if not is_over and meant[0] in places:
            return [], by_ordinal
        places += [] if is_over else meant
    return places, by_ordinal


def _all_gpus() -> _AllGpus:
    call("starting NVML", "nvmlInit")
    try:
        count = call("counting GPUs", "nvmlDeviceGetCount")
        handles = [call("finding GPUs", "nvmlDeviceGetHandleByIndex", i) for i in range(count)]
        uuids = [text_of(call("reading a UUID", "nvmlDeviceGetUUID", handle)) for handle in handles]
        names = {text_of(call("reading a name", "nvmlDeviceGetName", handle)) for handle in handles}
        return _AllGpus(uuids, names, any(map(mig_divides, handles)))
    finally:
        pynvml().nvmlShutdown()
