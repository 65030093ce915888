"""`pfo-fs plan`, as people and scripts use it."""

import csv
import random
from pathlib import Path

import pytest
from commands import pfo_fs
from jobs import rank_infos
from planner_problems import random_profile

from pfo_fs.cli.plan_parts import read_dump
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.planner import make_pipeline
from pfo_fs.schedule_yaml import parse_schedule_yaml
from pfo_fs.scheduler import read_plan
from pfo_fs.store import save_dump

SVG = b"<svg"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Three stages at eight clocks."""
    path = tmp_path / "gpt.csv"
    random_profile(random.Random(7), make_pipeline("1f1b", 3, 1), 8).to_csv(path)
    return path


def arguments(profile: Path, *more: str | Path) -> list[str | Path]:
    return ["plan", profile, "--num-microbatches", "6", "--p2p-power", "70", *more]


def test_without_a_request_the_fastest_plan_is_shown_beside_simpler_means(profile: Path) -> None:
    shown = pfo_fs(*arguments(profile), columns=80, code=0)
    for name in ("max clocks", "one frequency", "one per stage", "planned", "gap"):
        assert name in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())


@pytest.mark.slow
def test_the_plan_is_written_as_yaml_that_a_job_takes(profile: Path, tmp_path: Path) -> None:
    pfo_fs(*arguments(profile, "--slowdown", "1.05", "-o", tmp_path / "out"), code=0)
    document = parse_schedule_yaml((tmp_path / "out" / "plan.yaml").read_bytes())
    job = JobInfo(pp_degree=3, dp_degree=1, tp_degree=1, world_size=3)
    infos = rank_infos(3, clocks=[1400 - 15 * n for n in range(8)])
    orders = {r: [(i.name, None) for i in order] for r, order in enumerate(make_pipeline("1f1b", 3, 6).orders)}
    schedules = document.resolve(job, infos, orders)
    assert [len(schedule.frequencies) for schedule in schedules] == [12, 12, 12]
    assert (tmp_path / "out" / "pipeline.svg").read_bytes().startswith(SVG)


def test_a_plan_in_lowtimes_format_is_what_a_zeus_server_reads(profile: Path, tmp_path: Path) -> None:
    pfo_fs(*arguments(profile, "--format", "lowtime", "-o", tmp_path), code=0)
    plan = read_plan(tmp_path / "freqs_pipeline_00000.py")
    names = [[i.name for i in order] for order in make_pipeline("1f1b", 3, 6).orders]
    assert [[name for name, _ in order] for order in plan] == names


@pytest.mark.slow
def test_a_frontier_is_a_table_plans_and_pictures(profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pfo_fs(*arguments(profile, "--frontier", "7", "--format", "lowtime", "-o", out), code=0)
    with (out / "frontier.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    times = [float(row["iteration_time_s"]) for row in rows]
    energies = [float(row["energy_j"]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert min(energies) < energies[-1]
    assert all(float(row["lower_bound_j"]) <= float(row["energy_j"]) * (1 + 1e-9) for row in rows)
    assert len(list(out.glob("freqs_pipeline_*.py"))) == 7
    assert (out / "pipeline.svg").read_bytes().startswith(SVG)
    done = pfo_fs(*arguments(profile, "--frontier", "5", "--format", "lowtime", "-o", out), code=1)
    assert "freqs_pipeline_00005.py and 1 more" in done.stderr, "a longer frontier's plans are not left among its own"


def test_beside_a_straggler_energy_and_power_say_over_which_time(profile: Path, tmp_path: Path) -> None:
    done = pfo_fs(*arguments(profile, "--straggler", "50", "-o", tmp_path))
    assert "over the 50 s of the straggler" in done.stdout
    assert "W over the 50 s of a straggler" in (tmp_path / "plan.yaml").read_text()


def test_programs_get_json(profile: Path, tmp_path: Path) -> None:
    answer = pfo_fs(*arguments(profile, "--deadline", "9", "--json", "-o", tmp_path)).answer
    planned = answer["plans"][-1]
    assert planned["name"] == "planned"
    assert [len(order) for order in planned["ranks"]] == [12, 12, 12]
    assert {"stage", "instruction", "microbatch", "mhz"} == set(planned["ranks"][0][0])
    assert planned["iteration_time_s"] <= 9
    assert planned["lower_bound_j"] <= planned["energy_j"] * (1 + 1e-9)
    assert str(tmp_path / "plan.yaml") in answer["files"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--deadline", "0.001"], "the fastest takes"),
        (["--deadline", "9", "--power", "100"], "give only one of --deadline, --power"),
        (["--schedule", "2f2b"], "there is no schedule '2f2b'"),
        (["--schedule", "zb-h1"], "stage 0 has no rows for backward_input"),
        (["--gpu", "A100"], "give --p2p-power or --gpu, not both"),
        (["--frontier", "1"], "2 to 100,000 points"),
        (["--solver", "lowtime", "--power", "500"], "lowtime plans for deadlines only"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why_with_its_exit_code(
    profile: Path, more: list[str], message: str
) -> None:
    done = pfo_fs(*arguments(profile, *more), code=2 if "only one" in message else 1)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_lowtime_can_be_compared_in_one_command(shared_data: Path) -> None:
    pytest.importorskip("lowtime")
    file = shared_data / "profiles" / "gpt3-175b+a100_sxm_bf16.csv"
    asked = "--num-microbatches 2 --gpu A100 --slowdown 1.1 --solver both --json"
    found = {plan["name"]: plan for plan in pfo_fs("plan", file, *asked.split()).answer["plans"]}
    assert found["planned"]["energy_j"] <= found["lowtime"]["energy_j"]


# ---- what clock changes cost


def test_the_table_says_why_the_plan_changes_clocks_as_often_as_it_does(profile: Path) -> None:
    shown = pfo_fs(*arguments(profile, "--clock-latency", "1", "--ranks-per-host", "3"), code=0)
    assert "one clock for each rank" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())


# ---- the folder that a Zeus server has dumped; `benchmarks/zeus_interchange.py` runs the real server


CLOCKS = [1400, 1000]
ENERGY_J = {"forward": {1400: 300.0, 1000: 250.0}, "backward": {1400: 700.0, 1000: 550.0}}
TIME_S = {"forward": {1400: 1.0, 1000: 1.3}, "backward": {1400: 2.0, 1000: 2.5}}


def dump(folder: Path, *, short: bool = False) -> Path:
    """Two stages, in each of two schedules one clock; two iterations of two micro-batches, off by 10 % up and down."""
    save_dump(RankInfo, rank_infos(2, clocks=CLOCKS), folder)
    for number, mhz in enumerate(CLOCKS):
        clocks = [("forward", mhz), ("backward", mhz)] * 2
        save_dump(FrequencySchedule, [FrequencySchedule(rank=r, frequencies=clocks) for r in range(2)], folder, number)
        results = []
        for rank in range(2):
            measured: dict[str, object] = {"iter_time": [6, 6], "iter_energy": [2, 2]}
            for field, table in (("time_breakdown", TIME_S), ("energy_breakdown", ENERGY_J)):
                means = {name: (1 + rank) * of[mhz] for name, of in table.items()}
                count = 1 if short else 2
                measured[field] = {name: [[0.9 * mean] * count, [1.1 * mean] * count] for name, mean in means.items()}
            results.append(ProfilingResult.model_validate({"rank": rank, **measured}))
        save_dump(ProfilingResult, results, folder, number)
    return folder


def test_a_dump_is_the_profile_of_its_averages(tmp_path: Path) -> None:
    found = read_dump(dump(tmp_path)).measurements
    assert found.keys() == {(stage, name) for stage in range(2) for name in TIME_S}
    for (stage, name), rows in found.items():
        assert {row.frequency_mhz: row.time_s / (1 + stage) for row in rows} == pytest.approx(TIME_S[name])
        assert {row.frequency_mhz: row.energy_j / (1 + stage) for row in rows} == pytest.approx(ENERGY_J[name])


def test_results_that_do_not_fit_to_their_schedule_and_other_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"is not the dump of a job: there is no <n>\.prof\.json"):
        read_dump(tmp_path)
    with pytest.raises(PlanError, match=r"rank 0 in .* does not have 2 times and energies of forward"):
        read_dump(dump(tmp_path, short=True))
