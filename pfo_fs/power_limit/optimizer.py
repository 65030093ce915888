"""`GlobalPowerLimitOptimizer`: finds the best power limit, or the best clock, while training runs, and sets it."""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, TypeAlias

from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.errors import PlanError
from pfo_fs.guard import Guard, WarnOnce, guarded, reason_of, takes_any_call
from pfo_fs.ipc.process_end import at_process_end
from pfo_fs.power_limit.choosing import Chooser, Decision
from pfo_fs.power_limit.file_client import FileClient, JobKey
from pfo_fs.power_limit.measurements import Knob
from pfo_fs.power_limit.monitor import Monitor
from pfo_fs.power_limit.rank_gpus import RankGpus
from pfo_fs.power_limit.ranks import LevelAgreement, RankGroup, agree_on_levels
from pfo_fs.power_limit.selectors import OptimumSelector, Search, ZeusCost
from pfo_fs.power_limit.states import (
    Done,
    Off,
    Profiling,
    Ready,
    ShownOptimizer,
    Warmup,
    check_numbers,
    check_others,
    too_short,
)

log = logging.getLogger("pfo_fs")

Path: TypeAlias = str | os.PathLike[str]


class GlobalPowerLimitOptimizer(ShownOptimizer):
    """Measures training at one power limit (or clock) after the other, chooses the best, and sets it on all GPUs.

    For training in which all GPUs have the same load. Make one on every rank, after `init_process_group`; making it is
    a collective call (all ranks wait for each other). Call `on_step_begin` at the begin of every step, and
    `on_epoch_end`:

        with GlobalPowerLimitOptimizer(optimum_selector=MaxSlowdownConstraint(1.05)) as plo:
            for epoch in range(epochs):
                plo.on_epoch_begin()
                for batch in loader:
                    plo.on_step_begin()
                    ...
                    plo.on_step_end()
                plo.on_epoch_end()

    A value of the knob is a level: a power limit in W, or, with `knob="clock"`, a clock in MHz. States and
    selectors are the same for both knobs; profiles of one knob are never used for the other.

    If levels cannot be set, or not any more, or after any other error, the optimizer logs one warning, its state
    becomes `Off`, and training goes on. A copy of the optimizer is `Off`, also in another process. The earlier levels
    are restored at `close`, at the end of the process, and when it is killed.

    Args:
        monitor: Measures time and energy of its GPUs: an `EnergyMonitor` or a `ZeusMonitor`. None for an
            `EnergyMonitor` of this process's current GPU, which is right if each GPU has a rank of its own.
        optimum_selector: Chooses the best level; `ZeusCost(0.5, world_size=<all GPUs>)` if None.
        wait_steps, warmup_steps, profile_steps: Number of steps before the first level is set, between setting a level
            and measuring it, and in which it is measured.
        pl_step: Watts between two limits, from the highest that the GPU accepts downwards.
        profile_path: JSON file of Zeus's format. If it exists, nothing is measured and the level is chosen from it;
            else it is written.
        shared_dir: The directory in which this job is seen (`pfo-fs status`) and switched off (`pfo-fs off`); without a
            directory, the job cannot be switched off.
        search: `full` measures all levels, as Zeus does; `coarse-to-fine` needs at most half of the steps
            if there are five levels or more (`selectors.py`).
        knob: `power_limit`, or `clock`, which can lower power further, and acts faster.
        clock_step: MHz between two clocks, at least.
        strict: Raise an error instead of logging a warning and going on as `Off`; rank 0's value counts.

    Raises:
        InvalidArgument: A number of steps or of watts is too low; Zeus raises a ValueError there.
        ConfigError: With `strict`: another argument is invalid, or the GPUs of the job accept different levels.
        CoordinationError: With `strict`: a rank does not answer.
        PlanError: With `strict`: the profile is malformed, or of the other knob, or its best level is one that this GPU
            does not accept.
    """

    _gpus: RankGpus

    def _start_as_nothing(self, reason: str = "a copy of another optimizer", strict: bool = False) -> None:
        self._show(Off(reason), Guard(self._go_without, strict=strict, what="the power-limit optimizer"))
        self.optimum_selector: OptimumSelector = ZeusCost(0.5)
        self.profile_path: Path | None = None
        self._files = FileClient(None, None, "")
        self._chooser: Chooser | None = None  # on rank 0
        self._closed = True

    @takes_any_call()
    def __init__(
        self,
        monitor: Monitor | None = None,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: Path | None = None,
        shared_dir: Path | None = None,
        *,
        search: Literal["full", "coarse-to-fine"] = "full",
        knob: Knob = "power_limit",
        clock_step: int = 45,
        strict: bool = False,
    ) -> None:
        given = locals().copy()
        self._start_as_nothing("not started", strict)
        with ExitStack() as on_error, self.guard:
            on_error.callback(self.close)
            error: Exception | None = None
            try:
                if self.wrong_call is not None:
                    raise self.wrong_call
                check_numbers(given)
                check_others(given)
                self.knob, self.profile_path = knob, profile_path
                self.warmup_steps, self.profile_steps = warmup_steps, profile_steps
                self._search = Search(search, warmup_steps, profile_steps)
                self._epoch_steps = self._longest_epoch = 0
                self._warn = WarnOnce()
                self._gpus = RankGpus(monitor, knob)
                self._metrics = StepMetrics([gpu.clocks.words for gpu in self._gpus.gpus])
                self._closed = False
                at_process_end(self._end)
            except Exception as found:  # noqa: BLE001  the other ranks must hear of it
                error = found
            self._ranks = RankGroup()
            self._ranks.agree(error, self.guard)
            agreed = agree_on_levels(self._ranks, self._gpus, clock_step if knob == "clock" else pl_step, self.unit)
            if agreed.problem:
                self._leave_alone(agreed.problem, warn=self._ranks.rank == 0)
            self.power_limits = list(agreed.levels)
            self.optimum_selector = optimum_selector or ZeusCost(0.5, world_size=max(1, len(agreed.gpu_names)))
            if agreed.levels:
                self._follow(self._first_decision(agreed, shared_dir)._replace(wait_steps=wait_steps + 1))
            on_error.pop_all()

    @property
    def monitor(self) -> Monitor:
        return self._gpus.monitor

    def _first_decision(self, agreed: LevelAgreement, shared_dir: Path | None) -> Decision:
        decision: Decision | None = None
        job: JobKey | None = None
        token = secrets.token_hex(16)
        if self._ranks.rank == 0:
            try:
                self._files = files = FileClient(self.profile_path, shared_dir, token)
                selector, search = self.optimum_selector, self._search
                self._chooser = Chooser(files, selector, search, agreed, self.profile_steps, self.knob)
                decision = self._chooser.first()
                job = self._files.create_job(self._ranks.world_size, self.knob)
            except PlanError as error:
                decision = Decision([], error=str(error))
            except Exception as error:  # noqa: BLE001  the other ranks wait for the decision
                decision = Decision([], problem=reason_of(error))
        decision, token, job = self._ranks.from_rank_0((decision, token, job))
        assert decision is not None
        if decision.error:
            raise PlanError(decision.error)
        if self._ranks.rank != 0:
            self._files = FileClient(None, shared_dir, token, self._ranks.rank)
        if self._files.helper:
            for gpu in self._gpus.gpus:
                gpu.report_to(self._files.helper, self._ranks.rank, token)
        self._files.join(job, ", ".join(dict.fromkeys(gpu.name for gpu in self._gpus.gpus)))
        self._gpus.hold(self._files.is_off)
        return decision

    def _wait(self, next_level: int, steps: int) -> None:
        """Sets the highest level for this many steps; then `next_level` is measured."""
        self._gpus.set_level(self.power_limits[0])
        self.state = Ready(next_level, steps, self.unit)

    def _leave_alone(self, reason: str, *, warn: bool) -> None:
        if warn:
            what = "Clocks" if self.knob == "clock" else "Power limits"
            log.warning("%s: %s. %s are left alone, and training goes on", self._name, reason, what)
        self.state = Off(reason)
        self._gpus.restore()
        self._files.leave()

    def _go_without(self, error: Exception) -> None:
        """Lets the earlier levels be restored, and leaves the other ranks; waits for neither."""
        was_open, self._closed = not self._closed, True
        self.state = Off(reason_of(error))
        if was_open:
            self._gpus.leave()
            self._ranks.close()
            self._files.leave()

    # ---- training calls these

    @guarded
    def on_epoch_end(self) -> None:
        """Drops a window that is not complete; if `pause_measurement` is called instead, windows go on over epochs."""
        if self._closed:
            return
        self._longest_epoch, self._epoch_steps = max(self._longest_epoch, self._epoch_steps), 0
        warning = too_short(self._longest_epoch, self.warmup_steps, self._search.window_steps)
        if self._drop_window() and warning and self._ranks.rank == 0:
            self._warn(f"{self._name}: {warning}", "epochs")

    def _drop_window(self) -> bool:
        """Drops a window that is not complete, so that it begins again; returns False if there is none."""
        state = self.state
        if not isinstance(state, Warmup | Profiling):
            return False
        if isinstance(state, Profiling):
            self._gpus.cancel_window()
        self._wait(state.level, 1)
        return True

    @guarded
    def on_step_begin(self) -> None:
        """Begins a step, and goes on to the next state if the present one ends here."""
        if self._closed:
            return
        self._metrics.step_begins()
        self._epoch_steps += 1
        self.resume_measurement()
        self._files.poll()
        self._gpus.hold(self._files.is_off)
        state = self.state
        if isinstance(state, Done):
            self._gpus.set_level(state.optimal_power_limit)  # a pause may have restored the earlier level
            if self._gpus.check():
                self._leave_alone(self._gpus.problem, warn=True)
        elif not isinstance(state, Off):
            if not isinstance(state, Ready):
                self._gpus.check()
            state.steps -= 1
            if state.steps <= 0:
                self._go_on_from(state)

    @guarded
    def pause_measurement(self) -> None:
        """Pauses the measurement until the next step begins, for example for an evaluation or a checkpoint."""
        self._metrics.pause()
        if isinstance(self.state, Profiling):
            self._gpus.interrupt_window()

    @guarded
    def resume_measurement(self) -> None:
        """Ends `pause_measurement`; the begin of a step does so, too."""
        self._metrics.resume()
        if isinstance(self.state, Profiling):
            self._gpus.resume_window()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Pauses the measurement in the block; for training loops whose steps are followed by hooks."""
        self.pause_measurement()
        try:
            yield
        finally:
            self.resume_measurement()

    @guarded
    def on_train_begin(self) -> None:
        """Drops an open window: training may have failed in the middle of a step."""
        if not self._closed:
            self._drop_window()

    @guarded
    def measure_again(self) -> None:
        """Forgets what was measured: training has another load now. All ranks call this, at the same step."""
        if self._closed or isinstance(self.state, Off):
            return
        self._drop_window()
        if self._chooser is not None:
            self._chooser.forget_measurements()
        self.measurements = []
        self._wait(self.power_limits[0], 1)

    @guarded
    def pause(self) -> None:
        """Restores the earlier levels until the next step begins: at the end of training in a process that goes on."""
        if not self._closed:
            self._drop_window()
            self._gpus.pause()

    def on_train_end(self) -> None:
        """Does the same as `pause`."""
        self.pause()

    @guarded
    def close(self) -> None:
        """Restores the earlier levels; waits a few seconds for that. Training may go on."""
        if self._closed:
            return
        self._closed = True
        if isinstance(self.state, Profiling):
            self._gpus.cancel_window()
        if not isinstance(self.state, Done | Off):
            if self._chooser is not None and (self.measurements or not isinstance(self.state, Ready)):
                steps = self.warmup_steps + self._search.window_steps
                log.warning("%s: %s", self._name, self._chooser.unfinished(steps))
            self.state = Off("closed")
        self._gpus.close()
        self._ranks.close()
        self._files.close()

    # ---- the states

    def _go_on_from(self, state: Ready | Warmup | Profiling) -> None:
        if isinstance(state, Ready):
            self._begin_warmup(state.next_power_limit)
        elif isinstance(state, Warmup):
            self._begin_profiling(state.current_power_limit)
        else:  # rank 0 decides from the windows of all ranks what all ranks do next
            windows = self._ranks.all_gather(self._gpus.end_window())
            mine = None if self._chooser is None else self._chooser.after(state.current_power_limit, windows)
            decision = self._ranks.from_rank_0(mine)
            assert decision is not None
            self._follow(decision)

    def _begin_warmup(self, level: int) -> None:
        log.info("%s: %d %s, warming up", self._name, level, self.unit)
        self._gpus.set_level(level)
        self.state = Warmup(level, self.warmup_steps, self.unit)
        if self.warmup_steps == 0:
            self._begin_profiling(level)

    def _begin_profiling(self, level: int) -> None:
        log.info("%s: %d %s, measuring", self._name, level, self.unit)
        self.state = Profiling(level, self._search.window_steps, self.unit)
        self._gpus.begin_window(level)

    def _follow(self, decision: Decision) -> None:
        """Does what rank 0 has decided; all ranks do the same."""
        if decision.problem:
            self._leave_alone(decision.problem, warn=self._ranks.rank == 0)
            return
        self.measurements = decision.measurements
        if decision.next_level is not None:
            if decision.wait_steps:
                self._wait(decision.next_level, decision.wait_steps)
            else:
                self._begin_warmup(decision.next_level)
            return
        assert decision.optimal is not None
        log.info("%s: %d %s is the best", self._name, decision.optimal, self.unit)
        self.state = Done(decision.optimal, self.unit)
        self._gpus.set_level(decision.optimal)
        if self._chooser is not None:
            self._chooser.conclude(decision)
