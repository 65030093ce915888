"""What the closed loop delivers of what a plan with full knowledge would save, for known and for generated jobs.

    python benchmarks/loop_yield.py --jobs known
    python benchmarks/loop_yield.py --jobs generated --first 1000 --seeds 20
    python benchmarks/loop_yield.py --jobs generated --first 7 --seeds 1 --status

Jobs: the published profiles in `--data` (known; 8 stages, 12 to 96 micro-batches; left out where they are absent), and
jobs drawn at random from a seed (generated; `drawn_jobs.py`). Those of seeds from 1000 on are for
judging: nothing in the library may be tuned on them. `_closed_loop.py` says what the columns mean.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from _closed_loop import Case, add_options, play_all
from _known_plans import PROFILES, profile_job
from drawn_jobs import generated_job

MICRO_BATCHES = (12, 24, 48, 96)


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """The jobs that the command line asks for."""
    if args.jobs in ("known", "all"):
        for path in (args.data / "profiles" / name for name in PROFILES):
            if not path.exists():
                print(f"{path} is absent: left out", file=sys.stderr)
                continue
            for count in MICRO_BATCHES:
                yield Case(f"{path.stem} 8x{count}", "known", partial(profile_job, path, count, args.node), args.node)
    if args.jobs in ("generated", "all"):
        for seed in range(args.first, args.first + args.seeds):
            yield Case(generated_job(seed).name, "generated", partial(generated_job, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", choices=["known", "generated", "all"], default="all")
    parser.add_argument("--seeds", type=int, default=20, help="number of generated jobs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first generated job")
    parser.add_argument("--noise-seeds", type=int, nargs="+", default=[1], help="each job is simulated with each")
    parser.add_argument("--largest", type=int, help="only jobs of at most so many instructions")
    parser.add_argument(
        "--node", default="kind", help="of known jobs; launch: clocks are requested as instructions begin"
    )
    add_options(parser, iterations=200, seconds=200.0)
    args = parser.parse_args()
    todo = list(cases(args))
    if args.largest:
        todo = [case for case in todo if len(case.make().pipeline.instructions) <= args.largest]
    play_all(todo, args.noise_seeds, args)


if __name__ == "__main__":
    main()
