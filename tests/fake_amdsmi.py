"""A stand-in for ROCm's Python package amdsmi with two GPUs, whose calls can be made to fail."""

from types import SimpleNamespace
from typing import Any

ADDRESSES = ["0000:c1:00.0", "0000:c6:00.0"]
LOWEST, HIGHEST = 500, 2100


class AmdSmiLibraryException(Exception):
    """What the real package raises where its library returns another status than success."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.get_error_code, self.get_error_info = lambda: status, lambda: f"text of {status}"


class FakeAmdSmi:
    """Takes the place of the module.

    Attributes:
        fails: Status that calls of this name return from now on.
        changes: (GPU, highest clock) of each lock, with the clock 0 for a reset.
    """

    AmdSmiInitFlags = SimpleNamespace(INIT_AMD_GPUS=2)
    AmdSmiClkType = SimpleNamespace(GFX=1)
    AmdSmiDevPerfLevel = SimpleNamespace(AUTO=0)
    AmdSmiLibraryException = AmdSmiLibraryException

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}
        self.changes: list[tuple[int, int]] = []
        self.limits_uw = [750e6, 750e6]
        self.ranges = [(LOWEST, HIGHEST), (LOWEST, HIGHEST)]
        self.partition = "SPX"
        self.energy = {"energy_accumulator": 1_000_000, "counter_resolution": 15.3}

    def __getattr__(self, name: str) -> Any:
        answers = {
            "init": lambda flags: None,
            "get_processor_handle_from_bdf": self._find,
            "get_gpu_asic_info": lambda gpu: {"market_name": "AMD Instinct MI300X"},
            "get_gpu_compute_partition": lambda gpu: self.partition,
            "get_clock_info": lambda gpu, kind: dict(
                zip(("min_clk", "max_clk"), self.ranges[gpu], strict=True), clk=132
            ),
            "set_gpu_clk_range": lambda gpu, low, high, kind: self._lock(gpu, low, high),
            "set_gpu_perf_level": lambda gpu, level: self._lock(gpu, LOWEST, HIGHEST, 0),
            "get_gpu_perf_level": lambda gpu: f"AMDSMI_DEV_PERF_LEVEL_{'AUTO' if self._free(gpu) else 'MANUAL'}",
            "get_power_cap_info": self._limits,
            "set_power_cap": lambda gpu, sensor, cap: self.limits_uw.__setitem__(gpu, cap),
            "get_energy_count": lambda gpu: self.energy,
            "get_power_info": lambda gpu: {"current_socket_power": "N/A", "average_socket_power": 140},
        }
        short = name.removeprefix("amdsmi_")
        if short not in answers:
            raise AttributeError(name)

        def called(*arguments: Any) -> Any:
            if short in self.fails:
                raise AmdSmiLibraryException(self.fails[short])
            return answers[short](*arguments)

        return called

    def _find(self, address: str) -> int:
        if address not in ADDRESSES:
            raise AmdSmiLibraryException(31)
        return ADDRESSES.index(address)

    def _free(self, gpu: int) -> bool:
        return self.ranges[gpu] == (LOWEST, HIGHEST)

    def _lock(self, gpu: int, low: int, high: int, told: int | None = None) -> None:
        assert LOWEST <= low <= high <= HIGHEST
        self.ranges[gpu] = low, high
        self.changes.append((gpu, high if told is None else told))

    def _limits(self, gpu: int) -> dict[str, float]:
        fixed = {"default_power_cap": 750e6, "min_power_cap": 300e6, "max_power_cap": 760e6}
        return {"power_cap": self.limits_uw[gpu], **fixed}
