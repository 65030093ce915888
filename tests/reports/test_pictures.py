"""Pictures: in the page they name what is pointed at; as files they are the same every time."""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree

import pytest
from planner_problems import random_profile

from pfo_fs.planner import Plan, Planner, Problem, make_pipeline
from pfo_fs.reports.pictures import pipeline_svg
from pfo_fs.reports.plan_picture import draw_pipeline
from pfo_fs.reports.svg import Svg, ticks_of
from pfo_fs.reports.timeline import Laid

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plan() -> Plan:
    pipeline = make_pipeline("1f1b", 2, 4)
    profile = random_profile(random.Random(1), pipeline, 5)
    return Planner(Problem(pipeline, profile, 80.0)).at(slowdown=1.1)


def titles(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def test_names_from_files_are_text_in_a_picture() -> None:
    name = "<script>\"'&"
    picture = Svg(100, 50, name)
    picture.box(0, 0, 10, 10, "none", name)
    picture.text(0, 0, name)
    svg = picture.markup()
    assert titles(svg) == [name, name]
    assert [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")] == [name]


def test_every_instruction_is_a_box_in_each_scale(plan: Plan) -> None:
    powers = [m.energy_j / m.time_s for m in plan.measurements]
    laid = Laid(plan.problem.pipeline, plan.timing.starts_s, plan.times_s, plan.frequencies_mhz, powers)
    svg = pipeline_svg("a pipeline", laid, {"clock": (500, 1400), "power": (80, 400)})
    for kind in ("clock", "power"):
        layers = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("class") == f"layer {kind}"]
        boxes = sum(path.attrib["d"].count("M") for layer in layers for path in layer)
        assert boxes == len(plan.problem.pipeline.instructions)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_files_of_plans_are_written_and_the_same_every_time(plan: Plan, tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        draw_pipeline(plan, tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.parametrize(
    ("length", "expected"), [(1.02, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.009, [0.0, 0.002, 0.004, 0.006, 0.008])]
)
def test_ticks_are_round_values_within_the_picture(length: float, expected: list[float]) -> None:
    assert ticks_of(0, length, 6) == pytest.approx(expected)
