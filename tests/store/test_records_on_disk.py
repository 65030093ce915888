"""Records as they lie on disk, byte for byte as they are written today; those of another release are refused.

After a change of a record's form, and with a new `SCHEMA`, run this file with REWRITE_GOLDEN=1 in the environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import BaseModel
from record_corpus import load, make_directory, one_of_each_kind, plant, sign, write_ends

from pfo_fs.errors import RecordError
from pfo_fs.store import JobFolder, RecordFolder, layout
from pfo_fs.store.records import decode

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = {form.kind: model for model, form in layout.RECORDS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    _, folder = make_directory(tmp_path)
    write_ends(folder)
    return folder


def test_what_is_written_today_is_what_was_written_when_the_schema_got_its_number(
    tmp_path: Path, folder: JobFolder
) -> None:
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


def required(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


@pytest.mark.parametrize("kind", MODELS)
def test_a_record_of_another_schema_or_without_a_field_is_refused_with_its_file(
    tmp_path: Path, folder: JobFolder, kind: str
) -> None:
    place = one_of_each_kind(folder)[kind]
    document = load(tmp_path, place)
    bad = [({**document, "schema": schema}, f"'{schema}'.*reads 'pfo-fs/5'") for schema in ("pfo-fs/4", "pfo-fs/6")]
    for field in required(place.model):
        body = {name: value for name, value in document["body"].items() if name != field}
        bad.append(({**document, "body": body}, f"{field} is missing"))
    records = RecordFolder(folder.files, place.path.rpartition("/")[0], "reader")
    for changed, text in bad:
        plant(tmp_path, place, sign(changed))
        with pytest.raises(RecordError, match=rf"{Path(place.path).name}: .*{text}"):
            read_at(records, Path(place.path).name, place.model)


def read_at(records: RecordFolder, name: str, model: type[BaseModel]) -> BaseModel | None:
    """Reads a record of this type that has a name of its own."""
    form = layout.RECORDS[model]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(layout.RECORDS, model, layout.RecordFile(form.kind, name, form.limit))
        return records.read(model)
