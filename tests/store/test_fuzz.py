"""Nothing that lies in the shared directory ends a reader, holds it up, or makes it write elsewhere.

Each example is a running job in which one record has one thing changed, with length and checksum made to fit.
"""

import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import index_of, rank_infos, write_step
from record_corpus import Place, damaged_records, make_directory, places, plant
from typer.testing import CliRunner

from pfo_fs.cli import app
from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.policy_start import policy_name
from pfo_fs.errors import PfoError, RecordError
from pfo_fs.reports import status
from pfo_fs.reports.collect import collect_job
from pfo_fs.reports.page import render_page
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies, layout
from pfo_fs.store.records import decode

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def examples(count: int) -> settings:
    allowed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, suppress_health_check=allowed)


class Scene:
    """A copy of the corpus for each example, beside a folder that must stay as it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base = path / "base"
        _, folder = make_directory(self._base)
        self.folder, self.places, self.job_id = folder, places(folder), folder.job_id
        # A policy that a new daemon can replay:
        job, index, args = folder.read_job(), index_of(folder, 0), {"slowdown": 1.0}
        made = index.source.model_copy(update={"policy": policy_name("ParetoScheduler", args), "revision": 0})
        changed = (job, {"scheduler_args": args}, {}), (index, {"source": made}, {"number": 0})
        for body, update, place in changed:
            path = folder.path_of(type(body), **place)
            folder.files.publish(path, folder.encoded(body.model_copy(update=update)))

    def show(self, place: Place, data: bytes) -> tuple[SharedDirectory, JobFolder]:
        shutil.rmtree(self.path / "scene", ignore_errors=True)
        (self.path / "scene").mkdir()
        shutil.copytree(self._base, self.root)
        (self.path / "scene" / "outside").write_text("unchanged")
        plant(self.root, place, data)
        shared = SharedDirectory(Files(self.root), "reader")
        return shared, shared.job(self.job_id)

    @property
    def root(self) -> Path:
        return self.path / "scene" / "pfo"

    def check_outside(self) -> None:
        assert sorted(os.listdir(self.path / "scene")) == ["outside", "pfo"]
        assert (self.path / "scene" / "outside").read_text() == "unchanged"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_HEARTBEAT_WAIT_S", 0.0)
    monkeypatch.setattr(status, "_LOCAL_SIGN_WITHIN_S", 0.0)


def draw(data: st.DataObject, scene: Scene) -> tuple[Place, bytes]:
    # The base is never changed, so that examples do not depend on each other.
    return data.draw(damaged_records(scene.path / "base", scene.places), label="record")


def everything_read(shared: SharedDirectory, folder: JobFolder) -> Iterator[Callable[[], Any]]:
    yield from (shared.directory_id, shared.read_daemon, shared.leaders.poll)
    yield from (shared.job_ids, shared.newest_job_ids, shared.archived_job_ids)
    yield from (folder.read_job, folder.names, folder.schedule_numbers, lambda: list(folder.each_rank()))
    yield from (lambda name=name: folder.read_file(name) for name in layout.FILES)
    for body in (bodies.ClaimBody, bodies.CurrentBody, bodies.ModelBody, bodies.EndBody):
        yield lambda body=body: folder.read(body)
    for body in (bodies.OrderBody, bodies.ProgressBody, bodies.IterationTimesBody, bodies.RanksBody):
        yield lambda body=body: folder.numbers(body)
        key = layout.RECORDS[body].path.rpartition("{")[2].partition("}")[0]
        yield from (lambda body=body, at={key: n}: folder.read(body, **at) for n in (0, 1))
    yield from (lambda rank=rank: folder.read_results(0, rank) for rank in (0, 1))
    for info in rank_infos(2):
        yield lambda info=info: (index := folder.read(bodies.IndexBody, number=0)) and folder.read_schedule(index, info)
    yield lambda: folder.write_rank_files(0, rank_infos(2))


@pytest.mark.slow
@examples(250)
@given(data=st.data())
def test_every_read_of_the_store_gives_a_record_or_an_error_of_ours(data: st.DataObject, scene: Scene) -> None:
    shared, folder = scene.show(*draw(data, scene))
    for read in everything_read(shared, folder):
        with suppress(PfoError):
            read()
    scene.check_outside()


@examples(80)
@given(data=st.data())
def test_status_and_the_data_of_a_report_cope_with_every_record(data: st.DataObject, scene: Scene) -> None:
    place, record = draw(data, scene)
    shared, folder = scene.show(place, record)
    try:
        decode(record, place.kind, place.model)
    except RecordError as error:
        assert str(error).isprintable()
    status.render(status.collect_status(shared))
    with suppress(PfoError):
        collect_job(folder)
    scene.check_outside()


@pytest.mark.slow
@examples(10)
@given(data=st.data())
def test_a_report_is_a_page_without_foreign_markup_or_an_error_of_ours(data: st.DataObject, scene: Scene) -> None:
    _, folder = scene.show(*draw(data, scene))
    with suppress(PfoError):
        page = render_page(collect_job(folder))
        assert "<img src=x" not in page
        assert not CONTROL.search(page)
    scene.check_outside()


COMMANDS = [
    ["status", "{root}"],
    ["status", "{root}", "--json"],
    ["schedule", "show", "latest", "-d", "{root}"],
    ["schedule", "show", "{job}", "--json"],
    ["schedule", "check", "latest", "{yaml}", "-d", "{root}"],
    ["schedule", "set", "latest", "{yaml}", "-d", "{root}"],
    ["target", "latest", "--slowdown", "1.1", "-d", "{root}"],
    ["straggler", "latest", "--slowdown", "1.2", "--pipeline", "0", "-d", "{root}"],
    ["trace", "latest", "-d", "{root}", "-o", "{root}/trace.csv"],
]


@pytest.mark.slow
@examples(100)
@given(data=st.data(), command=st.sampled_from(COMMANDS))
def test_commands_end_in_order_without_control_codes(data: st.DataObject, command: list[str], scene: Scene) -> None:
    _, folder = scene.show(*draw(data, scene))
    (scene.root / "wanted.yaml").write_text("target: {slowdown: 1.1}\n")
    names = {"root": scene.root, "job": folder.location, "yaml": scene.root / "wanted.yaml"}
    done = CliRunner().invoke(app, [part.format(**names) for part in command])
    if done.exception is not None and not isinstance(done.exception, (PfoError, SystemExit)):
        raise done.exception
    assert not CONTROL.search(done.output + str(done.exception or ""))
    scene.check_outside()


def polled(folder: JobFolder, known: JobFolder, clock: Clock) -> Coordinator:
    pareto = PFOSettings(scheduler="ParetoScheduler")
    coordinator = Coordinator(folder, pareto, kind="daemon", generation=2, monotonic=clock)
    results = known.read_results(0, 0) or []
    with suppress(PfoError):  # those with one thing changed, where they can be read
        results = folder.read_results(0, 0) or results
    for poll in range(4):
        coordinator.poll()
        clock.now += 12
        number = folder.schedule_numbers()[-1]
        folder.write_results(number, results)
        write_step(folder, 200 + 300 * poll, number=number)
    return coordinator


@pytest.mark.slow
@examples(25)
@given(data=st.data())
def test_a_poll_copes_with_every_record_in_bounded_memory(data: st.DataObject, scene: Scene) -> None:
    _, folder = scene.show(*draw(data, scene))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "the scheduler failed" not in polled(folder, scene.folder, Clock()).message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 200 * 1024
    scene.check_outside()
