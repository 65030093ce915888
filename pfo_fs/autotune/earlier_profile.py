"""The profile of an earlier job on the same kind of GPUs: its values where they agree, else the shapes of its curves.

The times of a job of another size differ, but they follow the clock alike. Its curves are therefore added to the fit as
those of other instructions; the fit finds out from this job's own windows how much they tell.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.profile_exchange import (
    contradiction,
    disagreement,
    merge_profile,
    plausible_table,
    table_points,
    thinned,
    waiting_power_of,
)
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.planner import Profile
from pfo_fs.planner.profile import profile_of

log = logging.getLogger(__name__)


class Measured(Protocol):
    """What a policy has measured so far.

    Attributes:
        layout: The job.
        samples: Time and power of each instruction at each clock.
        elsewhere: Points of another job on the same kind of GPUs, whose curves may be alike.
    """

    layout: JobLayout
    samples: Samples
    elsewhere: dict[Kind, dict[int, Point]]


class EarlierProfile:
    """A profile that is compared with the first measurements at the highest clocks.

    Args:
        only_ratios: Whether only the ratios of its times to those at the highest clock are used.

    Attributes:
        waiting_power_w: Power of a waiting GPU in the earlier job, in W; 0 if it is not known.
    """

    def __init__(self, only_ratios: bool = False) -> None:
        self.waiting_power_w = 0.0
        self._only_ratios = only_ratios
        self._profile: Profile | None = None
        self._merged: Profile | None = None
        self._points: dict[Kind, dict[int, Point]] = {}

    def load(self, csv: str, source: str) -> None:
        """Reads a profile from a file that other users can write to.

        Raises:
            PlanError: The profile cannot be used.
        """
        try:
            table = plausible_table(csv, f"profile of job {source}")
            profile, points = profile_of(table, f"profile of job {source}"), table_points(table)
        except (ArithmeticError, ValueError) as error:  # `PlanError` is a `ValueError`
            raise PlanError(f"the profile of job {source} cannot be used: {error}") from None
        self._profile, self._points = profile, points
        self.waiting_power_w = waiting_power_of(table)

    def merge_into(self, measurements: Measured) -> bool:
        """Adds the profile to the samples, once, if it agrees with what was measured; returns whether it does.

        If it does not, only the shapes of its curves are used.
        """
        profile, self._profile = self._profile, None
        if profile is None:
            return False
        kinds = measurements.layout.kinds
        odd = disagreement(profile, measurements.samples, kinds)
        if odd:
            log.warning(
                "%s does not agree with this job's %s: only how its times and powers follow the clock is used, "
                "and this job profiles for itself",
                profile.source,
                odd,
            )
            clocks_mhz = [mhz for clocks in measurements.layout.clocks_of_stage for mhz in clocks]
            measurements.elsewhere = thinned(self._points, {name for _, name in kinds}, clocks_mhz)
            return False
        merge_profile(measurements.samples, profile, kinds, measurements.layout.clocks_mhz, self._only_ratios)
        self._merged = profile
        return True

    def take_back(self, measurements: Measured, odd: str) -> None:
        """Drops what the profile has added to the samples: this job's `odd` instruction does not agree with it."""
        if self._merged is not None:
            log.warning("%s does not agree with this job's %s under a plan; profiling anew", self._merged.source, odd)
        self._merged = None
        measurements.samples.drop_borrowed()

    @property
    def merged(self) -> Profile | None:
        """The profile, while what it has added to the samples is in use."""
        return self._merged

    def is_refuted_by(
        self, measurements: JobMeasurements, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]
    ) -> bool:
        """Returns whether a window of a plan does not agree with the profile at clocks that this job measures first.

        At the highest clocks the profile agreed with the job, but at lower ones its GPUs behaved otherwise, or another
        user has invented it. Then what it has added to the samples is dropped.

        Args:
            measurements: Those that the profile was added to.
            results: The results of the window.
            schedules: The schedules in force.
        """
        profile = self._merged
        if profile is None:
            return False
        measured = measurements.samples_of(results, schedules)
        odd = contradiction(profile, measured, measurements.layout.kinds, measurements.samples)
        if odd:
            self.take_back(measurements, odd)
        return bool(odd)
