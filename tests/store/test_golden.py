"""Records as they lie on disk: those that are written today, byte for byte; those of earlier schemas, read or named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record_corpus import load, make_directory, one_of_each_kind, places, write_ends

from pfo_fs.errors import RecordError
from pfo_fs.store import SharedDirectory, bodies
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
    "cached_profile": bodies.CachedProfileBody,
    "model": bodies.ModelBody,
    "end": bodies.EndBody,
    "batch_end": bodies.BatchEndBody,
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
    assert kinds == set(MODELS) == files - {"rank", "result"}  # which are in `ranks` and `results` since schema 3
    assert all(load(tmp_path, place)["kind"] == place.kind for place in places(folder))


def test_registrations_and_results_of_the_second_schema_are_read(tmp_path: Path) -> None:
    _, folder = make_directory(tmp_path)
    for place, kind in (("ranks/1.json", "rank"), ("prof/0/0.json", "result")):
        (folder.location / place).unlink()
        (folder.location / place).write_bytes((GOLDEN / "schema2" / f"{kind}.json").read_bytes())
    (folder.location / "ranks/0.json").unlink()
    assert [body.gpu_name for body in folder.each_rank()] == ["A100"]
    assert [body.first_step for body in folder.read_results(0, 0) or ()] == [3]


@pytest.mark.parametrize("path", sorted((GOLDEN / "schema1").iterdir()), ids=lambda path: path.stem)
def test_a_record_of_the_first_schema_gives_an_error_that_names_both_and_says_what_to_do(path: Path) -> None:
    kind = json.loads(path.read_text())["kind"]
    with pytest.raises(RecordError, match=r"schema 'pfo-fs/1'.*reads 'pfo-fs/2' and 'pfo-fs/3'.*new directory"):
        decode(path.read_bytes(), kind, MODELS.get(kind, bodies.EndBody))


def test_a_job_of_the_first_schema_is_named_with_its_file(tmp_path: Path) -> None:
    shared = SharedDirectory.open(tmp_path / "pfo", create=True)
    job_id = "2026-11-22-00-55-02+dp2+pp2+tp1+ParetoScheduler+simulated"
    (tmp_path / "pfo" / "jobs" / job_id).mkdir()
    (tmp_path / "pfo" / "jobs" / job_id / "job.json").write_bytes((GOLDEN / "schema1" / "job.json").read_bytes())
    with pytest.raises(RecordError, match=rf"{job_id[:10]}.*job\.json: .*older release"):
        shared.job(job_id).read_job()
