"""All ranks of a job hear of what went wrong on any of them, and none waits for one that has given up."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import HANGS_AFTER_S, wait_for

from pfo_fs.errors import AlreadyClaimed, ConfigError, CoordinationError, DeviceError
from pfo_fs.guard import Guard, WarnOnce
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc.collectives import Collectives, agree
from pfo_fs.ipc.messages import JoinJob
from pfo_fs.training import joining
from pfo_fs.training.job_request import JobRequest, checked_settings
from pfo_fs.training.joining import JobJoiner, JoinedJob
from pfo_fs.training.parallel_dims import find_parallel_dims
from pfo_fs.training.schedule_feed import ScheduleSwitcher

RANKS = 3


class ThreadCollectives(Collectives):
    """The collectives of one thread; a rank that waits for ever is an error after `HANGS_AFTER_S`."""

    def __init__(self, rank: int, exchange: Any) -> None:
        super().__init__(rank, RANKS, None)
        self._exchange = exchange

    def all_gather(self, value: Any) -> list[Any]:
        self._exchange.values[self.rank] = value
        self._exchange.barrier.wait(HANGS_AFTER_S)
        values = [self._exchange.values[rank] for rank in range(RANKS)]
        self._exchange.barrier.wait(HANGS_AFTER_S)
        return values

    def from_rank_0(self, value: Any) -> Any:
        return self.all_gather(value)[0]

    def gather_to_rank_0(self, value: Any) -> list[Any]:
        values = self.all_gather(value)
        return values if self.rank == 0 else []


def join_all(
    tmp_path: Path,
    refusing_rank: int | None = None,
    strict: Any = False,
    make_parts: Callable[[int], Any] = lambda _: None,
    **changed: Any,
) -> list[JoinedJob | BaseException]:
    """Joins all ranks of a job; `strict` and `changed` may give a value for one rank as `{rank: value}`."""
    # What `torch.distributed` does for the ranks, which are threads here.
    exchange = SimpleNamespace(barrier=threading.Barrier(RANKS), values={})
    results: list[Any] = [None] * RANKS

    def join(rank: int) -> None:
        collectives = ThreadCollectives(rank, exchange)
        given = {
            "shared_dir": str(tmp_path / "pfo"),
            "settings": checked_settings("daemon", None, None, None),
            "own_scheduler": False,
            "coordination": "daemon",
            "job_metadata": None,
            "device": rank,
            "wait_for_schedule_s": 0.0,
        }
        guard = Guard(lambda _: None, strict=strict.get(rank, False) if isinstance(strict, dict) else strict)
        for name, value in changed.items():
            given[name] = value.get(rank, given[name]) if isinstance(value, dict) else value
        try:
            error = ConfigError("pp_degree is not known") if rank == refusing_rank else None
            agree(collectives, error, guard)
            dims = find_parallel_dims(rank=rank, world_size=RANKS, pp_degree=RANKS)
            warn = WarnOnce()
            switcher = ScheduleSwitcher(lambda _: None, lambda _: None)
            link, request = HelperLink(warn), JobRequest(**given)
            joiner = JobJoiner(dims, request, collectives, link, switcher, warn, strict=guard.strict)
            results[rank] = joiner.join(lambda _: make_parts(rank))
            joiner.link.close()
            results[rank].clocks.close()
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=join, args=(rank,), name=f"rank {rank}") for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * HANGS_AFTER_S)
    return results


@pytest.fixture(autouse=True)
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path / "sim"))


def error_of_all(results: list[JoinedJob | BaseException]) -> tuple[type, str]:
    """The error that is the same on all ranks."""
    (one,) = {(type(result), str(result)) for result in results}
    assert issubclass(one[0], Exception), results
    return one


def test_another_directory_than_the_first_rank_of_the_host_has_given_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    join_all(tmp_path, shared_dir={2: str(tmp_path / "other")}, coordination="local")
    assert f"rank 2: {tmp_path}/other is not used: the first rank of this host has given {tmp_path}/pfo" in caplog.text


def test_rank_0_names_the_ranks_that_do_not_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pfo_fs.ipc.collectives._MISSING_AFTER_S", 0.0)
    here: dict[str, str] = {}
    store = SimpleNamespace(set=here.__setitem__, check=lambda keys: keys[0] in here)
    dist = SimpleNamespace(distributed_c10d=SimpleNamespace(_get_default_store=lambda: store))
    with Collectives(0, RANKS, dist).naming_missing():
        wait_for(lambda: caplog.text)
    assert "waits for rank 1, 2: all ranks" in caplog.text


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("gpu", DeviceError, "rank 2: there is no such GPU"),
        ("registration", AlreadyClaimed, "another process is rank 2"),
    ],
)
def test_what_fails_on_one_rank_is_one_warning_and_with_strict_the_same_error_on_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    kind: type,
    said: str,
    strict: bool,
) -> None:
    original = HelperClient.request

    def find(device: int | None) -> str:
        if device == 2:
            raise DeviceError("there is no such GPU")
        return "simulated:joining"

    def request(client: HelperClient, message: Any, reply: Any, timeout_s: float) -> Any:
        if isinstance(message, JoinJob) and threading.current_thread().name == "rank 2":
            raise AlreadyClaimed("another process is rank 2")
        return original(client, message, reply, timeout_s)

    if what == "gpu":
        monkeypatch.setattr(joining, "find_gpu_spec", find)
    else:
        monkeypatch.setattr(HelperClient, "request", request)
    jobs = join_all(tmp_path, strict=strict)
    if strict:
        raised, text = error_of_all(jobs)
        assert (raised, said in text) == (kind, True)
    else:
        assert all(isinstance(job, JoinedJob) for job in jobs), jobs
        assert len({job.job_id for job in jobs}) == 1, "all join one job"
        warnings = [record.getMessage() for record in caplog.records if said in record.getMessage()]
        assert len(warnings) == 1


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("what", "said"),
    [("arguments", "rank 1: pp_degree is not known"), ("last part", "rank 1: RuntimeError: no events")],
)
def test_a_rank_that_cannot_go_on_takes_the_others_out_too(tmp_path: Path, what: str, said: str, strict: bool) -> None:
    def make_parts(rank: int) -> None:
        if what == "last part" and rank == 1:
            raise RuntimeError("no events")

    results = join_all(tmp_path, 1 if what == "arguments" else None, strict=strict, make_parts=make_parts)
    assert error_of_all(results)[1] == said


@pytest.mark.parametrize("strict", [{0: True}, {1: True}, True])
def test_a_directory_that_cannot_be_used_is_an_error_on_all_ranks_if_rank_0_is_strict(
    tmp_path: Path, strict: Any
) -> None:
    (tmp_path / "file").touch()
    results = join_all(tmp_path, shared_dir=str(tmp_path / "file" / "pfo"), strict=strict)
    if strict == {1: True}:
        assert [result.coordination for result in results if isinstance(result, JoinedJob)] == ["off"] * RANKS
    else:
        assert {type(error) for error in results} == {CoordinationError}
        assert len({str(error) for error in results}) == 1
