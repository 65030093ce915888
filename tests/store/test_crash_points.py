"""Crash points: each write operation of the store, interrupted at each call that changes the file system.

The calls are counted by running the operation, so a new call is a new crash point. Every public method of the store is
in `OPERATIONS` or in `ONLY_READ`, so a new operation without a crash test fails `test_each_public_method_is_known`.
"""

import errno
import inspect
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import daemon_body, leader_body, rank_body, rank_infos, result_body
from replaced_calls import Watched, leave_behind

from pfo_fs.errors import StoreError
from pfo_fs.models import FrequencySchedule, JobInfo
from pfo_fs.store import Files, JobFolder, RecordFolder, SharedDirectory, bodies, layout
from pfo_fs.store.directory import Leaders

CHANGES = ("open", "write", "fchmod", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir")
NEED_SPACE = {"open", "write", "fsync", "replace", "rename", "link", "mkdir"}
INFOS = rank_infos(2)
Claim = bodies.ClaimBody


class Dead(BaseException):
    """The process was killed: no code of the store may go on, and no handler of errors may run."""


class Interrupted(Watched):
    """Counts the calls that change something, and interrupts the operation at one of them.

    `how`: `before` or `half` (of a write): the process dies there, so no later call has an effect, and the kernel
    closes its files. `full`: no call from there on gets space.
    """

    def __init__(self, at: int = -1, how: str = "before", *, links: bool = True) -> None:
        super().__init__()
        self.made: list[str] = []
        self.dead = False
        self._at, self._how, self._links = at, how, links

    def around(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if name == "close":
            return real(*args)
        if self.dead:
            raise Dead
        if name == "link" and not self._links:
            raise OSError(errno.EOPNOTSUPP, "no hard links here")
        if name in CHANGES and not (name == "open" and not args[1] & os.O_CREAT):
            self.made.append(name)
            if self._how == "full" and 0 < self._at <= len(self.made) and name in NEED_SPACE:
                raise OSError(errno.ENOSPC, "full")
            if len(self.made) == self._at and self._how != "full":
                self._die(real, args)
        # What readers see does not depend on fsync, which is slow.
        return None if name == "fsync" else real(*args, **options)

    def _die(self, real: Callable[..., Any], args: Any) -> None:
        if self._how == "half":
            real(args[0], args[1][: len(args[1]) // 2])
        self.dead = True
        raise Dead


@dataclass
class At:
    shared: SharedDirectory

    @property
    def files(self) -> Files:
        return self.shared.files

    @property
    def job(self) -> JobFolder:
        folder = self.shared.job("job")
        folder.attempt = "a"
        return folder


@dataclass
class Operation:
    """One write operation.

    Attributes:
        run: Carries it out on an opened directory, where that of a `JobFolder` finds the job.
        prepare: Makes what else must be there before.
        rival: The same by another process with other content; returns whether its content counts.
        settled: Whether all is well after the operation was repeated; None: as if it was never interrupted.
    """

    run: Callable[[At], object]
    prepare: Callable[[At], object] = lambda at: None
    rival: Callable[[At], bool] | None = None
    settled: Callable[[At], bool] | None = None


def make(at: At) -> JobFolder:
    info = JobInfo(pp_degree=2, dp_degree=1, tp_degree=1, world_size=2)
    info.job_id = "job"
    return at.shared.create_job(bodies.JobBody(job_info=info, coordination="auto"), "a")


def write_schedule(folder: JobFolder, number: int, mhz: int) -> bool:
    source = bodies.Source(kind="scheduler", policy="p", revision=number)
    clocks = [("forward", mhz), ("backward", mhz)]
    schedules = [FrequencySchedule(rank=info.rank, frequencies=clocks) for info in INFOS]
    return folder.write_schedule(number, 1, 0, source, schedules, INFOS)


def stale(files: Files, *places: str) -> None:
    for place in places:
        leave_behind(files.root / place)
        box = files.root / place / ".pfo-host-1-bb.tmp.d"
        box.mkdir()
        leave_behind(box, "content")
        os.utime(box, (1, 1))


def current(number: int) -> bodies.CurrentBody:
    return bodies.CurrentBody(generation=1, number=number, state="running")


def a_job_is_there(at: At) -> bool:
    folders = [at.shared.job(job_id) for job_id in at.shared.job_ids()]
    made = [folder for folder in folders if folder.read_job() is not None]
    bare = folders_of_the_owner_alone(at.files.root)
    return any(
        all((folder.location / name).is_dir() for name in layout.JOB_FOLDERS)
        and not [path for path in bare if path.count("/") == 1 or path.startswith(f"{folder.path}/")]
        for folder in made
    )


OPERATIONS: dict[str, Operation] = {
    "Files.make_name": Operation(lambda at: at.files.make_name("a")),
    "SharedDirectory.make_folders": Operation(lambda at: at.shared.make_folders()),
    "SharedDirectory.create_job": Operation(make, settled=a_job_is_there),
    "SharedDirectory.archive": Operation(lambda at: "job" in at.shared.job_ids() and at.shared.archive("job"), make),
    "SharedDirectory.remove_stale_temporaries": Operation(
        lambda at: at.shared.remove_stale_temporaries(), lambda at: (make(at), stale(at.files, "", "leaders", "jobs"))
    ),
    "JobFolder.write of the daemon": Operation(
        lambda at: at.shared.write(daemon_body(2)), lambda at: at.shared.write(daemon_body(1))
    ),
    "Leaders.claim": Operation(
        lambda at: at.shared.leaders.claim(leader_body(nonce="first")),
        lambda at: at.shared.make_folders(),
        lambda at: at.shared.leaders.claim(leader_body(nonce="rival")),
    ),
    "JobFolder.claim_coordinator": Operation(
        lambda at: at.job.claim_coordinator(Claim(kind="daemon", nonce="first")),
        rival=lambda at: at.job.claim_coordinator(Claim(kind="local", nonce="rival")).nonce == "rival",
    ),
    "JobFolder.register_ranks": Operation(
        lambda at: at.job.register_ranks([rank_body(nonce="first")]),
        rival=lambda at: not at.job.register_ranks([rank_body(nonce="rival")]),
    ),
    "JobFolder.register_ranks of two": Operation(lambda at: at.job.register_ranks([rank_body(0), rank_body(1)])),
    "JobFolder.write replaced": Operation(lambda at: at.job.write(current(1)), lambda at: at.job.write(current(0))),
    "JobFolder.write once": Operation(lambda at: at.job.write(bodies.EndBody(reason="finished"))),
    "JobFolder.write_file": Operation(
        lambda at: at.job.write_file(layout.YAML, b"all: 1200\n"),
        lambda at: at.job.write_file(layout.YAML, b"all: 900\n"),
    ),
    "JobFolder.write_results": Operation(lambda at: at.job.write_results(0, [result_body()])),
    "JobFolder.write_results of two": Operation(lambda at: at.job.write_results(0, [result_body(0), result_body(1)])),
    "JobFolder.remove_file": Operation(
        lambda at: at.job.remove_file(layout.YAML), lambda at: at.job.write_file(layout.YAML, b"all: 900\n")
    ),
    "JobFolder.write_schedule": Operation(
        lambda at: write_schedule(at.job, 1, 900), lambda at: write_schedule(at.job, 0, 1200)
    ),
    "JobFolder.write_rank_files": Operation(
        lambda at: at.job.write_rank_files(0, INFOS), lambda at: write_schedule(at.job, 0, 1200)
    ),
    "JobFolder.remove_stale_temporaries": Operation(
        lambda at: at.job.remove_stale_temporaries(), lambda at: stale(at.files, at.job.path)
    ),
}
COVERED_BY_ANOTHER = {
    f"Files.{name}"
    for name in "open_lock now_s publish claim claim_each make_folder remove move remove_stale_temporaries".split()
}
"""What the operations above do; `now_s` makes a temporary file as `publish` does, and removes it."""
ONLY_READ = set(
    """
    Files.changed_s JobFolder.last_sign_s
    Files.read Files.names Files.all_names Files.names_if_there Files.foreign_owner Files.parent Files.check_path
    SharedDirectory.open SharedDirectory.directory_id SharedDirectory.check_same SharedDirectory.job_ids
    SharedDirectory.newest_job_ids SharedDirectory.archived_job_ids SharedDirectory.job
    SharedDirectory.read_daemon Leaders.poll
    JobFolder.encoded JobFolder.below JobFolder.path_of JobFolder.numbers JobFolder.read_file
    JobFolder.each_rank JobFolder.read_ranks JobFolder.read_rank JobFolder.read_results
    JobFolder.names JobFolder.read JobFolder.read_job JobFolder.schedule_numbers JobFolder.read_schedule
    JobFolder.read_schedules
    """.split()
)


def opened(root: Path, calls: Watched | None = None) -> At:
    return At(SharedDirectory(Files(root, calls=calls), "writer"))


def content(root: Path) -> dict[str, Any]:
    """All that readers can see: folders, and files with the records' bodies, without what is random."""
    files, found = Files(root), {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for name in files.names(folder):
            path = f"{folder}/{name}".lstrip("/")
            if name.endswith(".lock"):
                continue
            if (root / path).is_dir():
                found[f"{path}/"] = "folder"
                waiting.append(path)
            else:
                found[path] = body_of(files.read(path, 1 << 20))
    return found


def folders_of_the_owner_alone(root: Path) -> list[str]:
    """Folders that readers see and that lack the permissions that the root has."""
    wanted = root.stat().st_mode
    return [path for path in content(root) if path.endswith("/") and (root / path).stat().st_mode != wanted]


def body_of(data: bytes | None) -> Any:
    with suppress(ValueError, TypeError, KeyError):
        body = json.loads(data or b"")["body"]
        body.pop("directory_id", None)
        return body
    return data


def interrupt(operation: Operation, root: Path, at: int, how: str, links: bool) -> Interrupted:
    calls = Interrupted(at, how, links=links)
    with suppress(Dead, StoreError):
        operation.run(opened(root, calls))
    return calls


def crash_points(made: list[str]) -> Iterator[tuple[int, str]]:
    for at, name in enumerate(made, start=1):
        yield at, "before"
        yield at, "full"
        if name == "write":
            yield at, "half"


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A directory of a group, and a umask that takes the group's rights away: so every write has most calls."""
    before = os.umask(0o022)
    tmp_path.chmod(0o2770)
    yield tmp_path
    os.umask(before)


def folder_with(base: Path, operation: str, name: str) -> Path:
    root = base / name
    root.mkdir()
    root.chmod(base.stat().st_mode & 0o7777)
    if operation.startswith("JobFolder."):
        make(opened(root))
    OPERATIONS[operation].prepare(opened(root))
    return root


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a lock's thread dies, too
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupted_operation_leaves_the_old_or_new_state_to_repeat(base: Path, name: str, links: bool) -> None:
    operation = OPERATIONS[name]
    root = folder_with(base, name, "whole")
    old = content(root)
    made = interrupt(operation, root, -1, "before", links).made
    new = content(root)
    for at, how in crash_points(made):
        where = f"{how} call {at} of {made}"
        root = folder_with(base, name, f"{how}{at}")
        interrupt(operation, root, at, how, links)
        seen = content(root)
        for path in {**seen, **old, **new}:
            assert seen.get(path) in (old.get(path), new.get(path)), f"{path}, {where}"
        if (index := seen.get("jobs/job/sched/1/index.json")) is not None:
            for plan in index["files"].values():
                assert f"jobs/job/sched/1/{plan}" in seen, f"a schedule without its plan, {where}"
        again = Interrupted(links=links)
        if operation.rival is not None:
            won = operation.rival(opened(root, again))
            data = str(content(root))
            assert ("rival" in data, "first" in data) == (won, not won), f"one claim has one owner, {where}"
            if seen == new:
                assert not won, f"what was there stays, {where}"
        else:
            operation.run(opened(root, again))
            if operation.settled is not None:
                assert operation.settled(opened(root)), where
            else:
                assert content(root) == new, f"the next writer completes it, {where}"
                assert not folders_of_the_owner_alone(root), f"the group may use its folders, {where}"
        shutil.rmtree(root)


def test_each_public_method_is_known() -> None:
    """A new operation needs a crash test, or a line in `ONLY_READ`."""
    found = {
        f"{kind.__name__}.{name}"
        for kind in (Files, SharedDirectory, Leaders, JobFolder)
        for name, _ in inspect.getmembers(kind, callable)
        if not name.startswith("_") and not (kind is SharedDirectory and hasattr(RecordFolder, name))
    }
    assert found == {name.partition(" ")[0] for name in OPERATIONS} | COVERED_BY_ANOTHER | ONLY_READ
