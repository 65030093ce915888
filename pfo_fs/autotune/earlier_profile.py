"""The profile of an earlier job on the same kind of GPUs: its values where they agree, else the shapes of its curves.

The times of a job of another size differ, but they follow the clock alike. Its curves are therefore added to the fit as
those of other instructions; the fit finds out from this job's own windows how much they tell.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.loads import Found
from pfo_fs.autotune.profile_exchange import (
    OTHER_GPU,
    SURE_COUNT,
    blocking_power_of,
    disagreement,
    merge_profile,
    plausible_table,
    table_points,
    thinned,
)
from pfo_fs.autotune.samples import Point
from pfo_fs.errors import PlanError
from pfo_fs.planner import Profile
from pfo_fs.planner.profile import profile_of

log = logging.getLogger(__name__)


class EarlierProfile:
    """A profile that is compared with the first measurements at max clocks.

    Attributes:
        blocking_power_w: Power of a waiting GPU in the earlier job, in W; 0 if it is not known.
    """

    def __init__(self) -> None:
        self.blocking_power_w = 0.0
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
        self.blocking_power_w = blocking_power_of(table)

    def merge_into(self, beliefs: Beliefs) -> bool:
        """Adds the profile to the samples, once, if it agrees with what was measured; returns whether it does.

        If it does not, only the shapes of its curves are used.
        """
        profile, self._profile = self._profile, None
        if profile is None:
            return False
        kinds = beliefs.layout.kinds
        odd = disagreement(profile, beliefs.samples, kinds)
        if odd:
            log.warning(
                "%s does not agree with this job's %s: only how its times and powers follow the clock is used, "
                "and this job profiles for itself",
                profile.source,
                odd,
            )
            clocks_mhz = [mhz for clocks in beliefs.layout.clocks_of_stage for mhz in clocks]
            beliefs.earlier_job = thinned(self._points, {name for _, name in kinds}, clocks_mhz)
            return False
        merge_profile(beliefs.samples, profile, kinds, beliefs.layout.clocks_mhz)
        self._merged = profile
        return True

    def take_back(self, beliefs: Beliefs, odd: str) -> None:
        """Drops what the profile has added to the samples: this job's `odd` instruction does not agree with it."""
        if self._merged is not None:
            log.warning("%s does not agree with this job's %s under a plan; profiling anew", self._merged.source, odd)
        self._merged = None
        beliefs.samples.drop_borrowed()

    @property
    def merged(self) -> Profile | None:
        """The profile, while what it has added to the samples is in use."""
        return self._merged


def contradiction(known: Profile, found: Sequence[Found], before: Collection[tuple[Kind, int]]) -> str:
    """Returns the first instruction whose measured time is not between those of a known profile around its clock.

    Times are compared as multiples of that at the highest clock. Clocks below or above all of the profile's are not
    compared, nor those that this job had measured `before`; '' if no instruction contradicts the profile.
    """
    top_s = {each.kind: each.time_s for each in found if each.is_highest}
    for each in found:
        table = {m.frequency_mhz: m.time_s for m in known.measurements.get(each.kind, ())}
        if not table or each.is_highest or each.count < SURE_COUNT or (each.kind, each.mhz) in before:
            continue
        scale = top_s.get(each.kind, table[max(table)]) / table[max(table)]
        above = [scale * table[at] for at in sorted(table) if at >= each.mhz][:1]
        below = [scale * table[at] for at in sorted(table) if at <= each.mhz][-1:]
        if above and below:
            low_s, high_s = min(above + below), max(above + below)
            if not low_s / (1 + OTHER_GPU) < each.time_s < high_s * (1 + OTHER_GPU):
                return f"{each.kind[1]} of stage {each.kind[0]}"
    return ""
