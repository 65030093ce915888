"""Does what `pfo-fs advise` says hold? Its intervals beside what jobs then save.

    python benchmarks/advice.py                     # all; about an hour on two cores
    python benchmarks/advice.py --only drawn --first 7000 --seeds 40
    python benchmarks/advice.py --known             # beside plans with full knowledge, too; hours

`advise` gets the durations of the first 8 steps at default clocks, with noise, and the name of the GPUs. Jobs: traces,
published profiles, and small jobs drawn from seeds, on GPUs whose curves are published, on later kinds (as simulated:
B300, RTX, H100), and on GPUs whose curves are drawn, too. Each is then played, as `traces.py` and `loop_yield.py` do;
traces also with clocks from loads.
Nothing in the library may be tuned on seeds from 1000 on.

    told        the interval
    saved       what the plan in force at the end saves over all judged iterations; of loads, over all steps of a trace
    known       the same of the best plan that is at most 0.1 % late, made with full knowledge
    width       the interval's width as a share of its middle, where that is above 5 %
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _common import show, write_json
from _known_plans import PROFILES, known_plan, nodes_of, profile_job, slow_workers
from drawn_jobs import generated_job, varied_job

from pfo_fs.device.simulated.physics import A40, A100, MODELS, GpuModel
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, SimulatedJob, read_trace, summarize
from pfo_fs.simulator.advice import NOTABLE, Interval, advise
from pfo_fs.simulator.load_play import LoadPlay, loads_of
from pfo_fs.simulator.traces import TracedStages

_STEPS, _LARGEST = 8, 120
_NOTABLE = 0.05
_ROUNDING = 0.0005
"""A saving of 0.0 % is none, whatever further digits say."""
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


class Case(NamedTuple):
    """A job, and how it is played: with a plan, or with clocks from loads where there is a trace."""

    group: str
    name: str
    make: Callable[[], SimulatedJob]
    gpu: str
    trace: Path | None = None


def traced(path: Path, pipelines: int | None, without: tuple[int, ...], gpu: GpuModel) -> SimulatedJob:
    """The job of a trace."""
    return read_trace(path, pipelines=pipelines, without=without).job(gpu, nodes_of("A100 node"))


def drawn(seed: int, gpu: GpuModel | None) -> SimulatedJob:
    """A drawn job, every second one with work that varies; with a GPU, only its pipeline and lengths are drawn."""
    job = (varied_job if seed % 2 else generated_job)(seed)
    if gpu is None:
        return job
    top_mhz = job.truth.clocks_mhz[0]
    kinds = {(one.stage, one.name) for one in job.pipeline.instructions}
    lengths_s = {kind: job.truth.measurement(*kind, top_mhz).time_s for kind in kinds}
    return replace(job, truth=TracedStages(lengths_s, gpu), nodes=job.nodes and nodes_of("A100 node"))


def cases(data: Path, first: int, seeds: int) -> Iterator[Case]:
    """All jobs."""
    for path in sorted(data.glob("traces/*.csv.gz")):
        name, slow = path.name.split(".")[0], slow_workers(path)
        everyone = len(read_trace(path).dp_ranks)
        for gpu in (A100, A40):
            for count in (1, 4, 8):
                if count <= everyone - len(slow):
                    yield Case("traces", f"{name} {count}", partial(traced, path, count, slow, gpu), gpu.name)
            if slow:
                yield Case("traces", f"{name} slow", partial(traced, path, None, (), gpu), gpu.name)
            if everyone > 1:
                yield Case("loads", f"{name} slow", partial(traced, path, None, (), gpu), gpu.name, path)
    for path in (data / "profiles" / name for name in PROFILES):
        for count in (12, 24, 48) if path.exists() else ():
            make = partial(profile_job, path, count, "A100 node")
            yield Case("profiles", f"{path.stem} {count}", make, PROFILES[path.name].name)
    found = 0
    for seed in range(first, sys.maxsize if seeds else first):
        job = drawn(seed, None)
        if len(job.pipeline.instructions) * job.pipelines > _LARGEST:
            continue
        kind, later = (A100, A40)[found % 2], MODELS[("B300", "RTX", "H100")[found % 3]]
        yield Case("drawn", f"{seed} {kind.name}", partial(drawn, seed, kind), kind.name)
        yield Case("later kinds", f"{seed} {later.name}", partial(drawn, seed, later), later.name)
        yield Case("unknown GPUs", str(seed), partial(drawn, seed, None), "unknown")
        found += 1
        if found == seeds:
            return


def row_of(case: Case, seed: int, args: argparse.Namespace) -> dict[str, object]:
    """What is told of a job, and what it saves."""
    job = case.make()
    cluster = job.cluster(seed + 1)
    at_most = cluster.clocks_of([{}] * job.pipelines)
    steps = [cluster.run(at_most) for _ in range(_STEPS)]
    durations_s = np.array([step.ends_s - step.starts_s for step in steps])
    advice = advise(job.pipeline, durations_s, case.gpu, follows=job.nodes is not None)
    names = ("plan", "ranks") if case.trace is None else ("loads",)
    nothing = Interval(0.0, NOTABLE)  # clocks from loads are not offered where ranks wait for less than this
    told = next((one.saved[0] for one in advice.remedies if one.name in names), nothing)
    known = None
    if case.trace is not None:
        trace = read_trace(case.trace)
        saved = LoadPlay(trace, job.cluster(seed), loads_of(trace, "trace"), seed).run(args.iterations).plan_saved
    else:
        with tempfile.TemporaryDirectory() as folder:
            play = Play(job.cluster(seed), Path(folder), PFOSettings(profile_steps=5))
            saved = summarize(play, list(play.run(args.iterations))).energy_saved
        known = known_plan(job, seed, args.iterations, 1.0).saved if args.known else None
    middle = (told.low + told.high) / 2
    return {
        "group": case.group,
        "job": case.name,
        "gpu": case.gpu,
        "low": told.low,
        "high": told.high,
        "saved": saved,
        "known": known,
        "inside": told.low - _ROUNDING <= saved <= told.high + _ROUNDING,
        "width": (told.high - told.low) / middle if middle > _NOTABLE else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=52_000, help="seed of the first drawn job")
    parser.add_argument("--seeds", type=int, default=20, help="number of drawn jobs")
    parser.add_argument("--iterations", type=int, default=600, help="until plans mostly stay")
    parser.add_argument("--only", default="", help="only groups whose name begins with this")
    parser.add_argument("--known", action="store_true", help="make plans with full knowledge, too")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, default=SHARED)
    args = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(args.workers) as pool:
        todo = [case for case in cases(args.data, args.first, args.seeds) if case.group.startswith(args.only)]
        running = [pool.submit(row_of, case, 1, args) for case in todo]
        for done in as_completed(running):
            rows.append(done.result())
            print(rows[-1], file=sys.stderr, flush=True)
    rows.sort(key=lambda row: (row["group"], row["job"], row["gpu"]))
    write_json(args.json, vars(args) | {"data": str(args.data), "json": str(args.json)}, rows)

    def shown(value: object) -> str:
        return "-" if value is None else f"{100 * value:.1f}" if isinstance(value, float) else str(value)

    columns = ["job", "gpu", "low", "high", "saved", "known", "inside", "width"]
    for group in sorted({row["group"] for row in rows}):
        own = [row for row in rows if row["group"] == group]
        widths = [row["width"] for row in own if row["width"] is not None]
        held = f"inside: {sum(row['inside'] for row in own)} of {len(own)}"
        caption = f"{held}; width in the median {shown(float(np.median(widths))) if widths else '-'} %, all in %"
        show(group, columns, [[shown(row[name]) for name in columns] for row in own], caption)


if __name__ == "__main__":
    main()
