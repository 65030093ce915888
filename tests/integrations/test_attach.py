"""`pfo_fs.attach` and the adapter of torch.distributed.pipelining, without processes."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

import pfo_fs
from pfo_fs.errors import ConfigError, InstructionMismatch
from pfo_fs.integrations import torch_pipelining
from pfo_fs.integrations.pipeline_marks import Attachment, ObjectWraps, PipelineMarks
from pfo_fs.integrations.torch_pipelining import TorchPipeline, TorchtitanPipeline


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
    monkeypatch.setattr(torch_pipelining, "TorchPipeline", lambda thing, mesh: (thing, mesh))
    monkeypatch.setattr(Attachment, "make", lambda find, _, options: (*find(), options))
    kind = type("ScheduleOfTheirs", (), {"__module__": "torch.distributed.pipelining.schedules"})
    own = type("ScheduleOfMine", (kind,), {})()
    assert pfo_fs.attach(own, "/unused", mesh="a mesh", profile_steps=3) == (own, "a mesh", {"profile_steps": 3})


@pytest.mark.parametrize("thing", [object(), [], [object()], SimpleNamespace()])
def test_what_belongs_to_no_framework_is_refused_with_what_is_taken(thing: object) -> None:
    with pytest.raises(ConfigError, match=r"does not know .*give it a schedule of torch.distributed.pipelining"):
        pfo_fs.attach(thing, "/unused", strict=True)


@pytest.mark.parametrize("missing", ["step", "_loss_fn", "_stage"])
def test_a_torch_that_works_in_another_way_is_named(missing: str) -> None:
    schedule = fake_schedule()
    delattr(schedule, missing)
    with pytest.raises(ConfigError, match=f"this SimpleNamespace has no {missing}: pfo-fs was written for torch"):
        TorchPipeline(schedule)


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


def actions(*texts: str) -> list[Any]:
    """Actions of a schedule: `0F1` is the forward of micro-batch 1 on stage 0."""
    kinds = {"F": "FORWARD", "B": "FULL_BACKWARD", "S": "SEND_F"}
    return [
        SimpleNamespace(
            stage_index=int(text[0]),
            computation_type=SimpleNamespace(name=kinds[text[1]]),
            microbatch_index=int(text[2]),
            sub_actions=None,
        )
        for text in texts
    ]


def test_the_order_is_that_of_the_actions_that_run_and_not_that_of_the_class() -> None:
    of_class = {0: actions("0F0", "0F1", "0B0", "0B1"), 1: actions("1F0", "1F1", "1B0", "1B1")}
    that_run = {0: actions("0F0", "0S0", "0B0", "0F1", "0B1"), 1: actions("1F0", "1B0", "1F1", "1B1")}
    adapter = TorchPipeline(fake_schedule(pipeline_order=of_class, pipeline_order_with_comms=that_run))
    assert [name for _, name, _ in adapter.orders()[0]] == ["forward", "backward", "forward", "backward"]


def test_a_forward_and_a_backward_at_once_are_refused_unless_torch_runs_them_one_after_the_other() -> None:
    both = SimpleNamespace(sub_actions=actions("0F1", "0B0"))
    order = {0: [*actions("0F0"), both, *actions("0B1")], 1: actions("1F0", "1B0", "1F1", "1B1")}
    adapter = TorchPipeline(fake_schedule(pipeline_order=order))
    assert [name for _, name, _ in adapter.orders()[0]] == ["forward", "forward", "backward", "backward"]
    own_functions = [SimpleNamespace(name="OVERLAP_F_B")]
    with pytest.raises(ConfigError, match="remove its register_custom_function"):
        TorchPipeline(fake_schedule(_comp_type_to_function_map=own_functions))


def test_all_dimensions_of_torchtitan_but_pp_and_tp_are_replicas() -> None:
    sizes = {"pp": (1, 2), "dp_replicate": (1, 2), "dp_shard": (2, 4)}  # (this rank's, of)
    meshes = {
        name: SimpleNamespace(get_local_rank=lambda at=at: at, size=lambda size=size: size)
        for name, (at, size) in sizes.items()
    }
    dims = SimpleNamespace(pp_enabled=True, get_optional_mesh=meshes.get)
    adapter = TorchtitanPipeline(SimpleNamespace(parallel_dims=dims, pp_schedule=fake_schedule()))  # type: ignore[arg-type]
    place = {"pp_rank": 1, "pp_degree": 2, "dp_rank": 6, "dp_degree": 8, "tp_rank": 0, "tp_degree": 1}
    assert adapter.parallel_dims() == place


def test_a_second_attachment_is_refused_until_the_first_is_closed() -> None:
    schedule = fake_schedule()
    opt: Any = SimpleNamespace(simulated_kernels=lambda: None)
    take_off = TorchPipeline(schedule).install(PipelineMarks(opt, []))
    with pytest.raises(ConfigError, match=r"attached already.*close\(\)"):
        TorchPipeline(schedule)
    take_off()
    TorchPipeline(schedule)


def test_without_strict_what_cannot_be_followed_is_one_warning_and_all_methods_do_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pfo_fs.attach(object(), "/unused") as pfo:
        assert (pfo.closed, pfo.orders, pfo.metrics(), pfo.optimizer.follows) == (True, [], {}, False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "does not know builtins.object" in caplog.text
    for other in (copy.deepcopy(pfo), pickle.loads(pickle.dumps(pfo))):
        other.close()
