"""Records of another release: refused with file and both versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel
from record_corpus import load, make_directory, one_of_each_kind, plant, sign

from pfo_fs.errors import RecordError
from pfo_fs.store import JobFolder, bodies
from pfo_fs.store.records import decode

GOLDEN = Path(__file__).parents[1] / "golden"
IN_JOBS = ("job", "coordinator", "ranks", "order", "current", "index", "schedule", "results", "progress", "end")


def read_all(folder: JobFolder, kind: str) -> object:
    """The call that reads records of this kind."""
    index = folder.read_index(0) if kind == "schedule" else None
    info = bodies.RankInfo(rank=0, dp_rank=0, pp_rank=0, tp_rank=0, available_frequencies=[])
    return {
        "job": folder.read_job,
        "coordinator": folder.read_coordinator,
        "ranks": lambda: list(folder.each_rank()),
        "order": lambda: folder.read_order(1),
        "current": folder.read_current,
        "index": lambda: folder.read_index(0),
        "schedule": lambda: index and folder.read_schedule(index, info),
        "results": lambda: folder.read_results(0, 0),
        "progress": lambda: folder.read_progress(0),
        "end": folder.read_end,
    }[kind]()


def required(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


@pytest.mark.parametrize("schema", ["pfo-fs/1", "pfo-fs/4"])
@pytest.mark.parametrize("kind", IN_JOBS)
def test_a_record_of_another_schema_is_refused_with_its_file_and_both_versions(
    tmp_path: Path, kind: str, schema: str
) -> None:
    _, folder = make_directory(tmp_path)
    place = one_of_each_kind(folder)[kind]
    plant(tmp_path, place, sign({**load(tmp_path, place), "schema": schema}))
    with pytest.raises(RecordError, match=rf"{Path(place.path).name}: .*'{schema}'.*reads 'pfo-fs/2' and 'pfo-fs/3'"):
        read_all(folder, kind)


@pytest.mark.parametrize("kind", IN_JOBS)
def test_a_record_without_a_field_that_it_must_have_is_refused_with_its_file(tmp_path: Path, kind: str) -> None:
    _, folder = make_directory(tmp_path)
    place = one_of_each_kind(folder)[kind]
    document = load(tmp_path, place)
    for field in required(place.model):
        body = {name: value for name, value in document["body"].items() if name != field}
        plant(tmp_path, place, sign({**document, "body": body}))
        with pytest.raises(RecordError, match=rf"{Path(place.path).name}: .*{field} is missing"):
            read_all(folder, kind)


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("schema[23]/*.json")), ids=lambda path: f"{path.parts[-2]}-{path.stem}"
)
def test_fields_that_a_later_release_adds_are_ignored(path: Path, tmp_path: Path) -> None:
    models = {kind: place.model for kind, place in one_of_each_kind(make_directory(tmp_path)[1]).items()}
    document = json.loads(path.read_text())
    kind, model = document["kind"], models[document["kind"]]
    more = sign({**document, "later": 1, "body": {**document["body"], "later": {"nested": [1, None]}}})
    assert decode(more, kind, model)[1] == decode(path.read_bytes(), kind, model)[1]
