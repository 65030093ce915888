"""What the tests' Slurm jobs train: one rank per task on a simulated GPU, until a file says that it is enough.

    train.py SHARED_DIR STOP_FILE [exit code]

A run after a requeue ends by itself. Ranks make no collective calls in a step: a rank whose peer is gone hangs in one,
on real clusters, until it is ended.
"""

import os
import sys
import time

# Slurm's numbers, as torchrun would give them.
for ours, theirs in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID")):
    os.environ[ours] = os.environ[theirs]
gpu = os.environ.get("SLURM_STEP_GPUS", os.environ["SLURM_LOCALID"]).split(",")[int(os.environ["SLURM_LOCALID"])]
os.environ["PFO_FS_GPU"] = f"simulated:{os.environ['SLURMD_NODENAME']}-{gpu}"

from pfo_fs import PFOFileOptimizer  # noqa: E402

shared_dir, stop_file, exit_code = sys.argv[1], sys.argv[2], int((*sys.argv, "0")[3])
world = int(os.environ["WORLD_SIZE"])
if world > 1:
    import torch.distributed as dist

    dist.init_process_group("gloo")
steps = 3 if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" else 1_000_000
with PFOFileOptimizer(
    shared_dir, pp_degree=world, dp_degree=1, tp_degree=1, job_metadata=os.environ["SLURM_JOB_ID"]
) as opt:
    for _ in range(steps):
        opt.on_step_begin()
        for name in ("forward", "backward"):
            opt.on_instruction_begin(name)
            time.sleep(0.02)
            opt.on_instruction_end(name)
        opt.on_step_end()
        if os.path.exists(stop_file):
            break
    if exit_code:
        sys.exit(exit_code)
