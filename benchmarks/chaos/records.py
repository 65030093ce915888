"""What must hold in a directory after any episode: complete records, schedules in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pfo_fs.errors import RecordError
from pfo_fs.store import JobFolder, bodies, layout
from pfo_fs.store.records import decode

_KINDS = {
    "directory.json": ("directory", bodies.DirectoryBody),
    "daemon.json": ("daemon", bodies.DaemonBody),
    layout.JOB: ("job", bodies.JobBody),
    layout.COORDINATOR: ("coordinator", bodies.ClaimBody),
    layout.CURRENT: ("current", bodies.CurrentBody),
    layout.MODEL: ("model", bodies.ModelBody),
    layout.END: ("end", bodies.EndBody),
    "index.json": ("index", bodies.IndexBody),
    layout.LEADERS: ("leader", bodies.LeaderBody),
    layout.RANKS: ("ranks", bodies.RanksBody),
    layout.ORDER: ("order", bodies.OrderBody),
    layout.PROGRESS: ("progress", bodies.ProgressBody),
    layout.ITERATION_TIMES: ("iteration_times", bodies.IterationTimesBody),
    "prof": ("results", bodies.ResultsBody),
    "sched": ("schedule", bodies.PlanBody),
}
"""The kind of a record, and its body: by the file's name, or by a folder that it lies in."""


def ranks_with_result(folder: JobFolder, number: int) -> set[int]:
    """The ranks that have a result under a schedule."""
    names = folder.numbers(bodies.ResultsBody, number=number)
    return {body.result.rank for name in names for body in folder.read_results(number, name) or ()}


def damaged_records(root: Path) -> list[str]:
    """Returns a text for each record below `root` that is not complete; none if there is no such folder."""
    found = []
    for path in sorted(root.rglob("*.json")):
        if path.name.startswith("."):
            continue
        parts = path.relative_to(root).parts
        kind = _KINDS.get(path.name) or next((_KINDS[part] for part in reversed(parts) if part in _KINDS), None)
        try:
            if kind is None:
                raise RecordError("a file that is not known")
            decode(path.read_bytes(), *kind)
        except RecordError as error:
            found.append(f"{path.parent.name}/{path.name} is damaged: {error}")
    return found


def broken_schedules(
    folder: JobFolder, logs: Sequence[Mapping[int, tuple[int, object]]], coordination: str
) -> list[str]:
    """Committed schedules have no gaps, and those with an end name one that stays; no rank goes back to an older
    number, except to the one that is named, or to an older generation.

    Args:
        folder: The job.
        logs: For each rank, the number of the schedule in force at each step, first of two.
        coordination: Who schedules.
    """
    found = []
    indexes = {
        number: index
        for number in folder.schedule_numbers()
        if (index := folder.read(bodies.IndexBody, number=number)) is not None
    }
    if list(indexes) != list(range(len(indexes))):
        found.append(f"committed schedules have gaps: {list(indexes)}")
    ends = {number: index for number, index in indexes.items() if index.until and index.after >= 0}
    for number, index in ends.items():
        if index.after > number or not indexes[index.after].stays:
            found.append(f"after schedule {number} comes {index.after}, which does not stay")
    for rank, log in enumerate(logs):
        followed = [number for _, (number, _) in sorted(log.items()) if number >= 0]
        for older, newer in pairwise(followed):
            if newer < older and not (older in ends and newer == ends[older].after):
                found.append(f"rank {rank} went from schedule {older} back to {newer}")
            elif coordination == "daemon" and newer not in indexes:
                found.append(f"rank {rank} followed schedule {newer}, which was never committed")
            elif coordination == "daemon" and newer > older and indexes[newer].generation < indexes[older].generation:
                found.append(f"rank {rank} followed generation {indexes[newer].generation} after a newer one")
    return found
