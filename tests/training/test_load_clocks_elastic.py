"""Clocks from loads in a job that torchrun starts again after a rank has died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import pids_with, wait_for_end

PROGRAM = Path(__file__).with_name("load_clocks_rank.py")
TOP_MHZ = 1410


@pytest.mark.slow
def test_after_a_restart_of_torchrun_the_ranks_join_again_and_in_the_end_nothing_is_left(tmp_path: Path) -> None:
    sim_dir, options = tmp_path / "sim", {"steps": 30, "dies_at": 26}
    sim_dir.mkdir(mode=0o700)
    environment = {
        **os.environ,
        **dict.fromkeys(("PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR"), str(sim_dir)),
        "PYTHONPATH": f"{PROGRAM.parents[1]}{os.pathsep}{PROGRAM.parents[2]}",
        "PFO_FS_SIM_MODEL": "A100",
        # Without it, the second attempt finds the first one's addresses in torch's store and hangs (pytorch#135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", str(PROGRAM), "0", "0", "torchrun", str(tmp_path / "pfo"), json.dumps(options)]
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert "loads explain" in ran.stdout  # rank 0 prints it when training has ended, so in the second attempt only
        wait_for_end("PFO_FS_SIM_DIR", str(sim_dir))
    finally:
        for pid in pids_with("PFO_FS_SIM_DIR", str(sim_dir)):
            os.kill(pid, signal.SIGKILL)
    ends = [json.loads((job / "end.json").read_text()) for job in sorted((tmp_path / "pfo" / "jobs").iterdir())]
    assert [end["body"]["reason"] for end in ends] == ["crashed", "finished"]
    clocks_mhz = [clocks_of(sim_dir / f"g{rank}.log") for rank in range(2)]
    assert any(0 < mhz < TOP_MHZ for mhz in clocks_mhz[0] + clocks_mhz[1])
    assert [each[-1] for each in clocks_mhz] == [0, 0]


def clocks_of(log: Path) -> list[int]:
    """The clocks that a GPU was given, 0 for the default."""
    lines = map(json.loads, log.read_text().splitlines())
    return [line["mhz"] for line in lines if line["action"] in ("lock", "reset")]
