"""Profiles that outlive their job: written from samples, and taken back into those of a later job."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from pfo_fs.autotune.samples import Kind, Point, Samples
from pfo_fs.planner import Profile

COLUMNS = ("stage", "instruction", "frequency", "time", "energy", "time_error", "power_error", "count", "waiting_power")
"""Zeus's five columns, then relative errors, how often it was measured, and what a waiting GPU drew in W."""
_OTHER_JOB = 0.03
"""Relative: a profile that is off by more at the highest clock is of something else."""
_ERROR = 0.002
"""Relative: how well a recalled point is taken to be known."""
_COUNT = 100
_MOST_WAITING_W = 2000.0


def profile_csv(samples: Samples) -> str:
    """Returns everything measured as a CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    waiting = f"{samples.waiting.power_w:.6g}" if samples.waiting.weight else ""
    for row in samples.rows():
        writer.writerow((*(f"{value:.7g}" if isinstance(value, float) else value for value in row), waiting))
    return file.getvalue()


def waiting_power_w(text: str) -> float:
    """Returns what a waiting GPU drew by such a CSV, in W; 0 if it does not say, or nothing that can be."""
    try:
        watts = float(next(csv.DictReader(io.StringIO(text)))["waiting_power"])
        return watts if 0 < watts < _MOST_WAITING_W else 0.0
    except (StopIteration, KeyError, TypeError, ValueError, csv.Error):
        return 0.0


def disagreement(known: Profile, samples: Samples, kinds: Sequence[Kind]) -> str:
    """Returns the instruction that takes another time than a known profile says, at the clocks measured; or ''."""
    for kind in kinds:
        table = {m.frequency_mhz: m for m in known.measurements.get(kind, ())}
        for mhz, point in samples.curve(kind).items():
            there = table.get(mhz)
            if there is None or abs(there.time_s / point.time_s - 1) > _OTHER_JOB:
                return f"{kind[1]} of stage {kind[0]}"
    return ""


def merge_profile(
    samples: Samples, known: Profile, kinds: Sequence[Kind], clocks_mhz: Mapping[int, Sequence[int]]
) -> None:
    """Takes a known profile for measured, at the clocks on offer where nothing was measured yet."""
    for kind in kinds:
        points = samples.points.setdefault(kind, {})
        for m in known.measurements.get(kind, ()):
            if m.frequency_mhz in clocks_mhz[kind[0]] and m.frequency_mhz not in points:
                point = points[m.frequency_mhz] = Point()
                point.add_times(_COUNT, m.time_s, (_ERROR / 2 * m.time_s) ** 2 * _COUNT * (_COUNT - 1))
                point.add_power(m.energy_j / m.time_s, _ERROR * m.energy_j / m.time_s)
