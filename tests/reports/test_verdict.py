"""The first sentence of the report, and its colours: saved, slower, settled or not, what to do next."""

from dataclasses import replace
from pathlib import Path

import pytest
from commands import pfo_fs

from pfo_fs.device.simulated.physics import A100
from pfo_fs.loads_known import LastLoadStep, LoadsKnown
from pfo_fs.models import PlanInputs, ProfilingResult, Straggler
from pfo_fs.reports.collect import JobData, collect_job, read_state
from pfo_fs.reports.savings import savings_of, total_of
from pfo_fs.reports.summary import headline_section, messages, whole_job_slower
from pfo_fs.reports.verdict import verdict_of
from pfo_fs.simulator import ModelTruth
from pfo_fs.store import JobFolder, bodies

PLAN = {"energy_saved": 0.1, "energy_saved_error": 0.001, "more_time": 0.0001, "more_time_error": 0.0001}


def with_plan(data: JobData, **figures: float) -> JobData:
    """The job, as if this were measured of its plan in force."""
    return replace(data, model=data.model.model_copy(update={**PLAN, "off_target": 0.0, **figures}))


def sentence(data: JobData) -> str:
    return verdict_of(data).sentence(data)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, "pfo-fs saves 10.0 ± 0.2 % of the GPUs' energy, and training is not slower (0.01 ± 0.02 %). "),
        ({"energy_saved": 0.001}, "saves no energy that can be measured (0.1 ± 0.2 %)"),
        ({"energy_saved": -0.03}, "costs energy (3.0 ± 0.2 % more)"),
        ({"more_time": 0.05, "off_target": 0.0}, "and training is slower (5.00 ± 0.02 %)"),
        (
            {"more_time": 0.05, "off_target": 0.05},
            "Training is 5.00 ± 0.02 % slower than at default clocks, as was measured",
        ),
        ({"more_time": 0.08, "off_target": 0.0286}, "(the target allows 5 %)"),
    ],
)
def test_the_verdict_says_what_is_saved_and_what_it_costs(data: JobData, figures: dict[str, float], said: str) -> None:
    assert said in sentence(with_plan(data, **figures))


def test_the_verdict_says_what_to_do_next(data: JobData) -> None:
    job = with_plan(data)
    for settled, said in ((True, "there is nothing to do"), (False, "look again in some minutes")):
        assert said in sentence(replace(job, current=job.current.model_copy(update={"converged": settled})))
    assert sentence(replace(job, end=bodies.EndBody(reason="finished"))).endswith("The job has ended.")
    held = [bodies.RankProgress(rank=0, held=True)]
    assert sentence(replace(job, progress=held)).endswith("all ranks are at default clocks.")
    overruled = replace(job, progress=[bodies.RankProgress(rank=0), bodies.RankProgress(rank=1, overruled=True)])
    assert "has not measured yet what it saves. Others decide the clocks" in sentence(overruled)


def test_a_job_that_is_one_percent_slower_is_red_even_if_its_target_allows_more(data: JobData) -> None:
    for more, kind in ((0.05, "bad"), (0.005, "even")):
        job = with_plan(data, more_time=more)
        time = headline_section(job, savings_of(job))["cards"][1]
        assert (time["title"], time["kind"]) == ("time per iteration", kind)
        loads = LoadsKnown(saved=0.1, saved_error=0.001, late=more, late_error=0.001, controls=9)
        told = replace(data, progress=[bodies.RankProgress(rank=0, loads=loads)])
        time = headline_section(told, savings_of(told))["cards"][1]
        assert (time["title"], time["kind"]) == ("time", kind)


def test_an_ended_job_keeps_the_last_figures_that_were_measured_everywhere(played: JobFolder) -> None:
    data = collect_job(played)
    last = data.model.model_copy(update={**PLAN, "number": data.current.number})
    played.write(last.model_copy(update={"energy_saved": None, "more_time": 0.003, "last": last}))
    assert verdict_of(read_state(played)).saved is None
    played.write(bodies.EndBody(reason="finished"))
    ended = collect_job(played)
    cards = headline_section(ended, savings_of(ended))["cards"]
    assert [card["big"] for card in cards[:2]] == ["−10.0 % ± 0.2", "+0.01 % ± 0.02"]
    assert "saves 10.0 ± 0.2 %" in sentence(ended)
    told = pfo_fs("report", "latest", "-d", played.files.root, "--json").answer["verdict"]
    assert (told["saved"], told["slower"]) == (0.1, 0.0001)


def test_a_job_that_was_slower_as_a_whole_says_what_people_have_asked_for(played: JobFolder) -> None:
    job = by_hand(played, 0.48)
    late = total_of(job, savings_of(job, any_work=True))._replace(compared=True, more_time_s=9.0)
    said = whole_job_slower(job, late)
    assert "the pace of a straggler (from step" in said
    assert said.endswith(f"schedule.yaml (from step {job.windows[-1].index.start_step})")


def by_hand(played: JobFolder, slower: float) -> JobData:
    """The job, with a schedule by hand under which all ranks were measured to be slower than in its first window."""
    data = collect_job(played)
    first = data.windows[0]
    number = data.windows[-1].number + 1
    source = bodies.Source(kind="yaml", sha256="0" * 64)
    schedules = list(next(w for w in data.windows if w.schedules).schedules.values())
    played.write_schedule(number, 1, data.last_step + 1, source, schedules, data.infos)
    spans = [first.measured.span_s * (1 + slower) * factor for factor in (0.9999, 1.0001)]
    figures = {"iter_time": spans, "iter_span": spans, "iter_energy": [1.0, 1.0], "time_breakdown": {}}
    results = [ProfilingResult.model_validate({"rank": info.rank, **figures}) for info in data.infos]
    played.write_results(number, [bodies.ResultBody(result=each, first_step=data.last_step + 1) for each in results])
    played.write(bodies.CurrentBody(generation=1, number=number, start_step=1, state="running", source=source))
    return collect_job(played)


def test_a_schedule_by_hand_is_the_verdict_and_a_warning_only_where_it_makes_training_slower(played: JobFolder) -> None:
    job = by_hand(played, 0.0)
    assert "until schedule.yaml is changed" in sentence(job)
    assert not any(kind == "warn" for kind, _, _ in messages(job))
    job = by_hand(played, 0.48)
    assert sentence(job).startswith("Training is 48.0")
    assert "because of schedule.yaml" in sentence(job)
    assert "target allows" not in sentence(job)
    assert any(kind == "warn" and "slower than at default clocks" in text for kind, _, text in messages(job))
    shown = verdict_of(read_state(played))
    assert (shown.slower, shown.harm) == (pytest.approx(0.48, abs=0.01), verdict_of(job).harm)


def test_a_schedule_by_hand_over_clocks_from_loads_is_judged_by_what_loads_expect(played: JobFolder) -> None:
    job = by_hand(played, 0.0)
    step = {"step": 9, "lanes": 2, "lane": [1, 0], "mhz": [900, 900], "work_s": [0.7, 0.6], "full_s": [0.5, 0.4]}
    loads = LoadsKnown(last=LastLoadStep.model_validate(step), saved=0.1, late=0.0, energy_j=9.0, time_s=9.0)
    told = replace(job, progress=[bodies.RankProgress(rank=0, loads=loads)], windows=job.windows[-1:])
    assert verdict_of(told).slower == pytest.approx(0.4)
    assert "because of schedule.yaml" in verdict_of(told).harm
    assert "from loads" not in str(headline_section(told, savings_of(told))["title"])
    total = total_of(told, savings_of(told))
    assert not total.compared, "what is by hand was not measured by loads"


def test_a_checked_schedule_says_by_how_much_it_would_be_slower(played: JobFolder, tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("all: 900\n")
    truth, kinds = ModelTruth(A100, 4), [(stage, name) for stage in range(4) for name in ("forward", "backward")]
    times = [[truth.measurement(*kind, mhz).time_s for kind in kinds] for mhz in (900, 1410)]
    command = "schedule", "check", "latest", tmp_path / "low.yaml", "-d", played.files.root
    assert pfo_fs(*command, "--json").answer["slower"] == pytest.approx(sum(times[0]) / sum(times[1]) - 1, rel=0.15)
    assert "% longer than at max clocks" in pfo_fs(*command, code=0).stderr


def test_the_pace_of_a_straggler_is_no_harm(data: JobData) -> None:
    job = with_plan(data, more_time=0.2, off_target=0.0)
    late = with_plan(data, more_time=0.2, off_target=0.2)
    inputs = PlanInputs(straggler=Straggler(slowdown=1.2))
    source = job.current.source.model_copy(update={"plan_inputs": inputs})
    waits = replace(late, current=job.current.model_copy(update={"source": source}))
    assert [bool(verdict_of(one).harm) for one in (job, late, waits)] == [False, True, False]


def test_energy_so_far_is_of_gpus_only_with_its_price_and_its_carbon(data: JobData) -> None:
    cards = headline_section(data, savings_of(data), {"cost {}": 1000.0, "{} kg CO2": 0.5})["cards"]
    card = next(card for card in cards if card["title"] == "energy so far")
    kwh = float(card["big"].removesuffix(" kWh"))
    whose, cost, carbon, saved = card["small"]
    assert "of GPUs only" in whose
    assert float(cost.split()[1]) == pytest.approx(1000 * kwh, rel=0.01)
    assert float(carbon.split()[0]) == pytest.approx(0.5 * kwh, rel=0.01)
    assert "less than at max clocks" in saved
