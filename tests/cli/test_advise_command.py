"""`pfo-fs advise` of a file and of a job that may not set clocks."""

import json
from pathlib import Path

import pytest
from commands import pfo_fs
from jobs import make_job
from traced_jobs import write_trace

from pfo_fs.device.simulated.physics import A100
from pfo_fs.models import Switching
from pfo_fs.planner import make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, ModelTruth, Play
from pfo_fs.store.bodies import ModelBody, ProgressBody, RankProgress


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pipeline whose last stage is longer."""
    path = tmp_path_factory.mktemp("traced") / "job.csv"
    kinds = [(stage, *kind) for stage in range(4) for kind in (("forward", 0.05), ("backward", 0.1))]
    of_step = [
        (stage, name, batch, seconds * (1.3 if stage == 3 else 1.0))
        for stage, name, seconds in kinds
        for batch in range(4)
    ]
    return write_trace(path, [(step, 0, *row) for step in range(4) for row in of_step])


def test_a_file_of_durations_is_enough(traced: Path) -> None:
    told = pfo_fs("advise", traced, "--gpu", "A100", code=0).stdout
    for words in (
        "First: without unequal stages",
        "move layers from stage 3",
        "With balanced stages, there is left:",
        "Next: a clock per instruction",
        "simulated GPUs only",
    ):
        assert words in told
    assert "not published" not in told


def test_instructions_that_end_before_a_clock_acts_get_no_clock_of_their_own(traced: Path, tmp_path: Path) -> None:
    head, *rows = traced.read_text().splitlines()
    short = [f"{before},{float(time_s) / 50}" for before, _, time_s in (row.rpartition(",") for row in rows)]
    (tmp_path / "short.csv").write_text("\n".join([head, *short]))
    told = pfo_fs("advise", tmp_path / "short.csv", "--gpu", "A100").stdout
    assert "a clock per rank" in told
    assert "a clock per instruction" not in told


def test_a_kind_of_gpu_that_nobody_has_published_is_said(traced: Path) -> None:
    told = pfo_fs("advise", traced, "--gpu", "banana").stdout
    assert "No curve of training is published for 'banana'" in told
    assert "give --gpu" not in told


def test_a_balanced_job_is_told_that_there_is_little_to_save(tmp_path: Path) -> None:
    path = tmp_path / "one-stage.csv"
    ranks = [(step, rank) for step in range(4) for rank in (0, 1)]
    write_trace(path, [(*of, 0, name, 0, 0.1) for of in ranks for name in ("forward", "backward")])
    text = path.read_text()
    assert "give --gpu" in pfo_fs("advise", path).stdout
    told = pfo_fs("advise", path, "--gpu", "A100").stdout
    assert "Little to save" in told
    assert "wait 0.0 %\n" in told, "there is no cause to name"
    assert "Next: nothing; or, if steps may be 2 % slower, one power limit: power_limit_loop;" in told
    path.write_text(text.replace("time_s", "time_ms"))
    assert "divide time_ms by 1000 and name it time_s" in pfo_fs("advise", path).said
    path.write_text(text.replace("0.1", "100"))
    assert "time_s must be in seconds; are these milliseconds?" in pfo_fs("advise", path).said


def test_traces_of_some_ranks_only_are_told(tmp_path: Path) -> None:
    ranges = [
        {"cat": "user_annotation", "name": f"{name} 0", "ts": begin_us, "dur": 1e5, "pid": 1, "tid": 1}
        for name, begin_us in (("Forward", 0), ("Backward", 1e5))
    ]
    document = {"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": ranges}
    (tmp_path / "rank0.json").write_text(json.dumps(document))
    assert "1 of 8 ranks' traces: waits between ranks" in pfo_fs("advise", tmp_path, "--num-ranks", 1, code=0).stderr


def test_programs_get_the_same_as_json(traced: Path) -> None:
    answer = pfo_fs("advise", traced, "--gpu", "A100", "--json").answer
    plan = answer["remedies"][0]
    assert plan["name"] == "plan"
    assert len(plan["saved"]) == len(answer["slowdowns"])
    assert 0 < plan["saved"][0]["low"] < plan["saved"][0]["high"]
    assert {wait["cause"] for wait in answer["waits"]} >= {"pipeline bubbles", "unequal stages"}


def test_a_job_tells_from_what_it_has_measured_at_default_clocks_and_of_curves(tmp_path: Path) -> None:
    cluster = Cluster(make_pipeline("1f1b", 4, 6), ModelTruth(A100, 4), pipelines=2, seed=1)
    play = Play(cluster, tmp_path, PFOSettings(scheduler="InstructionProfiler", profile_steps=4))
    list(play.run(12))
    arguments = "advise", play.folder.job_id, "-d", play.folder.files.root
    told = pfo_fs(*arguments, code=0).stdout
    assert "of 2 pipelines" in told
    assert "published" not in told, "its GPUs are A100s"
    kinds = [f"{stage},{name}" for stage in range(4) for name in ("forward", "backward")]
    rows = [f"{kind},{mhz},0.1,{mhz / 50}" for kind in kinds for mhz in (1410, 1200, 1005)]
    play.folder.write_file("profile.csv", "\n".join(["stage,instruction,frequency,time,energy", *rows]).encode())
    play.folder.write(ModelBody(blocking_power_w=80.0, delay_s=0.0))
    assert "a clock per instruction" in told
    play.folder.write(ProgressBody(ranks=[RankProgress(rank=0, switching=Switching(mode="launch"))]))
    told = pfo_fs(*arguments).stdout
    assert "was measured in this job" in told
    assert "a clock per instruction" not in told, "clocks cannot follow the device there"


def test_a_job_that_has_measured_nothing_yet_is_told_where_to_look(tmp_path: Path) -> None:
    folder = make_job(tmp_path / "pfo", 2)
    told = pfo_fs("advise", folder.job_id, "-d", tmp_path / "pfo", code=1)
    assert "no step was measured at default clocks yet" in told.stderr
