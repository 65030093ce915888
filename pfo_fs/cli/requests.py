"""`pfo-fs target` and `pfo-fs straggler`: change the target of a running job, or announce a straggler.

Both write a key of the job's `schedule.yaml`, which can also be edited by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from pfo_fs.cli.jobs import Job, find_job, tell_written
from pfo_fs.cli.terminal import JsonFlag, SharedDirOption, fail, plausible_slowdown, wrong_usage
from pfo_fs.errors import first_problem

if TYPE_CHECKING:
    from pfo_fs.store import JobFolder

_HEAD = "# Written by `pfo-fs target` and `pfo-fs straggler`; edit it, or remove it, at any time.\n"


def target(
    job: Job,
    slowdown: Annotated[
        float | None,
        typer.Option(
            callback=plausible_slowdown,
            help="How many times as long an iteration may take as at max clocks: 1.05.",
        ),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Longest iteration in s.")] = None,
    power: Annotated[float | None, typer.Option(help="Highest average power in W, all GPUs of the job.")] = None,
    none: Annotated[
        bool,
        typer.Option("--none", "--gone", help="Remove the target: that of the scheduler's arguments holds again."),
    ] = False,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Change the target of a running job; all ranks switch to the new plan at the same step."""
    from pydantic import ValidationError

    from pfo_fs.models import Target

    given = {"slowdown": slowdown, "deadline": deadline, "power": power}
    asked = {name: value for name, value in given.items() if value is not None}
    if none + len(asked) != 1:
        wrong_usage("give exactly one of --slowdown, --deadline, --power and --none")
    try:
        request = None if none else Target.model_validate(asked)
    except ValidationError as error:
        wrong_usage(f"--{next(iter(asked))}: {first_problem(error)[1]}")
    _write(find_job(job, shared_dir, writes=True), "target", None if request is None else asked, json_)


def straggler(
    job: Job,
    slowdown: Annotated[
        float | None, typer.Option(help="How many times as long its iterations will take: 1.2.")
    ] = None,
    pipeline: Annotated[
        int | None, typer.Option(help="Data-parallel rank of the straggler; default: it is not part of this job.")
    ] = None,
    gone: Annotated[
        bool, typer.Option("--gone", "--none", help="The straggler is as fast as before: remove the announcement.")
    ] = False,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Announce a straggler: other pipelines, which have to wait for it anyway, get slower plans that save energy."""
    from pydantic import ValidationError

    from pfo_fs.models import MOST_STRAGGLING, Straggler, implausible

    if gone == (slowdown is not None):
        wrong_usage("give either --slowdown or --gone")
    folder = find_job(job, shared_dir, writes=True)
    request = None
    if slowdown is not None:
        try:
            request = Straggler(slowdown=slowdown, pipeline=pipeline).model_dump(exclude_none=True)
            if problem := implausible(slowdown, MOST_STRAGGLING):
                wrong_usage(f"--slowdown: {problem}")
        except ValidationError as error:
            wrong_usage(f"--{': '.join(first_problem(error))}")
        body = folder.read_job()
        if pipeline is not None and body is not None and pipeline >= body.job_info.dp_degree:
            wrong_usage(f"--pipeline {pipeline}: the job has pipelines 0 to {body.job_info.dp_degree - 1}")
    _write(folder, "straggler", request, json_)


def _write(folder: JobFolder, key: str, request: dict[str, Any] | None, as_json: bool) -> None:
    """Writes a request into `schedule.yaml` beside the other one, or removes it."""
    from pfo_fs.errors import PlanError
    from pfo_fs.schedule_yaml import parse_schedule_yaml
    from pfo_fs.store import layout

    path = folder.location / layout.YAML
    content = folder.read_file(layout.YAML)
    requests: dict[str, Any] = {}
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
        folder.remove_yaml()
    text = f"written; {folder.location / layout.YAML_STATUS} shows when it is applied" if requests else "removed"
    tell_written(folder, text, {"file": str(path), "requests": requests}, as_json)
