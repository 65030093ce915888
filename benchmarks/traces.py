"""What the closed loop does with the durations of real jobs: traces, with and without slow workers, and varied jobs.

    python benchmarks/traces.py                          # all traces; about half an hour on two cores
    python benchmarks/traces.py --quick                  # one seed, 1 and 4 pipelines, 150 iterations
    python benchmarks/traces.py --only ar --nodes kind
    python benchmarks/traces.py --varied 20 --first 100 --no-traces
    PFO_FS_SCHEDULER=InstructionProfiler python benchmarks/traces.py     # another policy

Traces lie in `--data` (`../shared/data/traces` beside the checkout; left out where it is absent). An iteration takes
its durations from a step of the trace. Varied jobs are drawn from seeds (`varied_job` in
`drawn_jobs.py`). `_closed_loop.py` says what the columns mean.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from _closed_loop import Case, add_options, play_all
from _known_plans import nodes_of, slow_workers
from drawn_jobs import varied_job

from pfo_fs.simulator import SimulatedJob, read_trace

PIPELINES = (1, 2, 4, 8, 16)


def traced_job(path: Path, pipelines: int, without: tuple[int, ...], node: str) -> SimulatedJob:
    """The job of a trace."""
    return read_trace(path, pipelines=pipelines, without=without).job(nodes=nodes_of(node))


def cases(data: Path, nodes: Sequence[str], quick: bool) -> Iterator[Case]:
    """The jobs of all traces: healthy pipelines by number, and where there are slow ones all pipelines of the trace."""
    paths = sorted([*data.glob("traces/*.csv"), *data.glob("traces/*.csv.gz")])
    if not paths:
        print(f"{data / 'traces'} is absent or empty: no traces are simulated", file=sys.stderr)
    for path in paths:
        name = path.name.split(".")[0]
        everyone = len(read_trace(path).dp_ranks)
        slow = slow_workers(path)
        for node in nodes:
            for pipelines in (1, 4) if quick else PIPELINES:
                if pipelines <= everyone - len(slow):
                    yield Case(name, name, partial(traced_job, path, pipelines, slow, node), node)
            if slow:
                make = partial(traced_job, path, everyone, (), node)
                yield Case(name, name, make, node, slow_workers=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="each job is simulated with each")
    parser.add_argument("--nodes", nargs="+", default=["kind", "launch"])
    parser.add_argument("--no-traces", action="store_true", help="simulate varied jobs only")
    parser.add_argument("--varied", type=int, default=0, help="number of varied jobs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first varied job")
    parser.add_argument("--quick", action="store_true", help="one seed, 1 and 4 pipelines, 150 iterations")
    add_options(parser, iterations=300, seconds=0.0)
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.iterations = args.seeds[:1], min(150, args.iterations)
    todo = [] if args.no_traces else list(cases(args.data, args.nodes, args.quick))
    varied = range(args.first, args.first + args.varied)
    todo += [Case(f"varied {seed}", "varied", partial(varied_job, seed), one_seed_known=False) for seed in varied]
    play_all(todo, args.seeds, args)


if __name__ == "__main__":
    main()
