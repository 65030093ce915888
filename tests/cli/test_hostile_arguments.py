"""No file and no number that a user can give makes a command show a traceback, hang or fill the memory."""

import gzip
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import pfo_fs
from jobs import make_job, rank_infos, register
from traced_jobs import trace_rows, write_trace

from pfo_fs.cli import app

NOT_FOR_USERS = re.compile(
    r"Traceback|\[Errno|pydantic|Input should|validation error|fault of pfo-fs|Errno \d|object has no attribute"
)
NUMBERS = ["nan", "1e400", "-1", "9" * 21, "many"]
ROW = b"0,0,0,forward,0,1,1,1,1000,1,1\n"
HEADER = b"step,dp_rank,stage,instruction,micro_batch,time_s,load,length,frequency,time,energy\n"
CASES = [  # a command that reads a file, and its arguments; FILE is the file
    ("plan", "FILE", "--num-microbatches", "2", "--gpu", "A100"),
    ("simulate", "--trace", "FILE", "--iterations", "1"),
    ("simulate", "--trace", "trace.csv", "--loads", "FILE", "--iterations", "1"),
    ("loads", "FILE"),
    ("power-limit", "FILE"),
    ("schedule", "check", "latest", "FILE", "-d", "pfo"),
    ("schedule", "set", "latest", "FILE", "-d", "pfo"),
]


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a job, good files and bad ones, in which the commands run."""
    root, before = tmp_path_factory.mktemp("hostile"), os.getcwd()
    os.chdir(root)
    register(make_job(root / "pfo", 2), rank_infos(2))
    write_trace(root / "trace.csv", trace_rows())
    kinds = [(name, mhz) for name in ("forward", "backward") for mhz in (1410, 900)]
    rows = [f"0,{name},{mhz},{100 / mhz},20" for name, mhz in kinds]
    Path("p.csv").write_text("\n".join(["stage,instruction,frequency,time,energy", *rows]))
    Path("folder").mkdir()
    os.mkfifo("fifo")
    Path("empty").touch()
    Path("binary").write_bytes(bytes(range(256)) * 20)
    Path("zeros.gz").write_bytes(gzip.compress(bytes(100 * 2**20)))
    Path("rows.gz").write_bytes(gzip.compress(HEADER + ROW * 30_000))
    Path("cut.gz").write_bytes(gzip.compress(HEADER + ROW)[:-6])
    Path("deep.json").write_text("[" * 100_000)
    odd = '{"measurements": [{"power_limit": 1e400}], "call_s": {"median": NaN}, "plans": [{"a_s": [1]}]}'
    Path("odd.json").write_text(odd)
    Path("zero.csv").write_bytes(HEADER + b"".join(b"0,%d,0,forward,0,0,0,0,0,0,0\n" % rank for rank in (0, 1)))
    Path("tiny.csv").write_bytes(HEADER + ROW.replace(b"forward,0,1,", b"forward,0,5e-324,"))
    yield root
    os.chdir(before)


BAD = ["folder", "/dev/zero", "fifo", "empty", "binary", "zeros.gz", "rows.gz", "cut.gz", "deep.json", "odd.json"]
BAD += ["zero.csv", "tiny.csv", "missing", "p.csv/x"]


@pytest.mark.parametrize("file", BAD)
@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_a_bad_file_is_refused_in_words_for_users_and_within_the_memory_of_a_laptop(
    arguments: tuple[str, ...], file: str
) -> None:
    done = pfo_fs(*(file if part == "FILE" else part for part in arguments))
    assert done.returncode in (1, 2), done.stdout
    assert (done.stderr + done.stdout).strip()
    assert not NOT_FOR_USERS.search(done.stderr + done.stdout)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 2**20, "kilobytes"


def _numbers() -> Iterator[tuple[str, str]]:
    def of(command: Any, path: str) -> Iterator[tuple[str, str]]:
        for name, below in getattr(command, "commands", {}).items():
            yield from of(below, f"{path} {name}".strip())
        for parameter in command.params:
            about = getattr(parameter, "type_descriptor", None)
            kind = str(about.annotation if about is not None else parameter.type)
            if re.search("int|float", kind, re.IGNORECASE):
                yield path, parameter.opts[0]

    yield from of(typer.main.get_command(app), "")


NEEDED = {
    "plan": ["p.csv", "--num-microbatches", "2", "--gpu", "A100"],
    "loads": ["--iterations", "2", "--ranks", "2", "--micro-batches", "1"],
    "simulate": ["--iterations", "1"],
    "power-limit": ["missing"],
    "daemon": ["missing/pfo"],
    "demo": ["--ranks", "0"],
    "doctor": ["missing"],
    "profile-p2p": ["--seconds", "0"],  # else it measures
    **{name: ["latest", "-d", "pfo"] for name in ("report", "trace", "target", "straggler")},
    "status": ["pfo"],
}


@pytest.mark.parametrize(("command", "option"), list(_numbers()))
def test_a_number_that_cannot_be_meant_is_refused_in_words_for_users(command: str, option: str) -> None:
    for value in NUMBERS:
        done = pfo_fs(*command.split(), *NEEDED.get(command, []), f"{option}={value}")
        assert done.returncode in (0, 1, 2)
        assert not NOT_FOR_USERS.search(done.stderr + done.stdout), (value, done.stderr)
