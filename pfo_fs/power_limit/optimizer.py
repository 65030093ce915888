"""`GlobalPowerLimitOptimizer`: finds the best power limit while training runs, and keeps to it."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal

from pfo_fs.errors import ConfigError, DeviceError, PlanError
from pfo_fs.power_limit.choosing import Chooser, Decision
from pfo_fs.power_limit.drift import DriftWatch
from pfo_fs.power_limit.files import ProfileFiles
from pfo_fs.power_limit.gpus import close_all, give_all_back, settle_all
from pfo_fs.power_limit.measurements import PowerLimitMeasurement
from pfo_fs.power_limit.monitor import EnergyMonitor, Monitor, gpus_of
from pfo_fs.power_limit.ranks import RankGroup
from pfo_fs.power_limit.search import CoarseToFine, FullSweep, Search
from pfo_fs.power_limit.selectors import OptimumSelector, ZeusCost
from pfo_fs.power_limit.states import Done, Off, Profiling, Ready, State, Warmup
from pfo_fs.store.power_limit_folder import folder_key

log = logging.getLogger("pfo_fs")


def _window(limit_w: int) -> str:
    """The name of a window, as Zeus's class gives it: logs of its windows can be replayed to this one."""
    return f"__GlobalPowerLimitOptimizer_{limit_w}"


class GlobalPowerLimitOptimizer:
    """Measures training at one power limit after the other, chooses the best, and holds all GPUs there.

    For training in which all GPUs carry the same load. Make one on every rank, after `init_process_group`; making it is
    a collective call. Then call `on_step_begin` at the beginning of every step, and `on_epoch_end`:

        with GlobalPowerLimitOptimizer(optimum_selector=MaxSlowdownConstraint(1.05)) as plo:
            for epoch in range(epochs):
                plo.on_epoch_begin()
                for batch in loader:
                    plo.on_step_begin()
                    ...
                    plo.on_step_end()
                plo.on_epoch_end()

    Where limits cannot be set, or not any more, there is one warning, the state is `Off`, and training goes on. Limits
    go back to what they were at `close`, at the end of the process, and when it is killed.

    Args:
        monitor: Measures time and energy, and says which GPUs are meant: an `EnergyMonitor`, or a `ZeusMonitor`. None
            for an `EnergyMonitor` of this process's current GPU, which is what a rank of its own per GPU needs.
        optimum_selector: What is best; `ZeusCost(0.5, world_size=<all GPUs>)` if None.
        wait_steps: Steps to let pass at the very beginning.
        warmup_steps: Steps between setting a limit and measuring it.
        profile_steps: Steps in which a limit is measured.
        pl_step: Watts between two limits, from the highest that the GPU takes downwards.
        profile_path: JSON file, as Zeus's. If it is there, it is believed and nothing is measured, else it is written.
        shared_dir: Directory in which jobs with the same load share what they measure, whether they run at once or
            one after the other; give each kind of load a directory of its own. A job that has chosen goes on at that
            limit until it hears whose choice came first: usually one window more.
        search: `full` measures all limits, as Zeus does; `coarse-to-fine` at most half as many steps (`search.py`).
        reprofile_drift: Measure everything anew when steps have come to take so much more or less time than just after
            the choice: 0.2 for 20 %, in two windows of `profile_steps` in a row. The profile is then written anew.
            None for never.

    Attributes:
        state: `Ready`, `Warmup`, `Profiling`, `Done` or `Off`.
        measurements: What is known so far.
        power_limits: The limits in question, in W, highest first; empty if `Off` from the start.

    Raises:
        ConfigError: An argument cannot be right, or the GPUs of the job have different ranges of limits.
        PlanError: The profile is malformed, or the limit that comes of it is none of this GPU's.
    """

    def __init__(
        self,
        monitor: Monitor | None = None,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | os.PathLike[str] | None = None,
        shared_dir: str | os.PathLike[str] | None = None,
        *,
        search: Literal["full", "coarse-to-fine"] = "full",
        reprofile_drift: float | None = None,
    ) -> None:
        for name, value, least in (
            ("wait_steps", wait_steps, 0),
            ("warmup_steps", warmup_steps, 0),
            ("profile_steps", profile_steps, 1),
            ("pl_step", pl_step, 1),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}; it is at least {least}")
        # A TypeError on all ranks, not on the first alone.
        profile_path = None if profile_path is None else os.fsdecode(profile_path)
        shared_dir = None if shared_dir is None else os.fsdecode(shared_dir)
        if search not in _SEARCHES:
            raise ConfigError(f"search is {search!r}; it can be 'full' or 'coarse-to-fine'")
        if reprofile_drift is not None and not 0 < reprofile_drift < math.inf:
            raise ConfigError(
                f"reprofile_drift is {reprofile_drift}; 0.2 is for steps that take 20 % more or less time"
            )
        self.state: State = Off("not started")
        self.measurements: list[PowerLimitMeasurement] = []
        self.power_limits: list[int] = []
        self.warmup_steps, self.profile_steps = warmup_steps, profile_steps
        self.profile_path = profile_path
        self._search: Search = _SEARCHES[search](warmup_steps, profile_steps)
        self._drift = reprofile_drift
        self._drift_watch: DriftWatch | None = None
        self._owns_monitor = monitor is None
        self.monitor: Monitor = EnergyMonitor() if monitor is None else monitor
        self._gpus = gpus_of(self.monitor)
        self._limit_w: int | None = None
        self._problem = ""
        self._closed = False
        self._chooser: Chooser | None = None  # the first rank's
        atexit.register(_close_at_exit, weakref.ref(self))

        self._ranks = RankGroup()
        gpus = self._agree_on_limits(pl_step)
        self.optimum_selector = optimum_selector or ZeusCost(0.5, world_size=max(1, len(gpus)))
        if not self.power_limits:
            return
        decision: Decision | None = None
        if self._ranks.rank == 0:
            files = ProfileFiles(
                profile_path, shared_dir, folder_key(gpus[0]["name"], self.power_limits, profile_steps, len(gpus))
            )
            self._chooser = Chooser(
                files, self.optimum_selector, self._search, self.power_limits, profile_steps, self._gpus[0].range_w()
            )
            decision = self._chooser.first()
        try:
            decision = self._ranks.from_first(decision)
        except RuntimeError as error:
            decision = Decision([], problem=f"ranks cannot be asked: {error}")
        assert decision is not None
        if decision.error:
            self.close()
            raise PlanError(decision.error)
        if decision.next_w is not None:
            self._set_limit(self.power_limits[0])
            self.measurements = decision.measurements
            self.state = Ready(decision.next_w, wait_steps + 1)
        else:
            self._follow(decision)

    # ---- training calls these

    def on_epoch_begin(self) -> None:
        """Marks the beginning of an epoch."""

    def on_epoch_end(self) -> None:
        """Marks the end of an epoch: what is half measured is dropped, and measured again in the next one."""
        if isinstance(self.state, Warmup | Profiling):
            if isinstance(self.state, Profiling):
                self._cancel_window()
            self.state = Ready(self.state.current_power_limit, 1)
            self._set_limit(self.power_limits[0])

    def on_step_begin(self) -> None:
        """Marks the beginning of a step; all that happens happens here."""
        if self._closed:
            return
        state = self.state
        if isinstance(state, Warmup | Profiling):
            for gpu in self._gpus:
                self._note(gpu.check())
        if isinstance(state, Ready):
            state.steps -= 1
            if state.steps <= 0:
                self._begin_warmup(state.next_power_limit)
        elif isinstance(state, Warmup):
            state.steps -= 1
            if state.steps <= 0:
                self._begin_profiling(state.current_power_limit)
        elif isinstance(state, Profiling):
            state.steps -= 1
            if state.steps <= 0:
                self._finish_profiling(state.current_power_limit)
        elif isinstance(state, Done):
            self._set_limit(state.optimal_power_limit)  # it was given back if training paused
            self._look_after_gpus()
            if self._chooser is not None:
                self._chooser.files.hear()
            if self._drift_watch is not None:
                self._look_for_drift(self._drift_watch)

    def on_step_end(self) -> None:
        """Marks the end of a step."""

    def on_train_begin(self) -> None:
        """Nothing; there for callers of Zeus's callbacks."""

    def on_train_end(self) -> None:
        """Gives limits back until the next step begins."""
        self.pause()

    def on_evaluate(self, metric: float) -> None:
        """Nothing; there for callers of Zeus's callbacks."""

    def on_instruction_begin(self, name: str) -> None:
        """Nothing; there for callers of Zeus's callbacks."""

    def on_instruction_end(self, name: str) -> None:
        """Nothing; there for callers of Zeus's callbacks."""

    def pause(self) -> None:
        """Gives limits back until the next step begins: at the end of training in a process that goes on."""
        self.on_epoch_end()
        if self._limit_w is not None:
            self._limit_w = None
            give_all_back(self._gpus)

    def close(self) -> None:
        """Gives limits back and finishes writing; waits for that, but not for ever. Training may go on."""
        if self._closed:
            return
        self._closed = True
        if isinstance(self.state, Profiling):
            self._cancel_window()
        if not isinstance(self.state, Done | Off):
            self.state = Off("closed")
        if self._owns_monitor or not isinstance(self.monitor, EnergyMonitor):
            close_all(self._gpus)
        else:
            give_all_back(self._gpus)
        self._ranks.close()
        if self._chooser is not None:
            self._chooser.files.close()

    def __enter__(self) -> GlobalPowerLimitOptimizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- the states

    def _begin_warmup(self, limit_w: int) -> None:
        log.info("power limit: %d W, warming up", limit_w)
        self._set_limit(limit_w)
        self.state = Warmup(limit_w, self.warmup_steps)
        if self.warmup_steps == 0:
            self._begin_profiling(limit_w)

    def _begin_profiling(self, limit_w: int) -> None:
        log.info("power limit: %d W, measuring", limit_w)
        self.state = Profiling(limit_w, self._search.window_steps)
        settle_all(self._gpus)
        try:
            self.monitor.begin_window(_window(limit_w))
        except Exception as error:  # noqa: BLE001  whatever a monitor raises, training goes on
            self._note(f"time and energy cannot be measured: {error}")

    def _finish_profiling(self, limit_w: int) -> None:
        """Ends the window, and does with all ranks what comes of it."""
        window = {"time_s": 0.0, "energy_j": 0.0}
        if not self._problem:
            try:
                measured = self.monitor.end_window(_window(limit_w))
                window = {"time_s": float(measured.time), "energy_j": float(sum(measured.gpu_energy.values()))}
            except Exception as error:  # noqa: BLE001
                self._note(f"time and energy cannot be measured: {error}")
        for gpu in self._gpus:
            self._note(gpu.check())
        try:
            windows = self._ranks.gather({**window, "problem": self._problem})
            decision = self._ranks.from_first(self._chooser and self._chooser.after(limit_w, windows))
        except RuntimeError as error:
            self._leave_alone(f"ranks cannot be asked any more: {error}", warn=True)
            return
        self._follow(decision)

    def _follow(self, decision: Decision) -> None:
        """Goes on, as all ranks do, with what the first one has decided."""
        if decision.problem:
            self._leave_alone(decision.problem, warn=self._ranks.rank == 0)
            return
        self.measurements = decision.measurements
        if decision.next_w is not None:
            self._begin_warmup(decision.next_w)
            return
        optimal_w = decision.optimal_w
        assert optimal_w is not None
        log.info("power limit: %d W is the best", optimal_w)
        self.state = Done(optimal_w)
        self._set_limit(optimal_w)
        if self._drift is not None:
            self._drift_watch = DriftWatch(self._drift, self.warmup_steps, self.profile_steps)
        if self._chooser is not None:
            self._chooser.conclude(decision)

    def _look_after_gpus(self) -> None:
        """Warns, once, if the limit chosen is not in force any more. Some microseconds."""
        for gpu in self._gpus:
            if not self._problem and gpu.check():
                self._note(gpu.problem)
                if self._drift_watch is None or self._ranks.size == 1:
                    self._leave_alone(self._problem, warn=True)
                else:  # the others still count on this rank's looking for drift
                    log.warning("power limit: %s. Training goes on", self._problem)

    def _look_for_drift(self, watch: DriftWatch) -> None:
        off = watch.step_begins(time.monotonic())
        if off is None:
            return
        try:
            off = max(self._ranks.gather(off))
        except RuntimeError as error:
            self._drift_watch = None
            log.warning("power limit: ranks cannot be asked any more, the limit stays: %s", error)
            return
        if watch.has_drifted(off):
            if self._ranks.rank == 0:
                log.warning(
                    "power limit: steps have come to take %.0f %% another time; limits are measured anew", 100 * off
                )
            if self._chooser is not None:
                self._chooser.start_anew()
            self.measurements = []
            self._set_limit(self.power_limits[0])
            self.state = Ready(self.power_limits[0], 1)

    # ---- GPUs

    def _agree_on_limits(self, pl_step_w: int) -> list[dict[str, Any]]:
        """Sets `power_limits`, the same on all ranks; returns the GPUs of the whole job.

        Raises:
            ConfigError: They have different ranges.
        """
        mine: list[dict[str, Any]] = []
        for position, gpu in enumerate(self._gpus):
            try:
                lowest_w, highest_w = gpu.range_w()
                mine.append({"name": gpu.name, "lowest_w": lowest_w, "highest_w": highest_w, "place": position})
            except DeviceError as error:
                self._note(str(error))
        try:
            found = self._ranks.gather({"gpus": mine, "problem": self._problem})
        except RuntimeError as error:
            self._leave_alone(f"ranks cannot be asked: {error}", warn=True)
            return []
        for rank, report in enumerate(found):
            if report["problem"]:
                where = f"rank {rank}: " if len(found) > 1 else ""
                self._leave_alone(f"{where}{report['problem']}", warn=self._ranks.rank == 0)
                return []
        gpus = [{**gpu, "rank": rank} for rank, report in enumerate(found) for gpu in report["gpus"]]
        ranges = {(gpu["lowest_w"], gpu["highest_w"]) for gpu in gpus}
        if len(ranges) > 1:
            self.close()
            each = "; ".join(
                f"{gpu['name']} (rank {gpu['rank']}, GPU {gpu['place']}): {gpu['lowest_w']:g} to {gpu['highest_w']:g} W"
                for gpu in gpus[:64]
            )
            raise ConfigError(f"one power limit for all needs GPUs with the same range of limits, but there are {each}")
        names = [gpu["name"] for gpu in gpus]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice and self._ranks.rank == 0:
            log.warning("power limit: %s monitored by several ranks; their energy counts as often", ", ".join(twice))
        lowest_w, highest_w = ranges.pop()
        self.power_limits = list(range(math.floor(highest_w), math.ceil(lowest_w) - 1, -pl_step_w))
        return gpus

    def _set_limit(self, limit_w: int) -> None:
        if limit_w != self._limit_w and not self._closed:
            self._limit_w = limit_w
            for gpu in self._gpus:
                gpu.set_limit_w(limit_w)

    def _cancel_window(self) -> None:
        if not self._problem and isinstance(self.state, Profiling):
            with suppress(Exception):
                self.monitor.end_window(_window(self.state.current_power_limit), cancel=True)

    def _note(self, problem: str) -> None:
        """Keeps the first problem until all ranks learn of it: they must go on in step until then."""
        self._problem = self._problem or problem

    def _leave_alone(self, reason: str, *, warn: bool) -> None:
        if warn:
            log.warning("power limit: %s. Power limits are left alone, and training goes on", reason)
        self.state = Off(reason)
        self._limit_w = None
        give_all_back(self._gpus)
        if self._chooser is not None:
            self._chooser.files.leave()


_SEARCHES: dict[str, type[FullSweep] | type[CoarseToFine]] = {"full": FullSweep, "coarse-to-fine": CoarseToFine}


def _close_at_exit(reference: weakref.ref[GlobalPowerLimitOptimizer]) -> None:
    optimizer = reference()
    if optimizer is not None:
        optimizer.close()
