"""`pfo-fs check` on whole jobs in virtual time: each time the command waits, the job plays an iteration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clock import replace_time
from commands import Done, pfo_fs
from jobs import current_of, index_of, living_daemon, make_job, rank_infos, register
from simulated_jobs import KIND, LongTruth, converged

from pfo_fs.device.simulated.physics import A100
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.planner import make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, Episode, Nuisances, Play
from pfo_fs.store import JobFolder, OffSwitch, bodies, layout
from pfo_fs.turns import ROUND

SLOWER_BY_ONE_PERCENT = "all: 1395\n"  # of 1410 MHz


def playing(
    root: Path,
    yaml: str = "",
    scheduler: str = "Manual",
    episodes: list[Episode] | None = None,
    mute_ranks: set[int] | None = None,
) -> Play:
    """A job of two pipelines under a `schedule.yaml`; a policy has one pipeline, whose clocks follow the device."""
    nodes, pipelines, stages = (None, 2, 4) if yaml else (KIND, 1, 2)
    truth = LongTruth(A100, stages, slowest_mhz=900)
    pipeline = make_pipeline("1f1b", stages, 4)
    cluster = Cluster(pipeline, truth, Nuisances(), pipelines, episodes or (), seed=3, nodes=nodes)
    play = Play(cluster, root, PFOSettings(scheduler=scheduler, profile_steps=4), mute_ranks=mute_ranks or set())
    if yaml:
        say_yaml(play, yaml)
        list(play.run(8))
    play.folder.read_job()
    return play


def say_yaml(play: Play, yaml: str) -> None:
    play.folder.files.publish(f"{play.folder.path}/{layout.YAML}", yaml.encode())


def check(
    play: Play, *arguments: object, meanwhile: Callable[[int], object] = lambda looks: None, most: int = 400
) -> Done:
    """Runs the command; `meanwhile` is called with the number of its looks, before each iteration."""
    looks, now_s = 0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal looks, now_s
        looks, now_s = looks + 1, now_s + seconds
        assert looks < most, "the command never ends"
        meanwhile(looks)
        play.step()

    root = play.folder.files.root
    with pytest.MonkeyPatch.context() as patch, living_daemon(root):
        replace_time(patch, "pfo_fs.cli.check", sleep=sleep, monotonic=lambda: now_s)
        return pfo_fs("check", play.folder.job_id, "-d", root, *arguments)


@pytest.mark.slow
def test_a_schedule_by_hand_that_costs_one_percent_is_named_as_the_cause(tmp_path: Path) -> None:
    others_too = [Episode(1.01, 0, 10_000, pipeline) for pipeline in range(2)]
    done = check(playing(tmp_path, SLOWER_BY_ONE_PERCENT, episodes=others_too), "--json", "--steps", 48)
    answer = done.answer
    assert (done.returncode, answer["because_of_pfo_fs"]) == (1, True)
    assert answer["slower"] == pytest.approx(0.0090, abs=0.0010)
    assert answer["slower_error"] < 0.001
    assert answer["saved"] == pytest.approx(0.0117, abs=0.003)
    assert answer["default_steps"] == answer["steps"] / 4, "the first step after each change does not tell"


@pytest.mark.slow
def test_a_job_that_another_cause_made_slower_is_not_blamed_on_pfo_fs(tmp_path: Path) -> None:
    slow_pipeline = [Episode(1.02, 0, 10_000, 0)]
    play = playing(tmp_path, "ranks: {4-7: 1395}  # of the other pipeline, which waits\n", episodes=slow_pipeline)
    done = check(play, "--steps", 48)
    assert (done.returncode, done.stdout[:23]) == (0, "not because of pfo-fs: "), done.stdout


@pytest.mark.slow
def test_the_plan_of_the_policy_is_told_with_its_saving_and_goes_on_as_before(tmp_path: Path) -> None:
    play = playing(tmp_path, scheduler="ParetoScheduler")
    converged(play, 400)
    play.folder.read_job()
    before = current_of(play.folder)
    done = check(play, "--json")
    answer = done.answer
    assert done.returncode == 0, done
    assert answer["saved"] > 0.03
    assert answer["saved_error"] < answer["saved"] / 5
    after = current_of(play.folder)
    assert (after.source, after.converged) == (before.source, True)
    assert index_of(play.folder, after.number).stays
    assert list(play.run(3))[-1].number == after.number


def test_a_file_in_turns_is_judged_by_its_own_turns_at_once(tmp_path: Path) -> None:
    play = playing(tmp_path, SLOWER_BY_ONE_PERCENT + "turns: [1, 2, 3, 0]\n")
    no_answer(check(play, most=1), "`turns`")
    list(play.run(40))
    assert check(play, "--json", most=1).answer["slower"] == pytest.approx(0.0045, abs=0.002)


# ---- no answer


def no_answer(done: Done, text: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


@pytest.mark.parametrize(
    ("options", "arguments", "meanwhile", "said"),
    [
        ({"yaml": "all: 1410\n"}, (), None, "no schedule with lower clocks"),
        ({"mute_ranks": {2}}, ("--steps", 8), None, "rank 2 measured nothing"),
        ({}, (), lambda play: say_yaml(play, "all: 1305\n"), "another schedule came into force"),
        ({}, (), Play.end, "the job has ended"),
        ({}, ("--steps", 5000), None, "at most 2,048 steps"),
    ],
)
def test_why_there_is_no_answer_is_said(
    tmp_path: Path,
    options: dict[str, Any],
    arguments: tuple[object, ...],
    meanwhile: Callable[[Play], object] | None,
    said: str,
) -> None:
    play = playing(tmp_path, **{"yaml": SLOWER_BY_ONE_PERCENT, **options})
    happens = lambda looks: meanwhile(play) if meanwhile is not None and looks == 10 else None  # noqa: E731
    no_answer(check(play, *arguments, meanwhile=happens), said)


def test_without_a_daemon_or_while_switched_off_nothing_is_asked_for(tmp_path: Path) -> None:
    play = playing(tmp_path, SLOWER_BY_ONE_PERCENT)
    no_answer(pfo_fs("check", play.folder.job_id, "-d", tmp_path), "gives a sign of life")
    OffSwitch(play.folder.files).turn_off(play.folder.job_id, "")
    no_answer(check(play), "switched off")
    assert layout.CHECK not in play.folder.names()


def test_a_second_check_is_refused_while_the_first_waits(tmp_path: Path) -> None:
    play = playing(tmp_path, SLOWER_BY_ONE_PERCENT)
    first = bodies.CheckBody(nonce="the first one", block=1, steps=8)
    play.folder.write(first)
    no_answer(check(play), "asks for a check already")
    assert play.folder.read(bodies.CheckBody) == first


def test_a_check_that_the_coordinator_does_not_begin_is_taken_back(tmp_path: Path) -> None:
    play = playing(tmp_path, SLOWER_BY_ONE_PERCENT)
    play.daemon_runs = False
    done = check(play, "--timeout", 5)
    no_answer(done, "did not begin within 5 s")
    no_answer(done, "waiting until the scheduler's own trial ends, 5 s at most")
    no_answer(done, f"Ask again in some minutes, with a longer --timeout, or now `pfo-fs off {play.folder.job_id}`")
    assert layout.CHECK not in play.folder.names()


# ---- a coordinator that dies, and requests that nobody should have written


def test_another_daemon_goes_on_with_a_check_that_has_begun(tmp_path: Path) -> None:
    play = playing(tmp_path, SLOWER_BY_ONE_PERCENT)
    before = current_of(play.folder)
    done = check(play, "--json", "--steps", 24, meanwhile=lambda looks: play.restart_daemon() if looks == 8 else None)
    assert done.returncode == 1, done
    assert done.answer["schedule"] == before.number + 1 == current_of(play.folder).number
    assert current_of(play.folder).source == before.source


def test_a_request_is_carried_out_once_though_its_file_stays(tmp_path: Path) -> None:
    play = playing(tmp_path, SLOWER_BY_ONE_PERCENT)
    asked, before = bodies.CheckBody(nonce="0123456789abcdef", block=1, steps=8), current_of(play.folder).number
    play.folder.write(asked)
    for _ in play.run(4):
        play.folder.write(asked)
    list(play.run(20))
    play.restart_daemon()
    list(play.run(8))
    assert current_of(play.folder).number == before + 1
    assert index_of(play.folder, before + 1).turns == list(ROUND)


# ---- jobs without a schedule


def told_by_loads(root: Path, **known: object) -> JobFolder:
    folder = make_job(root, 1, 2)
    register(folder, rank_infos(1, 2))
    loads = LoadsKnown.model_validate({"text": "loads explain 99 %", "steps": 400, **known})
    folder.write(bodies.ProgressBody(ranks=[bodies.RankProgress(rank=0, step=400, step_age_s=3, loads=loads)]))
    return folder


@pytest.mark.parametrize(("slower", "code"), [(0.02, 1), (0.001, 0), (-0.01, 0)])
def test_clocks_from_loads_say_what_they_have_measured_themselves(tmp_path: Path, slower: float, code: int) -> None:
    known = {"late": slower, "late_error": 0.001, "controls": 11, "saved": 0.129, "saved_error": 0.002}
    folder = told_by_loads(tmp_path, **known)
    done = pfo_fs("check", folder.job_id, "-d", tmp_path, "--json")
    answer = done.answer
    assert done.returncode == code
    assert (answer["slower"], answer["slower_error"], answer["saved_error"]) == (slower, 0.002, 0.004)
    assert (answer["default_steps"], answer["steps"], answer["age_s"]) == (11, 400, 3)
    text = pfo_fs("check", folder.job_id, "-d", tmp_path).stdout
    assert "12.9 ± 0.4 % less energy, against 11 steps at default clocks, up to step 400, 3 s old" in text


def test_clocks_from_loads_that_have_compared_nothing_yet_and_a_power_limit_give_no_answer(tmp_path: Path) -> None:
    no_answer(pfo_fs("check", told_by_loads(tmp_path).job_id, "-d", tmp_path), "loads explain 99 %. Ask again later")
    limited = make_job(tmp_path, 1, coordination="none", scheduler="power_limit", attempt="limited")
    no_answer(pfo_fs("check", limited.job_id, "-d", tmp_path), "sets one power limit itself")
