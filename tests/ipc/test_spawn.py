"""Processes beside training: what becomes of those that are not waited for."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pfo_fs.ipc import spawn

WaitFor = Callable[..., object]


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_a_process_may_be_dropped_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    program(tmp_path, monkeypatch, "exec sleep 30")
    process = spawn.start_process("any", {})
    pid = process.pid
    del process
    gc.collect()
    kept = next(process for process in spawn._started if process.pid == pid)
    assert kept.poll() is None
    assert not recwarn.list
    kept.kill()
    kept.wait()


def test_a_process_that_has_ended_is_reaped_when_the_next_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    program(tmp_path, monkeypatch, f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done")
    pid = spawn.start_process("any", {}).pid
    (tmp_path / "go").touch()
    state = Path(f"/proc/{pid}/stat")
    wait_for(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "Z", what="its end")
    last = spawn.start_process("any", {})
    assert not state.exists()
    assert pid not in {process.pid for process in spawn._started}
    last.wait()
