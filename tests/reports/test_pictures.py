"""Pictures: they name what is pointed at, and are the same every time."""

import random
import re
from xml.etree import ElementTree

import pytest
from planner_problems import random_profile

from pfo_fs.planner import Planner, Problem, make_pipeline
from pfo_fs.reports.pictures import Svg, plan_svg, step_svg, ticks_of
from pfo_fs.reports.timeline import Laid, starts_of

SVG = "{http://www.w3.org/2000/svg}"


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


def test_every_instruction_of_a_plan_is_a_box_with_clock_and_power_beside_the_critical_path() -> None:
    pipeline = make_pipeline("1f1b", 2, 4)
    plan = Planner(Problem(pipeline, random_profile(random.Random(1), pipeline, 5), 80.0)).at(slowdown=1.1)
    svg = plan_svg(plan)
    assert svg == plan_svg(plan)
    told = [title for title in titles(svg) if " of micro-batch " in title]
    assert len(told) == len(plan.problem.pipeline.instructions)
    assert all(re.search(r", \d+ MHz, \d+ W$", title) for title in told)
    (path,) = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    assert len(path.attrib["points"].split()) == 2 * len(plan.critical)


def test_a_step_of_very_many_instructions_has_boxes_alone_and_a_picture_that_is_not_wider_than_browsers_draw() -> None:
    pipeline = make_pipeline("1f1b", 2, 1200)
    count = len(pipeline.instructions)
    times_s = [0.001] * count
    laid = Laid(pipeline, starts_of(pipeline, times_s), times_s, [1200] * count, [0.0] * count)
    svg = ElementTree.fromstring(step_svg("a step", laid, (600, 1410), "clock"))
    boxes = [box for box in svg.iter(f"{SVG}rect") if "fill: #" in box.attrib["style"]]
    assert len(boxes) == count
    assert float(svg.attrib["viewBox"].split()[2]) <= 16_000
    assert not [box for box in boxes if len(box)]


@pytest.mark.parametrize(
    ("length", "expected"), [(1.02, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.009, [0.0, 0.002, 0.004, 0.006, 0.008])]
)
def test_ticks_are_round_values_within_the_picture(length: float, expected: list[float]) -> None:
    assert ticks_of(0, length, 6) == pytest.approx(expected)
