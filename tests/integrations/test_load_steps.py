"""Loads of the micro-batches of a pipeline that a framework runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.load_steps import LoadSteps
from pfo_fs.integrations.pipeline_marks import PipelineMarks, attach_pipeline
from pfo_fs.planner import Instruction, make_pipeline


class Clocks:
    """Keeps what `LoadClocks` is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.warnings: list[str] = []

    def step(self, loads: Any, ahead: Sequence[Any] = ()) -> None:
        self.told.append((loads, *ahead))

    def work_ended(self) -> None:
        self.told.append("ended")

    def misread(self, error: Exception) -> None:
        self.warnings.append(str(error))


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def marks_of(clocks: Clocks, reader: Any) -> PipelineMarks:
    return PipelineMarks(LoadSteps(clocks, reader), [Instruction(0, "forward", 0)])  # type: ignore[arg-type]


def test_a_steps_loads_are_read_from_each_micro_batch_and_its_work_ends_with_the_ranks_last_instruction(
    clocks: Clocks,
) -> None:
    marks = marks_of(clocks, lambda batch, *, scale: scale * len(batch))
    for batches in (["aa", "b"], ["cccc", ""]):
        marks.read_loads(lambda batches=batches: [((batch,), {"scale": 10}) for batch in batches])  # type: ignore[misc]
        with marks.step():
            marks.begin("forward")
            marks.end("forward")
            assert clocks.told[-1] == "ended"
    assert clocks.told == [([20, 10],), "ended", ([40, 0],), "ended"]


def test_a_rank_whose_step_gets_no_inputs_knows_no_loads(clocks: Clocks) -> None:
    marks = marks_of(clocks, len)
    marks.read_loads(lambda: [((), {}), ((), {})])
    with marks.step():
        pass
    assert clocks.told[0] == (None,)
    assert not clocks.warnings


def test_a_reader_that_fails_is_a_warning_and_a_step_without_loads(clocks: Clocks) -> None:
    marks = marks_of(clocks, lambda batch: batch["lengths"])
    marks.read_loads(lambda: [(({},), {})])
    with marks.step():
        pass
    assert clocks.told[0] == (None,)
    assert "lengths" in clocks.warnings[0]


class Adapter:
    """A framework whose pipeline has two stages."""

    def __init__(self, tells_orders: bool = True) -> None:
        self._tells_orders = tells_orders

    def parallel_dims(self) -> dict[str, int]:
        return {"pp_rank": 0, "pp_degree": 2, "dp_rank": 0, "dp_degree": 1, "tp_rank": 0, "tp_degree": 1}

    def orders(self) -> Sequence[Sequence[Instruction]]:
        return make_pipeline("1f1b", 2, 4).orders if self._tells_orders else []

    def install(self, marks: PipelineMarks) -> Any:
        raise AssertionError("nothing is followed")


@pytest.mark.parametrize(
    ("loads", "tells_orders", "message"), [(3, True, "loads= is 3"), (len, False, "does not tell")]
)
def test_loads_that_cannot_be_are_an_error_that_says_what_to_give(
    tmp_path: Path, loads: Any, tells_orders: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        attach_pipeline(Adapter(tells_orders), tmp_path / "pfo", loads=loads, strict=True, world_size=1)


def test_loads_that_the_program_gives_count_for_the_next_step_only(clocks: Clocks) -> None:
    steps = LoadSteps(clocks, None)  # type: ignore[arg-type]
    marks = PipelineMarks(steps, [Instruction(0, "forward", 0)])
    steps.given = ([1.0, 2.0], [3.0, 4.0])
    for _ in range(2):
        with marks.step():
            pass
    assert clocks.told == [([1.0, 2.0], [3.0, 4.0]), "ended", (None,), "ended"]
