"""Daemons in a working directory that is hostile or gone, and on hosts that are short of something."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import leader_record, make_job, register
from running import Processes, wait_for

import pfo_fs
from pfo_fs.coordination.daemon import Daemon
from pfo_fs.store import bodies

PACKAGE = str(Path(pfo_fs.__file__).parents[1])
PLANTED = ("statistics", "secrets", "highspy", "scipy", "numpy", "yaml", "typer", "rich", "watchdog", "lowtime")
START = {
    "module": ["-m", "pfo_fs", "daemon"],
    "script": ["-c", "import sys; del sys.path[0]; from pfo_fs.__main__ import daemon_main; daemon_main()"],
}


@pytest.mark.parametrize(
    ("way", "python_path"), [("module", f":{PACKAGE}"), ("script", PACKAGE)], ids=["module", "script"]
)
def test_files_in_the_working_directory_are_never_run(
    way: str, python_path: str, tmp_path: Path, processes: Processes
) -> None:
    """A group's member plants modules in the shared directory, and the daemon is started there."""
    root = tmp_path / "pfo"
    root.mkdir(mode=0o700)
    for name in PLANTED:
        (root / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise ImportError\n")
    environment = {**os.environ, "PYTHONPATH": python_path}
    processes.python(*START[way], ".", cwd=root, env=environment)
    folder = register(make_job(root, 1))
    wait_for(lambda: folder.read(bodies.CurrentBody), what="a report about the job")
    assert not (tmp_path / "ran").exists()


def test_a_scheduler_is_found_in_the_working_directory_after_all_other_modules(
    tmp_path: Path, processes: Processes
) -> None:
    (tmp_path / "mine.py").write_text("from pfo_fs.scheduler import Manual\nclass Mine(Manual): pass\n")
    (tmp_path / "statistics.py").write_text("raise SystemExit('planted')\n")
    root = tmp_path / "pfo"
    environment = {**os.environ, "PYTHONPATH": PACKAGE}
    processes.python("-m", "pfo_fs", "daemon", str(root), "--scheduler", "mine:Mine", cwd=tmp_path, env=environment)
    wait_for(lambda: leader_record(root), what="a leader")


def test_a_daemon_polls_where_file_system_events_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_daemon: Callable[..., Daemon]
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.Observer", refuse)
    start_daemon(tmp_path, scheduler="Manual", watch="events")
    folder = register(make_job(tmp_path, 1))
    wait_for(lambda: folder.read(bodies.CurrentBody), what="a report about the job")


def test_a_daemon_goes_on_when_threads_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_daemon: Callable[..., Daemon]
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse_some(thread: threading.Thread) -> None:
        if thread.name.startswith("pfo-fs") and len(refused) < 5:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_some)
    start_daemon(tmp_path, scheduler="Manual", watch="poll", poll_interval=0.05)
    folder = register(make_job(tmp_path, 1))
    wait_for(lambda: folder.read(bodies.CurrentBody), what="a report about the job")
    assert len(refused) == 5
