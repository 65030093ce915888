"""The profile of an earlier job of the same kind, taken for measured if this job's first measurements agree with it."""

from __future__ import annotations

import logging

from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.profile_exchange import disagreement, merge_profile, waiting_power_of
from pfo_fs.errors import PlanError
from pfo_fs.planner import Profile
from pfo_fs.planner.profile import profile_of
from pfo_fs.planner.profile_csv import parse_table

log = logging.getLogger(__name__)


class EarlierProfile:
    """A profile that waits for the first measurements at the highest clocks.

    Attributes:
        waiting_power_w: What a waiting GPU drew in the earlier job, in W; 0 if that is not known.
    """

    def __init__(self) -> None:
        self.waiting_power_w = 0.0
        self._profile: Profile | None = None

    def load(self, csv: str, source: str) -> None:
        """Reads a profile, from a file that others can write to; one that cannot be read is named in the log."""
        try:
            table = parse_table(csv, f"profile of job {source}")
            self._profile = profile_of(table, f"profile of job {source}")
            self.waiting_power_w = waiting_power_of(table)
        except PlanError as error:
            log.warning("the profile of job %s cannot be used: %s", source, error)

    def merge_into(self, measurements: JobMeasurements) -> bool:
        """Takes the profile for measured, once, if it agrees with what was measured; returns whether it does."""
        profile, self._profile = self._profile, None
        if profile is None:
            return False
        kinds = measurements.layout.kinds
        odd = disagreement(profile, measurements.samples, kinds)
        if odd:
            log.warning("%s does not agree with this job's %s; profiling anew", profile.source, odd)
            return False
        merge_profile(measurements.samples, profile, kinds, measurements.layout.clocks_mhz)
        return True
