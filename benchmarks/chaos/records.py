"""Checks that each record in a directory is complete."""

from __future__ import annotations

from pathlib import Path

from pfo_fs.errors import RecordError
from pfo_fs.store import JobFolder, bodies, layout
from pfo_fs.store.records import decode_one_of

_KINDS = {
    "directory.json": {"directory": bodies.DirectoryBody},
    "daemon.json": {"daemon": bodies.DaemonBody},
    layout.JOB: {"job": bodies.JobBody},
    layout.COORDINATOR: {"coordinator": bodies.ClaimBody},
    layout.CURRENT: {"current": bodies.CurrentBody},
    layout.CACHED_PROFILE: {"cached_profile": bodies.CachedProfileBody},
    layout.MODEL: {"model": bodies.ModelBody},
    layout.END: {"end": bodies.EndBody},
    layout.BATCH_END: {"batch_end": bodies.BatchEndBody},
    "index.json": {"index": bodies.IndexBody},
    layout.LEADERS: {"leader": bodies.LeaderBody},
    layout.RANKS: {"ranks": bodies.RanksBody, "rank": bodies.RankBody},
    layout.ORDER: {"order": bodies.OrderBody},
    layout.PROGRESS: {"progress": bodies.ProgressBody},
    layout.ITERATION_TIMES: {"iteration_times": bodies.IterationTimesBody},
    "prof": {"results": bodies.ResultsBody, "result": bodies.ResultBody},
    "sched": {"schedule": bodies.PlanBody},
}
"""The kinds of a record that may be there, with their bodies: by the file's name, or by a folder that it lies in."""


def ranks_with_result(folder: JobFolder, number: int) -> set[int]:
    """The ranks that have a result under a schedule."""
    names = folder.result_names(number)
    return {body.result.rank for name in names for body in folder.read_results(number, name) or ()}


def damaged_records(root: Path) -> list[str]:
    """Returns a text for each record below `root` that is not complete; none if there is no such folder."""
    found = []
    for path in sorted(root.rglob("*.json")):
        if path.name.startswith("."):
            continue
        parts = path.relative_to(root).parts
        kinds = _KINDS.get(path.name) or next((_KINDS[part] for part in reversed(parts) if part in _KINDS), None)
        try:
            if kinds is None:
                raise RecordError("a file that is not known")
            decode_one_of(path.read_bytes(), kinds)
        except RecordError as error:
            found.append(f"{path.parent.name}/{path.name} is damaged: {error}")
    return found
