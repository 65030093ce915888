"""Finds the GPU that a training process uses, as a spec for its clock process. Runs in the training process only."""

from __future__ import annotations

import os
import re
import secrets
import sys
from typing import Any

from pfo_fs.errors import DeviceError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_simulated: tuple[int, str] = (-1, "")  # process id, name


def find_gpu_spec(device: int | None = None) -> str:
    """Returns the spec of the GPU that this process trains on.

    Call it after `torch.cuda.set_device`. If `PFO_FS_GPU` is set, it decides: `simulated`, `simulated:<name>`, `none`,
    or `nvml:<UUID>`. Otherwise torch's device is used if torch is imported and has CUDA. LOCAL_RANK is never used as
    the index of a GPU.

    Args:
        device: CUDA device index of this process; torch's current device if None.

    Returns:
        `nvml:<UUID>`, `simulated:<name>`, the same name each time within one process, or `none`.

    Raises:
        DeviceError: The device is a MIG slice (a part of a GPU that shares its clocks with other parts); or
            `PFO_FS_GPU` has another value.
    """
    asked = os.environ.get("PFO_FS_GPU", "")
    kind, _, name = asked.partition(":")
    if asked == "simulated":
        return f"simulated:{_simulated_name()}"
    if asked == "none" or (kind == "simulated" and _NAME.fullmatch(name)) or (kind == "nvml" and name):
        return asked
    if asked:
        raise DeviceError(f"PFO_FS_GPU={asked!r}: use simulated, simulated:<name>, nvml:<UUID> or none")
    torch = sys.modules.get("torch")
    if torch is not None:
        return _spec_from_torch(torch, device)
    if device is not None:
        from pfo_fs.device.gpu.visible_gpus import uuid_of_visible_device

        return f"nvml:{uuid_of_visible_device(device)}"
    return "none"


def _simulated_name() -> str:
    global _simulated
    if _simulated[0] != os.getpid():  # a forked child needs a name of its own
        _simulated = (os.getpid(), f"gpu-{os.getpid()}-{secrets.token_hex(4)}")
    return _simulated[1]


def _spec_from_torch(torch: Any, device: int | None) -> str:
    if getattr(torch.version, "hip", None) is not None or not torch.cuda.is_available():
        return "none"
    index = torch.cuda.current_device() if device is None else device
    properties = torch.cuda.get_device_properties(index)
    from pfo_fs.device.gpu.visible_gpus import names_mig_slices, uuid_of_visible_device

    if "MIG" in properties.name.split() or names_mig_slices(os.environ.get("CUDA_VISIBLE_DEVICES", "")):
        raise DeviceError(
            f"CUDA device {index} ({properties.name}) is a MIG slice: its clocks and energy are the whole GPU's, so "
            f"pfo-fs does not use it; train on whole GPUs, or set PFO_FS_GPU=none"
        )
    uuid = getattr(properties, "uuid", None)
    if uuid is None:  # torch older than 2.4
        return f"nvml:{uuid_of_visible_device(index)}"
    text = str(uuid)
    return f"nvml:{text}" if text.startswith("GPU-") else f"nvml:GPU-{text}"
