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

Facts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Facts]]:
    """Runs a program of this folder on several ranks with simulated GPUs; returns the last line of facts by rank."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, ranks: int, **given: Any) -> Facts:
        folder = tmp_path_factory.mktemp(program)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[2]))),
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
        command = [sys.executable, str(HERE / f"{program}.py"), json.dumps({"shared_dir": str(folder / "pfo"), **given})]
        processes = [
            subprocess.Popen(
                command,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]
        started.extend(processes)
        with ThreadPoolExecutor(ranks) as readers:
            outputs = list(readers.map(lambda process: process.communicate(timeout=150)[0], processes))
        facts = []
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, output[-6000:]
            facts.append(json.loads([line for line in output.splitlines() if line.startswith('{"rank"')][-1]))
        return facts

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
