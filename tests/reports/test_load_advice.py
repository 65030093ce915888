"""What the report says of a job without loads whose micro-batches differ in their work."""

from __future__ import annotations

import re
from dataclasses import replace
from operator import mul
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from traced_jobs import Row, trace_rows, write_trace

from pfo_fs.loads_known import LoadsKnown
from pfo_fs.planner import Pipeline
from pfo_fs.reports.collect import JobData, collect_job
from pfo_fs.reports.load_advice import load_advice
from pfo_fs.reports.page import render_page
from pfo_fs.reports.timeline import starts_of
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, read_trace
from pfo_fs.simulator.load_play import LoadPlay, loads_of
from pfo_fs.store import bodies

STEPS = 40


def played(folder: Path, rows: list[Row], iterations: int, profile_steps: int = 5) -> JobData:
    """A job that has replayed these durations."""
    cluster = read_trace(write_trace(folder / "trace.csv", rows)).job().cluster()
    settings = PFOSettings(scheduler="ParetoScheduler", profile_steps=profile_steps)
    play = Play(cluster, folder / "pfo", settings)
    for _ in play.run(iterations):
        pass
    return collect_job(play.folder)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> JobData:
    """Four pipelines whose micro-batches differ, measured at several clocks."""
    return played(tmp_path_factory.mktemp("unequal"), trace_rows(steps=STEPS, pipelines=4), STEPS)


@pytest.mark.slow
def test_the_advice_is_what_equal_work_and_clocks_from_loads_bring_when_played(
    unequal: JobData, tmp_path: Path
) -> None:
    trace = read_trace(write_trace(tmp_path / "trace.csv", trace_rows(steps=STEPS, pipelines=4)))
    lengths_s = [trace.lengths_s[one.stage, one.name] for one in trace.pipeline.instructions]
    ends_s = [
        [span_s(trace.pipeline, [*map(mul, lengths_s, factors)]) for factors in step.T.tolist()] for step in trace.table
    ]
    shorter = 1 - sum(map(fmean, ends_s)) / sum(map(max, ends_s))
    summary = LoadPlay(trace, trace.job().cluster(), loads_of(trace, "trace", 0), 0).run(STEPS)
    advice = load_advice(unequal)
    assert advice is not None
    assert advice.saved is not None
    assert abs(advice.shorter.value - shorter) < 2 * advice.shorter.error
    assert abs(advice.saved.value - summary.plan_saved) < 2 * advice.saved.error


def span_s(pipeline: Pipeline, times_s: list[float]) -> float:
    return max(start_s + time_s for start_s, time_s in zip(starts_of(pipeline, times_s), times_s, strict=True))


@pytest.mark.slow
def test_the_page_says_first_what_balanced_batches_bring_and_then_what_clocks_from_loads_save(unequal: JobData) -> None:
    page = render_page(unequal)
    said = re.search(r'<p class="advice">(.*?)</p>', page)
    assert said is not None
    assert page.index(said[0]) < page.index('class="cards"')
    assert re.search(r"shorter\. .*clocks from loads would save \d+ % ± \d+ .*docs/load-clocks\.md", said[1])


def test_without_a_model_of_the_job_only_balanced_batches_are_spoken_of(tmp_path: Path) -> None:
    data = played(tmp_path, trace_rows(steps=20, pipelines=3), 16, profile_steps=12)
    data.model = None
    advice = load_advice(data)
    assert advice is not None
    assert "shorter" in advice.text
    assert "clocks from loads" not in advice.text


def test_durations_of_which_a_micro_batch_has_none_in_common_give_no_advice(tmp_path: Path) -> None:
    rows = []
    for step, pipeline, stage, name, micro_batch, _ in trace_rows(steps=20, pipelines=8, micro_batches=1):
        time_s = 0.1 * Random(f"{step} {pipeline} {name}").gauss(1, 0.1)
        rows.append((step, pipeline, stage, name, micro_batch, time_s))
    assert load_advice(played(tmp_path, rows, 16, profile_steps=12)) is None


def test_a_worker_that_is_slow_for_good_has_no_more_work_than_others(tmp_path: Path) -> None:
    rows = []
    for step, pipeline, stage, name, micro_batch, _ in trace_rows(steps=20, pipelines=3):
        time_s = 0.1 * Random(f"{step} {pipeline} {micro_batch}").gauss(1, 0.003)
        rows.append((step, pipeline, stage, name, micro_batch, time_s * (1.0 if pipeline else 1.4)))
    assert load_advice(played(tmp_path, rows, 16, profile_steps=12)) is None


def test_a_few_recorded_iterations_say_nothing(tmp_path: Path) -> None:
    assert load_advice(played(tmp_path, trace_rows(pipelines=3), 8)) is None


@pytest.mark.slow
def test_a_job_with_loads_gets_no_advice_to_use_them(unequal: JobData) -> None:
    told = bodies.RankProgress(rank=0, step=9, loads=LoadsKnown(text="known"))
    assert load_advice(replace(unequal, progress=[told])) is None
