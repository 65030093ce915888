"""`pfo_fs.attach` and the adapter of torch.distributed.pipelining, without processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import pfo_fs
from pfo_fs.errors import ConfigError, InstructionMismatch
from pfo_fs.integrations import torch_pipelining
from pfo_fs.integrations.pipeline_marks import ObjectWraps, PipelineMarks
from pfo_fs.integrations.torch_pipelining import TorchPipeline


def fake_schedule(**changes: Any) -> Any:
    """What the adapter reads of a schedule, and one stage."""
    stage = SimpleNamespace(
        forward_one_chunk=len,
        backward_one_chunk=len,
        backward_weight_one_chunk=len,
        stage_index=0,
        is_last=True,
        group=None,
        group_rank=0,
        group_size=2,
    )
    fields = {"step": len, "pipeline_order": {}, "_loss_fn": len, "_has_backward": True, "_stage": stage}
    return SimpleNamespace(**{**fields, **changes})


def test_each_framework_is_told_by_the_package_of_the_objects_class_or_of_one_that_it_inherits_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_pipelining, "attach", lambda thing, *_, **options: (thing, options))
    kind = type("ScheduleOfTheirs", (), {"__module__": "torch.distributed.pipelining.schedules"})
    own = type("ScheduleOfMine", (kind,), {})()
    assert pfo_fs.attach(own, "/unused", profile_steps=3) == (own, {"profile_steps": 3})


@pytest.mark.parametrize("thing", [object(), [], [object()], SimpleNamespace()])
def test_what_belongs_to_no_framework_is_refused_with_what_is_taken(thing: object) -> None:
    with pytest.raises(ConfigError, match=r"does not know .*give it a schedule of torch.distributed.pipelining"):
        pfo_fs.attach(thing, "/unused", strict=True)


@pytest.mark.parametrize("missing", ["step", "_loss_fn", "_stage"])
def test_a_torch_that_works_in_another_way_is_named(missing: str) -> None:
    schedule = fake_schedule()
    delattr(schedule, missing)
    with pytest.raises(ConfigError, match=rf"SimpleNamespace of torch [\d.+a-z]+ has no {missing}"):
        TorchPipeline(schedule)


def test_a_schedule_without_a_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no loss_fn"):
        TorchPipeline(fake_schedule(_loss_fn=None))


def test_wraps_are_undone_down_to_what_was_there_but_not_those_of_others_on_top() -> None:
    thing, wraps = SimpleNamespace(own="before", other="before"), ObjectWraps()
    for name in ("own", "other", "new"):
        wraps.replace(thing, name, "wrapped")
    thing.other = "on top"
    wraps.undo()
    assert vars(thing) == {"own": "before", "other": "on top"}


def test_an_error_in_a_step_is_not_replaced_by_the_complaint_that_instructions_are_missing() -> None:
    def complain() -> None:
        raise InstructionMismatch("instructions are left over")

    opt: Any = SimpleNamespace(simulated_kernels=lambda: None, on_step_begin=lambda: None, on_step_end=complain)
    marks = PipelineMarks(opt, [])
    with pytest.raises(ZeroDivisionError), marks.step():
        _ = 1 / 0
