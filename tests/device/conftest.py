"""GPUs through NVML, without a GPU."""

from __future__ import annotations

import sys

import pytest
from fake_nvml import FakeNvml


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A fake `pynvml` in place of the real module."""
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(variable, raising=False)
    return module
