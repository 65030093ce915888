"""The power of a GPU while it waits for another one (p2p: peer to peer), for `pfo-fs profile-p2p` on two GPUs.

Rank 1 posts a receive and waits while rank 0 sleeps; NCCL's kernel spins on the GPU of rank 1 meanwhile, as in a stage
that waits for its neighbours. The energy counter of the waiting GPU, over some seconds, gives its *blocking
power* (Perseus, SOSP'24, section 3.2). `ParetoScheduler` measures the same power during training; this command is for
plans that are made before any training.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from pfo_fs.errors import DeviceError, PfoError

_WARM_UP_S = 1.0
"""After this time, in s, the clock has taken effect and the energy counter has ticked."""
_FINISH_WITHIN_S = 120.0
"""Limit in s for all else: importing torch, starting NCCL and resetting clocks take a minute on a cold node."""
_MARK = "pfo-fs-p2p "  # begins the line of output that is the result


def profile_p2p(seconds: float, clocks_mhz: Sequence[int] = ()) -> dict[str, Any]:
    """Measures the power of a GPU that waits for another one.

    Args:
        seconds: How long the power is measured at each clock; in fact 0.2 s less, after a second of warming up.
        clocks_mhz: Clocks of the waiting GPU, in MHz; none: the driver's default.

    Returns:
        `gpu`, and `rows`: each row has `clock_mhz` (0 for the default), `power_w` and `seconds`.

    Raises:
        DeviceError: There are no two GPUs, no energy can be read, a clock cannot be set, or the processes hang.
    """
    import torch

    if not torch.cuda.is_available() and os.environ.get("PFO_FS_GPU", "none") == "none":
        raise DeviceError("no GPU was found; PFO_FS_GPU=simulated runs the command on simulated GPUs")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", __name__]
    given = json.dumps({"seconds": seconds, "clocks_mhz": list(clocks_mhz)})
    limit_s = (len(clocks_mhz) + 1) * (seconds + _WARM_UP_S) + _FINISH_WITHIN_S
    process = subprocess.Popen(
        command,
        env={**os.environ, "PFO_FS_P2P": given, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"the two measuring processes did not end within {limit_s:.0f} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # their clock processes run on, and reset the clocks
    for line in output.splitlines():
        if line.startswith(_MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            if "error" in found:
                raise DeviceError(found["error"])
            return found
    raise DeviceError("the two measuring processes failed:\n" + "\n".join(errors.splitlines()[-15:]))


def _measure(given: dict[str, Any]) -> dict[str, Any]:
    """Runs in both processes: rank 1 waits and measures, rank 0 keeps it waiting."""
    import torch
    import torch.distributed as dist

    from pfo_fs.device import shared_page
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.device.gpu.find_gpu import find_gpu_spec
    from pfo_fs.device.gpu.spec import open_gpu

    cuda = torch.cuda.is_available()
    rank = int(os.environ["RANK"])
    if cuda:
        if torch.cuda.device_count() < 2:
            raise DeviceError("only one GPU is visible; the measurement needs two")
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    clocks = ClockProcess(find_gpu_spec(rank if cuda else None))  # it resets the clocks however this process ends
    gpu = open_gpu(clocks.spec)
    rows = []
    problem = ""
    tensor = torch.zeros(1024, device=device)
    if rank == 0:  # the first message sets up the connection: a GPU that waits for that draws another power
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    for mhz in given["clocks_mhz"] or [0]:
        if rank == 0:
            dist.barrier()
            time.sleep(_WARM_UP_S + given["seconds"])
            dist.send(tensor, dst=1)
            continue
        if mhz and clocks.message:
            problem = clocks.message
        clocks.words[shared_page.TARGET] = 0 if problem else mhz
        clocks.ring_doorbell()
        dist.barrier()
        work = dist.irecv(tensor, src=0)
        time.sleep(_WARM_UP_S)
        t0, e0 = time.monotonic(), gpu.energy_j()
        time.sleep(given["seconds"] - 0.2)
        t1, e1 = time.monotonic(), gpu.energy_j()
        work.wait()
        if clocks.words[shared_page.CLOCK_MHZ] not in (0, mhz):
            problem = f"{mhz} MHz is not among the clocks of the GPU"
        if e1 <= e0:
            problem = f"{clocks.info.gpu_name}: its energy counter does not move"
        rows.append({"clock_mhz": mhz, "power_w": (e1 - e0) / (t1 - t0), "seconds": t1 - t0})
    name = clocks.info.gpu_name
    clocks.close()
    dist.barrier()
    dist.destroy_process_group()
    if problem:
        raise DeviceError(problem)
    return {"gpu": name, "rows": rows}


def main() -> int:
    try:
        found = _measure(json.loads(os.environ["PFO_FS_P2P"]))
    except PfoError as error:
        found = {"error": str(error)}
    if os.environ["RANK"] == "1" or "error" in found:
        sys.stdout.write(_MARK + json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
