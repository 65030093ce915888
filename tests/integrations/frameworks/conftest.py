"""Programs that train with a framework, one process per rank, and what they tell."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

Facts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[str]]]:
    """Runs a Python program on several ranks with simulated GPUs; returns what each printed."""
    started: list[subprocess.Popen[str]] = []

    def run(ranks: int, *command: str) -> list[str]:
        folder = tmp_path_factory.mktemp("ranks")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (HERE, ROOT, ROOT / "tests"))),
            "PFO_FS_SHARED_DIR": str(folder / "pfo"),
            "PFO_FS_GPU": "simulated",
            "PFO_FS_SIM_DIR": str(folder / "sim"),
            "PFO_FS_SIM_TIME_SCALE": "1000",
            "PFO_FS_RUN_DIR": str(folder / "run"),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        processes = [
            subprocess.Popen(
                [sys.executable, *command],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]
        started.extend(processes)
        with ThreadPoolExecutor(ranks) as readers:
            outputs = list(readers.map(lambda process: process.communicate()[0], processes))
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, output[-6000:]
        return outputs

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def run_ranks(run_program: Callable[..., list[str]]) -> Callable[..., Facts]:
    """Runs a program of this folder; returns the last line of facts of each rank."""

    def run(program: str, ranks: int, **given: Any) -> Facts:
        outputs = run_program(ranks, str(HERE / f"{program}.py"), json.dumps(given))
        lines = [[line for line in output.splitlines() if line.startswith('{"rank"')] for output in outputs]
        return [json.loads(told[-1]) for told in lines]

    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests of `followed` run with each kind of their module."""
    if "facts" in metafunc.fixturenames:
        metafunc.parametrize("facts", metafunc.module.KINDS, indirect=True)


@pytest.fixture(scope="module")
def all_facts(request: pytest.FixtureRequest, run_ranks: Callable[..., Facts]) -> dict[int, Facts]:
    """What each rank told of all cases, by the number of ranks."""
    module = request.module
    return {
        ranks: run_ranks(module.PROGRAM, ranks, pp=min(2, ranks), cases=cases) for ranks, cases in module.RUNS.items()
    }


@pytest.fixture
def facts(request: pytest.FixtureRequest, all_facts: dict[int, Facts]) -> Facts:
    """What each rank saw of one case, and how many steps it should have seen."""
    ranks, steps = request.module.KINDS[request.param]
    return [{**seen[request.param], "expected_steps": steps} for seen in all_facts[ranks]]
