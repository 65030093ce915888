"""A daemon's poll of a job in which one record has one thing changed: no error but ours, and bounded memory."""

from __future__ import annotations

import resource
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from clock import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import write_step
from record_corpus import Place, damaged_records, make_directory, places, plant

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.policy_start import policy_name
from pfo_fs.errors import PfoError
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

POLLS = 4
MOST_KB = 200 * 1024


class Base:
    """A running job with every record there is, whose policy a new daemon can replay."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _, folder = make_directory(path)
        self.folder = folder
        job, index = folder.read_job(), folder.read(bodies.IndexBody, number=0)
        assert job is not None
        assert index is not None
        args = {"slowdown": 1.0}
        policy = policy_name("ParetoScheduler", args)
        made = index.source.model_copy(update={"policy": policy, "revision": 0})
        own = job.model_copy(update={"scheduler_args": args})
        folder.files.publish(folder.path_of(bodies.JobBody), folder.encoded(own))
        folder.files.publish(
            folder.path_of(bodies.IndexBody, number=0), folder.encoded(index.model_copy(update={"source": made}))
        )
        self.places: list[Place] = places(self.folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("base") / "pfo")


def polled(root: Path, known: JobFolder, clock: Clock) -> Coordinator:
    """A new daemon's coordinator of the job, after some polls."""
    folder = SharedDirectory(Files(root), "daemon").job(known.job_id)
    pareto = PFOSettings(scheduler="ParetoScheduler")
    coordinator = Coordinator(folder, pareto, kind="daemon", generation=2, monotonic=clock)
    results = known.read_results(0, 0) or []
    with suppress(PfoError):  # those with one thing changed, where they can be read
        results = folder.read_results(0, 0) or results
    for poll in range(POLLS):
        coordinator.poll()
        clock.now += 12
        numbers = folder.schedule_numbers()
        folder.write_results(numbers[-1], results)
        write_step(folder, 200 + 300 * poll, number=numbers[-1])
    return coordinator


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_poll_copes_with_every_record_in_bounded_memory(data: st.DataObject, base: Base, tmp_path: Path) -> None:
    place, record = data.draw(damaged_records(base.path, base.places), label="record")
    root = tmp_path / "pfo"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base.path, root)
    plant(root, place, record)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    coordinator = polled(root, base.folder, Clock())
    assert "the scheduler failed" not in coordinator.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MOST_KB
