"""Chaos: random kills, stops and file faults, from a seed; what is broken and what must hold: `docs/failures.md`.

python -m benchmarks.chaos --fast 1000 [--jobs 2]
python -m benchmarks.chaos --slow 20 [--jobs 4]
python -m benchmarks.chaos --fast 1 --seed 4711 --verbose     # replays one
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

Played = tuple[int, list[str], list[str]]  # a seed, what was violated, what happened


def play_fast(memory: str | None, seed: int) -> Played:
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
    parser.add_argument("--jobs", type=int, default=1, help="episodes that are played at a time")
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
    bad = 0
    if given.fast:
        seeds = range(first, first + given.fast)
        bad += show("fast", play_all(partial(play_fast, memory), seeds, given.jobs, chunksize=20), given.verbose)
    if given.slow:
        from benchmarks.chaos.processes import play_slow

        bad += show(
            "slow", play_all(play_slow, range(first, first + given.slow), given.jobs, chunksize=1), given.verbose
        )
    return 1 if bad else 0


def play_all(episode: Callable[[int], Played], seeds: Iterable[int], jobs: int, chunksize: int) -> Iterator[Played]:
    """Plays an episode for each seed, `jobs` at a time; yields the results in the order of the seeds."""
    if jobs <= 1:
        yield from map(episode, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(episode, seeds, chunksize=chunksize)


def show(kind: str, results: Iterable[Played], verbose: bool) -> int:
    """Prints the violations, and now and then how far it is; returns the number of episodes with a violation."""
    began_s = shown_s = time.monotonic()
    played = bad = 0
    for seed, found, happened in results:
        played += 1
        bad += bool(found)
        if found or verbose:
            print(f"{kind} seed {seed}: {'; '.join(found) or 'all invariants hold'}", flush=True)
            print("\n".join(f"    {line}" for line in happened), flush=True)
        if time.monotonic() - shown_s > 30:
            shown_s = time.monotonic()
            print(f"{played} {kind} episodes, {bad} with a violation, {shown_s - began_s:.0f} s", flush=True)
    print(f"{played} {kind} episodes, {bad} with a violation, {time.monotonic() - began_s:.1f} s", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
