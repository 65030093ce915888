"""Which process schedules a new job: a daemon, or the helper of its rank 0."""

from __future__ import annotations

from pathlib import Path

import pytest
from clock import replace_time
from record_corpus import Place, load, plant, sign

from pfo_fs.helper.operations import CreatedJob, CreateJob, DirectoryOperations
from pfo_fs.models import JobInfo
from pfo_fs.store import Files, SharedDirectory, bodies


@pytest.mark.parametrize(
    ("mode", "policy", "daemon", "chosen", "warning"),
    [
        ("local", None, "beats", "local", ""),
        ("local", "coordination: daemon-only", "", "daemon", "default clocks"),
        ("auto", "coordination: daemon-only", "", "daemon", "default clocks"),
        ("auto", "coordination: !!int ''", "", "local", "site.yaml is not valid: line 1"),
        ("auto", None, "", "local", ""),
        ("auto", None, "stopped", "local", ""),
        ("auto", None, "stands still", "local", "the daemon on there does not answer"),
        ("auto", None, "beats", "daemon", "runs but is busy"),
        ("auto", None, "is of another release", "local", "schema 'pfo-fs/3', and this release reads"),
    ],
)
def test_which_process_schedules_a_new_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    policy: str | None,
    daemon: str,
    chosen: str,
    warning: str,
) -> None:
    root, now_s = tmp_path / "pfo", 0.0
    shared = SharedDirectory(Files(root, create=True))
    if policy is not None:
        (root / "site.yaml").write_text(policy)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        counter = int(now_s / 2) if daemon == "beats" else 1  # a busy one: every other second
        if daemon:
            shared.write(
                bodies.DaemonBody(
                    generation=1, counter=counter, host="there", pid=1, version="1", scheduler="Manual", interval_s=1.0,
                    stopped=daemon == "stopped",
                )
            )  # fmt: skip
        if daemon == "is of another release":
            place = Place("daemon.json", bodies.DaemonBody)
            plant(root, place, sign({**load(root, place), "schema": "pfo-fs/3"}))
        assert now_s < 20

    replace_time(monkeypatch, "pfo_fs.helper.operations", monotonic=lambda: now_s, sleep=sleep)
    info = JobInfo(pp_degree=1, dp_degree=1, tp_degree=1, world_size=1)
    job = bodies.JobBody(job_info=info, coordination=mode)  # type: ignore[arg-type]
    created = DirectoryOperations(str(root), "node1:1", "Manual").execute(CreateJob(job, "attempt"))
    assert isinstance(created, CreatedJob)
    assert created.coordination == chosen
    assert warning in created.warning
    assert bool(created.warning) == bool(warning)
