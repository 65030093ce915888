"""Part `load_clocks`: what `LoadClocks` costs training, how well loads explain real steps, which clocks follow.

Two ranks, by gloo: rank 0 runs four micro-batches of packed sequences of unequal lengths per step on the GPU, rank 1 a
small one before that, so that the ranks do not slow each other down; so rank 1 always has less work. Loads are told one
step ahead. The clock process writes down the clocks that it would set. Every second block of ten steps runs without
`LoadClocks`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 10
_STEPS, _QUICK_STEPS = 160, 80
_LONGEST_S = 150.0
_MICRO_BATCHES = 4


def measure() -> Iterator[dict[str, Any]]:
    """Runs the two ranks."""
    from benchmarks.gpu.cuda import gpu_spec, quick

    gpu_spec()
    with tempfile.TemporaryDirectory() as folder:
        outputs = run_ranks(Path(folder), _QUICK_STEPS if quick() else _STEPS)
    yield from results(outputs)


def run_ranks(folder: Path, steps: int) -> list[dict[str, Any]]:
    """Returns what each rank has seen."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.load_clocks", str(rank), str(folder), str(steps)],
            env={**os.environ, "PFO_FS_DRY_RUN_LOG": str(folder / f"{rank}.log")},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=_LONGEST_S)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    outputs: list[dict[str, Any]] = [json.loads(text.splitlines()[-1]) for text in texts]
    for rank, output in enumerate(outputs):
        log = (folder / f"{rank}.log").read_text().splitlines()
        output["clocks_mhz"] = [entry.get("mhz", 0) for entry in map(json.loads, log) if "mhz" in entry]
    return outputs


def results(outputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Returns the figures of what the ranks have seen."""
    from statistics import median

    from benchmarks.gpu.analysis import spread

    first, second = outputs
    yield {"what": "status", "text": first["status"]}
    for call in ("step", "forward_hook", "work_ended"):
        yield {"what": f"cost of {call}, rank 0", "us": spread([1e6 * value for value in first[call]])}
    of_blocks = {
        kind: [t for t, on in zip(first["steps_s"], first["on"], strict=True) if on == kind] for kind in (0, 1)
    }
    # The same batches come in each block.
    yield {
        "what": "steps",
        "with_s": median(of_blocks[1]),
        "without_s": median(of_blocks[0]),
        "longer_by": median(of_blocks[1]) / median(of_blocks[0]) - 1,
    }
    for rank, output in enumerate((first, second)):
        clocks = output["clocks_mhz"]
        low = [mhz for mhz in clocks if mhz]
        yield {
            "what": f"clocks that rank {rank} would have had",
            "steps_with": sum(output["on"]),
            "changes_down": len(low),
            "changes_up": sum(mhz == 0 for mhz in clocks),
            "lowest_mhz": min(low, default=None),
            "last_mhz": clocks[-1] if clocks else None,
        }


def is_on(step: int) -> bool:
    """Whether a step runs with LoadClocks."""
    return step // BLOCK % 2 == 0


def rank_main(rank: int, folder: Path, steps: int) -> dict[str, Any]:
    """Runs one rank."""
    import torch
    import torch.distributed as dist

    from benchmarks.gpu.load_fits import draw_batches
    from benchmarks.gpu.loads import WIDTH, Block
    from pfo_fs import LoadClocks, loads

    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    block = Block().to(device="cuda", dtype=torch.bfloat16)
    batches = draw_batches(24)
    gradient = torch.randn(max(batch.tokens for batch in batches), WIDTH, device="cuda", dtype=torch.bfloat16)
    x = torch.randn_like(gradient)
    small = min(batches, key=lambda batch: batch.squares + batch.tokens)
    inputs = {id(b): torch.tensor([0, *b.lengths]).cumsum(0).to("cuda", torch.int32) for b in batches}
    found: dict[str, Any] = {"step": [], "forward_hook": [], "work_ended": [], "steps_s": [], "on": []}
    _time_calls(LoadClocks, "_on_forward", found["forward_hook"])
    _time_calls(LoadClocks, "work_ended", found["work_ended"])
    clocks = LoadClocks(folder / "pfo", model=block, device=0, strict=True)

    def batches_of(step: int) -> list[Any]:
        """The same in a block with LoadClocks and in the next one without."""
        drawn = random.Random(step % BLOCK + BLOCK * (step // (2 * BLOCK)))
        return drawn.sample(batches, _MICRO_BATCHES) if rank == 0 else [small]

    for step in range(steps):
        on, mine = is_on(step), batches_of(step)
        later = next((each for each in range(step + 1, steps) if is_on(each)), None)
        told = [[loads.from_lengths(b.lengths) for b in batches_of(each)] for each in (step, later) if each is not None]
        dist.barrier()
        if rank == 0:
            dist.barrier()  # rank 1 is done
        began_s = time.perf_counter()
        if on:
            clocks.step(loads=told[0], ahead=told[1:])
            found["step"].append(time.perf_counter() - began_s)
        for batch in mine:
            tokens = batch.tokens
            own = x[:tokens].detach().requires_grad_()
            block(own, inputs[id(batch)], max(batch.lengths)).backward(gradient[:tokens])
        torch.cuda.synchronize()
        if rank == 1:
            dist.barrier()
        found["steps_s"].append(time.perf_counter() - began_s)
        found["on"].append(int(on))
    found["status"] = clocks.status_text
    clocks.close()
    dist.destroy_process_group()
    return found


def _time_calls(kind: type, name: str, seconds: list[float]) -> None:
    """Has the duration of each call of a method noted."""
    call = getattr(kind, name)

    def timed(*arguments: Any) -> None:
        began_s = time.perf_counter()
        call(*arguments)
        seconds.append(time.perf_counter() - began_s)

    setattr(kind, name, timed)


if __name__ == "__main__":
    print(json.dumps(rank_main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
