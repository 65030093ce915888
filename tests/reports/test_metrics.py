"""The metrics file of the daemon: what it says of jobs, and what it says when the directory cannot be read."""

import json
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import running
from jobs import make_job, write_step
from prometheus_client import generate_latest
from running import HANGS_AFTER_S

from pfo_fs.loads_known import LoadsKnown
from pfo_fs.reports.collect import collect_job
from pfo_fs.reports.metrics import FigureReader, Figures, MetricsFile, registry_of
from pfo_fs.reports.savings import savings_of, total_of
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

OPERATING = Path(__file__).parents[2] / "examples" / "operating"


def text_of(figures: Figures) -> str:
    return generate_latest(registry_of(figures)).decode()


def wait_for(path: Path, condition: Callable[[str], bool]) -> str:
    """The file's text, once it fulfils a condition."""
    return running.wait_for(lambda: path.exists() and condition(text := path.read_text()) and text) or ""


def test_a_running_job_has_its_energy_saving_and_state(played: JobFolder) -> None:
    text = text_of(FigureReader(SharedDirectory(played.files, "test")).read(leads=True))
    job = f'job_id="{played.job_id}"'
    model, current = played.read(bodies.ModelBody), played.read(bodies.CurrentBody)
    assert f"pfo_fs_job_energy_saved_ratio{{{job}}} {model.energy_saved}" in text
    assert f"pfo_fs_job_schedule_number{{{job}}} {float(current.number)}" in text
    assert f"pfo_fs_job_settled{{{job}}} {float(current.converged)}" in text
    assert 'pfo_fs_jobs{state="running"} 1.0' in text
    assert "pfo_fs_directory_reachable 1.0" in text
    standby = FigureReader(SharedDirectory(played.files, "test")).read(leads=False)
    assert (standby.reachable, standby.jobs) == (True, [])


def test_energy_is_added_up_from_one_reading_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_job(tmp_path, 1)
    reader = FigureReader(SharedDirectory(folder.files, "test"))

    def read_at(step: int) -> Figures:
        progress = bodies.RankProgress(rank=0, step=step, step_age_s=0, number=0, iter_time=1.0, iter_energy=90.0)
        folder.write(bodies.ProgressBody(ranks=[progress]))
        return reader.read(leads=True)

    assert read_at(10).energy_j == 0  # what was before is not known
    model = {"blocking_power_w": 1, "delay_s": 0, "more_time": 0.0, "off_target": 0.0}
    folder.write(bodies.ModelBody(**model, energy_saved=0.1))
    found = read_at(20)
    assert found.energy_j == pytest.approx(900)
    assert (found.saved_j, found.added_j) == (pytest.approx(100), 0)
    assert read_at(5).energy_j == pytest.approx(900)  # begun anew from a checkpoint
    folder.write(bodies.ModelBody(**model, energy_saved=-0.25))
    found = read_at(15)
    assert (found.saved_j, found.added_j) == (pytest.approx(100), pytest.approx(180))  # both only grow
    folder.write(bodies.EndBody(reason="finished"))
    with monkeypatch.context() as outage:
        outage.setattr(JobFolder, "names", lambda _: os.listdir(tmp_path / "none"))
        assert not reader.read(leads=True).reachable
    assert read_at(20).energy_j == pytest.approx(2250)


def test_what_clocks_from_loads_have_saved_is_in_all_sums(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1)
    reader = FigureReader(SharedDirectory(folder.files, "test"))

    def read_at(step: int, energy_j: float) -> Figures:
        loads = LoadsKnown(steps=step, saved=0.2, late=0.001, time_s=2.0 * step, energy_j=energy_j)
        progress = bodies.RankProgress(rank=0, step=step, step_age_s=0, number=-1, loads=loads)
        folder.write(bodies.ProgressBody(ranks=[progress]))
        return reader.read(leads=True)

    read_at(10, 1000.0)
    found = read_at(20, 1800.0)
    assert (found.energy_j, found.saved_j) == (pytest.approx(800), pytest.approx(200))
    data = collect_job(folder)
    whole = total_of(data, savings_of(data))
    assert whole.compared
    assert (whole.iterations, whole.time_s, whole.energy_j) == (20, 40.0, 1800.0)
    assert (whole.more_time_s, whole.more_energy_j) == (pytest.approx(0.04, rel=0.01), pytest.approx(-450))


def test_a_mistake_in_the_sites_rules_is_a_metric_with_its_line_and_key(tmp_path: Path) -> None:
    shared = SharedDirectory(Files(tmp_path, create=True), "test")
    assert 'pfo_fs_site_problem{problem=""} 0.0' in text_of(FigureReader(shared).read(leads=True))
    (tmp_path / "site.yaml").write_text("\ncordination: daemon-only\n")
    text = text_of(FigureReader(shared).read(leads=False))
    assert re.search(r"site_problem\{.*line 2: unknown key 'cordination'.* 1\.0$", text, re.MULTILINE)


@pytest.mark.parametrize("umask", [0o077, 0o007, 0o000])
def test_others_may_read_the_file_and_not_write_it_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path, before = tmp_path / "pfo.prom", os.umask(umask)
    try:
        metrics = MetricsFile(path, SharedDirectory(Files(tmp_path, create=True), "test"), lambda: True, 0.05)
        metrics.start()
        wait_for(path, bool)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        metrics.stop()
    finally:
        os.umask(before)


def test_an_ended_job_leaves_the_file_unless_it_owes_an_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_job(tmp_path, 1)
    reader = FigureReader(SharedDirectory(folder.files, "test"))
    write_step(folder, 3)
    assert len(reader.read(leads=True).jobs) == 1
    folder.write(bodies.EndBody(reason="finished"))
    for owed in (0, 1, 1, 1, 0):
        folder.write(bodies.ProgressBody(ranks=[bodies.RankProgress(rank=0, undo_owed=owed)]))
        assert [job.undo_owed for job in reader.read(leads=True).jobs] == owed * [1]
    monkeypatch.setattr("pfo_fs.reports.metrics.MOST_JOBS", 0)
    assert not FigureReader(SharedDirectory(folder.files, "test")).read(leads=True).states["not_read"]


def test_the_file_says_that_a_directory_hangs(tmp_path: Path) -> None:
    answers = threading.Event()

    class Hanging(SharedDirectory):
        def newest_job_ids(self, known: object = ()) -> list[str]:
            answers.wait(HANGS_AFTER_S)
            return []

    path = tmp_path / "pfo.prom"
    metrics = MetricsFile(path, Hanging(Files(tmp_path, create=True), "test"), lambda: True, 0.05)
    metrics.start()
    wait_for(path, lambda text: "pfo_fs_directory_reachable 0.0" in text)
    answers.set()
    wait_for(path, lambda text: "pfo_fs_directory_reachable 1.0" in text)
    metrics.stop()
    assert not path.exists()


def test_the_dashboard_and_the_alerts_name_only_metrics_that_exist(played: JobFolder) -> None:
    text = text_of(FigureReader(SharedDirectory(played.files, "test")).read(leads=True))
    known = set(re.findall(r"^(?:# HELP )?(pfo_fs_\w+)", text, re.MULTILINE))
    dashboard = json.loads((OPERATING / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 5
    for words in (*asked, (OPERATING / "prometheus-rules.yml").read_text()):
        assert set(re.findall(r"\bpfo_fs_\w+", words)) <= known


def test_promtool_finds_nothing_to_complain_about(played: JobFolder) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    text = text_of(FigureReader(SharedDirectory(played.files, "test")).read(leads=True))
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    rules = [promtool, "check", "rules", str(OPERATING / "prometheus-rules.yml")]
    assert subprocess.run(rules, capture_output=True, check=False).returncode == 0
