"""`pfo-fs advise`: what would save energy in a job, from one normal run at default clocks."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.progress import Progress
from rich.text import Text
from typer import Argument, Option

from pfo_fs.cli.jobs import find_job
from pfo_fs.cli.simulate import PipelineSchedule
from pfo_fs.cli.terminal import JsonFlag, SharedDirOption, err, fail, print_json, say, show, table
from pfo_fs.errors import PlanError
from pfo_fs.reports.wording import duration_text, percent
from pfo_fs.user_files import INSTRUCTIONS, TRACE_COLUMNS

if TYPE_CHECKING:
    from pfo_fs.arrays import Array
    from pfo_fs.planner import Pipeline
    from pfo_fs.simulator.advice import Advice, Interval, Remedy
    from pfo_fs.simulator.training_curves import Curves

_LITTLE = 0.02
"""A job that can save less than this share of its energy is not worth a new tool."""
_SEEN = 0.001
"""A smaller share counts as zero."""
_SOURCE = (
    f"A job, as for `pfo-fs report`; a CSV file as `pfo-fs trace` writes it (columns {', '.join(TRACE_COLUMNS)}; "
    f"instruction: {INSTRUCTIONS}); a folder with what torch.profiler has exported on each rank (*.json, *.json.gz); "
    "or output of Megatron-LM (*.log, *.out, *.txt) with --timing-log-level 2 --timing-log-option all."
)
_LOGS = (".log", ".out", ".txt")
_NUM_RANKS = "Ranks of a pipeline, where each holds several stages or traces tell no stage (1: no pipeline)."
_REMEDIES = {
    "plan": ("a clock per instruction: pfo_fs.attach", "right to set clocks*; clocks that follow the device"),
    "ranks": ("a clock per rank: pfo_fs.attach", "right to set clocks*"),
    "loads": (
        "a clock per step, from loads: LoadClocks",
        "right to set clocks*; DDP or a pipeline; lengths known first",
    ),
    "limit": ("one power limit: power_limit_loop", "right to set power limits"),
}
_BALANCE = {
    "unequal stages": "move layers from {} to others",
    "slow workers": "replace them ({})",
    "unequal loads": "balance them, by packing or a balancing scheduler",
}
_CAPS_ONLY = "* With the right to set power limits alone: one level per rank, which saves less."


def advise(
    source: Annotated[str, Argument(help=_SOURCE)],
    gpu: Annotated[str, Option(help="Kind of the GPUs, such as A100; default: as recorded, of a CSV unknown.")] = "",
    schedule: Annotated[PipelineSchedule, Option(help="Of a CSV: order of a pipeline's instructions.")] = "1f1b",
    num_ranks: Annotated[int | None, Option(help=_NUM_RANKS, min=1, max=4096)] = None,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Say what would save energy in a job, and how much, from durations at default clocks: no right is needed.

    Tested on simulated GPUs only: jobs never seen before saved an amount inside the interval in 20 of 22 cases on
    A100s, in 14 of 22 on A40s, which mostly saved less.
    """
    from pfo_fs.simulator import read_trace
    from pfo_fs.simulator.advice import SLOWDOWNS, advise
    from pfo_fs.simulator.megatron_log import read_megatron_log
    from pfo_fs.simulator.torch_traces import SUFFIXES, read_torch_traces

    path, found, curves, follows, on_host = Path(source), "", None, True, False
    with err.status("reading durations ..."):
        if source.endswith(SUFFIXES) or (path.is_dir() and path.parent.name not in ("jobs", "archive")):
            trace, found = read_torch_traces(path, num_ranks, lambda text: say(text, to=err))
            if on_host := not found:
                say("These ranges were timed on the host: waiting for other ranks counts as work.", to=err)
            pipeline, full_s = trace.pipeline, trace.full_s
        elif source.endswith(_LOGS):
            pipeline, full_s = read_megatron_log(path)
            say("Megatron-LM's timers tell means: how much micro-batches vary is not counted.", to=err)
        elif path.is_file():
            trace = read_trace(path, schedule, num_ranks=num_ranks)
            pipeline, full_s = trace.pipeline, trace.full_s
            if (most_s := full_s.max()) > 60:  # seconds: no pass of a micro-batch takes so long
                say(f"Passes of {duration_text(most_s)}: time_s must be in seconds; are these milliseconds?", to=err)
        else:
            pipeline, full_s, found, curves, follows = _of_job(source, shared_dir)
        gpu = gpu or found
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        track = partial(progress.track, description="planning")
        advice = advise(pipeline, full_s, gpu, curves, follows, track)
    if json_:
        fields = {name: _plain(value) for name, value in advice._asdict().items()}
        print_json({**fields, "slowdowns": SLOWDOWNS})
        return
    if gpu.startswith("simulated"):
        say(f"Durations and power are those of a {gpu} (PFO_FS_GPU=simulated), not of this program's work.", to=err)
    _show(advice, gpu, full_s.shape, on_host)


def _plain(value: object) -> object:
    """Returns a value with its named tuples as mappings, for JSON."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _of_job(job: str, shared_dir: Path | None) -> tuple[Pipeline, Array, str, Curves | None, bool]:
    """The pipeline of a job, durations as `advise` takes them, GPUs, its own curves, and whether clocks follow."""
    from pfo_fs.arrays import np
    from pfo_fs.planner import read_profile
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.timeline import at_max_clocks
    from pfo_fs.simulator.training_curves import Curves
    from pfo_fs.store import layout

    folder = find_job(job, shared_dir, archived=True)
    data, curves = collect_job(folder), None
    steps: dict[int, list[list[float]]] = {}
    pipeline = None
    for step, _, laid in at_max_clocks(data):
        pipeline = pipeline or laid.pipeline
        steps.setdefault(step, []).append(list(laid.times_s))
    if pipeline is None:
        fail(
            f"job {folder.job_id}: no step was measured at default clocks yet, or its instructions are not marked; "
            f"`pfo-fs status` says what it waits for"
        )
    widest = max(map(len, steps.values()))
    full_s = np.array([np.transpose(rows) for rows in steps.values() if len(rows) == widest])
    measured = folder.read_file(layout.PROFILE)
    if measured is not None and data.model is not None:
        with suppress(PlanError):  # the profile is not complete yet
            profile = read_profile(folder.location, measured.decode(errors="replace"))
            curves = Curves.of_profile(profile, data.model.blocking_power_w)
    gpu = next((body.gpu_name for body in data.ranks if body.gpu_name), "")
    modes = {rank.switching.mode for rank in data.progress if rank.switching is not None}
    return pipeline, full_s, gpu, curves, modes != {"launch"}


def _show(advice: Advice, gpu: str, shape: tuple[int, ...], on_host: bool) -> None:
    from pfo_fs.device.simulated.physics import TRAINING
    from pfo_fs.simulator.advice import NOTABLE, SLOWDOWNS

    waiting = sum(one.share for one in advice.waits)
    waits = ", ".join(f"{one.cause} {percent(one.share, 1)}" for one in advice.waits if one.share >= _SEEN)
    say(
        f"{shape[0]} step{'s' * (shape[0] > 1)} of {shape[2]} pipeline{'s' * (shape[2] > 1)}, "
        f"{duration_text(advice.step_s)} each. "
        f"GPUs work {percent(1 - waiting, 1)} of the time, and wait {percent(waiting, 1)}{waits and ': ' + waits}"
    )
    shown = table("what", *(f"+{100 * (each - 1):.0f} %" for each in SLOWDOWNS), "needs", left=("what", "needs"))
    shown.title = "Energy saved (tested on simulated GPUs only), by how much longer steps may be"
    shown.caption = _CAPS_ONLY if len(advice.remedies) > 1 else None
    for remedy in advice.remedies:
        name, needs = _REMEDIES[remedy.name]
        shown.add_row(Text(name), *(_text(saved) for saved in remedy.saved), Text(needs))
    show(shown)
    if advice.curves == "measured":
        say("How training follows the clock was measured in this job, not taken from publications.")
    elif advice.curves == "unknown":
        kind = "these GPUs" if gpu in ("", "none") else repr(gpu)
        more = " If they are of these kinds, give --gpu." if kind == "these GPUs" else ""
        known = f"the intervals cover what is known of {' and '.join(TRAINING)}, and that newer kinds save less"
        say(f"No curve of training is published for {kind}: {known}.{more}")
    for one in advice.waits[1:]:
        if one.share > NOTABLE and one.cause in (_BALANCE if not on_host else ()):
            do = _BALANCE[one.cause].format(one.where)
            say(f"First: without {one.cause}, steps would be {percent(one.shorter, 1)} shorter; {do}.")
    if advice.balanced and not on_host:
        left = ", ".join(_left(one) for one in advice.balanced if one.saved[0].high > _SEEN)
        what = " and ".join(one.cause.split()[1] for one in advice.waits[1::2] if one.share > NOTABLE)
        say(f"With balanced {what}, there is left: {left or 'nothing'}.")
    is_little = advice.most < _LITTLE
    column = SLOWDOWNS.index(1.02 if is_little else 1.0)
    best = _REMEDIES[max(advice.remedies, key=lambda one: one.saved[column].high).name][0]
    if is_little:
        say(f"Little to save: at most {percent(advice.most, 1)} without slower steps.")
        best = f"nothing; or, if steps may be 2 % slower, {best}"
    say(f"Next: {best}; `pfo-fs doctor` says what this host allows.")


def _left(remedy: Remedy) -> str:
    return f"{_text(remedy.saved[0])} by {_REMEDIES[remedy.name][0]}"


def _text(saved: Interval) -> str:
    """An interval in whole percents: 2.4 to 5.1 % becomes 2–6 %."""
    low, high = math.floor(100 * saved.low), math.ceil(100 * saved.high - 100 * _SEEN)
    return f"{low}–{high} %" if high else "0"
