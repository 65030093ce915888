"""What adapters of frameworks share, without a framework."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.pipeline_marks import PipelineMarks, attach_pipeline
from pfo_fs.planner.pipeline_schedules import interleaved
from pfo_fs.training import optimizer

ORDER = interleaved(4, 2, 2)[0]  # stages 0 and 2


class FakeOptimizer:
    """Keeps what it is told as text."""

    follows, parallel_dims = True, SimpleNamespace(pp_rank=0)

    def __init__(self, *_: object, **__: object) -> None:
        self.told: list[str] = []
        self.expected: list[int] = []
        self.is_other = False

    @classmethod
    def nothing(cls) -> FakeOptimizer:
        return cls()

    def expect_order(self, instructions: list[tuple[str, int]]) -> None:
        self.expected.append(len(instructions))

    def runs_other_order(self, is_other: bool) -> None:
        self.is_other = is_other

    def simulated_kernels(self) -> None:
        return None

    def on_step_begin(self) -> None:
        self.told.append("step")

    def on_step_end(self) -> None:
        self.told.append("end of step")

    def on_instruction_begin(self, name: str, *, stage: int | None = None) -> None:
        self.told.append(f"{name} {stage}")

    def on_instruction_end(self, name: str) -> None:
        self.told.append("end")


@pytest.fixture
def opt() -> FakeOptimizer:
    return FakeOptimizer()


@pytest.fixture
def marks(opt: FakeOptimizer) -> PipelineMarks:
    return PipelineMarks(opt, ORDER)  # type: ignore[arg-type]


def test_outside_of_a_step_nothing_is_told(marks: PipelineMarks, opt: FakeOptimizer) -> None:
    assert marks.around(lambda x: x + 1, "forward")(1) == 2
    marks.end_step()
    assert opt.told == []


def test_instructions_get_the_stages_of_the_order_and_the_last_one_ends_the_step(
    marks: PipelineMarks, opt: FakeOptimizer
) -> None:
    with marks.step():
        for _, name, _ in ORDER:
            marks.around(lambda: None, name)()
        marks.around(lambda: None, "reduction")()
    begun = [f"{name} {stage}" for stage, name, _ in ORDER]
    assert opt.told == ["step", *[text for name in begun for text in (name, "end")], "end of step"]


def test_an_error_ends_the_instruction_and_the_step(marks: PipelineMarks, opt: FakeOptimizer) -> None:
    with pytest.raises(ZeroDivisionError), marks.step():
        marks.around(lambda: 1 / 0, "forward")()
    assert opt.told == ["step", "forward 0", "end", "end of step"]


def test_a_step_that_an_error_left_open_ends_before_the_next(marks: PipelineMarks, opt: FakeOptimizer) -> None:
    marks.begin_step()
    marks.begin("forward")
    marks.begin_step()
    assert opt.told == ["step", "forward 0", "end of step", "step"]


def test_a_pipeline_of_one_stage_is_refused_with_what_to_use() -> None:
    adapter = SimpleNamespace(parallel_dims=lambda: {"pp_rank": 0, "pp_degree": 1})
    with pytest.raises(ConfigError, match="power-limit optimizer"):
        attach_pipeline(adapter, "unused", strict=True)  # type: ignore[arg-type]


def test_an_order_that_has_changed_is_told_once_it_has_run_for_some_steps_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer, "PFOFileOptimizer", FakeOptimizer)
    orders = {number: interleaved(4, number, 2) for number in (2, 4, 6)}
    adapter = SimpleNamespace(
        parallel_dims=lambda: {"pp_rank": 0, "pp_degree": 2}, orders=lambda: orders[2], install=lambda _: lambda: None
    )
    attached = attach_pipeline(adapter, "unused", world_size=1, strict=True)  # type: ignore[arg-type]
    opt = attached.optimizer

    def others(number: int, steps: int) -> list[bool]:
        """Whether each of some steps counts as one of another order than was told."""
        found = []
        for _ in range(steps):
            attached.follow_orders(orders[number])
            with attached.marks.step():
                for _, name, _ in orders[number][0]:
                    attached.marks.around(lambda: None, name)()
                assert not attached.marks.in_step
            found.append(opt.is_other)  # type: ignore[attr-defined]
        return found

    assert not any(others(2, 50))
    for number in (4, 6, 4):
        assert all(others(number, 10))
    assert others(6, 100) == [True] * 20 + [False] * 80
    assert opt.expected == [len(orders[2][0]), len(orders[6][0])]  # type: ignore[attr-defined]


def test_a_step_that_runs_more_than_the_order_is_told_whole_from_the_next_one_on(
    marks: PipelineMarks, opt: FakeOptimizer
) -> None:
    def step() -> list[str]:
        opt.told.clear()
        with marks.step():
            for name in [name for _, name, _ in ORDER] * 2:
                marks.around(lambda: None, name)()
        return opt.told

    assert step().count("end") == len(ORDER)
    assert step().count("end") == 2 * len(ORDER)
    assert opt.told[-1] == "end of step"


def test_an_evaluation_after_a_step_is_no_part_of_it(marks: PipelineMarks, opt: FakeOptimizer) -> None:
    for _ in range(3):
        opt.told.clear()
        with marks.step():
            for _, name, _ in ORDER:
                marks.around(lambda: None, name)()
        for _, name, _ in ORDER:
            marks.around(lambda: None, name)()
        assert opt.told.count("end") == len(ORDER)
        assert opt.told[-1] == "end of step"
