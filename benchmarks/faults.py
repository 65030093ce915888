"""The longest step of a training under each of many faults, beside that of the same training without it.

    python benchmarks/faults.py --quick                       # a dozen faults, under a minute on two quiet cores
    python benchmarks/faults.py --repeats 5 --json faults.json
    python benchmarks/faults.py --only 'B children' --only memfd

In each repeat two jobs train side by side, with steps of some 10 ms on simulated GPUs; one of them meets the fault, so
that whatever else the machine does meets both. The ratio of their longest steps is what a fault costs; that of two jobs
without a fault, in the first row, is what such a ratio is worth here. Faults are there from the start, or come while a
person's `schedule.yaml` holds all clocks low. `_fault_kinds.py` lists them.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from _common import machine, show, write_json  # noqa: E402
from _fault_job import Job  # noqa: E402
from _fault_kinds import FAULTS, NOTHING, Fault  # noqa: E402
from _fault_rank import ATTACH_S, CLOSE_S, WARNINGS  # noqa: E402

_OFTEN, _LEAST = 8, 2
"""One in so many pairs has no fault, and at least so many more, so that the noise is known."""
_STARTS_WITHIN_S, _ENDS_WITHIN_S, _RESETS_WITHIN_S = 120.0, 60.0, 15.0


@dataclass
class Run:
    """One job with the fault, and one without it beside it.

    Attributes:
        longest_ms, beside_ms: The longest step of each.
        inside_ms, beside_inside_ms: The longest time that a step spent inside of the product.
        attach_s, beside_attach_s: How long the set-up took.
        close_s: How long the end took.
        codes: The ranks' exit codes; None: training did not end.
        lowered: Whether clocks were low when the fault came.
        clocks_mhz: Clocks that GPUs were locked at some seconds after training had ended; 0: the default.
        warnings: Number of warnings of a rank, the most of all.
        left: Number of clock processes that were left running.
        notes: What else must not be.
        texts: The warnings, and the end of what the first rank has printed.
    """

    longest_ms: float
    beside_ms: float
    inside_ms: float
    beside_inside_ms: float
    attach_s: float
    beside_attach_s: float
    close_s: float
    codes: list[int | None]
    lowered: bool
    clocks_mhz: list[int]
    warnings: int
    left: int
    notes: list[str]
    texts: str

    @property
    def problems(self) -> list[str]:
        """What must not be."""
        found = [*self.notes]
        if any(self.codes):
            found.append(f"exit codes {self.codes}")
        if None in self.codes:
            found.append("training does not end")
        if any(self.clocks_mhz):
            found.append(f"clocks left at {self.clocks_mhz} MHz")
        if self.left:
            found.append(f"{self.left} clock processes left")
        if not self.lowered:
            found.append("clocks were not lowered before")
        return found


def play(fault: Fault, folder: Path, seconds: float) -> Run:
    """Plays a fault once."""
    with_fault = Job(folder / "with", fault.ranks, fault.given, fault.environment, fault.has_daemon)
    calm = {name: fault.given[name] for name in ("handles",) if name in fault.given}
    beside = Job(folder / "beside", fault.ranks, calm, {}, fault.has_daemon)
    jobs = (with_fault, beside)
    try:
        return _played(fault, with_fault, beside, seconds)
    finally:
        for job in jobs:
            job.close()


def _played(fault: Fault, job: Job, beside: Job, seconds: float) -> Run:
    jobs = (job, beside)
    if fault.prepare is not None:
        fault.prepare(job)
    for each in jobs:
        if each.has_daemon:
            each.start_daemon()
    for each in jobs:
        each.start()
    job.wait(lambda: all(each.trains or each.has_ended for each in jobs), _STARTS_WITHIN_S)
    lowered = True
    if fault.happens is not None:
        with_low, beside_low = (each.lower_clocks() for each in jobs)
        lowered = with_low & beside_low
    since_s = time.monotonic()
    if fault.happens is not None:
        fault.happens(job)
        if fault.training_too:
            fault.happens(beside)
    time.sleep(max(0.0, since_s + seconds - time.monotonic()))
    until_s = time.monotonic()
    (longest_ms, inside_ms), (beside_ms, beside_inside_ms) = (each.longest_ms(since_s, until_s) for each in jobs)
    for each in jobs:
        each.stop_training()
    ended = job.wait(lambda: job.has_ended and beside.has_ended, _ENDS_WITHIN_S)
    if not ended or any(process.returncode for process in job.ranks):
        job.wait(lambda: False, 1.0)  # what it prints
    job.wait(lambda: not any(job.clocks_mhz()), _RESETS_WITHIN_S)
    clocks_mhz = job.clocks_mhz()
    codes = [process.poll() for process in job.ranks]
    output = (job.folder / "rank0.log").read_text(errors="replace").splitlines()
    return Run(
        longest_ms=longest_ms,
        beside_ms=beside_ms,
        inside_ms=inside_ms,
        beside_inside_ms=beside_inside_ms,
        attach_s=max(page[ATTACH_S] for page in job.pages),
        beside_attach_s=max(page[ATTACH_S] for page in beside.pages),
        close_s=max(page[CLOSE_S] for page in job.pages),
        codes=codes,
        lowered=lowered,
        clocks_mhz=clocks_mhz,
        warnings=int(max(page[WARNINGS] for page in job.pages)),
        left=len(job.close()),
        notes=job.notes,
        texts="\n".join([*(page.text() for page in job.pages), *output[-8:]]),
    )


def play_all(faults: Sequence[Fault], repeats: int, seconds: float, at_once: int) -> dict[str, list[Run]]:
    """Plays faults, in another order in each repeat."""
    chance, runs = random.Random(1), {fault.name: [] for fault in faults}

    def once(fault: Fault) -> Run:
        folder = Path(tempfile.mkdtemp(prefix="pfo-faults-"))
        try:
            return play(fault, folder, seconds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    for _ in range(repeats):
        order = [*faults, *[NOTHING] * max(_LEAST, len(faults) // _OFTEN)]
        chance.shuffle(order)
        with ThreadPoolExecutor(at_once) as pool:
            for fault, run in zip(order, pool.map(once, order), strict=True):
                runs[fault.name].append(run)
                ratio = run.longest_ms / run.beside_ms if run.beside_ms else 0.0
                print(f"{fault.name}: {ratio:.2f} {'; '.join(run.problems)}", file=sys.stderr, flush=True)
    return runs


def _ratio(runs: Iterable[Run]) -> tuple[str, float]:
    ratios = sorted(run.longest_ms / run.beside_ms for run in runs if run.beside_ms)
    if not ratios:
        return "-", 0.0
    spread = f" ({ratios[0]:.2f} to {ratios[-1]:.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}{spread}", median(ratios)


def _row(fault: Fault, runs: Sequence[Run]) -> list[str]:
    problems = sorted({problem for run in runs for problem in run.problems})
    return [
        f"{fault.kind[0]} {fault.name}" if fault is not NOTHING else fault.kind,
        f"{median(run.longest_ms for run in runs):.0f}",
        f"{median(run.beside_ms for run in runs):.0f}",
        _ratio(runs)[0],
        f"{median(run.inside_ms for run in runs):.1f}",
        f"{median(run.beside_inside_ms for run in runs):.1f}",
        f"{median(run.attach_s for run in runs):.1f}",
        str(max(run.warnings for run in runs)),
        "; ".join(problems) or "ok",
    ]


def _summary(faults: Sequence[Fault], runs: dict[str, list[Run]]) -> str:
    """Says for each kind how its ratios compare with those of two jobs without a fault."""
    found = []
    calm = [run.longest_ms / run.beside_ms for run in runs[NOTHING.name] if run.beside_ms and run.longest_ms]
    most = max((max(ratio, 1 / ratio) for ratio in calm), default=0.0)  # either of the two may be the slower one
    for kind in dict.fromkeys(fault.kind for fault in faults):
        of_kind = [fault for fault in faults if fault.kind == kind]
        text, _ = _ratio(run for fault in of_kind for run in runs[fault.name])
        above = [fault.name for fault in of_kind if _ratio(runs[fault.name])[1] > most]
        found.append(f"{kind}: {len(of_kind)} faults, ratio {text}")
        if above:
            found.append(f"    above any ratio of two jobs without a fault ({most:.2f}): {', '.join(above)}")
    return "\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a dozen faults, once, some at the same time")
    parser.add_argument("--repeats", type=int, default=None, help="default: 3, or 1 with --quick")
    parser.add_argument("--seconds", type=float, default=None, help="under a fault; default: 4, or 2 with --quick")
    parser.add_argument("--at-once", type=int, default=None, help="pairs of jobs at a time; default: 1, or 4")
    parser.add_argument("--only", action="append", default=[], help="faults whose kind or name has this text")
    parser.add_argument("--json", type=Path, help="a file for all figures, with the warnings")
    args = parser.parse_args()
    repeats = args.repeats or (1 if args.quick else 3)
    seconds = args.seconds or (2.0 if args.quick else 4.0)
    at_once = args.at_once or (4 if args.quick else 1)
    wanted = [fault for fault in FAULTS if fault.quick or not args.quick]
    if args.only:
        texts = [text.lower() for text in args.only]
        wanted = [f for f in wanted if f is NOTHING or any(text in f"{f.kind} {f.name}".lower() for text in texts)]
    lacking = {fault.name: fault.needs() for fault in wanted}
    faults = [fault for fault in wanted if not lacking[fault.name]]
    about = machine(repeats=repeats, seconds=seconds, at_once=at_once)
    began_s = time.monotonic()
    runs = play_all(faults, repeats, seconds, at_once)
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    took = f"{at_once} pairs at a time, in {time.monotonic() - began_s:.0f} s"
    caption = f"{repeats} runs of {seconds:g} s each, {took}; {load}."
    caption += "".join(f"\nLeft out, needs {what}: {name}" for name, what in lacking.items() if what)
    columns = ("fault", "longest step (ms)", "beside it", "ratio (least, most)", "inside (ms)", "beside it",
               "set-up (s)", "warnings", "exit codes, clocks, processes")  # fmt: skip
    show("Training under faults", columns, [_row(fault, runs[fault.name]) for fault in faults], caption, width=170)
    print(_summary(faults, runs))
    results = [
        {"kind": fault.kind, "fault": fault.name, "ratio": _ratio(runs[fault.name])[1], **asdict(run)}
        for fault in faults
        for run in runs[fault.name]
    ]
    write_json(args.json, about, results)
    if any(run.problems for of_fault in runs.values() for run in of_fault):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
