"""Decisions of rank 0 for all ranks: which limit is measured next, or which limit is the best."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from pfo_fs.errors import PlanError
from pfo_fs.power_limit.file_client import FileClient
from pfo_fs.power_limit.measurements import PowerLimitMeasurement
from pfo_fs.power_limit.rank_gpus import WindowReport
from pfo_fs.power_limit.search import FullSweep, Search
from pfo_fs.power_limit.selectors import OptimumSelector
from pfo_fs.store.power_limit_folder import MAX_SELECTOR_LENGTH

_ANSWER_S = 15.0
"""Time for the helper to read from the shared directory which job's choice came first."""


class Decision(NamedTuple):
    """What all ranks do next. One of `next_w`, `optimal_w`, `problem` and `error` is set.

    Attributes:
        measurements: All measurements, of this job and of others.
        next_w: The limit to measure next, in W.
        optimal_w: The best limit, in W.
        problem: The reason why the optimizer leaves limits alone from now on.
        error: The error that the user must correct before training.
    """

    measurements: list[PowerLimitMeasurement]
    next_w: int | None = None
    optimal_w: int | None = None
    problem: str = ""
    error: str = ""


class Chooser:
    """Keeps the measurements of this job and of others, and decides.

    Args:
        files: The profile and the shared directory.
        selector: Chooses the best limit.
        search: Chooses the limit to measure next.
        limits_w: The limits to choose from, in W, highest first.
        profile_steps: Measurements are scaled to this number of steps.
        range_w: The lowest and the highest limit that the GPUs accept, in W.
    """

    def __init__(
        self,
        files: FileClient,
        selector: OptimumSelector,
        search: Search,
        limits_w: Sequence[int],
        profile_steps: int,
        range_w: tuple[float, float],
    ) -> None:
        self.files = files
        self._selector = selector
        self._search = search
        self._limits_w = list(limits_w)
        self._scale = profile_steps / search.window_steps
        self._range_w = range_w
        self._known: list[PowerLimitMeasurement] = []
        self._in_file: list[PowerLimitMeasurement] = []
        self._chosen_w: int | None = None
        # Jobs with the same key share their choice. A selector without a `repr` of its own has no key.
        self._key = "" if type(selector).__repr__ is object.__repr__ else repr(selector)[: MAX_SELECTOR_LENGTH - 20]
        if self._key and not isinstance(search, FullSweep):
            self._key += ", coarse-to-fine"
        self._answer_by_s = 0.0

    def first(self) -> Decision:
        """Decides before the first step: from the profile, another job's choice or other jobs' measurements."""
        if self.files.profile_error:
            return Decision([], error=self.files.profile_error)
        found = self.files.profile
        if found is None:
            decision = self._decide()
            if self._key and self._chosen_w is not None:  # other jobs have measured all limits; one may have chosen
                self.files.wait_for_choice(self._key)
                decision = self._decide()
            return decision
        try:
            optimal_w = int(self._selector.select(found))
        except PlanError as error:
            return Decision([], error=str(error))
        except Exception as error:  # noqa: BLE001  as in `_decide`
            return Decision([], problem=f"{self._selector!r} could not choose: {error!r}")
        lowest_w, highest_w = self._range_w
        if not lowest_w <= optimal_w <= highest_w:
            text = f"{self.files.profile_path} makes {optimal_w} W the best power limit, but this GPU accepts "
            text += f"{lowest_w:g} to {highest_w:g} W; is the profile another GPU's?"
            return Decision([], error=text)
        self._in_file = found
        return Decision(found, optimal_w=optimal_w)

    def after(self, limit_w: int, windows: Sequence[WindowReport]) -> Decision:
        """Decides after a limit was measured.

        Args:
            limit_w: The limit, in W.
            windows: The measurement of each rank, by rank.
        """
        for rank, window in enumerate(windows):
            if window.problem:
                return Decision([], problem=f"rank {rank}: {window.problem}")
        try:
            measured = PowerLimitMeasurement(
                power_limit=limit_w,
                energy=sum(window.energy_j for window in windows) * self._scale,
                time=max(window.time_s for window in windows) * self._scale,
            )
        except ValidationError:
            return Decision([], problem=f"energy and time at {limit_w} W are not both positive: {windows}")
        self._known = [*(m for m in self._known if m.power_limit != limit_w), measured]
        self.files.publish(measured)
        return self._decide()

    def conclude(self, decision: Decision) -> None:
        """Sends the profile to the helper process to be written, unless it was read from the file; ends the helper."""
        if decision.measurements and decision.measurements != self._in_file:
            self._in_file = decision.measurements
            self.files.save(decision.measurements)
        self.files.leave()

    def forget_measurements(self) -> None:
        """Drops all measurements: the load has changed, so earlier ones, and those of other jobs, are not valid."""
        self._known = []
        self._chosen_w = None
        self.files.stop_sharing()

    def _decide(self) -> Decision:
        self._take_shared()
        optimal_w = self.files.choices.get(self._key)
        if optimal_w in self._limits_w:
            return Decision(self._known, optimal_w=optimal_w)
        if self._chosen_w is None:
            try:
                next_w = self._next_w()
                if next_w is not None:
                    return Decision(self._known, next_w=next_w)
                chosen_w = int(self._selector.select(self._known))
            except Exception as error:  # noqa: BLE001  a selector of the user's own must not end training
                return Decision(self._known, problem=f"{self._selector!r} could not choose: {error!r}")
            if chosen_w not in self._limits_w:
                text = f"{self._selector!r} chose {chosen_w} W, which is not one of the limits to choose from: "
                return Decision(self._known, problem=text + ", ".join(map(str, self._limits_w)))
            self._chosen_w = chosen_w
            if self._key:
                self.files.publish_choice(self._key, chosen_w)
            self._answer_by_s = time.monotonic() + _ANSWER_S
        if self._key and self.files.shares and time.monotonic() < self._answer_by_s:
            # Another job may have chosen at the same time, and all jobs end with the choice that came first. Until the
            # helper reports which one that is, training goes on at the limit that this job has chosen.
            return Decision(self._known, next_w=self._chosen_w)
        return Decision(self._known, optimal_w=self._chosen_w)

    def _next_w(self) -> int | None:
        limit_w = self._search.next_limit_w(self._limits_w, self._known, self._selector)
        if limit_w is None or not self.files.shares:
            return limit_w
        if isinstance(self._search, FullSweep):  # jobs that measure at the same time should measure different limits
            measured = {measurement.power_limit for measurement in self._known}
            left_w = [limit_w for limit_w in self._limits_w if limit_w not in measured]
            limit_w = random.choice([limit_w for limit_w in left_w if limit_w not in self.files.begun_w] or left_w)
        self.files.announce(limit_w)
        return limit_w

    def _take_shared(self) -> None:
        """Adds other jobs' measurements, which replace this job's own, so that all jobs use the same."""
        if self.files.shares:
            self.files.poll()
            known = {measurement.power_limit: measurement for measurement in self._known} | self.files.measurements
            self._known = [known[limit_w] for limit_w in self._limits_w if limit_w in known]
