"""How long calls take and wait, how many a GPU may make, and the turns that clock processes of a host take."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replaced_calls import refuses
from running import HANGS_AFTER_S

from pfo_fs.device.clocks import driver_calls
from pfo_fs.device.clocks.driver_calls import BUSY_SHARE, MOST_READS_PER_S, DriverCalls, HostDriver, driver_file

S, MS = 1_000_000_000, 1_000_000
CALL_NS = 5 * MS


def calls_of(gpus: int = 1, calls_per_s: float | None = None) -> DriverCalls:
    calls = DriverCalls(CALL_NS, calls_per_s)
    calls.gpus = gpus
    return calls


@pytest.mark.parametrize(("gpus", "calls_per_s"), [(1, None), (8, None), (4, 20.0)])
def test_calls_of_all_gpus_take_a_share_of_the_drivers_time_at_most(gpus: int, calls_per_s: float | None) -> None:
    """A change down and up again is wanted all the time, for 20 s."""
    calls, made = calls_of(gpus, calls_per_s), 0
    for now_ns in range(100 * S, 120 * S, MS):
        if calls.allows_down(now_ns):
            calls.called(now_ns, CALL_NS)
            calls.called(now_ns, CALL_NS)
            made += 2 * gpus
    room = 20 * (calls_per_s or BUSY_SHARE * S / CALL_NS)
    assert 0.75 * room <= made <= room, "of five calls a second, four make two changes"


@given(
    calls_per_s=st.floats(1, 400),
    gpus=st.integers(1, 8),
    waits_ns=st.lists(st.tuples(st.integers(0, S), st.integers(0, S)), min_size=1, max_size=60),
)
def test_no_second_has_more_calls_than_allowed(calls_per_s: float, gpus: int, waits_ns: list[tuple[int, int]]) -> None:
    """A clock goes down as soon as it may, and up again later; of a GPU's calls, two always fit into a second."""
    calls, now_ns, made_ns = calls_of(gpus, calls_per_s), S, []
    for before_ns, low_ns in waits_ns:
        now_ns += before_ns
        if calls.allows_down(now_ns):
            for at_ns in (now_ns, now_ns + low_ns):
                calls.called(at_ns, CALL_NS)
                made_ns.append(at_ns)
        now_ns += low_ns
    most = max(2, int(calls_per_s / gpus))
    within_ns = S * max(1.0, 2 * gpus / calls_per_s)
    assert all(later - first >= within_ns for first, later in zip(made_ns, made_ns[most:], strict=False))


@given(
    st.one_of(st.none(), st.floats(min_value=0, allow_nan=False, exclude_min=True)),
    st.integers(0, 1 << 40),
    st.integers(1, 512),
)
def test_no_values_lead_to_an_error_or_an_empty_budget(calls_per_s: float | None, call_ns: int, gpus: int) -> None:
    calls = DriverCalls(call_ns, calls_per_s)
    calls.gpus = gpus
    calls.allows_down(S)
    calls.called(S, call_ns)
    calls.allows_down(S)
    assert calls.allows_down(1 << 200) or (calls_per_s or 1) < 1e-30


@pytest.mark.parametrize("gpus", [1, 8])
def test_no_second_has_more_readings_than_the_most_of_a_host(gpus: int) -> None:
    calls, now_ns, reads = calls_of(gpus), 100 * S, 0
    while now_ns < 101 * S:
        now_ns += calls.read(now_ns)
        reads += 1
    assert 0.9 * MOST_READS_PER_S < gpus * reads <= MOST_READS_PER_S + gpus


def test_a_call_takes_the_median_of_the_last_ones_and_waits_as_most_of_them_did() -> None:
    calls = DriverCalls(99 * MS)
    assert calls.call_ns == 99 * MS
    for took_ns in (4, 5, 30, 5, 4):
        calls.called(S, took_ns * MS, 10 * MS)
    assert calls.call_ns == 5 * MS
    assert calls.made == 5
    assert calls.queue_ns == 10 * MS
    for _ in range(95):
        calls.called(S, 5 * MS, 0)
    assert calls.queue_ns == 0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(driver_calls, "_PATIENCE_NS", HANGS_AFTER_S * 1e9)
    return str(tmp_path / "driver")


def test_gpus_are_counted_until_their_processes_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_calls, "_COUNT_EVERY_NS", 0)
    driver, *others = (HostDriver(path) for _ in range(3))
    with driver.access():
        assert driver.gpus == 3
    for other in (*others, others[0]):
        other.close()
    with driver.access():
        assert driver.gpus == 1
    assert HostDriver(path).others() == 1, "its place is taken again"


def test_a_call_waits_for_that_of_another_gpu_and_knows_for_how_long(path: str) -> None:
    first, second = HostDriver(path), HostDriver(path)
    order: list[str] = []
    holds, goes_on = threading.Event(), threading.Event()

    def call() -> None:
        with first.access():
            holds.set()
            goes_on.wait(HANGS_AFTER_S)
            order.append("first")

    thread = threading.Thread(target=call)
    thread.start()
    holds.wait(HANGS_AFTER_S)
    threading.Timer(0.02, goes_on.set).start()
    with second.access():
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert second.waited_ns > 1_000_000
    with second.access():
        assert second.waited_ns < driver_calls._PATIENCE_NS
    with pytest.raises(RuntimeError), first.access():
        raise RuntimeError("the driver refuses")
    with second.access():
        assert second.waited_ns < driver_calls._PATIENCE_NS


def test_a_hanging_driver_stops_no_other(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_calls, "_PATIENCE_NS", 20_000_000)
    hangs, driver = HostDriver(path), HostDriver(path)
    with hangs.access(), driver.access():
        pass
    assert driver.waited_ns >= 20_000_000


@pytest.mark.parametrize(
    "make",
    [
        Path.mkdir,
        lambda path: path.symlink_to(path.parents[1] / "elsewhere"),
        os.mkfifo,
        lambda path: path.parent.rmdir(),
    ],
    ids=["a folder", "a link", "a pipe", "no folder for it"],
)
def test_without_a_usable_file_a_process_is_alone(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path, elsewhere = tmp_path / "run" / "driver", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    path.parent.mkdir()
    make(path)
    driver = HostDriver(str(path))
    with driver.access():
        assert driver.gpus == 1
    driver.close()
    assert elsewhere.read_bytes() == b"mine"


def test_the_file_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path))
    path = driver_file()
    assert path == str(tmp_path / f"pfo-fs-driver-{os.geteuid()}")
    mine = HostDriver(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    other = HostDriver(path)
    assert (mine.others(), other.others()) == (0, 0)


def test_where_files_cannot_be_locked_a_process_goes_on_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostDriver(path)
    monkeypatch.setattr(driver_calls.fcntl, "flock", refuses(errno.ENOLCK))
    for _ in range(2):
        with driver.access():
            assert driver.waited_ns < driver_calls._PATIENCE_NS
