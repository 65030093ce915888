"""Chaos: random kills, stops and file faults, from a seed; what is broken and what must hold: `docs/chaos.md`.

python -m benchmarks.chaos --fast 1000 [--jobs 2]
python -m benchmarks.chaos --slow 20
python -m benchmarks.chaos --fast 1 --seed 4711 --verbose     # replays one
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial


def play_fast(memory: str | None, seed: int) -> tuple[int, list[str], list[str]]:
    """Plays one fast episode; returns its seed, what was violated, and what happened."""
    from benchmarks.chaos.world import play

    logging.disable(logging.CRITICAL)
    try:
        world, found = play(seed, memory)
    except Exception as error:  # a process of the product must not fail
        logging.disable(logging.NOTSET)
        logging.exception("seed %d", seed)
        return seed, [f"{type(error).__name__}: {error}"], []
    return seed, found, world.faults


def main() -> int:
    """Plays the episodes that the command line asks for; returns 1 after a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", type=int, default=0, metavar="N", help="episodes in virtual time")
    parser.add_argument("--slow", type=int, default=0, metavar="N", help="episodes with real processes")
    parser.add_argument("--seed", type=int, help="the first seed; default: a fresh one")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play fast episodes")
    parser.add_argument("--verbose", action="store_true", help="show what happened in each episode")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # so that a seed replays exactly
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.chaos", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    first = given.seed if given.seed is not None else time.time_ns() // 1_000_000 % 1_000_000_000 * 1000
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    began, bad, played = time.monotonic(), 0, 0
    seeds = range(first, first + given.fast)
    pool = ProcessPoolExecutor(given.jobs) if given.jobs > 1 else None
    results = (
        pool.map(partial(play_fast, memory), seeds, chunksize=50) if pool else map(partial(play_fast, memory), seeds)
    )
    for seed, found, happened in results:
        played += 1
        bad += bool(found)
        if found or given.verbose:
            print(f"seed {seed}: {'; '.join(found) or 'all invariants hold'}", flush=True)
            if given.verbose:
                print("\n".join(f"    {line}" for line in happened))
        if played % 1000 == 0:
            print(f"{played} fast episodes, {bad} with a violation, {time.monotonic() - began:.0f} s", flush=True)
    if given.fast:
        print(f"{played} fast episodes from seed {first}, {bad} with a violation, {time.monotonic() - began:.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
