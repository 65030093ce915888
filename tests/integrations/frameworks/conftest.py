"""Programs that train with a framework, one process per rank, and what they tell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchrun import torchrun

HERE = Path(__file__).parent

Facts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, Path]]:
    """Runs a Python program on several ranks with simulated GPUs; returns what it printed, and the shared directory."""

    def run(ranks: int, *command: str) -> tuple[str, Path]:
        folder = tmp_path_factory.mktemp("ranks")
        shared_dir = folder / "pfo"
        given = {"PFO_FS_SHARED_DIR": str(shared_dir), "PFO_FS_SIM_TIME_SCALE": "1000", "OMP_NUM_THREADS": "1"}
        forked = "torch_pipelining" in command[0]  # frameworks may take more from torchrun
        return torchrun(folder, ranks, *command, warnings=True, forked=forked, **given), shared_dir

    return run


@pytest.fixture(scope="module")
def run_ranks(run_program: Callable[..., tuple[str, Path]]) -> Callable[..., Facts]:
    """Runs a program of this folder; returns the facts of each rank."""

    def run(program: str, ranks: int, **given: Any) -> Facts:
        _, shared_dir = run_program(ranks, str(HERE / f"{program}.py"), json.dumps(given))
        return [json.loads(Path(f"{shared_dir}.{rank}.json").read_text()) for rank in range(ranks)]

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
