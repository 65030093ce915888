"""NVML without GPUs: the real nvidia-ml-py over a library of ours (`mock_nvml.c`), whose calls can be made to fail."""

import atexit
import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

ALWAYS = 10**9
UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"]
SOURCE = Path(__file__).parent / "mock_nvml.c"
FUNCTIONS = sorted(
    {re.sub("WithFlags|_v[0-9]+", "", name) for name in re.findall(r"^int (nvml\w+)", SOURCE.read_text(), re.MULTILINE)}
    - {"nvmlShutdown"}
)


class Gpu(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 96),
        *((of, ctypes.c_uint) for of in ("limit_mw", "lock_mhz", "clock_mhz", "power_mw", "reasons", "mig")),
        *((of, ctypes.c_uint) for of in ("profiles", "smooths", "processes")),
        ("energy_mj", ctypes.c_uint64),
    ]


class Host(ctypes.Structure):
    _fields_ = [
        *((of, ctypes.c_int) for of in ("made", "live", "changed", "kind")),
        ("changes", (ctypes.c_int * 2) * 1024),
        ("gpus", Gpu * len(UUIDS)),
    ]


@cache
def library_folder() -> Path:
    """Returns the folder of our `libnvidia-ml.so.1`, which it builds."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the library in place of NVIDIA's has to be built, and this machine has no C compiler")
    folder = Path(mkdtemp(prefix="mock-nvml-"))
    atexit.register(shutil.rmtree, folder)
    path = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{path.name}", "-o", path, SOURCE], check=True)
    return folder


def use_library(monkeypatch: pytest.MonkeyPatch, state: Path, kind: str, *, may_set: bool = True) -> None:
    """Has processes that start from now on load our library; GPUs of this kind are in the file `state`."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library_folder()))
    monkeypatch.setenv("MOCK_NVML_MAY_SET", str(int(may_set)))
    monkeypatch.setenv("MOCK_NVML_STATE", str(state))
    monkeypatch.setenv("MOCK_NVML_KIND", kind)


@cache
def _package() -> ModuleType:
    """A copy of nvidia-ml-py's module that uses our library, whatever the process has loaded."""
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"pynvml": module}):
        spec.loader.exec_module(module)
    module.nvmlLib = ctypes.CDLL(str(library_folder() / "libnvidia-ml.so.1"))  # type: ignore[attr-defined]
    module.nvmlLib.mock_host.restype = ctypes.POINTER(Host)
    return module


class Fault(NamedTuple):
    """One function fails with one code (0: the package lacks the function), from its `first` call on, `count` times."""

    function: str
    code: int
    first: int = 1
    count: int = ALWAYS


class FakeNvml(ModuleType):
    """nvidia-ml-py over three A100s; each field of `Gpu` can be set for all of them, and is read of the first.

    Attributes:
        fails: The fault of a function, by its name, or the error code that it always raises.
        calls: How often each function was called.
        real: nvidia-ml-py, whose functions do not fail.
        host: The GPUs.
        open: How often NVML was started, and not ended.
    """

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.fails: dict[str, int | Fault] = {}
        self.calls: Counter[str] = Counter()
        self.real = _package()
        self.host: Host = self.real.nvmlLib.mock_host(b"A100").contents
        self.host.live = 0
        self.open = 0

    @property
    def locked(self) -> list[tuple[int, int]]:
        """The clocks that were set: (GPU, MHz), 0 for a reset."""
        return [(gpu, mhz) for gpu, mhz in self.host.changes[: self.host.changed] if mhz >= 0]

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(Gpu, name):
            super().__setattr__(name, value)
            return
        for gpu in self.host.gpus:
            setattr(gpu, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            raise AttributeError(name)
        return getattr(self.host.gpus[0] if hasattr(Gpu, name) else self.real, name)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        try:
            function = object.__getattribute__(self, name)
        except AttributeError:
            function = getattr(self.real, name)
        fault = self.fails.get(name)
        code, first, count = (fault, 1, ALWAYS) if isinstance(fault, int) else fault[1:] if fault else (None, 1, 0)
        if code == 0:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls[name] += 1
            if code is not None and first <= self.calls[name] < first + count:
                raise self.real.NVMLError(code)
            result = function(*args)
            self.open += (name == "nvmlInit") - (name == "nvmlShutdown")
            return result

        return call
