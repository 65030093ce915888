"""The clock process, as a real process on a simulated GPU."""

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from clock_runs import GpuLog, ListeningHelper, Start, Trainer, ask, stop, wait_for_end
from running import HANGS_AFTER_S, Processes, open_fds, wait_for

from pfo_fs.device import clock_client, shared_page
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clocks.clock_setter import ClockSetter
from pfo_fs.device.clocks.driver_calls import HostDriver
from pfo_fs.device.clocks.undo import GpuUndo
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.device.shared_page import SharedPage, newest_reading
from pfo_fs.device.simulated.gpu import SimulatedKernels
from pfo_fs.device.simulated.physics import A100
from pfo_fs.ipc import messages
from pfo_fs.ipc.process_end import start_of
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.step_parts import choose_switching

pytestmark = pytest.mark.usefixtures("sim_dir")


def train(
    tracker: InstructionTracker, steps: range, number: int, work: Callable[[str], object] = len, names: str = "forward"
) -> None:
    """Steps of these instructions under a schedule with this number."""
    for step in steps:
        tracker.step_begin(step, number)
        for name in names.split():
            tracker.begin(name)
            work(name)
            tracker.end(name)
        tracker.step_end()


@pytest.fixture
def locked(clocks: ClockProcess, gpu: GpuLog) -> ClockProcess:
    ask(clocks, 900)
    gpu.wait(900)
    return clocks


def answer_to(clocks: ClockProcess, **request: Any) -> dict[str, Any]:
    clocks.send_request({"id": 1, **request})
    answer = clocks.receive_answer(20)
    assert "error" not in answer
    return answer


def test_clocks_are_set_in_order_and_reset_at_the_close(clocks: ClockProcess, gpu: GpuLog) -> None:
    assert (clocks.info.gpu_name, clocks.info.gpu_uuid, clocks.info.clocks_mhz[0]) == ("simulated A100", "SIM-a", 1410)
    wanted = [0]  # a clock that a crashed job may have left
    for asked, mhz in ((900, 900), (1200, 1200), (0, 0), (9999, 1410), (901, 915), (5, 210)):
        ask(clocks, asked)
        wanted.append(mhz)
        wait_for(lambda: gpu.clocks == wanted, what=f"{wanted}")
    assert clocks.words[shared_page.CLOCK_MHZ] == 210
    clocks.close()
    assert gpu.clocks == [*wanted, 0]
    assert not clocks.alive()
    clocks.close()


@pytest.mark.parametrize("spec", ["simulated:a", "none", "nvml:GPU-nowhere"])
def test_calls_after_the_close_and_without_a_gpu_do_nothing(start: Start, spec: str) -> None:
    clocks = start(spec)
    assert bool(clocks.message) == (spec != "simulated:a")
    tracker = InstructionTracker(clocks)
    tracker.set_schedule([("forward", 900)])
    clocks.close()
    clocks.words[shared_page.SLEEPING] = 1
    train(tracker, range(3), number=0)
    clocks.check()


def test_a_sleeping_clock_process_is_woken_by_the_doorbell(clocks: ClockProcess, gpu: GpuLog) -> None:
    """It also looks ten times a second: with that alone, it would set each clock just before a reading of energy."""

    def was_woken() -> bool:
        wait_for(lambda: clocks.words[shared_page.SLEEPING], what="sleep")
        before = len(gpu.clocks)
        ask(clocks, 915 if gpu.clocks[-1] == 900 else 900)
        wait_for(lambda: len(gpu.clocks) > before, what="the clock")
        since_ns = wait_for(lambda: max(0, newest_reading(clocks.words).time_ns - gpu.last_ns), "a reading")
        return since_ns > 20_000_000

    wait_for(was_woken)


def test_a_held_clock_process_lets_go_although_training_requests_a_clock(start: Start, gpu: GpuLog) -> None:
    with ListeningHelper("held") as helper:
        clocks = start(report_to=helper.address, token="token")
        ask(clocks, 900)
        gpu.wait(900)
        helper.wait(messages.Hello)
        helper.send(messages.ClocksHeld(why="off"))
        gpu.wait(0)  # without a step of training
        ask(clocks, 1200)
        helper.wait(messages.ProgressReport, lambda report: report.held)
        assert gpu.clocks[-1] == 0
        helper.send(messages.ClocksHeld())
        gpu.wait(1200)


@pytest.mark.parametrize("how", ["", "forks", "stopped"])
@pytest.mark.parametrize("killer", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_trainers_death_resets_clocks(gpu: GpuLog, processes: Processes, how: str, killer: signal.Signals) -> None:
    """Also while a child that the trainer forked, a data loader's worker, continues to run, and after a stop.

    Ray and vLLM kill children and theirs, torchrun the process group, a terminal the session.
    """
    trainer = Trainer(processes, how=how)
    clock_pid, child, _ = trainer.told()
    pid = trainer.process.pid
    assert clock_pid not in {each.pid for each in psutil.Process(pid).children(recursive=True)}
    assert pid not in (os.getpgid(clock_pid), os.getsid(clock_pid))
    if how == "stopped":
        stop(clock_pid)
    try:
        (os.kill if how == "forks" else os.killpg)(pid, killer)
        gpu.wait(0)
        wait_for_end(clock_pid)
        trainer.process.wait(HANGS_AFTER_S)
        assert child < 0 or start_of(child)
    finally:
        if child > 0:
            os.kill(child, signal.SIGKILL)


def test_files_of_the_program_in_place_of_ours_are_left_alone(start: Start, tmp_path: Path, gpu: GpuLog) -> None:
    before = open_fds()
    clocks = start()
    assert clocks.message == ""
    opened = open_fds() - before
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "checkpoint").open("wb", buffering=0) as file:
        for fd in opened:
            is_socket = os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
            os.dup2((ours if is_socket else file).fileno(), fd)
        theirs.send(b"!hello\n")
        clocks.ring_doorbell()
        clocks.send_request({"ask": "energy", "id": 1})
        assert clocks.receive_answer(10) is None
        assert not clocks.check()
        assert ours.recv(100, socket.MSG_DONTWAIT) == b"!hello\n"
        clocks.close()
        with pytest.raises(BlockingIOError):
            theirs.recv(100, socket.MSG_DONTWAIT)
        assert file.tell() == 0
        for fd in opened:
            with suppress(OSError):
                os.close(fd)
    gpu.wait(0)


def test_a_forked_child_does_not_hold_the_socket_open(start: Start) -> None:
    """Where the kernel has no pidfds, the end of the socket alone must show the end of the trainer."""

    def sockets() -> set[int]:
        return {fd for fd in open_fds() if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")}

    before = sockets()
    clocks = start()
    assert clocks.alive()
    own = sockets() - before
    assert own
    child = os.fork()
    if child == 0:
        if not own & sockets():
            clocks.close()  # must not reach the parent's clock process
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert clocks.alive()


def test_sigterm_resets_clocks_at_once_and_for_good_and_measuring_continues(start: Start, gpu: GpuLog) -> None:
    with ListeningHelper("sigterm") as helper:
        clocks = start(report_to=helper.address, token="t", profile_steps=1)
        assert clocks.message == ""
        ask(clocks, 900)
        gpu.wait(900)
        os.killpg(clocks.pid, signal.SIGTERM)
        gpu.wait(0)
        tracker = InstructionTracker(clocks, profile_steps=1)
        tracker.set_schedule([("forward", 600)])
        train(tracker, range(2), number=4)
        assert helper.wait(messages.MeasurementReport).number == 4
        assert "SIGTERM" in helper.wait(messages.ProgressReport, lambda m: m.message).message
    assert gpu.clocks[-1] == 0


def test_its_death_warns_once_and_resets(locked: ClockProcess, gpu: GpuLog, caplog: pytest.LogCaptureFixture) -> None:
    with open(f"/proc/{locked.pid}/fd/2", "ab") as standard_error:
        standard_error.write(b"Traceback ...\nNVMLError: GPU is lost\n")
    os.kill(locked.pid, signal.SIGKILL)
    wait_for(lambda: (locked.check(), locked.lost)[1], what="the end")
    locked.check()
    assert caplog.text.count("the clock process has died") == 1
    assert "its last words: NVMLError: GPU is lost" in caplog.text
    gpu.wait(0)
    assert not locked.alive()
    ask(locked, 1200)
    locked.close()


@pytest.mark.parametrize(("all_back", "said"), [(0, "has died"), (-1, "has given up")])
def test_a_death_unseen_leaves_no_clock(
    locked: ClockProcess, gpu: GpuLog, caplog: pytest.LogCaptureFixture, all_back: int, said: str
) -> None:
    os.kill(locked.pid, signal.SIGKILL)
    locked.words[shared_page.ALL_BACK] = all_back
    with caplog.at_level(logging.INFO, "pfo_fs"):
        locked.close()
    assert gpu.clocks[-1] == 0
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert said in caplog.text


def test_that_the_clock_is_back_is_said_after_it_is_and_not_if_it_may_not_be(
    locked: ClockProcess, gpu: GpuLog, interpreter: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """As when the environment of a running job is replaced: no process can start any more."""
    interpreter("echo 'no module named pfo_fs' >&2; exit 1")
    os.kill(locked.pid, signal.SIGKILL)
    with caplog.at_level(logging.INFO, "pfo_fs"):
        wait_for(lambda: (locked.check(), "it is not known" in caplog.text)[1], what="the second warning")
    assert "exit status 1; its last words: no module named pfo_fs" in caplog.text
    assert "is back" not in caplog.records[0].getMessage()
    assert gpu.clocks[-1] == 900
    open_gpu("simulated:a").reset_clocks()


def test_an_answer_that_came_with_another_one_is_seen(clocks: ClockProcess) -> None:
    for number in range(0, 40, 2):
        for each in (number, number + 1):
            clocks.send_request({"ask": "energy", "id": each})
        first = clocks.receive_answer(20)
        wait_for(clocks.check, what="the second answer")
        second = clocks.receive_answer(0)
        assert (first["id"], second["id"]) == (number, number + 1)
        assert not clocks.check()


def test_a_clock_process_object_that_is_garbage_collected_leaves_no_file_open() -> None:
    before = open_fds()
    clocks = ClockProcess("simulated:a")
    assert clocks.alive()
    assert clocks.message == ""
    pid = clocks.pid
    del clocks
    gc.collect()
    assert open_fds() <= before
    wait_for_end(pid)


def test_a_clock_process_that_cannot_start_or_hangs_then_is_a_message(
    start: Start, tmp_path: Path, interpreter: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")
    clocks = start()
    assert "could not be started" in clocks.message
    assert not clocks.alive()
    interpreter("echo 'libpython3.so: cannot open shared object file' >&2; exit 127")
    why = "exit status 127; its last words: libpython3.so: cannot open shared object file"
    assert start().message == f"the clock process ended while it started ({why}); clocks are left alone"
    interpreter(f"echo $$ >{tmp_path}/pid; exec sleep 20")
    clocks = start(start_timeout_s=0.2)
    assert "in time" in clocks.message
    clocks.close(0.1)
    os.kill(int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())), signal.SIGKILL)


def test_in_a_dry_run_clocks_are_taken_to_act_5_ms_after_calls(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_DRY_RUN", "1")
    with ListeningHelper("dry") as helper:
        clocks = start(report_to=helper.address, profile_steps=1)
        kernels, tracker = SimulatedKernels("a", stages=8, time_scale=1), InstructionTracker(clocks, profile_steps=1)
        tracker.set_schedule([("forward", 900)])
        train(tracker, range(12), 2, partial(kernels.run, stage=0))
        measured = helper.wait(messages.MeasurementReport)
    assert set(measured.result["switching"]["latencies_s"].values()) == {0.005}


def test_what_is_measured_matches_the_power_model(start: Start) -> None:
    with ListeningHelper("measured") as helper:
        clocks = start(report_to=helper.address, rank=5, token="secret", profile_steps=2)
        kernels = SimulatedKernels("a", stages=8, time_scale=1)
        tracker = InstructionTracker(clocks, profile_steps=2)
        plan = [("forward", 900), ("backward", 1200)]
        tracker.set_schedule(plan)
        assert clocks.message == ""
        train(tracker, range(10, 13), 2, partial(kernels.run, stage=0), "forward backward")
        measured = helper.wait(messages.MeasurementReport)
        clocks.close()
        last = helper.wait(messages.ProgressReport, lambda m: m.step == 12)
        helper.wait(messages.ClocksReleased)
    gpu = messages.GpuToReset(clocks.spec)
    assert helper.messages[0] == messages.Hello(rank=5, role="clocks", token="secret", gpu=gpu)
    assert (measured.number, measured.first_step, measured.result["rank"]) == (2, 11, 5)
    result = measured.result
    for i in range(2):
        busy_j, busy_s = 0.0, 0.0
        for name, mhz in plan:
            model = kernels.model(name, 0)
            (time_s,), (energy_j,) = result["time_breakdown"][name][i], result["energy_breakdown"][name][i]
            assert time_s >= model.time_s(mhz) - 0.003
            true_j = model.time_s(mhz) * model.power_w(mhz)
            assert energy_j == pytest.approx(true_j + A100.blocking_power_w * (time_s - model.time_s(mhz)), rel=0.15)
            busy_j, busy_s = busy_j + true_j, busy_s + model.time_s(mhz)
        idle_j = A100.blocking_power_w * (result["iter_time"][i] - busy_s)
        assert result["iter_energy"][i] == pytest.approx(busy_j + idle_j, rel=0.06)
    assert (last.number, last.message) == (2, "")


def test_without_a_gpu_times_are_measured_and_wait_for_a_late_helper(start: Start) -> None:
    helper = ListeningHelper("late")
    clocks = start("none", report_to=helper.address, profile_steps=1)
    train(InstructionTracker(clocks), range(2), number=0, work=lambda _: time.sleep(0.01))
    wait_for(lambda: clocks.words[shared_page.MEASURED_NUMBER] == 0, what="the measurement")
    with helper:
        result = helper.wait(messages.MeasurementReport).result
    assert result["time_breakdown"]["forward"][0][0] >= 0.01
    assert result["iter_energy"] == [0.0]


def test_most_calls_per_second_are_an_option_or_a_variable(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(clock_client, "start_process", lambda _, started, **__: given.append(started["options"]))
    start()
    monkeypatch.setenv("PFO_FS_MAX_CLOCK_CALLS_PER_S", "50")
    start()
    start(max_clock_calls_per_s=100.0)
    assert [one["max_clock_calls_per_s"] for one in given] == [None, 50, 100]


def test_clocks_follow_a_device_far_behind(clocks: ClockProcess, gpu: GpuLog, kernels: SimulatedKernels) -> None:
    schedule = [("forward", 900), ("backward", 1200)] * 4
    tracker = InstructionTracker(clocks, marker=choose_switching("device", clocks, "simulated:a", kernels).marker)
    tracker.set_schedule(schedule)
    all_launched = threading.Event()
    kernels.stream.launch("forward", work=20)
    kernels.stream.call(lambda: all_launched.wait(HANGS_AFTER_S) and None)
    train(tracker, range(3), 0, partial(kernels.stream.launch, work=4), 4 * "forward backward ")
    all_launched.set()
    kernels.stream.synchronize()
    gpu.wait(0)  # after the last step
    locked = [mhz for mhz in gpu.clocks if mhz]
    assert 12 <= len(locked) <= 24 + 1
    assert set(locked) == {900, 1200}


@pytest.mark.parametrize(("newest_mhz", "calls"), [(1200, [1200]), (0, [])])
def test_after_a_wait_the_newest_is_set(monkeypatch: pytest.MonkeyPatch, newest_mhz: int, calls: list[int]) -> None:
    wanted, made, driver = [900], list[int](), HostDriver("")
    monkeypatch.setattr(driver, "access", lambda: nullcontext(wanted.append(newest_mhz)))  # others have their turn
    words = SharedPage.create().words
    with closing(open_gpu("simulated:a")) as gpu:
        note = lambda time_ns, mhz, waited_ns: made.append(mhz)  # noqa: E731
        setter = ClockSetter(gpu, words, GpuUndo(gpu).clock, note, why_clocks_stay="", driver=driver)
        setter.apply(lambda: wanted[-1])
        assert setter.clock_mhz == newest_mhz
    assert made == calls


def test_what_it_prints_is_logged_and_is_no_answer(clocks: ClockProcess, caplog: pytest.LogCaptureFixture) -> None:
    with open(f"/proc/{clocks.pid}/fd/2", "ab") as standard_error:
        standard_error.write(b"driver: \x1b[31mXid 79\n")
    for number in range(20):
        assert answer_to(clocks, ask="energy", id=number)["id"] == number
        clocks.check()
        time.sleep(0.01)
    wait_for(lambda: clocks.check() or "driver: ?[31mXid 79" in caplog.text, what="the line in the log")
    assert clocks.alive()


@pytest.mark.parametrize("by", [signal.SIGTSTP, signal.SIGSTOP])
def test_a_stopped_clock_process_sets_its_clock_again(locked: ClockProcess, gpu: GpuLog, by: signal.Signals) -> None:
    stop(locked.pid, by)
    if by == signal.SIGSTOP:
        open_gpu("simulated:a").reset_clocks()  # others may have reset it meanwhile
    assert gpu.clocks[-1] == 0
    os.kill(locked.pid, signal.SIGCONT)
    gpu.wait(900)


def test_a_power_limit_is_what_it_was_before_while_the_job_is_stopped(start: Start) -> None:
    clocks, gpu = start(leave_clocks=True), open_gpu("simulated:a")
    before_w = gpu.power_limit_w()
    answer_to(clocks, ask="limits")
    answer_to(clocks, ask="set", limit_w=250)
    assert gpu.power_limit_w() == 250
    stop(clocks.pid, signal.SIGTSTP)
    assert gpu.power_limit_w() == before_w
    os.kill(clocks.pid, signal.SIGCONT)
    wait_for(lambda: gpu.power_limit_w() == 250, what="the limit again")


def test_while_its_trainer_is_stopped_the_clock_is_at_its_default(gpu: GpuLog, processes: Processes) -> None:
    trainer = Trainer(processes)
    trainer.told()
    for number, mhz in ((signal.SIGSTOP, 0), (signal.SIGCONT, 900), (signal.SIGSTOP, 0)):
        trainer.process.send_signal(number)
        gpu.wait(mhz)


def test_the_end_of_training_does_not_wait_for_a_stopped_clock_process(locked: ClockProcess, gpu: GpuLog) -> None:
    stop(locked.pid)
    locked.close(HANGS_AFTER_S)
    assert not locked.alive()
    assert gpu.clocks[-2:] == [900, 0], "it sets no clock again"
