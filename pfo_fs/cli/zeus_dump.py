"""Reads the folder that a Zeus server, or pfo-fs with `PFO_FS_DUMP_DATA`, has dumped of a job, as a profile."""

from __future__ import annotations

import re
from pathlib import Path

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.planner import Profile
from pfo_fs.planner.profile import parse_profile
from pfo_fs.planner.zeus_profile import InstructionProfilingResult
from pfo_fs.store import load_dump

_PROF = re.compile(r"(\d{1,9})\.prof\.json")


def read_dump(folder: Path) -> Profile:
    """Returns the profile that follows from all schedules that were measured.

    Raises:
        PlanError: A file is missing or malformed, or the results do not fit to the schedules.
    """
    numbers = sorted(int(match[1]) for path in folder.iterdir() if (match := _PROF.fullmatch(path.name)))
    if not numbers:
        raise PlanError(f"{folder}: is not the dump of a job: there is no <n>.prof.json in it")
    measured = (
        (load_dump(FrequencySchedule, folder, number), load_dump(ProfilingResult, folder, number)) for number in numbers
    )
    try:
        text = InstructionProfilingResult.from_dump(load_dump(RankInfo, folder), measured).csv_text()
    except PlanError as error:
        raise PlanError(f"{folder}: {error}") from error
    return parse_profile(text, str(folder))
