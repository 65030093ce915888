"""Which GPUs CUDA_VISIBLE_DEVICES leaves to this process, by UUID, found without CUDA.

The rules are those of torch (`torch.cuda.device_count`), which are CUDA's: a list that begins with `GPU-` names GPUs by
the start of their UUIDs; any other list names ordinals, of which the digits at the start count; a list ends at the
first entry that names nothing, and a list with a repeated entry names nothing at all.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from pfo_fs.device.gpu.nvml_calls import call, pynvml, text_of
from pfo_fs.errors import DeviceError

_ORDINAL = re.compile(r"[+-]?[0-9]+")


class _AllGpus(NamedTuple):
    """The GPUs in NVML's order: UUIDs, the different names among them, and whether one is divided by MIG."""

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
        DeviceError: NVML does not work, or a MIG slice is visible.
    """
    uuids = _all_gpus().uuids
    return [uuids[place] for place in _visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)[0]]


def names_mig_slices(variable: str) -> bool:
    """Returns whether CUDA takes a value of CUDA_VISIBLE_DEVICES for a list of MIG slices."""
    return variable.startswith("MIG-")


def _visible(variable: str | None, uuids: list[str]) -> tuple[list[int], bool]:
    """Returns the places of the visible GPUs in NVML's order, and whether they were named by ordinals."""
    if variable is None:
        return list(range(len(uuids))), True
    if names_mig_slices(variable):
        raise DeviceError(f"CUDA_VISIBLE_DEVICES names a MIG slice ({variable}); pfo-fs needs whole GPUs")
    if variable.startswith("GPU-"):
        return _by_uuid(variable.split(","), uuids), False
    ordinals: list[int] = []
    for entry in variable.split(","):
        found = _ORDINAL.match(entry.strip())
        ordinal = int(found[0]) if found else -1
        if ordinal in ordinals:
            return [], True
        if ordinal < 0:
            break
        ordinals.append(ordinal)
    missing = next((place for place, ordinal in enumerate(ordinals) if ordinal >= len(uuids)), len(ordinals))
    return ordinals[:missing], True


def _by_uuid(entries: list[str], uuids: list[str]) -> list[int]:
    seen: list[str] = []
    for entry in entries:
        if entry in seen:
            return []
        if not entry.startswith("GPU-"):
            break
        seen.append(entry)
    places: list[int] = []
    for entry in seen:
        found = [place for place, uuid in enumerate(uuids) if uuid.startswith(entry)]
        if len(found) != 1:
            break
        if found[0] in places:
            return []
        places += found
    return places


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


def mig_divides(handle: object) -> bool:
    """Returns whether MIG divides a GPU; False if the driver does not say."""
    try:
        return bool(call("reading the MIG mode", "nvmlDeviceGetMigMode", handle)[0])
    except DeviceError:
        return False
