"""Records as they lie on disk: byte for byte as they are written today."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_corpus import load, make_directory, one_of_each_kind, places, write_ends

from pfo_fs.store import bodies
from pfo_fs.store.records import decode, encode

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = {
    "directory": bodies.DirectoryBody,
    "daemon": bodies.DaemonBody,
    "leader": bodies.LeaderBody,
    "job": bodies.JobBody,
    "coordinator": bodies.ClaimBody,
    "ranks": bodies.RanksBody,
    "order": bodies.OrderBody,
    "current": bodies.CurrentBody,
    "index": bodies.IndexBody,
    "schedule": bodies.PlanBody,
    "results": bodies.ResultsBody,
    "progress": bodies.ProgressBody,
    "iteration_times": bodies.IterationTimesBody,
    "model": bodies.ModelBody,
    "end": bodies.EndBody,
}


def golden(kind: str) -> bytes:
    """The record of this kind under the schema that changed the kind last."""
    newest = GOLDEN / "schema3" / f"{kind}.json"
    return (newest if newest.exists() else GOLDEN / "schema2" / f"{kind}.json").read_bytes()


@pytest.mark.parametrize("kind", MODELS)
def test_a_record_of_this_release_is_read_and_written_byte_for_byte(kind: str) -> None:
    data = golden(kind)
    header, body = decode(data, kind, MODELS[kind])
    assert encode(header, body, readable=kind == "schedule") == data


def test_what_is_written_today_is_what_was_written_when_the_schema_got_its_number(tmp_path: Path) -> None:
    """Another form on disk needs another schema number, and golden files of it (see `record_corpus.write_golden`)."""
    _, folder = make_directory(tmp_path)
    write_ends(folder)
    for kind, place in one_of_each_kind(folder).items():
        assert (tmp_path / place.path).read_bytes() == golden(kind)


def test_every_kind_of_record_has_a_golden_file(tmp_path: Path) -> None:
    _, folder = make_directory(tmp_path)
    kinds = {place.kind for place in places(folder)}
    files = {path.stem for schema in ("schema2", "schema3") for path in (GOLDEN / schema).iterdir()}
    assert kinds == set(MODELS) == files
    assert all(load(tmp_path, place)["kind"] == place.kind for place in places(folder))
