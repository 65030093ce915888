"""`pfo-fs check`: whether training is slower because of pfo-fs, and by how much, as its own ranks measure it now."""

from __future__ import annotations

import math
import secrets
import sys
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

from typer import Option

from pfo_fs.cli.jobs import Job, find_job
from pfo_fs.cli.terminal import JsonFlag, SharedDirOption, err, fail, print_json, say

if TYPE_CHECKING:
    from rich.progress import Progress

    from pfo_fs.autotune.trials import Checked
    from pfo_fs.reports.collect import JobState
    from pfo_fs.store import JobFolder, bodies

_NO_ANSWER = 2
_LOOK_S = 1.0
_RESULTS_WITHIN_S, _RESULTS_WITHIN_STEPS = 120.0, 20
"""The longest wait for results after the last step, and for the report of another step: this many s and steps."""


class _Answer(NamedTuple):
    """What was found, how much slower the target lets the job be, and further fields for programs."""

    found: Checked
    allowed: float
    about: dict[str, object]
    until: str = ""

    @property
    def is_slower(self) -> bool:
        """Whether training is slower because of pfo-fs, beyond the error."""
        return self.found.slower > self.found.slower_error

    @property
    def is_too_slow(self) -> bool:
        """Whether training is slower by more than the job's target allows."""
        return self.is_slower and self.found.slower - self.found.slower_error > self.allowed

    def text(self) -> str:
        """Returns the answer in words."""
        from pfo_fs.models import share_text

        slower, error, saved, saved_error, _, default_steps = self.found
        text = share_text(slower, error, 2)
        text = f"training is {text} slower because of pfo-fs" if self.is_slower else f"not because of pfo-fs: {text}"
        if self.is_slower and not self.is_too_slow:
            text += f" (its target allows {100 * self.allowed:.2f} %)"
        if saved_error < math.inf:
            text += f", and takes {share_text(abs(saved), saved_error, 1)} {'less' if saved >= 0 else 'more'} energy"
        return f"{text}, against {default_steps:,} steps at default clocks{self.until}"

    def figures(self) -> dict[str, object]:
        """Returns the answer for programs."""
        known = self.found._asdict()
        if self.found.saved_error == math.inf:
            known |= {"saved": None, "saved_error": None}
        return {"because_of_pfo_fs": self.is_slower, **known, "allowed": self.allowed, **self.about}


def check(
    job: Job,
    steps: Annotated[
        int | None, Option(help="Measure for this many steps; default: 96, more where steps are short.", min=4)
    ] = None,
    timeout: Annotated[float, Option(help="Seconds to wait for the measurement to begin.", min=0.0)] = 600.0,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Say whether training is slower because of pfo-fs, and by how much: measured now, against default clocks.

    Exit code 0: not slower, or no more than the job's target allows; 1: slower; 2: no answer.
    """
    from pfo_fs.errors import PfoError

    try:
        folder = find_job(job, shared_dir, writes=True)
        answer = _answer(folder, steps, timeout)
    except PfoError as error:  # 1 would mean that training is slower
        _no_answer(str(error.args[-1] if isinstance(error, OSError) else error))
    except SystemExit:  # `find_job` has told its message
        sys.exit(_NO_ANSWER)
    if json_:
        print_json({"job_id": folder.job_id, **answer.figures()})
    else:
        say(answer.text())
    sys.exit(int(answer.is_too_slow))


def _answer(folder: JobFolder, steps: int | None, timeout_s: float) -> _Answer:
    """Measures the schedule in force, or returns what clocks from loads have measured."""
    from pfo_fs.reports.collect import read_state
    from pfo_fs.store import OffSwitch

    state = read_state(folder)
    if OffSwitch(folder.files).read().covers(folder.job_id):
        _no_answer("this job is switched off, so its clocks are the default ones: `pfo-fs on` ends that")
    current = state.current
    if current is not None and current.number >= 0 and (state.loads is None or _lowers(folder, current.number)):
        return _measure(folder, state, current.number, steps, timeout_s)
    return _of_loads(state)


def _no_answer(text: str) -> NoReturn:
    fail(text, _NO_ANSWER)


def _of_loads(state: JobState) -> _Answer:
    """What clocks from loads have measured against control steps."""
    from pfo_fs.autotune.trials import Checked

    if state.job.coordination == "none":
        what = state.job.scheduler.replace("_", " ")
        _no_answer(f"this job sets one {what} itself; what its levels cost stands in its profile: `pfo-fs power-limit`")
    rank = next((one for one in state.progress if one.loads is not None), None)
    if rank is None or rank.loads is None:
        _no_answer("no schedule with lower clocks is in force: clocks are the default ones, as far as pfo-fs sets them")
    loads = rank.loads
    if loads.late is None or loads.late_error is None:
        _no_answer(f"clocks from loads have no answer yet: {loads.text or 'they still learn'}. Ask again later")
    saved_error = math.inf if loads.saved_error is None else 2 * loads.saved_error
    found = Checked(loads.late, 2 * loads.late_error, loads.saved or 0.0, saved_error, loads.steps, loads.controls)
    about: dict[str, object] = {"kind": "loads", "step": rank.step, "age_s": rank.step_age_s}
    return _Answer(found, 0.0, about, f", up to step {rank.step}, {rank.step_age_s:.0f} s old")


def _lowers(folder: JobFolder, number: int) -> bool:
    """Whether a schedule has a clock below the highest one of its rank."""
    from pfo_fs.store import bodies

    index = folder.read(bodies.IndexBody, number=number)
    infos = [body.rank_info for body in folder.each_rank()]
    tops = {info.rank: max(info.available_frequencies, default=0) for info in infos}
    schedules = [] if index is None else folder.read_schedules(index, infos)
    return any(0 < mhz < tops[one.rank] for one in schedules for _, mhz in one.frequencies)


# ---- a schedule


def _measure(folder: JobFolder, state: JobState, before: int, steps: int | None, timeout_s: float) -> _Answer:
    """Asks for the measurement, waits for it, and returns the answer."""
    from rich.progress import Progress

    from pfo_fs.autotune.trials import turns_for
    from pfo_fs.reports.status import who_applies
    from pfo_fs.store import SharedDirectory, bodies, layout

    index = folder.read(bodies.IndexBody, number=before)
    if index is not None and index.source.kind == "yaml" and (index.turns or index.until) and not index.source.check:
        return _of_file(state)
    if index is not None and index.stays and not _lowers(folder, before):
        _no_answer("no schedule with lower clocks is in force: clocks are the default or the highest ones")
    step_s = max((rank.iter_time for rank in state.progress if rank.iter_time), default=None)
    if step_s is None:
        _no_answer("no rank has reported how long a step takes yet; ask again in a minute")
    if not who_applies(SharedDirectory(folder.files), folder):
        _no_answer("no daemon, and no rank 0 that schedules its job, gives a sign of life: nothing would measure")
    late_s = max(
        ((one.latency_s or 0.0) + (one.call_s or 0.0) for r in state.progress if (one := r.switching)), default=0.0
    )
    block, steps = turns_for(step_s, late_s, steps)
    if steps > bodies.MOST_CHECKED:
        _no_answer(f"--steps: a check has at most {bodies.MOST_CHECKED:,} steps")
    asked = bodies.CheckBody(nonce=secrets.token_hex(8), block=block, steps=steps)
    if not folder.write(asked):
        _no_answer(f"{folder.location / layout.CHECK} asks for a check already; wait for it, or remove that file")
    try:
        with Progress(console=err, transient=True, disable=not err.is_terminal) as shown:
            index = _begun(folder, asked.nonce, before, timeout_s, shown)
            if not _lowers(folder, index.number):
                _no_answer("no schedule with lower clocks is in force: the scheduler runs the highest ones")
            found = _result(folder, index, steps, step_s, shown)
    finally:
        left = folder.read(bodies.CheckBody)
        if left is not None and left.nonce == asked.nonce:
            folder.remove_file(layout.CHECK)
    about: dict[str, object] = {"kind": "schedule", "schedule": index.number, "source": index.source.kind}
    return _Answer(found, _allowed(state, index), about)


def _of_file(state: JobState) -> _Answer:
    """What a file with `turns` or `until` has measured: meanwhile nothing else is measured."""
    from pfo_fs.autotune.trials import Checked
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.verdict import verdict_of

    found, window = verdict_of(data := collect_job(state.folder)), data.in_force
    if found.slower is None or found.saved is None or window is None or window.measured is None:
        _no_answer("schedule.yaml has `turns` or `until`, and no results yet: ask again later, or take these keys out")
    steps = window.measured.iterations, window.without.iterations if window.without is not None else 0
    told = Checked(found.slower, found.slower_error, found.saved, found.saved_error, *steps)
    return _Answer(told, 0.0, {"kind": "schedule", "schedule": window.number, "source": "yaml"})


def _allowed(state: JobState, index: bodies.IndexBody) -> float:
    """The share by which the job's target lets a schedule of its policy be slower than default clocks."""
    if index.source.kind != "scheduler" or state.model is None or state.model.off_target is None:
        return 0.0
    from pfo_fs.autotune.decision import TOLERANCE
    from pfo_fs.reports.verdict import allowed_slowdown

    return allowed_slowdown(state.model) + TOLERANCE


def _begun(folder: JobFolder, nonce: str, after: int, timeout_s: float, shown: Progress) -> bodies.IndexBody:
    """Waits for the schedule that is published for this check."""
    from pfo_fs.reports.collect import read_state
    from pfo_fs.store import bodies

    until_s = time.monotonic() + timeout_s
    waits = "waiting until the scheduler's own trial ends"
    task = shown.add_task(waits, total=None)
    if not err.is_terminal:
        say(f"{waits}, {timeout_s:.0f} s at most; then minutes of measuring", to=err)
    while True:
        for number in (one for one in folder.schedule_numbers() if one > after):
            index = folder.read(bodies.IndexBody, number=number)
            if index is not None and index.source.check == nonce:
                shown.remove_task(task)
                return index
            after = number if index is not None else after
        state = read_state(folder, most_hosts=1)
        said = state.current and (state.current.message or state.current.status_text)
        if state.end is not None:
            _no_answer("the job has ended")
        if time.monotonic() > until_s:
            _no_answer(
                f"the measurement did not begin within {timeout_s:.0f} s; the scheduler says: {said or 'nothing'}. "
                f"Ask again in some minutes, with a longer --timeout, or now `pfo-fs off {folder.job_id}`"
            )
        time.sleep(_LOOK_S)


def _result(folder: JobFolder, index: bodies.IndexBody, steps: int, step_s: float, shown: Progress) -> Checked:
    """Waits for the results of all ranks, and returns what they tell."""
    from pfo_fs.autotune.trials import checked
    from pfo_fs.coordination.rank_registry import NAMED, RankRegistry
    from pfo_fs.coordination.results import Results
    from pfo_fs.reports.collect import read_state
    from pfo_fs.schedule_yaml.problems import name_ranks

    state = read_state(folder, most_hosts=1)
    ranks = RankRegistry(folder)
    ranks.poll(state.job.job_info)
    results = Results(folder, ranks)
    task = shown.add_task("measures in turns with default clocks", total=steps)
    wait_s = _RESULTS_WITHIN_S + _RESULTS_WITHIN_STEPS * step_s
    step, until_s = -1, time.monotonic() + wait_s
    while missing := results.missing(index.number):
        state = read_state(folder, most_hosts=1)
        seen = max((rank.step for rank in state.progress), default=-1)
        if seen > step and step < index.until:
            step, until_s = seen, time.monotonic() + wait_s
            shown.update(task, completed=max(0, step - index.start_step))
        if state.end is not None:
            _no_answer("the job has ended before all was measured")
        if state.current is not None and state.current.number > index.number:
            _no_answer("another schedule came into force before all was measured; ask again")
        if time.monotonic() > until_s:
            _no_answer(f"{name_ranks(missing, NAMED)} measured nothing, or training has stopped: see `pfo-fs status`")
        time.sleep(_LOOK_S)
    schedules = folder.read_schedules(index, ranks.infos)
    measured = list(results.read(index.number))
    found = checked(state.job.job_info, ranks.infos, ranks.orders(schedules), schedules, measured, index.turns)
    if found is None:
        _no_answer("no pipeline was measured on all of its stages; `pfo-fs status` shows errors of ranks")
    return found
