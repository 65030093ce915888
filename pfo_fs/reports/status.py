"""What `pfo-fs status` shows: the state of daemon and jobs in the shared directory, on one screen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.text import Text

from pfo_fs.coordination import read_site_policy
from pfo_fs.errors import RecordError, StoreError, plain_text
from pfo_fs.reports.collect import JobState, Quietly, read_state
from pfo_fs.reports.verdict import MUCH_SLOWER, verdict_of
from pfo_fs.reports.wording import energy_text, switching_of, switching_text, term_text
from pfo_fs.store import JobFolder, OffSwitch, SharedDirectory, SwitchedOff, bodies, layout

_STATE_STYLE = {"running": "green", "waiting": "yellow", "broken": "bold red", "ended": "dim"}
_quietly = Quietly([])
"""What cannot be read is left out of the screen, unless it is a job's."""
_HEARTBEAT_WAIT_S = 1.5
_LOCAL_SIGN_WITHIN_S = 8.0
_MOST_FOLDERS, _MOST_ENDED = 500, 5
_MOST_SECONDS = 10.0
_MOST_HOSTS = 2000
"""Progress is read from at most this many hosts of a job."""


def collect_status(shared: SharedDirectory, live: int = 50) -> dict[str, Any]:
    """Reads the state of daemon and jobs, the newest jobs first.

    Reads at most 500 folders and for about 10 s; `folders_without_job` counts those of them that hold no job, and
    `jobs_not_shown` all other jobs and folders that are not in the result.
    """
    told, since_s = _daemon(shared), time.monotonic()
    switch = OffSwitch(shared.files)
    switched = _quietly(switch.read) or SwitchedOff()
    ids = shared.newest_job_ids()
    running: list[dict[str, Any]] = []
    over: list[dict[str, Any]] = []
    empty = 0
    for job_id in ids[:_MOST_FOLDERS]:
        if len(running) == live or time.monotonic() - since_s > _MOST_SECONDS:
            break
        folder = shared.job(job_id)
        names = _quietly(folder.names) or set()
        if layout.JOB not in names:
            empty += 1
        elif layout.END not in names:
            running.append(describe_job(folder, switched)[0])
        elif len(over) < _MOST_ENDED:
            over.append(describe_job(folder, switched)[0])
    daemon = None if told is None else _with_sign_of_life(shared, told, since_s)
    return {
        "shared_dir": plain_text(str(shared.files.root)),
        "daemon": daemon,
        "site_problem": site.problem if (site := _quietly(read_site_policy, shared)) else "",
        "off": switched.everything,
        "off_about": switch.about(layout.EVERY_JOB) if switched.everything else "",
        "jobs": running + over,
        "folders_without_job": empty,
        "jobs_not_shown": len(ids) - len(running) - len(over) - empty,
        "archived_jobs": len(shared.archived_job_ids()),
    }


def _with_sign_of_life(shared: SharedDirectory, told: bodies.DaemonBody, since_s: float) -> dict[str, Any]:
    """The daemon's record, and whether its counter changes within 1.5 s; the times of two hosts are not compared."""
    alive = False
    while not told.stopped and not alive:
        newer = _daemon(shared)
        if newer is not None and (newer.generation, newer.counter) != (told.generation, told.counter):
            alive, told = not newer.stopped, newer
        elif time.monotonic() - since_s >= _HEARTBEAT_WAIT_S:
            break
        else:
            time.sleep(0.1)
    return {**told.model_dump(), "alive": alive}


def who_applies(shared: SharedDirectory, folder: JobFolder) -> str:
    """Returns which process would apply a change of a job's `schedule.yaml`; empty if none shows that it runs.

    A daemon shows it by its heartbeat. Rank 0 of a job that schedules itself, by a new record within some seconds.
    """
    job, claim = _quietly(folder.read_job), _quietly(folder.read, bodies.ClaimBody)
    if job is not None and job.coordination == "none":
        return ""
    if claim is None or claim.kind == "daemon":
        told = _daemon(shared)
        alive = told is not None and _with_sign_of_life(shared, told, time.monotonic())["alive"]
        return "daemon" if alive else ""
    signs = (f"{layout.PROGRESS}/0.json", layout.YAML_STATUS, layout.CURRENT)

    def seen() -> list[bytes | None]:
        return [_quietly(folder.files.read, f"{folder.path}/{name}", layout.RECORD_LIMIT) for name in signs]

    before, until_s = seen(), time.monotonic() + _LOCAL_SIGN_WITHIN_S
    while seen() == before:
        if time.monotonic() > until_s:
            return ""
        time.sleep(0.2)
    return "rank 0"


def describe_job(folder: JobFolder, switched: SwitchedOff | None = None) -> tuple[dict[str, Any], JobState | None]:
    """Returns the state of one job as plain data, and as it was read; `problem` in it names what cannot be read.

    What is switched off in the directory is read unless it is given.
    """
    switched = switched or _quietly(OffSwitch(folder.files).read) or SwitchedOff()
    row: dict[str, Any] = {"job_id": folder.job_id, "state": "waiting", "problem": ""}
    row["off"] = switched.covers(folder.job_id)
    try:
        state = read_state(folder, _MOST_HOSTS)
        row |= _about(state)
        number = row.get("schedule")
        index = None if number is None else _quietly(folder.read, bodies.IndexBody, number=number)
        verdict = verdict_of(state)
        row |= verdict._asdict() | {name: getattr(verdict, name) for name in ("saved_text", "slower_text", "harm")}
        row["term"] = term_text(index, row["step"]) if index is not None else ""
        return {**row, "ranks_registered": len(folder.numbers(bodies.RanksBody))}, state
    except (RecordError, StoreError) as error:
        return {**row, "problem": str(error.args[-1])}, None


def _about(state: JobState) -> dict[str, Any]:
    """What a job's own records say of it, as plain data."""
    info, ranks, current, end = state.job.job_info, state.progress, state.current, state.end
    times = [rank.iter_time for rank in ranks if rank.iter_time is not None]
    energies = [rank.iter_energy for rank in ranks if rank.iter_energy is not None]
    row: dict[str, Any] = {
        "problem": next(iter(state.unreadable), ""),
        **info.model_dump(include={"world_size", "pp_degree", "dp_degree", "tp_degree"}),
        "started": state.job.started,
        "coordination": state.claim.kind if state.claim else None,
        "held_ranks": sorted(rank.rank for rank in ranks if rank.held),
        "ranks": [rank.model_dump() for rank in sorted(ranks, key=lambda rank: rank.rank)],
        "step": max((rank.step for rank in ranks), default=-1),
        "iter_time_s": max(times, default=None),
        "iter_energy_j": sum(energies) if energies and len(energies) == info.world_size else None,
        "last_error": next(
            (rank.error for rank in sorted(ranks, key=lambda rank: not rank.undo_owed) if rank.error), ""
        ),
        "clocks_mhz": sorted({rank.clock_mhz for rank in ranks if rank.clock_mhz and not rank.held}),
        "undo_owed": sum(rank.undo_owed for rank in ranks),
        "undo_failures": sum(rank.undo_failures for rank in ranks),
        "switching": switching_of(ranks),
        "loads": state.loads.model_dump() if state.loads is not None else None,
        "clock_backends": dict(Counter(rank.clock_backend for rank in ranks if rank.clock_backend)),
    }
    like_the_last = row["iter_energy_j"] and row["iter_energy_j"] * (row["step"] + 1)
    row["energy_j"] = (state.loads and state.loads.energy_j) or like_the_last
    if state.job.coordination == "none":
        row |= {"state": "running", "coordination": "none", "sets": state.job.scheduler}
    if current is not None:
        by_scheduler = current.source is None or current.source.kind == "scheduler"
        row |= {
            **current.model_dump(include={"state", "message", "yaml_problem", "converged"}),
            "status_text": current.status_text if by_scheduler else "",
            "schedule": current.number if current.number >= 0 else None,
            "schedule_source": current.source.kind if current.source else None,
            "from_step": current.start_step,
        }
    if end is not None:
        row |= {
            "state": "ended",
            "end_reason": end.reason,
            "end_text": state.text,
            "message": end.message or row.get("message", ""),
        }
    return row


_HEADS = ["state", "saved", "slower", "clocks now", "energy so far", "job"]
"""The job is the last column, since its name is long: where a screen is too narrow, it goes on in the next line."""


def render(state: dict[str, Any], verbose: bool = False) -> Group:
    """Returns the screen; `verbose`: with the details of each job."""
    daemon = state["daemon"]
    line = Text()
    line.append(state["shared_dir"], style="bold")
    line.append("   daemon: ")
    if daemon is None:
        scheduled = any(job.get("coordination") == "daemon" for job in state["jobs"])
        line.append("its record is missing" if scheduled else "none has run here", style="yellow")
    elif daemon["alive"]:
        line.append(f"{daemon['host']}:{daemon['pid']}", style="green")
        line.append(f", generation {daemon['generation']}, {daemon['scheduler']}, pfo-fs {daemon['version']}")
    elif daemon["stopped"]:
        line.append(f"stopped (was {daemon['host']}:{daemon['pid']}); schedules stay as they are", style="yellow")
    else:
        line.append(f"silent (was {daemon['host']}:{daemon['pid']})", style="bold red")
    if state["archived_jobs"]:
        line.append(f"   {state['archived_jobs']} archived", style="dim")

    if state["site_problem"]:
        line.append(f"\n{state['site_problem']}; its rules are not in force", style="bold yellow")
    if state["off"]:
        line.append("\nall jobs are switched off", style="bold yellow")
        line.append(f" ({state['off_about'] or 'off/all is there'}); `pfo-fs on --all` ends that", style="yellow")

    rest = []
    if state["folders_without_job"]:
        rest.append(f"{state['folders_without_job']:,} folders without job.json")
    if state["jobs_not_shown"]:
        rest.append(f"{state['jobs_not_shown']:,} more jobs, older or over")
    if not state["jobs"]:
        rest.insert(0, "no jobs")
    rows = [_HEADS, *(_row(job) for job in state["jobs"])]
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)][:-1]
    rows = [[*map(str.ljust, row, widths), row[-1]] for row in rows]
    parts = [Text("".join(rows[0]), style="dim")] if state["jobs"] else []
    for job, row in zip(state["jobs"], rows[1:], strict=True):
        red = "bold red" * ((job.get("slower") or 0.0) > MUCH_SLOWER)
        styles = [_STATE_STYLE.get(job["state"], ""), "", red, "", "", "bold"]
        parts += [Text.assemble(*zip(row, styles, strict=True)), *_render_job(job, verbose)]
    return Group(line, *parts, *([Text("; ".join(rest), style="dim")] if rest else []))


def _row(job: dict[str, Any]) -> list[str]:
    """The cells of a job in the table."""
    over, switched = job["state"] == "ended", job.get("off")
    clocks, ways = job.get("clocks_mhz") or [], job.get("clock_backends", {})
    now = f"{clocks[0]:,}" if len(clocks) == 1 else f"{clocks[0]:,}–{clocks[-1]:,}" if clocks else ""
    now = f"{now} MHz" if now else "not set" if ways and set(ways) == {"none"} else "default"
    return [
        job.get("end_text") or ("off" if switched else job["state"]),
        *("–" if switched and not over else job.get(name, "–") for name in ("saved_text", "slower_text")),
        "–" if over or not job.get("ranks") else now,
        f"~{energy_text(job['energy_j'])}" if job.get("energy_j") else "–",
        job["job_id"],
    ]


def _render_job(job: dict[str, Any], verbose: bool) -> list[Text]:
    """Returns lines with what a person should know of a job; with all that is known, if `verbose`."""
    lines, over = [], bool(job.get("end_reason"))
    if job.get("off") and not over:
        lines.append(Text(f"  switched off: {held_text(job)}", style="bold yellow"))
    if job.get("harm") and not over and not job.get("off"):
        lines.append(Text(f"  {job['harm']}", style="bold red"))
    if verbose:
        lines += [Text(f"  {text}", style="cyan") for text in _details(job) if text]
    if job.get("undo_owed"):
        text = f"{job['undo_owed']} GPU setting(s) could not be put back yet ({job['undo_failures']} attempts failed)"
        lines.append(Text(f"  {text}", style="bold red"))
    refused = job.get("yaml_problem") and f"schedule.yaml refused: {job['yaml_problem']}"
    texts = dict.fromkeys(filter(None, (job["problem"], job.get("message"), refused, job.get("last_error"))))
    texts.pop(job.get("end_reason") or "", None)
    lines.extend(Text(f"  {text}", style="red" if job["state"] == "broken" else "yellow") for text in texts)
    return lines


def _details(job: dict[str, Any]) -> Iterator[str]:
    """Who schedules a job, what runs, and the texts of the scheduler and of the clock processes."""
    schedule, ways = job.get("schedule"), job.get("clock_backends", {})
    without = f"sets a {job['sets'].replace('_', ' ')}" if job.get("sets") else "no schedule"
    facts = [
        f"scheduled by: {job.get('coordination') or 'no process'}",
        f"{job.get('ranks_registered', 0)}/{job.get('world_size', '?')} ranks",
        without if schedule is None else f"schedule {schedule} ({job['schedule_source']})",
        f"step {job['step']}" if job.get("step", -1) >= 0 else "",
    ]
    yield ", ".join(filter(None, facts))
    yield job.get("status_text") or ""
    if (loads := job.get("loads")) is not None:
        yield loads["text"]
    if not job.get("end_reason"):
        yield f"schedule {schedule}: {job['term']}" if job.get("term") else ""
        counts = (f"{way} ({n} rank{'s' * (n > 1)})" if len(ways) > 1 else way for way, n in sorted(ways.items()))
        yield f"clocks set through: {', '.join(counts)}" if ways else ""
        yield switching_text(job["switching"]) if job.get("switching") else ""


def held_text(job: dict[str, Any]) -> str:
    """Says how many ranks of a job have let go of their clocks."""
    held, size = len(job.get("held_ranks", ())), job.get("world_size", "?")
    missing = sorted(set(range(size)) - set(job.get("held_ranks", ()))) if isinstance(size, int) else []
    if not missing:
        return f"all {size} ranks are at default clocks"
    first = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return f"{held} of {size} ranks report default clocks; not yet: {first}"


def _daemon(shared: SharedDirectory) -> bodies.DaemonBody | None:
    return _quietly(shared.read_daemon)
