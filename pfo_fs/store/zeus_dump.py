"""Zeus's dump format: `<n>.prof.json`, `<n>.sched.json` and `ranks.json`, each a plain JSON list, in one folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from pfo_fs.errors import PlanError, StoreError, first_problem
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.store.fs import Files

_LIMIT = 1 << 30
"""The most bytes that are read: dumps of thousands of ranks have some hundred MB."""
_NAMES: dict[type[BaseModel], str] = {
    ProfilingResult: "{}.prof.json",
    FrequencySchedule: "{}.sched.json",
    RankInfo: "ranks.json",
}
Item = TypeVar("Item", bound=BaseModel)


def save_dump(kind: type[Item], data: Sequence[Item], directory: str | Path, schedule_num: int = 0) -> None:
    """Writes what all ranks measured under a schedule, the schedules of all ranks, or the ranks, by `kind`."""
    payload = TypeAdapter(list[kind]).dump_json(list(data), exclude_none=True)  # type: ignore[valid-type]
    Path(directory).parent.mkdir(parents=True, exist_ok=True)
    Files(directory, create=True).publish(_NAMES[kind].format(schedule_num), payload)


def load_dump(kind: type[Item], directory: str | Path, schedule_num: int = 0) -> list[Item]:
    """Reads what `save_dump`, or a Zeus server, wrote; raises `PlanError` if it is missing or not such a file."""
    name = _NAMES[kind].format(schedule_num)
    path = Path(directory) / name
    try:
        data = Files(directory, create=False).read(name, _LIMIT)
    except StoreError as error:
        raise PlanError(f"{path}: {error}") from error
    if data is None:
        raise PlanError(f"{path}: is not there")
    try:
        return list(TypeAdapter(list[kind]).validate_json(data))  # type: ignore[valid-type]
    except ValidationError as error:
        raise PlanError(f"{path}: {' '.join(first_problem(error)).lstrip()}") from None
