"""The commands, as people and scripts use them."""

import shutil
from pathlib import Path

import pytest
from commands import pfo_fs
from jobs import current_of, daemon_body, living_daemon, make_job, one_f_one_b, rank_infos, register, write_step

from pfo_fs.models import FrequencySchedule
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies, layout
from pfo_fs.turns import Term


@pytest.fixture
def running(tmp_path: Path) -> JobFolder:
    """A job with two stages of three micro-batches, at 1,200 MHz."""
    folder, infos = make_job(tmp_path, 2), rank_infos(2)
    register(folder, infos)
    schedules = [FrequencySchedule(rank=rank, frequencies=one_f_one_b(rank, 2, 3, 1200)) for rank in range(2)]
    for schedule in schedules:
        order = [(name, None) for name, _ in schedule.frequencies]
        folder.write(bodies.OrderBody(rank=schedule.rank, instructions=order))
    source = bodies.Source(kind="scheduler", index=0)
    folder.write_schedule(0, 1, 0, source, schedules, infos)
    folder.write(bodies.CurrentBody(generation=1, number=0, state="running", source=source))
    write_step(folder, 17, 0.25)
    return folder


def test_the_schedule_in_force_is_shown_as_yaml_that_can_be_set(running: JobFolder, tmp_path: Path) -> None:
    shown = pfo_fs("schedule", "show", "latest", "-d", tmp_path, code=0)
    assert "forward 1200, backward 1200 x2" in shown.stdout
    (tmp_path / "again.yaml").write_text(shown.stdout)
    pfo_fs("schedule", "check", "latest", tmp_path / "again.yaml", "-d", tmp_path, code=0)
    shutil.rmtree(running.location / layout.ORDER)  # the schedule in force tells the order, too
    (tmp_path / "one.yaml").write_text("all: 1200\n")
    pfo_fs("schedule", "check", "latest", tmp_path / "one.yaml", "-d", tmp_path, code=0)


def test_a_schedule_in_turns_with_an_end_is_shown_with_both(running: JobFolder, tmp_path: Path) -> None:
    schedules = [FrequencySchedule(rank=0, frequencies=one_f_one_b(0, 2, 3, 1200))]
    source, term = bodies.Source(kind="yaml", sha256="a"), Term(500, 0, (1, 2, 3, 0))
    running.write_schedule(1, 1, 18, source, schedules, rank_infos(2), term)
    running.write(bodies.CurrentBody(generation=1, number=1, start_step=18, state="running", source=source))
    shown = pfo_fs("schedule", "show", "latest", "-d", tmp_path)
    assert "turns: [1, 2, 3, 0]\nuntil: 500\nstages:" in shown.stdout
    (tmp_path / "again.yaml").write_text(shown.stdout)
    pfo_fs("schedule", "check", "latest", tmp_path / "again.yaml", "-d", tmp_path, code=0)
    write_step(running, 500, 0.25)
    checked = pfo_fs("schedule", "check", "latest", tmp_path / "again.yaml", "-d", tmp_path, code=1)
    assert "again.yaml:3: until: ranks can follow this file from step 501 on only" in checked.stdout
    assert "schedule 1: ended at step 500; ranks follow schedule 0" in pfo_fs("status", "-v", tmp_path).stdout


def test_a_good_schedule_is_set_and_a_wrong_one_is_refused_with_line_and_reason(
    running: JobFolder, tmp_path: Path
) -> None:
    target, bad = tmp_path / running.path / "schedule.yaml", tmp_path / "bad.yaml"
    bad.write_text("# one wrong clock\nall: 1201\n")
    problems = pfo_fs("schedule", "check", "latest", bad, "-d", tmp_path, "--json", code=1).answer["problems"]
    assert (problems[0]["line"], "1200" in problems[0]["reason"]) == (2, True), "it names the nearest clock"
    pfo_fs("schedule", "set", "latest", bad, "-d", tmp_path, code=1)
    assert not target.exists()
    (tmp_path / "good.yaml").write_text("all: 1110\n")
    with living_daemon(tmp_path):
        done = pfo_fs("schedule", "set", str(tmp_path / running.path), tmp_path / "good.yaml", code=0)
    assert running.job_id in done.stdout, "it says which job it took"
    assert target.read_text() == "all: 1110\n"


def test_the_schedule_of_a_job_that_has_ended_cannot_be_set(running: JobFolder, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("all: 1200\n")
    running.write(bodies.EndBody(reason="finished"))
    done = pfo_fs("schedule", "set", "latest", tmp_path / "good.yaml", "-d", tmp_path)
    assert (done.returncode, "has ended" in done.stderr) == (1, True)
    assert running.read_file(layout.YAML) is None


def test_status_has_a_line_for_each_job_and_more_if_asked(running: JobFolder, tmp_path: Path) -> None:
    short, long = (pfo_fs("status", *more, tmp_path, columns=80, code=0) for more in ([], ["-v"]))
    _, heads, *lines = short.stdout.splitlines()
    assert heads.split("  ")[0] == "state"
    assert [line for line in lines if running.job_id in line] == lines[:1]
    for fact in ("2/2 ranks", "step 17"):
        assert fact not in short.stdout
        assert fact in long.stdout


def test_status_for_programs_is_json(running: JobFolder, tmp_path: Path) -> None:
    (tmp_path / "jobs/broken-one").mkdir()
    (tmp_path / "jobs/broken-one/job.json").write_text("{}")
    state = pfo_fs("status", tmp_path, "--json").answer
    by_id = {job["job_id"]: job for job in state["jobs"]}
    assert (by_id[running.job_id]["step"], by_id[running.job_id]["iter_time_s"]) == (17, 0.25)
    assert "not a complete record" in by_id["broken-one"]["problem"]
    assert state["daemon"] is None


def test_a_silent_daemon_is_not_called_alive(tmp_path: Path) -> None:
    shared = SharedDirectory(Files(tmp_path))
    shared.make_folders()
    shared.write(daemon_body(5))
    assert pfo_fs("status", tmp_path, "--json").answer["daemon"]["alive"] is False


def test_a_long_record_is_one_line_in_a_pipe(running: JobFolder, tmp_path: Path) -> None:
    current = current_of(running)
    verdict = "target: no slowdown; measured: 9.1% less energy " + "and a long text " * 20 + "end"
    running.write(current.model_copy(update={"status_text": verdict}))
    assert verdict in pfo_fs("status", "-v", tmp_path).stdout


def test_a_daemons_job_is_not_shown_below_the_claim_that_no_daemon_has_run(running: JobFolder, tmp_path: Path) -> None:
    running.claim_coordinator(bodies.ClaimBody(kind="daemon", nonce="0" * 32))
    assert "daemon: none runs here" in pfo_fs("status", tmp_path).stdout
