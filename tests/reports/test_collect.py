"""What is read of a job's folder."""

from dataclasses import replace
from pathlib import Path

import pytest
from jobs import make_job, rank_infos, register
from traced_jobs import trace_rows
from traced_jobs import write_trace as write_durations

from pfo_fs.errors import PlanError, RecordError
from pfo_fs.reports.collect import JobData, collect_job, results_of
from pfo_fs.reports.timeline import write_trace
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, read_trace
from pfo_fs.store import Files, JobFolder, SharedDirectory
from pfo_fs.turns import ALL


def test_schedules_come_with_their_steps_and_with_what_was_measured(data: JobData) -> None:
    assert [window.number for window in data.windows] == list(range(len(data.windows)))
    for window, following in zip(data.windows, data.windows[1:], strict=False):
        assert window.end_step == following.index.start_step
    measured = data.windows[1].measured
    assert measured.ranks == 8
    turns = data.windows[1].index.turns
    (all_follow,) = {
        len([s for s in r.result.iter_step if turns[s % 4] == ALL]) for r in results_of(data, 1, data.infos).values()
    }
    assert measured.iterations == all_follow
    first = data.windows[0].measured
    without = data.windows[1].without
    assert first.span_s == pytest.approx(without.span_s, rel=0.002)
    assert data.unreadable == []


def test_a_torn_result_is_left_out_and_said(played: JobFolder) -> None:
    results = played.read_results(1, 0)
    results[4].result.iter_step.append(10**6)  # it has no duration
    folder = played.location / "prof" / "1"
    (folder / "0.json").unlink()
    for of_one_host in ([one for one in results if one.result.rank != 5], [results[5]]):
        played.write_results(1, of_one_host)
    path = folder / "5.json"
    path.write_bytes(path.read_bytes()[:200])
    data = collect_job(played)
    assert any("prof/1/5.json" in text for text in data.unreadable)
    measured = data.windows[1].measured
    assert measured.ranks == 6
    assert measured.energy_j is None


def test_a_folder_without_job_json_is_no_job(tmp_path: Path) -> None:
    shared = SharedDirectory(Files(tmp_path))
    shared.make_folders()
    with pytest.raises(RecordError, match=r"job\.json is missing"):
        collect_job(shared.job("nobody"))


def test_a_rank_runs_what_another_of_its_stage_runs_and_its_place_is_that_stage_unless_it_holds_several(
    data: JobData,
) -> None:
    assert len(data.orders) == 8
    assert data.orders[7] == data.orders[3], "it has no order of its own"
    assert data.place == "stage"
    interleaved = {rank: [*order, ("forward", 4 + order[0][1])] for rank, order in data.orders.items()}
    assert replace(data, orders=interleaved).place == "pipeline rank"


def test_a_rank_that_cannot_be_of_the_job_is_left_out(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 2), rank_infos(2)
    register(folder, [infos[0], infos[1].model_copy(update={"pp_rank": 10**12})])
    assert collect_job(folder).infos == infos[:1]


# ---- the durations of a job as a trace, which the simulator replays


def test_a_simulated_job_writes_the_durations_of_the_trace_that_it_has_replayed(tmp_path: Path) -> None:
    replayed = read_trace(write_durations(tmp_path / "in.csv", trace_rows(steps=20)))
    play = Play(replayed.job().cluster(), tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    list(play.run(20))
    counts = write_trace(collect_job(play.folder), tmp_path / "out.csv")
    written = read_trace(tmp_path / "out.csv")
    assert written.dp_ranks == [0, 1]
    assert len(written.steps) == counts["steps"] >= 5
    for kind, length_s in written.lengths_s.items():
        for number, step in enumerate(written.steps):
            nodes = [n for n, one in enumerate(written.pipeline.instructions) if (one.stage, one.name) == kind]
            times_s = replayed.lengths_s[kind] * replayed.table[step, nodes]
            assert length_s * written.table[number, nodes] == pytest.approx(times_s, rel=1e-4)


def test_only_iterations_at_full_clocks_are_written(data: JobData, tmp_path: Path) -> None:
    write_trace(data, tmp_path / "job.csv")
    steps = set(read_trace(tmp_path / "job.csv").steps)
    lowered = [window for window in data.windows if window.measured and {*window.clocks_mhz} - {0, 1410}]
    assert lowered
    assert not steps & {window.measured.first_step for window in lowered}


def test_a_job_without_results_has_no_trace_and_leaves_no_file(tmp_path: Path) -> None:
    trace = read_trace(write_durations(tmp_path / "in.csv", trace_rows()))
    play = Play(trace.job().cluster(), tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler"))
    play.step()
    with pytest.raises(PlanError, match="no iteration was measured"):
        write_trace(collect_job(play.folder), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
