"""What each rank of a test job runs under torchrun: steps of two instructions on a simulated GPU.

The test gives one JSON object: `shared_dir`, `steps`, and what it wants of `PFOFileOptimizer`. Each step is a line of
JSON on standard output. A file named `stop_file` ends the steps, on all ranks at the same one.
"""

import json
import logging
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from pfo_fs import PfoError, PFOFileOptimizer


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps({"rank": dist.get_rank(), **fields}) + "\n")
    sys.stdout.flush()


def main() -> None:
    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shape, steps, stop_file = given.pop("mesh"), given.pop("steps", 1_000_000), given.pop("stop_file", None)
    work_s, die = given.pop("work_s", 0.005), given.pop("die", None)
    odd_shared_dir = given.pop("shared_dir_of_rank_1", None)
    launches, instructions = given.pop("launches", False), given.pop("instructions", ["forward", "backward"])
    if odd_shared_dir and rank == 1:
        given["shared_dir"] = odd_shared_dir
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    began = time.monotonic()
    try:
        opt = PFOFileOptimizer(**given, mesh=mesh)
    except PfoError as error:
        say(error=f"{type(error).__name__}: {error}")
        return
    say(
        made_in_s=time.monotonic() - began,
        job_id=opt.job_id,
        coordination=opt.coordination,
        number=opt.schedule_number,
        pid=os.getpid(),
        clock_pid=opt._clocks.pid,
        helper_pid=helper.pid if (helper := getattr(opt._link.client, "process", None)) else None,
    )
    with opt:
        for step in range(steps):
            opt.on_step_begin()
            for name in instructions:
                opt.on_instruction_begin(name)
                if launches and (kernels := opt.simulated_kernels()) is not None:
                    kernels.stream.launch(name)  # and goes on
                else:
                    time.sleep(work_s)
                opt.on_instruction_end(name)
            opt.on_step_end()
            if launches and (kernels := opt.simulated_kernels()) is not None:
                kernels.stream.synchronize()  # as training does once per step
            say(step=step, number=opt.schedule_number, at_s=time.monotonic())
            if die and die["rank"] == rank and die["step"] == step:
                raise RuntimeError("as asked")
            stop = torch.tensor(int(stop_file is not None and os.path.exists(stop_file)))
            dist.all_reduce(stop, dist.ReduceOp.MAX)
            if stop.item():
                break
    say(done=True)
    dist.destroy_process_group()


main()
