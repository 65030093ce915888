"""lowtime's plan files are data: parsed, bounded, never run."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_jobs import PLANS, make_job

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule
from pfo_fs.scheduler import (
    FrequencyScheduler,
    PointSolution,
    PointSolution3D,
    format_lowtime_plan,
    parse_plan,
    read_plan,
)
from pfo_fs.scheduler.plan_file import MAX_PLAN_BYTES
from pfo_fs.settings import PFOSettings


def failure_of(text: str | bytes) -> str:
    with pytest.raises(PlanError) as caught:
        parse_plan(text.encode() if isinstance(text, str) else text, "plan.py")
    return str(caught.value)


@pytest.mark.parametrize("name", PLANS)
def test_real_plans_are_read_and_written_as_they_were_but_for_comments(shared_data: Path, name: str) -> None:
    path = shared_data / "plans" / name
    plan = read_plan(path)
    assert [len(row) for row in plan] == [24] * 8
    text = format_lowtime_plan([FrequencySchedule(rank=i, frequencies=row) for i, row in enumerate(plan)])
    assert text.splitlines() == [line for line in path.read_text().splitlines() if not line.startswith("#")]


def test_code_in_a_plan_is_refused_and_does_not_run(tmp_path: Path) -> None:
    path, trace = tmp_path / "plan.py", tmp_path / "it_ran"
    path.write_text(f"[[('forward', __import__('os').system('touch {trace}'))]]\n")
    with pytest.raises(PlanError, match="code is never run here"):
        read_plan(path)
    assert not trace.exists()


UNITS = [
    "\\'", "'\\", "\\\"\\'", "'a\\", "' ", "'a',", "[1,", "('f', ", "(", "#", "#\n", " ", "0", "0.", "-", "('f',1),",
]  # fmt: skip


@pytest.mark.parametrize(
    "bomb",
    [
        "[" * 100_000,
        "(" * 100_000 + ")" * 100_000,
        "()" * 100_000,
        "[1]" + "[1]" * 100_000,
        "9" * 100_000,
        "'" * 100_001,
        *((unit * 2**20)[: 2**20] for unit in UNITS),
    ],
    ids=lambda bomb: bomb[:6],
)
def test_bombs_are_refused_in_time_that_grows_with_their_length(bomb: str) -> None:
    """Where time grows with the square, this ends by the time limit of all tests."""
    failure_of(bomb)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "plan.py: Expected `array` of length >= 1; a stage is a list of ('forward', 1200)"),
        ("[[], ('f', 1)]", "stage 1, position 0, Expected `array`, got `str`"),
        ("[[('f', 1)], 7]", "stage 1, Expected `array`, got `int`"),
        ("[[('f', 1), ('f', 1, 2)]]", "stage 0, position 1, Expected `array` of length 2"),
        ("[[('f', 885.5)]]", "stage 0, position 0, Expected `int`, got `float`"),
        ("[[('f', -15)]]", "stage 0, position 0, Expected `int` >= 0"),
        ("[[('f', 99999)]]", "Expected `int` <= 60000"),
        ("[[('', 885)]]", "stage 0, position 0, Expected `str` of length >= 1"),
        ("[[('\\u001b', 885)]]", "'\\x1b' cannot name an instruction"),
        ("{}", "Expected `array`, got `object`"),
        *(
            (code, f"line {1 + code.count(chr(10))}: code is never run here")
            for code in (
                "exec('1')",
                "import os",
                "[[('f', 1) for _ in range(3)]]",
                "[[('f', True)]]",
                "[[('f', 10**9)]]",
                "[[(f'{1}', 1)]]",
                "[[('f', 1)]][0]",
                "",
                "[[('f', 1)",
                "[[('f', 1)],\n'\\U99999999']",
            )
        ),
        ("[[" + "('f', 1)," * 65_536 + "]]", "Expected `array` of length <= 65535"),
        ("[" + "('f', 1)," * 600_001 + "]", "more than 400,000 instructions"),  # before it is parsed
        (b"[\n\xff]", "plan.py, line 2: is not UTF-8"),
    ],
    ids=range(23),
)
def test_a_wrong_shape_or_size_is_named_with_stage_and_position(text: str | bytes, message: str) -> None:
    assert message in failure_of(text)


@pytest.mark.parametrize(
    ("ranks", "name", "message"), [((2, 0), "f", r"without gaps; these are for \[0, 2\]"), ((0,), "a'b", "cannot name")]
)
def test_what_the_format_cannot_express_is_not_written(ranks: tuple[int, ...], name: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        format_lowtime_plan([FrequencySchedule(rank=rank, frequencies=[(name, 1)]) for rank in ranks])


printable = st.characters(exclude_categories=["C", "Z"], exclude_characters="'\"\\#()[]") | st.just(" ")
steps = st.tuples(st.text(printable, min_size=1, max_size=64), st.integers(0, 60_000))


@given(st.lists(st.lists(steps, max_size=20), min_size=1, max_size=6))
def test_every_plan_survives_writing_and_reading(plan: list[list[tuple[str, int]]]) -> None:
    text = format_lowtime_plan(
        [FrequencySchedule(rank=i, frequencies=row) for i, row in enumerate(plan)], ["it's 'x'\n#"]
    )
    assert parse_plan(text.encode(), "plan.py") == plan


@given(st.one_of(st.binary(max_size=200), st.text("[](),'\"0123456789 forward#\n\\-.", max_size=200).map(str.encode)))
def test_no_bytes_raise_anything_but_plan_error(data: bytes) -> None:
    with contextlib.suppress(PlanError):
        parse_plan(data, "plan.py")


# ---- the plans that schedulers run


def run(cls: type[FrequencyScheduler], path: Path, **degrees: int) -> Any:
    job, infos = make_job(**degrees)
    return cls(job, infos, PFOSettings(), solution_path=str(path)).next_schedule()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "freqs_pipeline_00704.py"
    rows = "[('forward', 885), ('backward', 870)],\n[('forward', 1200), ('backward', 1110)],"
    path.write_text(f"[\n{rows}\n]\n# made by lowtime\n")
    return path


@pytest.mark.parametrize(("cls", "dp"), [(PointSolution, 1), (PointSolution3D, 2)])
def test_a_rank_gets_its_list_or_in_3d_that_of_its_stage(plan: Path, cls: type[FrequencyScheduler], dp: int) -> None:
    first, second = [("forward", 885), ("backward", 870)], [("forward", 1200), ("backward", 1110)]
    schedules = run(cls, plan, pp=2, dp=dp)
    assert [(s.rank, s.frequencies) for s in schedules] == list(enumerate([first] * dp + [second] * dp))


@pytest.mark.parametrize(
    ("cls", "name", "degrees", "message"),
    [
        (PointSolution, "freqs_pipeline_00704.py", {"pp": 2, "dp": 2},
         r"for 2 ranks, but the job has 4 ranks in 2 stages; .*PointSolution3D"),
        (PointSolution3D, "freqs_pipeline_00704.py", {"pp": 3, "dp": 2},
         r"for 2 ranks, but the job has 3 ranks in 3 stages$"),
        (PointSolution, "none.py", {"pp": 2}, r"none\.py: cannot be read"),
        (PointSolution, "large.py", {"pp": 2}, r"large\.py: is larger than 16,777,216 bytes"),
        (PointSolution, "plan.csv", {"pp": 2}, r"plan\.csv: a plan file ends in \.py \(lowtime\) or \.yaml"),
        (PointSolution, "number.yaml", {"pp": 2}, r"must list the instructions one by one.* line 2"),
        (PointSolution, "typo.yaml", {"pp": 2}, r"typo\.yaml: line 2: unknown key 'stagse'; did you mean 'stages'\?"),
        (PointSolution, "end.yml", {"pp": 2}, r"end\.yml: a plan runs .* to the last; leave turns and until out"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_run_is_refused_when_the_scheduler_is_made(
    plan: Path, cls: type[FrequencyScheduler], name: str, degrees: dict[str, int], message: str
) -> None:
    (plan.parent / "number.yaml").write_text("# a number needs to know the instructions\nall: 1200\n")
    (plan.parent / "typo.yaml").write_text("\nstagse:\n  0: 3\n")
    (plan.parent / "end.yml").write_text("all: [forward 1200]\nuntil: 90\nturns: [3, 0]\n")
    (plan.parent / "large.py").write_bytes(b" " * (MAX_PLAN_BYTES + 1))
    with pytest.raises(PlanError, match=message) as caught:
        run(cls, plan.parent / name, **degrees)
    assert caught.value.line == (2 if name.endswith("yaml") else None)


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_yaml_plan_of_lists_is_run_and_ranks_may_be_left_out(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    path.write_text("stages:\n  1:\n    - forward 1200, backward 1110 x2\n")
    for cls in (PointSolution, PointSolution3D):
        assert [(s.rank, len(s.frequencies)) for s in run(cls, path, pp=2, dp=2)] == [(2, 4), (3, 4)]
