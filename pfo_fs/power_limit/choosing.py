"""What rank 0 decides for all ranks: which level (power limit or clock) is measured next, or is the best."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from pfo_fs.errors import PlanError
from pfo_fs.power_limit.file_client import FileClient
from pfo_fs.power_limit.measurements import KNOBS, Knob, KnobMeasurement
from pfo_fs.power_limit.rank_gpus import WindowReport
from pfo_fs.power_limit.ranks import LevelAgreement
from pfo_fs.power_limit.selectors import OptimumSelector, Search

log = logging.getLogger(__name__)

_FIRST_WAIT_STEPS, _MOST_WAIT_STEPS = 10, 10_000
"""When a level's window was dropped, the level is measured again after so many steps: at first, and at most."""


class Decision(NamedTuple):
    """What all ranks do next. Exactly one of `next_level`, `optimal`, `problem` and `error` is set.

    Attributes:
        measurements: The measurements behind the decision, as far as there are any.
        problem, error: Why the optimizer leaves levels alone from now on; what the user must correct before training.
        wait_steps: For so many steps, ranks stay at the highest level before `next_level` is measured.
    """

    measurements: Sequence[KnobMeasurement]
    next_level: int | None = None
    optimal: int | None = None
    problem: str = ""
    error: str = ""
    wait_steps: int = 0


class Chooser:
    """Keeps the measurements, scaled to `profile_steps` steps, and decides."""

    def __init__(
        self,
        files: FileClient,
        selector: OptimumSelector,
        search: Search,
        agreed: LevelAgreement,
        profile_steps: int,
        knob: Knob,
    ) -> None:
        self.files = files
        self._selector = selector
        self._search = search
        self._levels = agreed.levels
        self._scale = profile_steps / search.window_steps
        self._bounds = agreed.bounds
        self._knob = knob
        self._measured = KNOBS[knob]
        self._of_level: dict[int, KnobMeasurement] = {}
        self._in_file: Sequence[KnobMeasurement] = []
        self._dropped = 0  # windows in a row that were dropped

    def first(self) -> Decision:
        """Decides before the first step: where a profile exists, its best level is used and nothing is measured.

        Raises:
            PlanError: The user must correct the profile, or name another one.
        """
        profile, path = self.files.profile, self.files.profile_path
        if self.files.profile_error:
            raise PlanError(self.files.profile_error)
        if profile is None:
            return self._decide()
        unit, name = self._measured.unit, self._knob.replace("_", " ")
        if profile[0].knob != self._knob:
            theirs = profile[0].knob.replace("_", " ")
            raise PlanError(f"{path} is a profile of {theirs}s, but the knob is {self._knob!r}; name another file")
        try:
            optimal = int(self._selector.select(profile))
        except PlanError:
            raise
        except Exception as error:  # noqa: BLE001  as in `_decide`
            return Decision([], problem=f"{self._selector!r} could not choose: {error!r}")
        lowest, highest = self._bounds
        if not lowest <= optimal <= highest:
            raise PlanError(
                f"{path} makes {optimal} {unit} the best {name}, but this GPU accepts {lowest:g} to {highest:g} "
                f"{unit}; is the profile another GPU's?"
            )
        self._in_file = profile
        return Decision(profile, optimal=optimal)

    def after(self, level: int, windows: Sequence[WindowReport]) -> Decision:
        """Decides after all ranks had a window at `level`; `windows`: what each rank has measured."""
        problems = [f"rank {rank}: {window.problem}" for rank, window in enumerate(windows) if window.problem]
        dropped = [f"rank {rank}: {window.dropped}" for rank, window in enumerate(windows) if window.dropped]
        if problems:
            return Decision([], problem=problems[0])
        if dropped:
            return self._again(level, dropped[0])
        self._dropped = 0
        try:
            energy_j = sum(window.energy_j for window in windows) * self._scale
            time_s = max(window.time_s for window in windows) * self._scale
            self._of_level[level] = self._measured.at(level, energy=energy_j, time=time_s)
        except ValidationError:
            text = f"energy and time at {level} {self._measured.unit} are not both positive: {windows}"
            return Decision([], problem=text)
        return self._decide()

    @property
    def _known(self) -> list[KnobMeasurement]:
        """The measurements that count for the choice, highest level first."""
        return [self._of_level[level] for level in self._levels if level in self._of_level]

    def _again(self, level: int, why: str) -> Decision:
        """Decides to measure a level again; the wait doubles with each further window in a row that is dropped."""
        steps = min(_FIRST_WAIT_STEPS * 2**self._dropped, _MOST_WAIT_STEPS)
        self._dropped += 1
        log.warning("%d %s could not be measured; next try in %d steps: %s", level, self._measured.unit, steps, why)
        return Decision(self._known, next_level=level, wait_steps=steps)

    def conclude(self, decision: Decision) -> None:
        """Makes the helper process write the profile, unless it was read from the file.

        It waits for the file (2 s at most), since a script may read the profile as soon as the level is chosen.
        """
        if decision.measurements and decision.measurements != self._in_file:
            self._in_file = decision.measurements
            self.files.save(decision.measurements)

    def unfinished(self, level_steps: int) -> str:
        """Returns, as text, how far the measurements are and how they can be completed."""
        return (
            f"training ended when {len(self._known)} of {len(self._levels)} levels were measured; none is chosen, and "
            f"no profile was written. Each level takes {level_steps} steps: train longer, or give fewer profile_steps "
            "or search='coarse-to-fine'"
        )

    def forget_measurements(self) -> None:
        """Drops all measurements: the load has changed, so earlier ones are not valid."""
        self._of_level = {}

    def _decide(self) -> Decision:
        try:
            next_level = self._search.next_level(self._levels, self._known, self._selector)
            if next_level is not None:
                return Decision(self._known, next_level=next_level)
            optimal = int(self._selector.select(self._known))
        except Exception as error:  # noqa: BLE001  a selector of the user's own must not end training
            return Decision(self._known, problem=f"{self._selector!r} could not choose: {error!r}")
        if optimal not in self._levels:
            text = f"{self._selector!r} chose {optimal} {self._measured.unit}, which is none of the levels: "
            return Decision(self._known, problem=text + ", ".join(map(str, self._levels)))
        return Decision(self._known, optimal=optimal)
