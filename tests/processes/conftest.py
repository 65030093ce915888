"""Fixtures of the tests that run real processes."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import HANGS_AFTER_S
from training_job import Job

from pfo_fs import PFOFileOptimizer
from pfo_fs.coordination.daemon import Daemon
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(ranks: int, given: dict[str, Any], **options: Any) -> Job:
        jobs.append(Job(tmp_path, ranks, given, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PFOFileOptimizer]]:
    """Makes optimizers of one rank in this process."""
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path / "sim"))
    made = []

    def make(**options: Any) -> PFOFileOptimizer:
        given = {"coordination": "local", "pp_degree": 1, "wait_for_schedule_s": 0.0, **options}
        made.append(PFOFileOptimizer(tmp_path / "pfo", **given))
        return made[-1]

    yield make
    for opt in made:
        opt.close()


@pytest.fixture
def start_daemon() -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon in a thread of this process."""
    started: list[tuple[Daemon, threading.Thread]] = []

    def start(root: Path, **settings: Any) -> Daemon:
        daemon = Daemon(Files(root), PFOSettings(**settings))
        thread = threading.Thread(target=daemon.run, daemon=True)
        thread.start()
        started.append((daemon, thread))
        return daemon

    yield start
    for daemon, thread in started:
        daemon.stop()
        thread.join(HANGS_AFTER_S)
        assert not thread.is_alive()
