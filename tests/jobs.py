"""Jobs as ranks see them, without training: real records in a real directory."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.store import Files, JobFolder, RecordFolder, SharedDirectory, bodies

CLOCKS = list(range(1410, 195, -15))


def rank_infos(pp: int, dp: int = 1, tp: int = 1, clocks: list[int] | None = None) -> list[RankInfo]:
    """Ranks in the order of a (pp, dp, tp) mesh."""
    return [
        RankInfo(
            rank=(p * dp + d) * tp + t,
            dp_rank=d,
            pp_rank=p,
            tp_rank=t,
            available_frequencies=CLOCKS if clocks is None else clocks,
        )
        for p in range(pp)
        for d in range(dp)
        for t in range(tp)
    ]


def make_job(
    root: Path, pp: int, dp: int = 1, *, coordination: str = "auto", attempt: str = "attempt", **fields: object
) -> JobFolder:
    """A job's folder with `job.json`, as rank 0's helper makes it."""
    info = JobInfo(pp_degree=pp, dp_degree=dp, tp_degree=1, world_size=pp * dp)
    info.set_job_id("Test")
    body = bodies.JobBody.model_validate({"job_info": info.model_dump(), "coordination": coordination, **fields})
    return SharedDirectory(Files(root, create=True), "test").create_job(body, attempt)


def rank_body(rank: int = 0, nonce: str = "", **more: Any) -> bodies.RankBody:
    """What a rank of a pipeline registers."""
    info = rank_infos(rank + 1)[rank]
    return bodies.RankBody.model_validate({"rank_info": info, "nonce": nonce or f"n{rank}", "host": "node1", **more})


def result_body(rank: int = 0, time_s: float = 1.0, **more: Any) -> bodies.ResultBody:
    """What a rank measures in two iterations."""
    result = ProfilingResult(rank=rank, iter_time=[time_s] * 2, iter_energy=[100.0] * 2)
    return bodies.ResultBody(result=result, **more)


def daemon_body(counter: int = 1, **more: Any) -> bodies.DaemonBody:
    """What a daemon on another host says."""
    about = {"generation": 1, "host": "there", "pid": 1, "version": "1", "scheduler": "Manual", "interval_s": 1.0}
    return bodies.DaemonBody.model_validate({**about, "counter": counter, **more})


def leader_body(generation: int = 1, nonce: str = "other") -> bodies.LeaderBody:
    """The claim of a daemon on another host."""
    return bodies.LeaderBody(generation=generation, nonce=nonce, host="there", pid=1)


def register(folder: JobFolder, infos: list[RankInfo] | None = None) -> JobFolder:
    """Registers ranks, by default all of the job, with a file for each; returns the folder."""
    job = folder.read_job()
    assert job is not None
    for info in infos or rank_infos(job.job_info.pp_degree, job.job_info.dp_degree):
        folder.register_ranks([bodies.RankBody(rank_info=info, nonce=f"n{info.rank}")])
    return folder


def write_results(folder: JobFolder, number: int, infos: list[RankInfo], time_s: float = 1.0) -> None:
    for info in infos:
        folder.write_results(number, [result_body(info.rank, time_s)])


def results_by_rank(folder: JobFolder, number: int) -> dict[int, bodies.ResultBody]:
    """What ranks have measured under a schedule, ascending by rank."""
    found = [
        body
        for name in folder.numbers(bodies.ResultsBody, number=number)
        for body in folder.read_results(number, name) or ()
    ]
    return {body.result.rank: body for body in sorted(found, key=lambda body: body.result.rank)}


def write_step(folder: JobFolder, step: int, iter_time_s: float = 0.1, number: int = -1) -> None:
    """Progress of rank 0."""
    progress = bodies.RankProgress(rank=0, step=step, iter_time=iter_time_s, number=number)
    folder.write(bodies.ProgressBody(ranks=[progress]))


def one_f_one_b(stage: int, stages: int, microbatches: int, mhz: int) -> list[tuple[str, int]]:
    """The instructions of a stage in a 1F1B schedule, all at one clock."""
    warm_up = min(stages - stage - 1, microbatches)
    steady = microbatches - warm_up
    names = ["forward"] * warm_up + ["forward", "backward"] * steady + ["backward"] * warm_up
    return [(name, mhz) for name in names]


def plan_text(stages: int, microbatches: int, mhz: int) -> str:
    """A plan as lowtime writes it."""
    rows = ",\n".join(str(one_f_one_b(stage, stages, microbatches, mhz)) for stage in range(stages))
    return f"[\n{rows},\n]\n# Iteration 0 time: 1.0\n"


def leader_record(root: Path) -> bodies.DaemonBody | None:
    return SharedDirectory(Files(root, create=True)).read_daemon()


def number_of(folder: JobFolder) -> int:
    """The schedule that `current.json` names; -1 without any."""
    current = folder.read(bodies.CurrentBody)
    return -1 if current is None else current.number


def current_of(folder: JobFolder) -> bodies.CurrentBody:
    current = folder.read(bodies.CurrentBody)
    assert current is not None, "there is no current.json"
    return current


def index_of(folder: JobFolder, number: int) -> bodies.IndexBody:
    index = folder.read(bodies.IndexBody, number=number)
    assert index is not None, f"schedule {number} was not committed"
    return index


def schedules_of(folder: JobFolder, infos: list[RankInfo]) -> dict[int, FrequencySchedule | None]:
    """What every rank would follow now."""
    index = index_of(folder, current_of(folder).number)
    return {info.rank: folder.read_schedule(index, info) for info in infos}


def schedule_of(folder: JobFolder, info: RankInfo) -> FrequencySchedule:
    """What a rank follows now; it has a schedule."""
    schedule = schedules_of(folder, [info])[info.rank]
    assert schedule is not None, f"rank {info.rank} has no schedule"
    return schedule


@contextmanager
def living_daemon(root: Path) -> Iterator[None]:
    """A daemon's heartbeat in the directory, as commands see it."""
    shared, ends = SharedDirectory(Files(root), "daemon"), threading.Event()

    def beat() -> None:
        counter = 1
        while not ends.wait(0.05):
            counter += 1
            shared.write(daemon_body(counter, interval_s=0.2))

    shared.write(daemon_body(interval_s=0.2))  # before a command can look
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def instead_of(
    monkeypatch: pytest.MonkeyPatch, method: str, model: type, call: Callable[[Callable[[], Any], Any], Any]
) -> None:
    """Where records of a type are read or written, calls `call` with what does that, and the numbers or the body."""
    given = getattr(RecordFolder, method)

    def patched(folder: RecordFolder, what: Any, **place: Any) -> Any:
        is_meant = model in (what, type(what))
        do = partial(given, folder, what, **place)
        return call(do, place if isinstance(what, type) else what) if is_meant else do()

    monkeypatch.setattr(RecordFolder, method, patched)
