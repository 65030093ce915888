"""`pfo-fs schedule show|check|set`: shows, checks and sets the schedule of a running job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfo_fs.cli.jobs import Job, find_job, tell_written
from pfo_fs.cli.terminal import JsonFlag, PlainCommand, SharedDirOption, err, fail, print_json, say
from pfo_fs.user_files import read_user_file

if TYPE_CHECKING:
    from pfo_fs.store import JobFolder

schedule_app = typer.Typer(help="Show, check and set the schedule of a running job.", no_args_is_help=True)


@schedule_app.command("show", cls=PlainCommand)
def schedule_show(job: Job, shared_dir: SharedDirOption = None, json_: JsonFlag = False) -> None:
    """Print the schedule in force, as YAML that can be edited and then set."""
    from pfo_fs.schedule_yaml import format_schedule_yaml
    from pfo_fs.store import bodies

    folder = find_job(job, shared_dir)
    job_body, infos = _job_and_ranks(folder)
    current = folder.read(bodies.CurrentBody)
    index = (
        folder.read(bodies.IndexBody, number=current.number) if current is not None and current.number >= 0 else None
    )
    if current is None or index is None:
        fail(f"job {folder.job_id} has no schedule yet" + (f": {current.message}" if current else ""))
    schedules = [schedule for info in infos if (schedule := folder.read_schedule(index, info)) is not None]
    if json_:
        document = {
            "job_id": folder.job_id,
            "number": index.number,
            "from_step": current.start_step,
            "source": index.source.model_dump(),
            "schedules": [schedule.model_dump() for schedule in schedules],
        }
        print_json(document)
        return
    comment = f"job {folder.job_id}, schedule {index.number} ({index.source.kind}), from step {current.start_step}"
    print(format_schedule_yaml(schedules, infos, job_body.job_info, comment=comment), end="")  # noqa: T201


@schedule_app.command("check", cls=PlainCommand)
def schedule_check(
    job: Job,
    file: Annotated[
        Path | None, typer.Argument(help="YAML file, - for standard input; default: the job's schedule.yaml.")
    ] = None,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Check whether a job would accept a schedule; exit code 1 if not."""
    folder = find_job(job, shared_dir)
    name, content = _yaml_of(folder, file)
    problems = _problems(folder, content)
    if json_:
        print_json({"file": name, "ok": not problems, "problems": problems})
    elif not problems:
        say((f"{name} is valid", "green"), f" for job {folder.job_id}")
    else:
        for problem in problems:
            where = f":{problem['line']}" if problem["line"] else ""
            say((f"{name}{where}:", "bold red"), f" {problem['reason']}")
    sys.exit(1 if problems else 0)


@schedule_app.command("set", cls=PlainCommand)
def schedule_set(
    job: Job,
    file: Annotated[Path, typer.Argument(help="YAML file to put in force; - for standard input.")],
    shared_dir: SharedDirOption = None,
    force: Annotated[bool, typer.Option(help="Write it even if the job would refuse it.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Check a schedule and write it into the job's folder; in force within seconds if a daemon or rank 0 runs."""
    from pfo_fs.store import layout

    folder = find_job(job, shared_dir, writes=True)
    name, content = _yaml_of(folder, file)
    problems = _problems(folder, content)
    for problem in problems:
        say((f"{name}:{problem['line']}:", "bold red"), f" {problem['reason']}", to=err)
    written = force or not problems
    if written:
        folder.write_file(layout.YAML, content)
    document = {"file": name, "written": written, "problems": problems}
    if not written:
        if json_:
            print_json(document)
        sys.exit(1)
    tell_written(folder, f"written; {folder.location / layout.YAML_STATUS} shows when it is in force", document, json_)


def _job_and_ranks(folder: JobFolder) -> tuple[Any, list[Any]]:
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


def _problems(folder: JobFolder, content: bytes) -> list[dict[str, Any]]:
    from pfo_fs.coordination.rank_registry import RankRegistry
    from pfo_fs.errors import PlanError
    from pfo_fs.schedule_yaml import ScheduleProblems, parse_schedule_yaml

    job_body, infos = _job_and_ranks(folder)
    try:
        parse_schedule_yaml(content).resolve(job_body.job_info, infos, RankRegistry(folder, infos).orders())
    except ScheduleProblems as error:
        return [{"line": problem.line, "reason": problem.reason} for problem in error.problems]
    except PlanError as error:
        return [{"line": error.line, "reason": str(error)}]
    return []
