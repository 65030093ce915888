"""A `pynvml` without GPUs that behaves oddly, for `faults.py`: that of the tests, with faults that `ODD_NVML` names.

`ODD_NVML` is JSON: `fails`: {function: error code}; `once`: {function: [number of the first call that fails, error
code, how many fail]}; `hangs`: {function: s}; `missing`: [function]; `energy`: "restarts" or "stands still"; `log`: a
file that gets a line for each clock that is locked or reset.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from typing import Any

from fake_nvml import FakeNvml, NVMLError

_ODD = json.loads(os.environ.get("ODD_NVML", "{}"))
_BEGAN_S = time.monotonic()


class OddNvml(FakeNvml):
    """The module."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("nvml"):
            return found
        if name in _ODD.get("missing", ()):
            raise AttributeError(f"module 'pynvml' has no attribute {name!r}")

        def call(*args: Any) -> Any:
            self._calls[name] += 1
            time.sleep(_ODD.get("hangs", {}).get(name, 0.0))
            if name in _ODD.get("fails", {}):
                raise NVMLError(_ODD["fails"][name])
            first, code, count = _ODD.get("once", {}).get(name, (0, 0, 0))
            if first <= self._calls[name] < first + count:
                raise NVMLError(code)
            if name == "nvmlDeviceGetTotalEnergyConsumption":
                return _energy_mj()
            answer = found(*args)
            if name in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks") and "log" in _ODD:
                with open(_ODD["log"], "a", encoding="ascii") as file:
                    file.write(f"{args[0]} {args[1] if len(args) > 1 else 0}\n")
            return answer

        return call


def _energy_mj() -> int:
    since_s = time.monotonic() - _BEGAN_S
    if _ODD.get("energy") == "stands still":
        return 5_000_000
    restarted = _ODD.get("energy") == "restarts" and since_s > 4
    return int((0 if restarted else 5_000_000_000) + 300_000 * since_s)


sys.modules[__name__] = OddNvml()
