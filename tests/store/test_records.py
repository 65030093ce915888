"""Records prove themselves, lie on disk as their schema says, and hold numbers and texts within limits only.

After a change of a record's form, and with a new `SCHEMA`, run this file with REWRITE_GOLDEN=1 in the environment.
"""

import inspect
import json
import os
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from record_corpus import END, NESTED, load, make_directory, one_of_each_kind, plant, sign

from pfo_fs import models
from pfo_fs.errors import RecordError
from pfo_fs.store import JobFolder, RecordFolder, bodies, layout
from pfo_fs.store.bodies import EndBody, PlanBody
from pfo_fs.store.records import Header, decode, encode

names = st.sampled_from(["forward", "backward", 'w","body":{}', "Rückwärts", "\N{GRINNING FACE}", "x" * 20])
plans = st.builds(
    PlanBody,
    number=st.integers(0, 10_000),
    start_step=st.integers(0, 10_000),
    ranks=st.lists(st.integers(0, 10_000), min_size=1, max_size=5),
    frequencies=st.lists(st.tuples(names, st.integers(0, 3000)), max_size=5),
)


@given(plans, st.text(max_size=50), names, st.booleans())
def test_what_is_written_is_read(plan: PlanBody, attempt: str, writer: str, readable: bool) -> None:
    header = Header("schedule", attempt, writer)
    data = encode(header, plan, readable=readable)
    assert decode(data, "schedule", PlanBody, attempt=attempt) == (header, plan)


@given(plans, st.data())
def test_no_changed_byte_goes_unnoticed(plan: PlanBody, data: st.DataObject) -> None:
    record = bytearray(encode(Header("schedule", "a", "w"), plan))
    body = record.index(b',"body":') + 8
    at = data.draw(st.integers(body, len(record) - 3))
    record[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordError):
        decode(bytes(record), "schedule", PlanBody)


@given(plans, st.data())
def test_torn_and_padded_records_are_refused(plan: PlanBody, data: st.DataObject) -> None:
    record = encode(Header("schedule", "a", "w"), plan)
    cut = data.draw(st.integers(0, len(record) - 1))
    for torn in (record[:cut], record[:cut] + b"\0" * (len(record) - cut), record + b"\0\0\0"):
        with pytest.raises(RecordError):
            decode(torn, "schedule", PlanBody)


def test_a_record_is_plain_json_for_other_tools() -> None:
    record = json.loads(encode(Header("end", "a", 'w","body":{}'), EndBody(reason="idle", message="x")))
    assert record["body"] == {"reason": "idle", "message": "x"}
    assert record["schema"] == "pfo-fs/5"


GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = {form.kind: model for model, form in layout.RECORDS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    _, folder = make_directory(tmp_path)
    folder.write(END)
    return folder


def test_what_is_written_is_what_was_written_when_the_schema_got_its_number(tmp_path: Path, folder: JobFolder) -> None:
    records = {kind: (tmp_path / place.path).read_bytes() for kind, place in one_of_each_kind(folder).items()}
    if os.environ.get("REWRITE_GOLDEN"):
        for kind, data in records.items():
            (GOLDEN / f"{kind}.json").write_bytes(data)
    assert records == {path.stem: path.read_bytes() for path in GOLDEN.iterdir()}
    assert records.keys() == MODELS.keys()


@pytest.mark.parametrize("kind", MODELS)
def test_fields_that_a_later_release_adds_are_ignored(kind: str) -> None:
    data = (GOLDEN / f"{kind}.json").read_bytes()
    document = json.loads(data)
    more = sign({**document, "later": 1, "body": {**document["body"], "later": {"nested": [1, None]}}})
    assert decode(more, kind, MODELS[kind])[1] == decode(data, kind, MODELS[kind])[1]


@pytest.mark.parametrize("kind", MODELS)
def test_a_record_of_another_schema_or_without_a_field_is_refused(
    tmp_path: Path, folder: JobFolder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = one_of_each_kind(folder)[kind]
    above, _, name = place.path.rpartition("/")
    document = load(tmp_path, place)
    bad = [({**document, "schema": schema}, f"'{schema}'.*reads 'pfo-fs/5'") for schema in ("pfo-fs/4", "pfo-fs/6")]
    for field in (key for key, field in place.model.model_fields.items() if field.is_required()):
        body = {key: value for key, value in document["body"].items() if key != field}
        bad.append(({**document, "body": body}, f"{field} is missing"))
    form = layout.RECORDS[place.model]
    monkeypatch.setitem(layout.RECORDS, place.model, layout.RecordFile(kind, name, form.limit))
    for changed, text in bad:
        plant(tmp_path, place, sign(changed))
        with pytest.raises(RecordError, match=rf"{name}: .*{text}"):
            RecordFolder(folder.files, above, "reader").read(place.model)


READ_FROM_DISK = [
    model
    for module in (bodies, models)
    for _, model in inspect.getmembers(module, inspect.isclass)
    if get_origin(model) is None and issubclass(model, BaseModel) and model.__module__ == module.__name__
]
# Checked by a validator of their own: job_id, the names and clocks of a schedule, and what has its own field limits.
CHECKED = {("JobInfo", "job_id"), ("FrequencySchedule", "frequencies"), ("JobBody", "scheduler_args")}


def bare_types(annotation: Any, metadata: list[Any]) -> set[type]:
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
def test_a_record_with_an_absurd_number_is_refused(tmp_path: Path, folder: JobFolder, key: str, value: int) -> None:
    """Schedule number 2^63 ended training: it does not fit the ring of marks."""
    place = one_of_each_kind(folder)["current"]
    document = load(tmp_path, place)
    document["body"][key] = "@@changed@@"
    plant(tmp_path, place, sign(document, "9" * 4001 if value == 10**4000 else str(value)))
    with pytest.raises(RecordError, match=r"current\.json"):
        folder.read(bodies.CurrentBody)


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
