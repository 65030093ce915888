"""What adapters of frameworks share, without a framework."""

import copy
import pickle
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pfo_fs
from pfo_fs.errors import ConfigError, InstructionMismatch
from pfo_fs.integrations import megatron, torch_pipelining
from pfo_fs.integrations.load_steps import _NEVER_CALLED, LoadSteps
from pfo_fs.integrations.pipeline_marks import Attachment, ObjectWraps, PipelineMarks, attach_pipeline
from pfo_fs.integrations.torch_pipelining import TorchPipeline, TorchtitanPipeline
from pfo_fs.planner import Instruction, make_pipeline
from pfo_fs.training import optimizer

ORDER = make_pipeline("interleaved", 4, 2, num_ranks=2).orders[0]  # stages 0 and 2


class FakeOptimizer:
    """Keeps what it is told as text."""

    follows, parallel_dims = True, SimpleNamespace(pp_rank=0)
    nothing = classmethod(lambda cls: cls())

    def __init__(self, *_: object, **__: object) -> None:
        self.told: list[str] = []
        self.expected: list[int] = []
        self.is_other = False

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


class Marks(PipelineMarks):
    """Those of a rank with stages 0 and 2."""

    def __init__(self) -> None:
        self.opt = FakeOptimizer()
        super().__init__(self.opt, ORDER)  # type: ignore[arg-type]


@pytest.fixture
def marks() -> Marks:
    return Marks()


def test_instructions_get_the_stages_of_the_order_and_the_last_one_ends_the_step(marks: Marks) -> None:
    with marks.step():
        for _, name, _ in ORDER:
            marks.around(lambda: None, name)()
        marks.around(lambda: None, "reduction")()
    marks.end_step()
    assert marks.around(lambda x: x + 1, "forward")(1) == 2, "of an evaluation"
    begun = [f"{name} {stage}" for stage, name, _ in ORDER]
    assert marks.opt.told == ["step", *[text for name in begun for text in (name, "end")], "end of step"]


def test_an_error_ends_the_instruction_and_the_step_and_is_not_replaced_by_a_complaint_about_them(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complain() -> None:
        marks.opt.told.append("complaint")
        raise InstructionMismatch("instructions are left over")

    monkeypatch.setattr(marks.opt, "on_step_end", complain)
    with pytest.raises(ZeroDivisionError), marks.step():
        marks.around(lambda: 1 / 0, "forward")()
    assert marks.opt.told == ["step", "forward 0", "end", "complaint"]
    monkeypatch.undo()
    marks.begin_step()
    marks.begin("forward")
    marks.begin_step()  # an error has left the step before open
    assert marks.opt.told[4:] == ["step", "forward 0", "end of step", "step"]


def adapter_of(pp_degree: int = 2, orders: Any = ()) -> Any:
    """A framework whose pipeline has some stages."""
    dims = {"pp_rank": 0, "pp_degree": pp_degree, "dp_rank": 0, "dp_degree": 1, "tp_rank": 0, "tp_degree": 1}
    return SimpleNamespace(parallel_dims=lambda: dims, orders=lambda: orders, install=lambda _: lambda: None)


@pytest.mark.parametrize(
    ("stages", "orders", "loads", "message"),
    [
        (1, [], None, "power-limit optimizer"),
        (2, make_pipeline("1f1b", 2, 4).orders, 3, "loads= is 3"),
        (2, [], len, "does not tell"),
    ],
)
def test_what_cannot_be_followed_is_an_error_that_says_what_to_use(
    tmp_path: Path, stages: int, orders: Any, loads: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        attach_pipeline(adapter_of(stages, orders), tmp_path / "pfo", loads=loads, strict=True, world_size=1)


def test_an_order_that_has_changed_is_told_once_it_has_run_for_some_steps_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer, "PFOFileOptimizer", FakeOptimizer)
    orders = {number: make_pipeline("interleaved", 4, number, num_ranks=2).orders for number in (2, 4, 6)}
    attached = attach_pipeline(adapter_of(orders=orders[2]), "unused", world_size=1, strict=True)
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


def test_a_step_that_runs_more_than_the_order_is_told_whole_from_the_next_one_on(marks: Marks) -> None:
    def step() -> list[str]:
        marks.opt.told.clear()
        with marks.step():
            for name in [name for _, name, _ in ORDER] * 2:
                marks.around(lambda: None, name)()
        return marks.opt.told

    assert step().count("end") == len(ORDER)
    assert step().count("end") == 2 * len(ORDER)
    assert marks.opt.told[-1] == "end of step"


# ---- a stand-in for Megatron-Core; the real one: frameworks/test_megatron.py


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model of a job with two ranks."""
    monkeypatch.setattr(optimizer, "PFOFileOptimizer", FakeOptimizer)
    places = {"pipeline_model_parallel": (0, 2), "data_parallel": (0, 1), "tensor_model_parallel": (0, 1)}
    values = {f"get_{axis}_rank": place[0] for axis, place in places.items()}
    values |= {f"get_{axis}_world_size": place[1] for axis, place in places.items()}
    schedules = SimpleNamespace(
        get_schedule_table=lambda count, *_: [(number, 0) for number in range(count)],
        get_pp_rank_microbatches=lambda *_, p2p_communicator: (0, 0, 1 - p2p_communicator.pp_group.rank(), 0),
    )
    state = SimpleNamespace(**{name: lambda value=value, **_: value for name, value in values.items()})
    core = {
        "": SimpleNamespace(parallel_state=state, num_microbatches_calculator=SimpleNamespace()),
        ".utils": SimpleNamespace(get_model_config=lambda model: model.config),
        ".pipeline_parallel.schedules": schedules,
    }
    for name, module in core.items():
        monkeypatch.setitem(sys.modules, f"megatron.core{name}", module)
    config = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": None, "timers": None}
    return SimpleNamespace(config=SimpleNamespace(**config, microbatch_group_size_per_vp_stage=None))


class FullIterationGraph:
    """Megatron's `FullCudaGraphWrapper`: calls its schedule twice, to warm up and to capture; later, it replays."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: Any, **_: Any) -> None:
        self.calls += 1
        if self.calls <= 2:
            timers = model.config.timers
            timers("forward-backward").start()
            for timer in ("forward-compute", "forward-compute", "backward-compute", "backward-compute"):
                timers(timer).start()
                timers(timer).stop()
            timers("forward-backward").stop()


def test_each_call_of_megatrons_graph_of_the_full_iteration_is_a_step(model: Any) -> None:
    model.config.cuda_graph_impl = "full_iteration"
    attached = megatron.attach(model, "unused", num_microbatches=2, strict=True, world_size=1)
    train, in_place = attached.forward_backward(FullIterationGraph()), len(ObjectWraps._in_place)
    for _ in range(4):
        model.config.timers = None  # as after an evaluation
        train(model=model, num_microbatches=2)
    assert len(ObjectWraps._in_place) == in_place + 1
    called = [text for kind in ("forward 0", "backward 0") for text in (kind, "end") * 2]
    assert attached.optimizer.told == ["step", *called, "end of step"] * 2 + ["step", "end of step"] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("config", "option"),
    [
        ({"cuda_graph_impl": "full_iteration"}, "set cuda_graph_impl to transformer_engine or local"),
        ({"cuda_graph_scope": [SimpleNamespace(name="full_iteration")]}, "set cuda_graph_impl"),
        ({"overlap_moe_expert_parallel_comm": True}, "overlap_moe_expert_parallel_comm.*switch it off"),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]}, ""),
    ],
)
def test_what_hides_instructions_of_megatron_is_refused_with_the_option_to_change(
    model: Any, config: dict[str, Any], option: str
) -> None:
    vars(model.config).update(config)
    provide, _ = megatron.hooks(lambda: model, len, "unused", num_microbatches=2, strict=True, world_size=1)
    with pytest.raises(ConfigError, match=option) if option else nullcontext():
        provide()


# ---- loads of micro-batches


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


def marks_of(clocks: Clocks, reader: Any) -> PipelineMarks:
    return PipelineMarks(LoadSteps(clocks, reader), [Instruction(0, "forward", 0)])  # type: ignore[arg-type]


def test_a_steps_loads_are_read_from_micro_batches_and_its_work_ends_with_the_last_instruction() -> None:
    clocks = Clocks()
    marks = marks_of(clocks, lambda batch, *, scale: scale * len(batch))
    for batches in (["aa", "b"], ["cccc", ""]):
        marks.read_loads(lambda batches=batches: [((batch,), {"scale": 10}) for batch in batches])  # type: ignore[misc]
        with marks.step():
            marks.begin("forward")
            marks.end("forward")
            assert clocks.told[-1] == "ended"
    assert clocks.told == [([20, 10],), "ended", ([40, 0],), "ended"]


@pytest.mark.parametrize(
    ("reader", "inputs", "warnings"),
    [(len, [((), {})] * 2, []), (lambda b: b["lengths"], [(({},), {})], ["'lengths'"]), (len, 0, [_NEVER_CALLED])],
)
def test_a_step_without_inputs_has_no_loads_and_if_its_reader_fails_or_is_never_called_that_is_a_warning(
    reader: Any, inputs: Any, warnings: list[str]
) -> None:
    clocks = Clocks()
    marks = marks_of(clocks, reader)
    if inputs != 0:
        marks.read_loads(lambda: inputs)
    with marks.step():
        pass
    assert clocks.told[0] == (None,)
    assert clocks.warnings == warnings


def test_loads_that_the_program_gives_count_for_the_next_step_only() -> None:
    clocks = Clocks()
    steps = LoadSteps(clocks, None)  # type: ignore[arg-type]
    marks = PipelineMarks(steps, [Instruction(0, "forward", 0)])
    steps.given = ([1.0, 2.0], [3.0, 4.0])
    for _ in range(2):
        with marks.step():
            pass
    assert clocks.told == [([1.0, 2.0], [3.0, 4.0]), "ended", (None,), "ended"]


# ---- `pfo_fs.attach` and the adapter of torch.distributed.pipelining, without processes


def fake_schedule(**changes: Any) -> Any:
    """What the adapter reads of a schedule, and one stage."""
    methods = dict.fromkeys(("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"), len)
    stage = SimpleNamespace(**methods, stage_index=0, is_last=True, group=None, group_rank=0, group_size=2)
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


NOT_KNOWN = r"does not know .*give it a schedule of torch.distributed.pipelining"


@pytest.mark.parametrize(
    ("thing", "message"), [([], NOT_KNOWN), ([object()], NOT_KNOWN), (dict, r"an object, not the class builtins\.dict")]
)
def test_what_belongs_to_no_framework_is_refused_with_what_is_taken(thing: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pfo_fs.attach(thing, "/unused", strict=True)


@pytest.mark.parametrize("missing", ["step", "_loss_fn", "_stage"])
def test_a_torch_that_works_in_another_way_is_named(missing: str) -> None:
    schedule = fake_schedule()
    with pytest.raises(ConfigError, match=r"the schedule, .* in place of its stage"):
        TorchPipeline(schedule._stage)
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
