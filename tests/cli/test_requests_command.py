"""`pfo-fs target` and `pfo-fs straggler`, and what `pfo-fs status` shows of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import pfo_fs
from jobs import living_daemon, make_job, rank_infos, register

from pfo_fs.store import JobFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    folder = make_job(tmp_path, 1, 4)
    register(folder, rank_infos(1, 4))
    with living_daemon(tmp_path):
        yield folder


def request(folder: JobFolder, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return pfo_fs(command, "latest", "-d", folder.files.root, *arguments)


def requests_in_yaml(folder: JobFolder) -> object:
    return yaml.safe_load((folder.files.root / folder.path / "schedule.yaml").read_text())


def test_a_target_and_a_straggler_can_be_set_at_the_same_time(folder: JobFolder) -> None:
    assert request(folder, "target", "--power", "18000").returncode == 0
    assert request(folder, "straggler", "--slowdown", "1.2", "--pipeline", "3").returncode == 0
    assert requests_in_yaml(folder) == {"target": {"power": 18000.0}, "straggler": {"slowdown": 1.2, "pipeline": 3}}
    assert request(folder, "target", "--slowdown", "1.05").returncode == 0
    assert requests_in_yaml(folder) == {"straggler": {"slowdown": 1.2, "pipeline": 3}, "target": {"slowdown": 1.05}}


def test_removing_the_last_request_removes_the_yaml(folder: JobFolder) -> None:
    request(folder, "target", "--power", "18000")
    request(folder, "straggler", "--slowdown", "1.2")
    assert request(folder, "target", "--none").returncode == 0
    assert requests_in_yaml(folder) == {"straggler": {"slowdown": 1.2}}
    assert request(folder, "straggler", "--gone").returncode == 0
    assert not (folder.files.root / folder.path / "schedule.yaml").exists()


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("target", [], "exactly one"),
        ("target", ["--power", "5", "--slowdown", "1.1"], "exactly one"),
        ("target", ["--slowdown", "0.5"], "--slowdown: must be at least 1, not 0.5"),
        ("target", ["--power", "nan"], "--power"),
        ("straggler", [], "either --slowdown or --gone"),
        ("straggler", ["--slowdown", "1.2", "--pipeline", "4"], "pipelines 0 to 3"),
    ],
)
def test_a_request_that_is_not_valid_is_refused_and_nothing_is_written(
    folder: JobFolder, command: str, arguments: list[str], message: str
) -> None:
    done = request(folder, command, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (folder.files.root / folder.path / "schedule.yaml").exists()


def test_a_yaml_with_clocks_is_not_overwritten(folder: JobFolder) -> None:
    path = folder.files.root / folder.path / "schedule.yaml"
    path.write_text("all: 1200  # typed by hand\n")
    done = request(folder, "target", "--power", "18000")
    assert done.returncode == 1
    assert "sets clocks" in done.stderr
    assert path.read_text() == "all: 1200  # typed by hand\n"


@pytest.mark.slow
def test_a_simulated_job_is_printed_as_json(tmp_path: Path) -> None:
    job = "--num-microbatches", 16, "--stages", 2, "--iterations", 40
    printed = json.loads(pfo_fs("simulate", *job, "--json", "--shared-dir", tmp_path / "pfo").stdout)
    assert len(printed["iterations"]) == 40
    assert (tmp_path / "pfo" / "jobs" / printed["job_id"] / "job.json").exists(), "kept for report and trace"
