"""Zeus's dump format: `<n>.prof.json`, `<n>.sched.json` and `ranks.json`, each a plain JSON list, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from pfo_fs.errors import PlanError, StoreError, first_problem
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.store.fs import Files

_LIMIT = 1 << 30
"""Dumps of thousands of ranks have some hundred MB."""

Item = TypeVar("Item", bound=BaseModel)


def save_prof(data: Sequence[ProfilingResult], directory: str | Path, schedule_num: int) -> None:
    """Writes what all ranks measured under schedule `schedule_num`."""
    _save(data, ProfilingResult, directory, f"{schedule_num}.prof.json")


def load_prof(directory: str | Path, schedule_num: int) -> list[ProfilingResult]:
    """Reads what `save_prof`, or a Zeus server, wrote.

    Raises:
        PlanError: The file is missing or holds something else.
    """
    return _load(ProfilingResult, directory, f"{schedule_num}.prof.json")


def save_sched(data: Sequence[FrequencySchedule], directory: str | Path, schedule_num: int) -> None:
    """Writes the schedules of all ranks."""
    _save(data, FrequencySchedule, directory, f"{schedule_num}.sched.json")


def load_sched(directory: str | Path, schedule_num: int) -> list[FrequencySchedule]:
    """Reads what `save_sched`, or a Zeus server, wrote; errors as `load_prof`."""
    return _load(FrequencySchedule, directory, f"{schedule_num}.sched.json")


def save_ranks(data: Sequence[RankInfo], directory: str | Path) -> None:
    """Writes the numbers and clocks of all ranks."""
    _save(data, RankInfo, directory, "ranks.json")


def load_ranks(directory: str | Path) -> list[RankInfo]:
    """Reads what `save_ranks`, or a Zeus server, wrote; errors as `load_prof`."""
    return _load(RankInfo, directory, "ranks.json")


def _save(data: Sequence[Item], model: type[Item], directory: str | Path, name: str) -> None:
    payload = TypeAdapter(list[model]).dump_json(list(data), exclude_none=True)  # type: ignore[valid-type]
    Path(directory).parent.mkdir(parents=True, exist_ok=True)
    Files(directory, create=True).publish(name, payload)


def _load(model: type[Item], directory: str | Path, name: str) -> list[Item]:
    path = Path(directory) / name
    try:
        data = Files(directory, create=False).read(name, _LIMIT)
    except StoreError as error:
        raise PlanError(f"{path}: {error}") from error
    if data is None:
        raise PlanError(f"{path}: is not there")
    try:
        return list(TypeAdapter(list[model]).validate_json(data))  # type: ignore[valid-type]
    except ValidationError as error:
        raise PlanError(f"{path}: {' '.join(first_problem(error)).lstrip()}") from None
