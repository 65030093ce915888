"""Commands that change a running job: `pfo-fs schedule show|check|set`, `target` and `straggler`.

`target` and `straggler` write a key of the job's `schedule.yaml`, which can also be edited by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from typer import Argument, Option

from pfo_fs.cli.jobs import Job, find_job, tell_written
from pfo_fs.cli.terminal import (
    DeadlineOption,
    JsonFlag,
    PlainCommand,
    PowerOption,
    SharedDirOption,
    SlowdownOption,
    err,
    fail,
    out,
    print_json,
    say,
    takes_directory,
    wrong_usage,
)
from pfo_fs.errors import first_problem
from pfo_fs.user_files import read_user_file

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

    from pfo_fs.models import RankInfo
    from pfo_fs.store import JobFolder
    from pfo_fs.store.bodies import JobBody

schedule_app = typer.Typer(help="Show, check and set the schedule of a running job.", no_args_is_help=True)

_HEAD = "# Written by `pfo-fs target` and `pfo-fs straggler`; edit it, or remove it, at any time.\n"


@schedule_app.command("show", cls=PlainCommand)
@takes_directory
def schedule_show(job: Job, shared_dir: SharedDirOption = None, json_: JsonFlag = False) -> None:
    """Print the schedule in force, as YAML that can be edited and then set."""
    from pfo_fs.schedule_yaml import format_schedule_yaml
    from pfo_fs.store import bodies

    folder = find_job(job, shared_dir)
    body, infos = _job_and_ranks(folder)
    current = folder.read(bodies.CurrentBody)
    number = -1 if current is None else current.number
    index = None if number < 0 else folder.read(bodies.IndexBody, number=number)
    if current is None or index is None:
        fail(f"job {folder.job_id} has no schedule yet" + (f": {current.message}" if current else ""))
    schedules = [schedule for info in infos if (schedule := folder.read_schedule(index, info)) is not None]
    # A schedule that takes turns only while it is measured, and then stays, is shown as one without an end.
    turns, until = (index.turns, index.until) if not index.until or not index.stays else ([], 0)
    if json_:
        known: dict[str, object] = {"job_id": folder.job_id, "number": index.number, "from_step": current.start_step}
        known |= {"source": index.source.model_dump(), "turns": turns, "until": until}
        print_json({**known, "schedules": [schedule.model_dump() for schedule in schedules]})
        return
    comment = f"job {folder.job_id}, schedule {index.number} ({index.source.kind}), from step {current.start_step}"
    text = format_schedule_yaml(schedules, infos, body.job_info, comment=comment, turns=turns, until=until)
    print(text, end="")  # noqa: T201


@schedule_app.command("check", cls=PlainCommand)
@takes_directory
def schedule_check(
    job: Job,
    file: Annotated[Path | None, Argument(help="YAML file, - for standard input; default: the job's.")] = None,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Check whether a job would accept a schedule, and say what it would cost; exit code 1 if not accepted."""
    folder = find_job(job, shared_dir)
    name, content = _yaml_of(folder, file)
    problems, slower = _problems(folder, content)
    if json_:
        print_json({"file": name, "ok": not problems, "problems": problems, "slower": slower})
    elif not problems:
        say((f"{name} is valid", "green"), f" for job {folder.job_id}")
        _warn_if_slower(slower)
    else:
        _say_problems(name, problems, out)
    sys.exit(1 if problems else 0)


@schedule_app.command("set", cls=PlainCommand)
@takes_directory
def schedule_set(
    job: Job,
    file: Annotated[Path, Argument(help="YAML file to put in force; - for standard input.")],
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Check a schedule and write it into the job's folder; in force within seconds if a daemon or rank 0 runs."""
    from pfo_fs.store import layout

    folder = find_job(job, shared_dir, writes=True)
    name, content = _yaml_of(folder, file)
    problems, slower = _problems(folder, content)
    _say_problems(name, problems, err)
    _warn_if_slower(slower)
    document = {"file": name, "written": not problems, "problems": problems, "slower": slower}
    if problems:
        if json_:
            print_json(document)
        sys.exit(1)
    folder.write_file(layout.YAML, content)
    tell_written(folder, f"written; {folder.location / layout.YAML_STATUS} shows when it is in force", document, json_)


def _job_and_ranks(folder: JobFolder) -> tuple[JobBody, list[RankInfo]]:
    body = folder.read_job()
    if body is None:
        fail(f"{folder.location}: job.json is not there")
    return body, [rank.rank_info for rank in folder.each_rank()]


def _yaml_of(folder: JobFolder, file: Path | None) -> tuple[str, bytes]:
    if file is not None:
        from pfo_fs.schedule_yaml.nodes import MAX_YAML_BYTES

        if str(file) == "-":
            return "-", sys.stdin.buffer.read(MAX_YAML_BYTES + 1)
        return str(file), read_user_file(file, MAX_YAML_BYTES, "a schedule")
    from pfo_fs.store import layout

    content = folder.read_file(layout.YAML)
    if content is None:
        fail(f"job {folder.job_id} has no schedule.yaml")
    return "schedule.yaml", content


def _problems(folder: JobFolder, content: bytes) -> tuple[list[dict[str, object]], float | None]:
    """Returns why the job would refuse a YAML, and by which share iterations would take longer (None: not known)."""
    from pfo_fs.coordination.rank_registry import RankRegistry
    from pfo_fs.errors import PlanError
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.verdict import expected_slowdown
    from pfo_fs.schedule_yaml import ScheduleProblems, parse_schedule_yaml

    body, infos = _job_and_ranks(folder)
    try:
        document = parse_schedule_yaml(content)
        document.check_straggler(body.job_info.dp_degree)
        data = collect_job(folder, newest=1)
        document.check_until(data.last_step + 1)
        planned = [schedule for window in data.windows for schedule in window.schedules.values()]
        schedules = document.resolve(body.job_info, infos, RankRegistry(folder, infos).orders(planned))
    except ScheduleProblems as error:
        return [{"line": problem.line, "reason": problem.reason} for problem in error.problems], None
    except PlanError as error:
        return [{"line": error.line, "reason": str(error)}], None
    try:
        return [], expected_slowdown(data, schedules) if document.has_clocks else None
    except PlanError:
        return [], None


def _say_problems(name: str, problems: list[dict[str, object]], to: Console) -> None:
    for problem in problems:
        where = f":{problem['line']}" if problem["line"] else ""
        say((f"{name}{where}:", "bold red"), f" {problem['reason']}", to=to)


def _warn_if_slower(share: float | None) -> None:
    from pfo_fs.reports.verdict import MUCH_SLOWER

    if share is not None and share > MUCH_SLOWER:
        longer = f"about {100 * share:.0f} % longer than at max clocks, by what this job has measured"
        say(("warning: ", "yellow"), f"iterations would take {longer}", to=err)


def target(
    job: Job,
    slowdown: SlowdownOption = None,
    deadline: DeadlineOption = None,
    power: PowerOption = None,
    none: Annotated[bool, Option("--none", "--gone", help="Remove it: the scheduler's own holds again.")] = False,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Change the target of a running job; all ranks switch to the new plan at the same step."""
    from pfo_fs.models import Target
    from pfo_fs.reports.verdict import cannot_keep
    from pfo_fs.store import bodies

    given = {"slowdown": slowdown, "deadline": deadline, "power": power}
    asked: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if none + len(asked) != 1:
        wrong_usage("give exactly one of --slowdown, --deadline, --power and --none")
    request = None if none else _checked(Target, asked)
    folder = find_job(job, shared_dir, writes=True)
    if request is not None and (why := cannot_keep(Target.model_validate(asked), folder.read(bodies.ModelBody))):
        say(("warning: ", "yellow"), f"this target is impossible: {why}", to=err)
    _write(folder, "target", request, json_)


def straggler(
    job: Job,
    slowdown: Annotated[float | None, Option(help="How many times as long its iterations will take: 1.2.")] = None,
    pipeline: Annotated[int | None, Option(help="Its data-parallel rank; default: not part of this job.")] = None,
    gone: Annotated[bool, Option("--gone", "--none", help="It is as fast as before: end the announcement.")] = False,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Announce a straggler: other pipelines, which have to wait for it anyway, get slower plans that save energy."""
    from pfo_fs.models import MOST_STRAGGLING, Straggler, implausible

    if gone == (slowdown is not None):
        wrong_usage("give either --slowdown or --gone")
    folder = find_job(job, shared_dir, writes=True)
    request = None
    if slowdown is not None:
        request = _checked(Straggler, {"slowdown": slowdown, "pipeline": pipeline})
        if problem := implausible(slowdown, MOST_STRAGGLING):
            wrong_usage(f"--slowdown: {problem}")
        body = folder.read_job()
        if pipeline is not None and body is not None and pipeline >= body.job_info.dp_degree:
            wrong_usage(f"--pipeline {pipeline}: the job has pipelines 0 to {body.job_info.dp_degree - 1}")
    _write(folder, "straggler", request, json_)


def _checked(model: type[BaseModel], values: dict[str, object]) -> dict[str, object]:
    """Returns options as the model takes them; fails with the first option that it refuses."""
    from pydantic import ValidationError

    try:
        return model.model_validate(values).model_dump(exclude_none=True)
    except ValidationError as error:
        option, problem = first_problem(error)
        wrong_usage(f"--{option or next(iter(values))}: {problem}")


def _write(folder: JobFolder, key: str, request: dict[str, object] | None, as_json: bool) -> None:
    """Writes a request, target or straggler, into `schedule.yaml`, or removes it; the other request stays."""
    from pfo_fs.errors import PlanError
    from pfo_fs.schedule_yaml import parse_schedule_yaml
    from pfo_fs.store import layout

    path = folder.location / layout.YAML
    content = folder.read_file(layout.YAML)
    requests: dict[str, object] = {}
    if content is not None:
        try:
            document = parse_schedule_yaml(content)
        except PlanError as error:
            fail(f"{path} is not valid ({error}); correct or remove it first")
        if document.has_clocks:
            fail(f"{path} sets clocks, so the scheduler does not plan this job; remove the file first")
        for name, known in (("target", document.target), ("straggler", document.straggler)):
            if known is not None:
                requests[name] = known.model_dump(exclude_none=True)
    requests.pop(key, None)
    if request is not None:
        requests[key] = request
    if requests:
        text = yaml.safe_dump(requests, sort_keys=False, default_flow_style=None)
        folder.write_file(layout.YAML, (_HEAD + text).encode())
    else:
        folder.remove_file(layout.YAML)
    text = f"written; {folder.location / layout.YAML_STATUS} shows when it is applied" if requests else "removed"
    tell_written(folder, text, {"file": str(path), "requests": requests}, as_json)
