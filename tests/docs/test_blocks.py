"""Every code block of README and docs: run on simulated GPUs, or, with a reason, only checked."""

import ast
import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from blocks import PAGES, ROOT, Block, all_blocks, blocks_of, differences
from power_limit_fakes import at_limit
from running import wait_for
from simulated_jobs import KIND

from pfo_fs.cli import app, daemon_app
from pfo_fs.device.simulated.physics import A100
from pfo_fs.planner import make_pipeline
from pfo_fs.power_limit import profile_text
from pfo_fs.schedule_yaml import parse_schedule_yaml
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, ModelTruth, Play

COMMANDS = {"cp", "echo", "export", "pfo-fs", "pfo-fs-daemon", "python", "rm", "torchrun"}
"""What blocks may run without a comment; the test runs them as the user who runs the tests, who may be root."""
KINDS = ("not run: ", "file: ", "test command")
ALWAYS = {"-h", "--help", "--install-completion", "--show-completion"}
RUNNABLE = ("bash", "console", "python")


def options_of(name: str, command: Any) -> dict[str, set[str]]:
    """The options of a command and of those below it, by the command's full name."""
    found = {name: {option for p in command.params for option in (*p.opts, *p.secondary_opts)}}
    for below, its in getattr(command, "commands", {}).items():
        found |= options_of(f"{name} {below}", its)
    return found


OPTIONS = {
    **options_of("pfo-fs", typer.main.get_command(app)),
    **options_of("pfo-fs-daemon", typer.main.get_command(daemon_app())),
}


@dataclass
class Session:
    """A shell in a folder of its own, in which the blocks of a page run one after the other.

    Attributes:
        folder: Stands for the clone that the page's reader is in.
        roots: What stands for the folders `/shared` and `/tmp` of the page.
        printed: What the last block has printed.
        daemons: Daemons that a block has started.
    """

    folder: Path
    roots: Path
    environment: dict[str, str]
    printed: str = ""
    daemons: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, block: Block) -> None:
        text = re.sub(r"(?<![\w/.])/(?=(?:shared|tmp)/)", f"{self.roots}/", block.text)
        if block.note.startswith("file: "):
            (self.folder / block.note.removeprefix("file: ")).write_text(text)
        elif block.note == "prints":
            assert not differences(block.text, self.printed), f"{block.place}: not printed any more:\n{self.printed}"
        elif block.language == "yaml":
            assert yaml.safe_load(text)
            if block.note == "schedule":
                parse_schedule_yaml(text)
        elif block.language == "python":
            self._start(block, [sys.executable, "-c", text])
        elif block.language in RUNNABLE:
            lines = [line for line in text.splitlines() if not line.startswith(". ")]
            daemons = [line for line in lines if line.startswith("pfo-fs-daemon ")]
            for line in daemons:
                self._start_daemon(block, line)
            self._start(block, ["bash", "-euo", "pipefail", "-c", "\n".join(x for x in lines if x not in daemons)])

    def _start(self, block: Block, command: list[str]) -> None:
        ended = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert ended.returncode == 0, f"{block.place}:\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}"
        self.printed = ended.stdout

    def _start_daemon(self, block: Block, line: str) -> None:
        """Starts a daemon, which replaces the one before, and waits until it leads."""
        self.end_daemons()
        command = shlex.split(line, comments=True)
        daemon = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.daemons.append(daemon)
        record = self.folder / command[1] / "daemon.json"

        def leads() -> bool:
            assert daemon.poll() is None, f"{block.place}: {line}: the daemon has ended:\n{daemon.communicate()[1]}"
            return record.exists() and bool(re.search(rf'"pid": ?{daemon.pid}\b', record.read_text()))

        wait_for(leads, f"{block.place}: {line}: a leader")

    def end_daemons(self) -> None:
        for daemon in self.daemons:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate()
        self.daemons.clear()


@pytest.fixture(scope="session")
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared directory with a job that trains, as far as the directory shows: its first plan is in force."""
    root = tmp_path_factory.mktemp("shared") / "pfo"
    settings = PFOSettings(scheduler="ParetoScheduler")
    cluster = Cluster(make_pipeline("1f1b", 4, 4), ModelTruth(A100, 4), nodes=KIND)
    play = Play(cluster, root, settings, metadata="docs")
    for iteration in play.run(100):
        if iteration.status_text.startswith("target"):
            break
    return root


@pytest.fixture
def session(tmp_path: Path, shared_dir: Path) -> Iterator[Session]:
    folder, gpus = tmp_path / "clone", tmp_path / "gpus"
    folder.mkdir()
    gpus.mkdir(mode=0o700)
    for name in ("examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("shared", "tmp"):
        shutil.copytree(shared_dir, tmp_path / name / "pfo")
    (folder / "profile.json").write_text(profile_text([at_limit(A100, limit_w) for limit_w in (400, 300, 200)]))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PFO_FS_SCHEDULER"},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PFO_FS_GPU": "simulated",  # whatever a page says, no real GPU is touched
        "PFO_FS_SIM_DIR": str(gpus),
        "COLUMNS": "140",
        "OMP_NUM_THREADS": "1",
        "PFO_FS_SIM_TIME_SCALE": "20",
    }
    found = Session(folder, tmp_path, environment)
    yield found
    found.end_daemons()


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runs(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.why_not_run is None and block.note != "test command"]


WITH_CODE = [page for page in PAGES if any(block.language in RUNNABLE for block in runs(page))]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if any(b.note == "slow" for b in runs(page)) else [])
        for page in WITH_CODE
    ],
    ids=page_name,
)
def test_the_blocks_of_a_page_run_in_order(page: Path, session: Session) -> None:
    for block in runs(page):
        session.run(block)


@pytest.mark.parametrize("block", [b for b in all_blocks() if b.language in RUNNABLE], ids=lambda b: b.place)
def test_a_block_names_what_exists(block: Block) -> None:
    if block.language == "python":
        check_python(block.text)
    else:
        check_options(block.text)
        if block.why_not_run is None and block.note != "test command":
            unknown = first_words(block.text) - COMMANDS | set(re.findall(r"\bbenchmarks\b", block.text))
            assert not unknown, f"the tests do not run {unknown}: write <!-- not run: REASON --> above the block"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_in_a_sentence_have_the_options_that_are_named(page: Path) -> None:
    for span in re.findall(r"`(pfo-fs[^`]*)`", page.read_text()):
        check_options(" ".join(span.split()))


def test_blocks_that_are_not_run_say_why() -> None:
    for block in all_blocks():
        is_known = block.note in ("", "slow", "prints", "schedule") or block.note.startswith(KINDS)
        assert (is_known, block.why_not_run != "") == (True, True), f"{block.place}: {block.note}"


def test_a_page_has_another_number_than_is_printed() -> None:
    printed = " planned   2.7615 s  6,322 J  14.11%\n"
    assert not differences(" planned 2.76 s 6,300 J 14.2%", printed)
    assert differences("planned 2.76 s 6,300 J 15.2%", printed)
    assert differences("planned 2.76 s 5,900 J 14.1%", printed)


def first_words(text: str) -> set[str]:
    """The commands that a block runs."""
    joined = text.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith(("#", ". "))]
    return {
        next(word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)) for line in lines
    }


def check_options(text: str) -> None:
    """Fails if a `pfo-fs` command has an option that does not exist."""
    for line in re.findall(
        r"^(?:[A-Z_]+=(?:\"[^\"]*\"|\S)+ )*(pfo-fs(?:-daemon)?(?: .*)?)$", text.replace("\\\n", " "), re.MULTILINE
    ):
        words = re.sub(r"'[^']*'|\s#.*", "", line).split()
        name = next(name for n in (3, 2, 1) if (name := " ".join(words[:n])) in OPTIONS)
        unknown = {word for word in words if word.startswith("-") and word != "-"} - OPTIONS[name] - ALWAYS
        assert not unknown, f"{name} has no {unknown}"


def check_python(text: str) -> None:
    """Fails if a block is no Python, or imports a name of pfo_fs that does not exist."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pfo_fs"):
            assert node.module
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError as error:
                assert not (error.name or "").startswith("pfo_fs"), str(error)  # a framework is not installed
                continue
            for alias in node.names:
                name = alias.name
                assert hasattr(module, name) or importlib.import_module(f"{node.module}.{name}")
