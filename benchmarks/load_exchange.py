"""What the exchange of loads and the choice of clocks take beside a step, for 2 to 1,024 ranks.

    python benchmarks/load_exchange.py [--ranks 2 8 64 1024] [--steps N] [--json FILE]
    python benchmarks/load_exchange.py --ranks 1024 --stages 16 --micro-batches 64

The process that decides is the real one; one process here plays the ranks' connections (by loopback, so a network's own
latency is not in it). Loads explain the ranks' times to 1 %. A step's time is from the last rank's row to the last
rank's clock; with `--stages`, so many ranks each are a pipeline (1F1B), whose first rank tells the loads, and
`--pause` is the time in which a step runs, while that process learns.
"""

from __future__ import annotations

import argparse
import random
import resource
import secrets
import time
from pathlib import Path
from statistics import median
from typing import Any

import _common as common

from pfo_fs.device.load_exchange import connect, received
from pfo_fs.loads.messages import CLOCK_BYTES, TOKEN_BYTES, clock_of, pack_row
from pfo_fs.loads.step_rows import UNKNOWN, EndedStep, Reading, load_of_step, make_row
from pfo_fs.planner import make_pipeline
from pfo_fs.training.load_decider import LoadDecider

CLOCKS = tuple(range(1980, 210, -15))
FIRST_CHOICE = 12


def exchange(ranks: int, steps: int, stages: int, micro_batches: int, pause_s: float) -> dict[str, Any]:
    """Returns the times of steps, in ms."""
    token = secrets.token_hex(TOKEN_BYTES)
    orders = make_pipeline("1f1b", stages, micro_batches).orders if stages > 1 else ()
    decider = LoadDecider([divmod(rank, stages) for rank in range(ranks)], CLOCKS, 0.03, 5e-4, orders, token)
    connections = [connect([("127.0.0.1", decider.port)], bytes.fromhex(token), r) for r in range(ranks)]
    drawn = random.Random(0)
    took_ms: list[float] = []
    ended: list[list[EndedStep]] = [[] for _ in connections]
    lowered, now_s = 0, 0.0
    for step in range(steps):
        given = [
            [(drawn.uniform(2e3, 16e3), drawn.uniform(1e6, 1e8)) for _ in range(micro_batches)]
            for _ in range(ranks // stages)
        ]
        rows = []
        for rank, past in enumerate(ended):
            known = given[rank // stages] if rank % stages == 0 else None
            load = load_of_step(known, micro_batches if stages > 1 else 0)
            row = make_row(step, load, Reading(step, UNKNOWN, now_s), past)
            rows.append(pack_row(row, time.monotonic(), connections[rank].rows))
        for connection, row in zip(connections[:-1], rows, strict=False):
            connection.stream.sendall(row)
        time.sleep(pause_s)
        began_s = time.perf_counter()
        connections[-1].stream.sendall(rows[-1])
        clocks = [clock_of(received(one.stream, CLOCK_BYTES), one.clocks)[1] for one in connections]
        took_ms.append(1e3 * (time.perf_counter() - began_s))
        lowered += sum(mhz > 0 for mhz in clocks)
        for rank, (past, mhz) in enumerate(zip(ended, clocks, strict=True)):
            work_s = sum(5e-5 * tokens + 1e-9 * squares for tokens, squares in given[rank // stages])
            work_s *= drawn.gauss(1, 0.01) * (CLOCKS[0] / (mhz or CLOCKS[0]))
            past[:] = [EndedStep(step, work_s, float(mhz or CLOCKS[0]))]
        now_s += max(past[0].work_s for past in ended) + 0.1
    for connection in connections:
        connection.stream.close()
    decider.close()
    chosen = sorted(took_ms[FIRST_CHOICE:])
    return {
        "ranks": ranks,
        "median_ms": round(median(chosen), 2),
        "p95_ms": round(chosen[int(0.95 * len(chosen))], 2),
        "max_ms": round(chosen[-1], 2),
        "lowered": round(lowered / (ranks * steps), 2),
    }


def main() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 256, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stages", type=int, default=1, help="ranks of a pipeline")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0, metavar="S")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    results = [exchange(ranks, args.steps, args.stages, args.micro_batches, args.pause) for ranks in args.ranks]
    columns = ["ranks", "ms\nmedian", "\n95 %", "\nat most", "lowered\nclocks"]
    rows = [
        [str(one["ranks"]), *(f"{one[key]:.2f}" for key in ("median_ms", "p95_ms", "max_ms")), f"{one['lowered']:.0%}"]
        for one in results
    ]
    common.show("From the last load to the last clock", columns, rows)
    common.write_json(args.json, common.machine(), results)


if __name__ == "__main__":
    main()
