"""Whether what a job has measured contradicts the profile of an earlier one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.profile_exchange import OTHER_GPU, SURE_COUNT
from pfo_fs.planner import Profile
from pfo_fs.scenario_policy.loads import Found


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
