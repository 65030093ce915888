"""What users probably meant: encodings, directories and numbers that a command must not take as they are."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import pfo_fs
from jobs import make_job, rank_infos, register

from pfo_fs import cli
from pfo_fs.device.simulated.gpu import SimulatedGpu
from pfo_fs.errors import ConfigError, StoreError
from pfo_fs.store import Files, JobFolder, layout
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


def test_every_help_page_and_the_doctors_table_are_printed_in_the_smallest_encoding() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "100", "PFO_FS_GPU": "none"}
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
    monkeypatch.setenv("PFO_FS_SIM_MODEL", "V100")
    with pytest.raises(ConfigError, match=r"^PFO_FS_SIM_MODEL: 'V100' is not .* choose A100, A40"):
        SimulatedGpu("v100")


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
    with pytest.raises(StoreError, match=r"typo is not there, .* is the path right"):
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
    def fails() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "error: BlockingIOError: Resource temporarily unavailable\n"


# ---- what is typed wrong is refused with one message, in words for users, that names what is right. Nothing changes


CASES = """
off all -d ROOT                                         2 did you mean --all
off JOB --all -d ROOT                                   2 give a job or --all, not both
off --all -d empty                                      1 is not a shared directory of pfo-fs
off nobody -d ROOT                                      1 is not a job in
daemon ROOT --slowdown 1.05                             2 --scheduler-args '{"slowdown": 1.05}'
daemon ROOT --scheduler-args slowdown=1.1               2 write it as '{"slowdown": 1.05}'
daemon new --scheduler-args '{"slow": 1.05}'            1 did you mean slowdown?). Known: slowdown, deadline, power
daemon new --metrics-file no/pfo.prom                   2 there is no folder
daemon mine.csv                                         1 mine.csv is a file; name a folder
daemon ROOT --scheduler-args '[1]'                      2 must be a JSON object
daemon ROOT --scheduler Paretto                         1 Built in are Manual
daemon ROOT --allow-users ,                             2 names no user
daemon ROOT --allow-users no-such-user                  2 there is no user
daemon ROOT --metrics-file pfo.txt                      2 must end in .prom
advise ROOT                                             1 `pfo-fs advise latest
demo -o no/page.html                                    1 the folder no is not there
daemon ''                                               2 give the path of the shared directory
advise nothere.csv                                      2 nothere.csv: there is no such file or folder
schedule check mine.csv                                 2 mine.csv: this is no job
status                                                  2 name the shared directory
status none                                             1 is the file system mounted here?
status latest -d ROOT                                   2 `pfo-fs report latest`
status JOB ROOT                                         2 extra argument
report -d ROOT -o page.html                             2 name it
report latest                                           2 name its directory by -d
report latest -d ROOT --price -1                        2 price
report latest -o mine.html -d ROOT                      1 mine.html: this command has not written it
trace latest -o trace.csv -d ROOT                       1 no iteration was measured
target JOB --power 5 --slowdown 1.1 -d ROOT             2 exactly one
target JOB --slowdown 5 -d ROOT                         2 give 1.05
target JOB --slowdown 5% -d ROOT                        2 '5%'
straggler JOB -d ROOT                                   2 either --slowdown or --gone
straggler JOB --slowdown 20 -d ROOT                     2 give 1.2
straggler JOB --slowdown 1.2 --pipeline 4 -d ROOT       2 pipelines 0 to 3
schedule show JOB -d ROOT                               1 has no schedule yet
schedule check JOB -d ROOT                              1 has no schedule.yaml
prune ROOT --older-than 5m                              2 12h, 30d or 8w
prune empty                                             1 is not a shared directory of pfo-fs
check nobody -d ROOT                                    2 is not a job in
reset-clocks                                            2 name the GPUs
reset-clocks 0                                          1 `nvidia-smi -L` lists them
reset-clocks GPU-1234 --wait 0                          1 nvml:GPU-1234
power-limit mine.csv                                    1 power limits: content is not JSON; it should look like
power-limit n.json --factor 1.05                        2 --factor belongs to --selector max-slowdown
power-limit n.json --selector max-slowdown              2 needs --factor
power-limit n.json --selector max-slowdown --factor 5   2 give 1.05
power-limit n --selector max-slowdown --factor 0.9      2 1.05 allows 5 %
doctor --peer 2                                         2 name the directory
plan p.csv --num-microbatches 4 --gpu H100              1 profile-p2p
simulate --gpu V100 --num-microbatches 4                2 'a100', 'a40'
simulate --trace job.csv --num-microbatches 3           2 give --num-microbatches
simulate --num-microbatches 4 --loads trace             2 --loads needs --trace
"""


@pytest.fixture(scope="module")
def four_pipelines(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """A job of four pipelines, in whose folder nothing may change."""
    folder = make_job(tmp_path_factory.mktemp("wrong") / "pfo", 1, 4)
    register(folder, rank_infos(1, 4))
    return folder


@pytest.mark.parametrize("case", CASES.strip().splitlines(), ids=lambda case: case[:56].strip())
def test_what_is_typed_wrong_is_refused_with_what_is_right(
    four_pipelines: JobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for mine in ("mine.csv", "mine.html"):
        (tmp_path / mine).write_text("what a user has written\n")
    for name in ("PFO_FS_SHARED_DIR", "CUDA_VISIBLE_DEVICES", "PFO_FS_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    names = {"ROOT": str(four_pipelines.files.root), "JOB": four_pipelines.job_id}
    before = sorted(os.walk(four_pipelines.files.root))
    typed, code, text = re.split(r"  +([12]) ", case)
    done = pfo_fs(*(names.get(word, word) for word in shlex.split(typed)))
    assert (done.returncode, text in done.said) == (int(code), True), done.said
    assert not any(word in done.said for word in ("Traceback", "Errno", "pydantic", "Input should"))
    assert sorted(os.walk(four_pipelines.files.root)) == before
    assert not (tmp_path / "new").exists()
    assert four_pipelines.read_file(layout.YAML) is None
    assert (tmp_path / "mine.csv").read_text() == (tmp_path / "mine.html").read_text() == "what a user has written\n"


def test_a_page_that_the_command_has_written_is_replaced(four_pipelines: JobFolder, tmp_path: Path) -> None:
    for _ in range(2):
        pfo_fs("report", four_pipelines.job_id, "-d", four_pipelines.files.root, "-o", tmp_path / "page.html", code=0)
