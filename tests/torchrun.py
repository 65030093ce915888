"""Programs of several ranks on simulated GPUs, started by torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def torchrun(
    folder: Path,
    ranks: int,
    *program: str | Path,
    restarts: int = 0,
    warnings: bool = False,
    forked: bool = False,
    **environment: str,
) -> str:
    """Runs a program, whose GPUs are in `folder / "sim"`; returns what its ranks have printed, and warned of.

    With `forked`, the ranks are forks of one process (`forked_ranks.py`), which start in less than half the time.
    """
    (folder / "sim").mkdir(mode=0o700, parents=True, exist_ok=True)
    variables = {
        **os.environ,
        **dict.fromkeys(("PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR"), str(folder / "sim")),
        "PFO_FS_GPU": "simulated",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
        **environment,
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    launcher += [f"--max-restarts={restarts}"]
    if forked:
        launcher = [str(ROOT / "tests" / "forked_ranks.py"), str(ranks)]
    command = [sys.executable, *launcher, *map(str, program)]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr * warnings


def clocks_mhz(log: Path) -> list[int]:
    lines = map(json.loads, log.read_text().splitlines())
    return [line["mhz"] for line in lines if line["action"] in ("lock", "reset")]
