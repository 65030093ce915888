"""The page: what it says, what it does when parts are missing, and that no text of the directory becomes markup."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from commands import pfo_fs
from jobs import make_job, one_f_one_b, rank_infos, register, results_by_rank, write_results, write_step

from pfo_fs.loads_known import LastLoadStep, LoadsKnown
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.reports.collect import JobData, collect_job
from pfo_fs.reports.page import last_step, render_page
from pfo_fs.reports.pictures import WIDTH
from pfo_fs.store import JobFolder, SharedDirectory, bodies

HOSTILE = "</script></style></title><img src=x onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    """Collects the elements and the text of each section."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._section = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        self.text[self._section] = self.text.get(self._section, "") + data


@pytest.fixture(scope="module")
def page(data: JobData) -> str:
    return render_page(data)


def test_the_headline_says_what_the_coordinator_says(page: str, data: JobData) -> None:
    said = re.search(r"saves ([\d.]+) ± ([\d.]+) %", data.current.status_text)
    headline = Reader(page).text["headline"]
    shown = re.search(r"−([\d.]+) %", headline)
    assert float(shown[1]) == pytest.approx(float(said[1]), abs=float(said[2]))
    since = data.in_force.index.start_step
    assert f"Schedule {data.current.number} since step {since}" in headline


def test_every_part_is_there_for_a_job_that_has_everything(page: str) -> None:
    text = Reader(page).text
    assert {"headline", "warnings", "pipeline", "schedules"} <= set(text)
    assert "straggler: pipeline 1 is 1.2 × as slow, as announced" in text["schedules"]
    assert 'class="missing"' not in page


def test_the_clock_of_each_stage_under_each_schedule_can_be_read(data: JobData, page: str) -> None:
    for window in data.windows:
        clocks = re.findall(rf"schedule {window.number}, stage (\d): (?:[\d,]+ MHz|left alone)", page)
        assert sorted(set(clocks)) == ["0", "1", "2", "3"]
    places = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*><title>schedule', page)
    lefts, rights = [float(x) for x, _ in places], [float(x) + float(width) for x, width in places]
    assert (min(lefts), max(rights)) == (76.0, pytest.approx(WIDTH - 24, abs=2.1)), "the steps fill the picture's width"
    assert len(set(lefts)) >= len(data.windows)


LAST = {"step": 41, "lanes": 2, "lane": [1, 0], "mhz": [1410, 1200], "work_s": [0.5, 0.45], "full_s": [0.5, 0.4]}


def test_what_clocks_from_loads_save_and_cost_has_its_error_and_the_number_of_control_steps(data: JobData) -> None:
    known = LoadsKnown(saved=0.113, saved_error=0.002, late=0.0001, late_error=0.0003, controls=1240)
    for loads, said in (
        (known, ["−11.3 % ± 0.4against 1,240 control steps", "+0.01 % ± 0.06against 1,240 control steps"]),
        (LoadsKnown(late_error=0.1, controls=2), ["not known yetagainst 2 control steps"] * 2),
    ):
        told = bodies.RankProgress(rank=0, step=42, loads=loads)
        headline = Reader(render_page(replace(data, progress=[told]))).text["headline"].replace("\n", "")
        assert [text for text in said if text in headline] == said


def test_a_step_with_clocks_from_loads_is_drawn_as_it_ran_and_at_max_clocks(data: JobData) -> None:
    told = bodies.RankProgress(rank=0, step=42, loads=LoadsKnown(last=LastLoadStep.model_validate(LAST)))
    section = last_step(replace(data, progress=[told]))
    for said in ("works 0.4 s at 1410 MHz", "works 0.45 s at 1200 MHz", "waits 0.1 s", "waits 0.05 s"):
        assert f"pipeline 0 {said}" in section["picture"]
    assert "step 41" in section["lead"]


def test_the_page_refers_to_nothing_elsewhere_and_every_picture_has_a_name(page: str) -> None:
    for tag, attributes in Reader(page).elements:
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert "url(" not in page
    assert "@import" not in page
    pictures = [attributes for tag, attributes in Reader(page).elements if tag == "svg"]
    assert len(pictures) == 2, "a step of the pipeline, and the schedules of the whole job"
    assert all(attributes.get("aria-label") and attributes.get("role") == "img" for attributes in pictures)


@pytest.mark.slow
def test_nothing_of_the_directory_becomes_markup(played: JobFolder) -> None:
    data = collect_job(played)
    name = "<img onerror=a>"
    info = data.job.job_info.model_copy(update={"job_metadata": HOSTILE})
    told = bodies.RankProgress(rank=3, step=5, error=HOSTILE)
    newest = max(window.number for window in data.windows if window.measured)
    measured = [body.model_dump_json() for body in results_by_rank(played, newest).values()]
    for path in (played.location / "prof" / str(newest)).iterdir():
        path.unlink()
    renamed = [text.replace('"forward"', json.dumps(name)) for text in measured]
    played.write_results(newest, map(bodies.ResultBody.model_validate_json, renamed))
    hostile = replace(
        data,
        job=data.job.model_copy(update={"job_info": info, "scheduler": HOSTILE, "started": "<b>now</b>"}),
        ranks=[rank.model_copy(update={"gpu_name": HOSTILE, "message": HOSTILE}) for rank in data.ranks],
        current=data.current.model_copy(update={"message": HOSTILE, "yaml_problem": HOSTILE, "status_text": HOSTILE}),
        end=bodies.EndBody(reason="crashed", message=HOSTILE),
        progress=[told],
        paces=[bodies.IterationTimesBody(rank=0, throttled=HOSTILE)],
        store_errors=[HOSTILE],
        unreadable=[HOSTILE],
        orders={
            rank: [(name if step == "forward" else step, stage) for step, stage in order]
            for rank, order in data.orders.items()
        },
    )
    page = render_page(hostile)
    reader = Reader(page)
    assert not {"img", "b", "script"} & {tag for tag, _ in reader.elements}
    assert "<img" not in page
    assert HOSTILE in reader.text["warnings"]


def test_a_job_without_anything_gets_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 2)
    text = Reader(render_page(collect_job(folder))).text
    assert "No schedule yet" in text["headline"]
    assert "No energies of the schedule in force yet" in text["headline"]
    assert "order of instructions" in text["pipeline"]
    assert "No schedule has been in force" in text["schedules"]


def test_a_schedule_by_hand_without_model_or_profile_still_shows_what_was_measured(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 2), rank_infos(2)
    register(folder, infos)
    folder.write_schedule(0, 1, 0, bodies.Source(kind="scheduler", index=0), [], infos)
    write_results(folder, 0, infos, 1.0)
    schedules = [FrequencySchedule(rank=rank, frequencies=one_f_one_b(rank, 2, 3, 1200)) for rank in range(2)]
    source = bodies.Source(kind="yaml", sha256="0" * 64)
    folder.write_schedule(1, 1, 10, source, schedules, infos)
    folder.write(bodies.CurrentBody(generation=1, number=1, start_step=10, state="running", source=source))
    for rank in range(2):
        times = {"forward": [[0.1] * 3] * 2, "backward": [[0.2] * 3] * 2}
        known = {"iter_time": [1.25] * 2, "iter_energy": [79.0, 81.0], "iter_step": [12, 15]}
        result = ProfilingResult(rank=rank, **known, time_breakdown=times)
        folder.write_results(1, [bodies.ResultBody(result=result, first_step=12)])
    write_step(folder, 40, 1.25)
    text = Reader(render_page(collect_job(folder))).text
    assert "−20.0 %" in text["headline"]
    assert "by hand" in text["headline"]
    assert "Step 15 under schedule 1" in text["pipeline"]
    assert "by hand" in text["schedules"]


def test_what_coordinator_and_ranks_complain_of_is_shown_once_with_the_ranks(data: JobData) -> None:
    ranks = [bodies.RankProgress(rank=rank, error="clocks cannot be set: no permission") for rank in range(12)]
    text = Reader(render_page(replace(data, progress=ranks))).text["warnings"]
    assert text.count("no permission") == 1
    assert "rank 0, 1, 2, 3, 4, 5, 6, 7 and 4 more: error" in text


def test_an_ended_job_says_how_it_ended(played: JobFolder) -> None:
    played.write(bodies.EndBody(reason="finished", message="300 steps"))
    shared = SharedDirectory(played.files)
    shared.archive(played.job_id)
    reader = Reader(render_page(collect_job(shared.job(played.job_id, archived=True))))
    assert "finished" in reader.text[""]
    assert "300 steps" in reader.text["warnings"]


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), 0.0, -1.0])
def test_figures_that_cannot_be_right_are_left_out(played: JobFolder, figure: float) -> None:
    data = collect_job(played)
    model = data.model.model_copy(update={"delay_s": figure})
    newest, start_step = [(window.number, window.index.start_step) for window in data.windows if window.measured][-1]
    body = results_by_rank(played, newest)[0]
    result = body.result.model_copy(
        update={
            "time_breakdown": {"forward": [[figure] * 4] * 5, "backward": [[figure] * 4] * 5},
            "iter_energy": [figure] * 5,
            "powers": [power.model_copy(update={"power": figure}) for power in body.result.powers],
        }
    )
    (played.location / "prof" / str(newest) / "0.json").unlink()
    played.write_results(newest, [body.model_copy(update={"result": result})])
    text = Reader(render_page(replace(collect_job(played), model=model))).text
    assert "nan" not in text["headline"]
    assert "inf " not in text["headline"]
    assert f"{newest}{start_step}" in text["schedules"]


# ---- `pfo-fs report` and `pfo-fs trace`, as people use them


def test_an_archived_job_is_found_by_a_part_of_its_id_and_as_the_latest(played: JobFolder, tmp_path: Path) -> None:
    SharedDirectory(played.files).archive(played.job_id)
    for job in ("ParetoScheduler", "latest"):
        done = pfo_fs("trace", job, "-d", played.files.root, "-o", tmp_path / "trace.csv", "--json", code=0)
        assert done.answer["pipelines"] == 2
