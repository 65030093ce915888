"""Every number and text of a record has limits, and only `RecordError` leaves the reader of records."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from record_corpus import ESCAPES, NESTED, load, make_directory, places, plant, sign

from pfo_fs import models
from pfo_fs.errors import RecordError
from pfo_fs.store import bodies
from pfo_fs.store.records import decode

READ_FROM_DISK = [
    model
    for module in (bodies, models)
    for _, model in inspect.getmembers(module, inspect.isclass)
    if get_origin(model) is None and issubclass(model, BaseModel) and model.__module__ == module.__name__
]
# Checked by a validator of their own: job_id, the names and clocks of a schedule, and what has its own field limits.
CHECKED = {("JobInfo", "job_id"), ("FrequencySchedule", "frequencies"), ("JobBody", "scheduler_args")}


def bare_types(annotation: Any, metadata: list[Any]) -> set[type]:
    """Types without a limit within an annotation."""
    if annotation in (int, float, str):
        return set() if metadata else {annotation}
    if hasattr(annotation, "__metadata__"):
        return bare_types(annotation.__origin__, list(annotation.__metadata__))
    if get_origin(annotation) is Literal:
        return set()
    passed_on = metadata if isinstance(annotation, UnionType) or get_origin(annotation) is Union else []
    return set().union(*(bare_types(part, passed_on) for part in get_args(annotation)))


@pytest.mark.parametrize("model", READ_FROM_DISK, ids=lambda model: model.__name__)
def test_no_field_that_is_read_is_a_bare_number_or_text(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        if (model.__name__, name) not in CHECKED:
            assert not bare_types(field.annotation, field.metadata), name


@pytest.mark.parametrize("key", ["number", "start_step", "generation", "heartbeat", "lease_s"])
@pytest.mark.parametrize("value", [2**63, -(2**63), 10**4000])
def test_a_record_with_an_absurd_number_is_refused(tmp_path: Path, key: str, value: int) -> None:
    """Schedule number 2^63 ended training: it does not fit the ring of marks."""
    _, folder = make_directory(tmp_path)
    place = next(place for place in places(folder) if place.kind == "current")
    document = load(tmp_path, place)
    document["body"][key] = "@@changed@@"
    plant(tmp_path, place, sign(document, "9" * 4001 if value == 10**4000 else str(value)))
    with pytest.raises(RecordError, match=r"current\.json"):
        folder.read(bodies.CurrentBody)


@pytest.mark.parametrize("key", ["schema", "kind", "attempt", "writer", "length", "sha256"])
@pytest.mark.parametrize("token", ["1e999", "-1e999", "NaN", "null", "[]", "{}", "1.5", "9" * 5000, NESTED, ESCAPES])
def test_whatever_stands_in_a_header_only_a_record_error_comes_of_it(tmp_path: Path, key: str, token: str) -> None:
    _, folder = make_directory(tmp_path)
    place = next(place for place in places(folder) if place.kind == "current")
    document = load(tmp_path, place)
    document[key] = "@@changed@@"
    try:
        decode(sign(document, token), "current", bodies.CurrentBody)
    except RecordError as error:
        assert str(error).isprintable()
    else:
        assert key in ("attempt", "writer")


@pytest.mark.parametrize(
    "value", [json.loads(NESTED), 10**400, float("inf"), "x" * 20_000, "\x1b[2J", {"a" * 20_000: 1}, [1] * 200_000]
)
def test_arguments_of_a_scheduler_are_plain_and_bounded(value: Any) -> None:
    body = {"job_info": {"pp_degree": 1, "dp_degree": 1, "tp_degree": 1, "world_size": 1}, "coordination": "auto"}
    bodies.JobBody.model_validate({**body, "scheduler_args": {"target": {"slowdown": 1.1}, "plan": [1, "a\nb", None]}})
    with pytest.raises(ValueError, match="scheduler_args"):
        bodies.JobBody.model_validate({**body, "scheduler_args": {"x": value}})


def test_a_plan_file_can_only_be_a_plain_name() -> None:
    index = {"number": 0, "generation": 1, "start_step": 0, "source": {"kind": "scheduler"}}
    for name in ("../../x.json", "a\0b", "stage-0.0123456789ab.json/x", "x" * 5000):
        with pytest.raises(ValueError, match="files"):
            bodies.IndexBody.model_validate({**index, "files": {"stage:0": name}})
