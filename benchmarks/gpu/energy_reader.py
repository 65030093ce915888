"""A thread that reads NVML's energy counter and keeps the times at which it changed."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

from benchmarks.gpu.analysis import Tick, mean_power_w
from benchmarks.gpu.cuda import nvml


class EnergyReader:
    """Reads the counter again and again, from `with` until its end. Times are those of `time.perf_counter`.

    Args:
        pause_s: Between the end of a reading and the next one.
    """

    def __init__(self, pause_s: float = 0.001) -> None:
        pynvml, self.handle = nvml()
        self.pynvml = pynvml
        self._read = pynvml.nvmlDeviceGetTotalEnergyConsumption
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ticks: list[Tick] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        before: tuple[float, int] | None = None
        while not self._stop.is_set():
            began_s = time.perf_counter()
            energy_mj = int(self._read(self.handle))
            middle_s = (began_s + time.perf_counter()) / 2
            if before is not None and energy_mj != before[1]:
                self.ticks.append(Tick(middle_s, middle_s - before[0], energy_mj))
            before = middle_s, energy_mj
            time.sleep(self._pause_s)

    def between(self, begin_s: float, end_s: float) -> list[Tick]:
        """Returns the ticks between two times."""
        return [tick for tick in list(self.ticks) if begin_s <= tick.at_s <= end_s]

    def power_w(self, begin_s: float, end_s: float) -> float:
        """Returns the mean power by the ticks between two times.

        Raises:
            ValueError: There are fewer than three.
        """
        return mean_power_w(self.between(begin_s, end_s))
