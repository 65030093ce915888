"""What users probably meant: encodings, directories and numbers that a command must not take as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import pfo_fs
from jobs import make_job, rank_infos, register

from pfo_fs.device.simulated.gpu import SimulatedGpu
from pfo_fs.errors import ConfigError, StoreError
from pfo_fs.store import Files
from pfo_fs.training.job_request import checked_directory
from pfo_fs.training.optimizer import PFOFileOptimizer

EVERY_HELP = """
import sys, typer
from pfo_fs.cli import app, main
group = typer.main.get_command(app)
pages = [[name] for name in group.commands] + [["schedule", name] for name in group.commands["schedule"].commands]
for page in [[], *pages]:
    sys.argv = ["pfo-fs", *page, "--help"]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, None), (page, end.code)
sys.argv = ["pfo-fs", "doctor"]
main()
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_every_help_page_and_the_doctors_table_are_printed_in_any_encoding(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "100", "PFO_FS_GPU": "none"}
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], env=environment, capture_output=True)
    assert b"Traceback" not in done.stderr, done.stderr[-2000:]
    assert b"Usage" in done.stdout
    assert b"what it means" in done.stdout


# ---- slowdowns


@pytest.mark.parametrize(
    ("given", "said"),
    [({"slowdown": 1.05}, 'scheduler_args={"slowdown": ...}'), ({"scheduler_args": {"slowdwn": 1}}, "mean slowdown?")],
)
def test_a_target_in_the_wrong_place_of_training_code_is_refused_with_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], said: str
) -> None:
    monkeypatch.delenv("PFO_FS_SCHEDULER", raising=False)
    with pytest.raises(ConfigError) as caught:
        PFOFileOptimizer(tmp_path, rank=0, world_size=1, pp_degree=1, pp_rank=0, strict=True, **given)
    assert said in str(caught.value)


def test_a_model_that_cannot_be_simulated_is_refused_with_those_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_SIM_MODEL", "H100")
    with pytest.raises(ConfigError, match=r"'H100' is not .* choose A100, A40"):
        SimulatedGpu("h100")


# ---- directories


@pytest.mark.parametrize(
    "command",
    [
        *(["report", "{job}"], ["check", "{job}"], ["target", "{job}", "--none"], ["schedule", "check", "{job}"]),
        *(["report"], ["status"], ["prune"], ["off", "--all"], ["off", "{job}"], ["straggler", "{job}", "--gone"]),
    ],
)
def test_every_command_takes_the_directory_as_its_last_argument_as_an_option_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_job(tmp_path / "pfo", 1)
    parts = [part.replace("{job}", folder.job_id) for part in command]
    forms = pfo_fs(*parts, tmp_path / "pfo"), pfo_fs(*parts, "-d", tmp_path / "pfo")
    pfo_fs(*parts, tmp_path / "pfo", "-d", tmp_path, code=2)
    forms = *forms, pfo_fs(*parts, PFO_FS_SHARED_DIR=str(tmp_path / "pfo"))
    assert len({(done.returncode, done.said) for done in forms}) == 1


def test_a_home_directory_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    register(make_job(tmp_path / "pfo", 1), rank_infos(1))
    pfo_fs("status", "~/pfo", code=0)
    assert pfo_fs("status", "--shared-dir=~/pfo").returncode == 0
    assert checked_directory("~/pfo") == str(tmp_path / "pfo")


def test_only_the_last_part_of_a_path_is_made(tmp_path: Path) -> None:
    Files(tmp_path / "pfo", create=True)
    with pytest.raises(StoreError, match=r"typo is not there: is the path right"):
        Files(tmp_path / "typo" / "pfo", create=True)
    assert not (tmp_path / "typo").exists()
    assert "typo is not there" in pfo_fs("daemon", tmp_path / "typo" / "deep").said
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(("mode", "advice"), [(0o1777, "mkdir -m 700"), (0o777, "chmod o-w")])
def test_nobody_is_told_to_change_the_mode_of_a_directory_for_temporary_files(
    tmp_path: Path, mode: int, advice: str
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StoreError, match=advice):
        Files(folder)


def test_an_error_without_a_files_name_is_not_blamed_on_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pfo_fs import cli

    def fails() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "error: BlockingIOError: Resource temporarily unavailable\n"
