"""Clocks from loads in real DistributedDataParallel jobs on gloo, on simulated GPUs."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import pfo_fs
from power_limit_fakes import limits_set
from running import pids_with, wait_for
from torchrun import clocks_mhz, torchrun

from pfo_fs import LoadClocks, PfoError

PROGRAM = Path(__file__).with_name("load_clocks_rank.py")
EXAMPLES = PROGRAM.parents[2] / "examples"
TOP_MHZ = 1410


class Job:
    """Two ranks of a job, run to their end, with the options of `load_clocks_rank.py`.

    Attributes:
        said: What each rank has left.
    """

    def __init__(self, folder: Path, *, restarts: int = 0, **options: Any) -> None:
        self.sim_dir, self.shared_dir = folder / "sim", folder / "pfo"
        # Without it, a second attempt finds the first one's addresses in torch's store and hangs (pytorch#135712).
        environment = {"PFO_FS_SIM_MODEL": "A100", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        launched = {"restarts": restarts} if restarts else {"forked": True}
        torchrun(folder, 2, PROGRAM, self.shared_dir, json.dumps(options), **launched, **environment)
        self.said = [json.loads(Path(f"{self.shared_dir}.{rank}.json").read_text()) for rank in range(2)]

    def clocks_mhz(self, rank: int) -> list[int]:
        """The clocks that a rank's GPU was given, 0 for the default."""
        return clocks_mhz(self.sim_dir / f"g{rank}.log")

    def lowered(self) -> int:
        """How often the clock of a GPU was lowered."""
        return sum(0 < mhz < TOP_MHZ for rank in range(2) for mhz in self.clocks_mhz(rank))


@pytest.mark.slow
def test_where_only_power_limits_may_be_set_a_rank_that_always_waits_has_a_lower_one(tmp_path: Path) -> None:
    job = Job(tmp_path, steps=45, uneven=True, options={"clock_backend": "power-cap"})
    limits_w = [limits_set(job.sim_dir, f"g{rank}") for rank in range(2)]
    assert set(limits_w[0]) <= {500}
    assert min(limits_w[1]) < 450
    assert limits_w[1][-1] == 500, "the limit of before is back"
    assert "loads explain" in job.said[0]["status"]


@pytest.mark.slow
def test_ranks_with_less_work_run_slower_and_training_is_bit_equal(tmp_path: Path) -> None:
    plain = Job(tmp_path / "without", steps=34, without=True)
    job = Job(tmp_path / "with", steps=34, ahead=1)
    for rank in range(2):
        assert job.said[rank]["weights"] == plain.said[rank]["weights"]
        assert not job.said[rank]["warnings"]
        assert job.clocks_mhz(rank)[-1] == 0, "the clock is the default in the end"
    assert job.lowered()
    assert "loads explain" in job.said[0]["status"]
    assert "energy" in job.said[0]["status"]
    assert job.said[0]["metrics"]["pfo_fs/loads_explain"] > 0.5
    (row,) = pfo_fs("status", job.shared_dir, "--json").answer["jobs"]
    assert row["loads"]["explained"] > 0.5
    assert row["iter_time_s"] > 0.05
    page = tmp_path / "report.html"
    pfo_fs("report", "latest", "-d", job.shared_dir, "-o", page)
    assert "Clocks from loads, against max clocks" in page.read_text()
    assert "Who waits for whom" in page.read_text()
    assert "left alone so far" not in page.read_text()


@pytest.mark.slow
def test_clocks_stay_the_highest_where_nothing_marks_the_end_of_work_and_somebody_says_so(tmp_path: Path) -> None:
    job = Job(tmp_path, steps=30, unmarked=True)
    assert not any(job.clocks_mhz(0) + job.clocks_mhz(1))
    said = job.said[0]["status"] + " ".join(job.said[0]["warnings"])
    assert "all ranks are at default clocks" in said or "stay at default clocks" in said


@pytest.mark.slow
def test_a_missing_load_is_one_warning_a_rank_that_closes_leaves_default_clocks_and_a_foreign_profile_is_left_alone(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"measurements": []}')
    job = Job(tmp_path, steps=30, none_at=20, closes_at=27, options={"profile_path": str(other)})
    assert ["no load" in text for text in job.said[1]["warnings"]].count(True) == 1
    assert job.lowered()
    assert any("cannot exchange loads any more" in text for text in job.said[0]["warnings"])
    assert job.clocks_mhz(0)[-1] == job.clocks_mhz(1)[-1] == 0
    assert other.read_text() == '{"measurements": []}'
    assert any("neither used nor written" in text for text in job.said[0]["warnings"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "said"), [("too_few", "after the backwards of 1 loads"), ("reduces", "use no_sync()")]
)
def test_loads_and_gradients_that_do_not_fit_the_micro_batches_are_one_warning(
    tmp_path: Path, option: str, said: str
) -> None:
    job = Job(tmp_path, steps=4, **{option: True})
    assert [said in text for text in job.said[0]["warnings"]] == [True]


@pytest.mark.slow
def test_a_compiled_module_trains_and_its_backward_is_seen(tmp_path: Path) -> None:
    job = Job(tmp_path, steps=15, compiled=True)
    assert not job.said[0]["warnings"]
    assert "loads explain" in job.said[0]["status"]


def test_one_rank_alone_is_told_that_it_has_nobody_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sim_dir: Path
) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    with pytest.raises(PfoError, match="one data-parallel rank"):
        LoadClocks(tmp_path / "pfo", strict=True, world_size=1, rank=0)
    with LoadClocks(tmp_path / "pfo", world_size=1, rank=0) as clocks:
        clocks.step(loads=[1.0])
        clocks.work_ended()
        assert clocks.status_text == ""


def run_example(program: str, folder: Path, *arguments: str) -> str:
    """Runs an example on four ranks; returns what it printed."""
    return torchrun(folder, 4, EXAMPLES / program, "--shared-dir", folder / "pfo", *arguments, forked=True)


@pytest.mark.slow
def test_what_loads_make_of_the_time_of_real_pipelines_is_learned_and_training_is_bit_equal(tmp_path: Path) -> None:
    plain = run_example("train_packed_pipeline.py", tmp_path / "without", "--iterations", "40", "--without")
    output = run_example("train_packed_pipeline.py", tmp_path / "with", "--iterations", "40")
    (weights,) = (line for line in plain.splitlines() if line.startswith("weights"))
    assert weights in output.splitlines()
    # A busy machine may leave more unexplained than clocks are lowered for.
    assert re.search(r"loads (explain \d+ % of|leave \d+)", output.splitlines()[-1])
    for log in (tmp_path / "with" / "sim").glob("*.log"):
        assert clocks_mhz(log)[-1] == 0, "the clock is the default in the end"


@pytest.mark.slow
def test_after_a_restart_of_torchrun_the_ranks_join_again_and_in_the_end_nothing_is_left(tmp_path: Path) -> None:
    sim_dir = str(tmp_path / "sim")
    try:
        job = Job(tmp_path, restarts=1, steps=30, dies_at=26)
        assert "loads explain" in job.said[0]["status"]
        wait_for(lambda: not pids_with("PFO_FS_SIM_DIR", sim_dir), what="the end of all processes")
    finally:
        for pid in pids_with("PFO_FS_SIM_DIR", sim_dir):
            os.kill(pid, signal.SIGKILL)
    ends = [json.loads((job / "end.json").read_text()) for job in sorted((tmp_path / "pfo" / "jobs").iterdir())]
    assert [end["body"]["reason"] for end in ends] == ["terminated", "finished"]
    assert job.lowered()
    assert [job.clocks_mhz(rank)[-1] for rank in range(2)] == [0, 0]


@pytest.mark.slow
def test_the_next_start_of_a_job_begins_from_the_profile(tmp_path: Path) -> None:
    profile = tmp_path / "loads.json"
    lowered = list[int]()
    for number in range(2):
        job = Job(tmp_path / str(number), steps=24, options={"profile_path": str(profile)})
        lowered.append(job.lowered())
        assert not job.said[0]["warnings"]
        wait_for(lambda: profile.exists() and "learned" in profile.read_text())
    assert lowered[1] > lowered[0]
