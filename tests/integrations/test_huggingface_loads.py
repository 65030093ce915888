"""Clocks from loads in real runs of the Hugging Face Trainer, by two ranks on gloo."""

from __future__ import annotations

import gc
import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torchrun import torchrun

from pfo_fs.integrations.huggingface import HFLoadClocks

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
torch: Any = pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_hf_packed.py"

TRAINING = """
import json, logging, random, sys, torch, transformers
from pfo_fs.integrations.huggingface import HFLoadClocks

class Model(torch.nn.Module):
    kernels = None
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, input_ids, position_ids, labels):
        if self.kernels is not None and self.training:
            self.kernels.stream.launch("forward_backward", work=input_ids.numel() / 40)
        return {"loss": (self.layer(input_ids.float()[..., None]) - labels[..., None]).square().mean() / 1e4}

class Wait(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, *args, **kwargs):
        if Model.kernels is not None:
            Model.kernels.stream.synchronize()
            torch.distributed.barrier()

kept = []
class Keep(logging.Handler):
    def emit(self, record):
        kept.append(record.getMessage())
logging.getLogger("pfo_fs").addHandler(Keep(logging.WARNING))
torch.manual_seed(0)
drawn = random.Random(0)
data = [{"input_ids": [1] * drawn.randrange(8, 40)} for _ in range(160)]
arguments = transformers.TrainingArguments(
    output_dir=sys.argv[1], num_train_epochs=1, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True, logging_steps=10, dataloader_num_workers=1,
    eval_strategy="steps", eval_steps=10)
trainer = transformers.Trainer(
    model=Model(), args=arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[Wait()],
    data_collator=transformers.DataCollatorWithFlattening())
clocks = HFLoadClocks(sys.argv[2], strict=True).attach(trainer)
Model.kernels = clocks.clocks.simulated_kernels()
trainer.train()
clocks.close()
told = json.dumps({
    "rank": torch.distributed.get_rank(), "status": clocks.clocks.status_text, "warnings": kept,
    "steps": trainer.state.global_step, "logged": [one for one in trainer.state.log_history if "loss" in one][-1]})
open(f"{sys.argv[2]}-{torch.distributed.get_rank()}.json", "w").write(told)
"""


@pytest.mark.slow
def test_the_example_learns_what_loads_make_of_a_step_and_lowers_clocks(tmp_path: Path) -> None:
    output = torchrun(tmp_path, 2, EXAMPLE, "--shared-dir", tmp_path / "pfo", "--steps", "45")
    assert "loads explain" in output.splitlines()[-1]
    assert "no clock could be lowered" not in output.splitlines()[-1]


@pytest.mark.slow
def test_the_trainer_tells_the_loads_of_all_micro_batches_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    torchrun(tmp_path, 2, tmp_path / "train.py", tmp_path / "out", tmp_path / "pfo")
    said = [json.loads((tmp_path / f"pfo-{rank}.json").read_text()) for rank in range(2)]
    assert [one["steps"] for one in said] == [20, 20]
    assert not said[0]["warnings"] + said[1]["warnings"]
    assert "loads explain" in said[0]["status"]
    assert said[0]["logged"]["pfo_fs/loads_explain"] > 0.5


class Told:
    """In the place of `LoadClocks`: keeps the loads of each step."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.closed = False

    def step(self, loads: Any) -> None:
        self.steps.append(list(loads))

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.closed = True


class Callback(HFLoadClocks):
    """One that joins no job."""

    def start(self, model: Any) -> None:
        if model is not self._model:
            self.clocks, self._model = Told(), model  # type: ignore[assignment]


class Sum(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return (self.weight * x).sum()


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """Keeps the batches that it trains with, in the lists of their steps, whatever their type."""

    def get_batch_samples(self, iterator: Any, count: int, *_device: Any) -> Any:
        return [*islice(iterator, count)], None

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    def floating_point_ops(self, _inputs: Any) -> int:
        return 0

    def compute_loss(self, model: Any, inputs: Any, **_options: Any) -> Any:
        self.seen = getattr(self, "seen", {})
        self.seen.setdefault(self.state.global_step, []).append(inputs)
        return model(1.0)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __iter__(self) -> Any:
        yield from self.data


def trainer_of(folder: Path, collate: Any, data: Any, kind: Any = Trainer, **options: Any) -> Any:
    fixed = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "remove_unused_columns": False}
    arguments = transformers.TrainingArguments(
        **{"output_dir": str(folder), "save_strategy": "no", "per_device_train_batch_size": 2, **fixed, **options}
    )
    return kind(model=Sum(), args=arguments, train_dataset=data, data_collator=collate)


def size_of(batch: Any) -> float:
    return float(batch["x"].numel()) if hasattr(batch, "keys") else 1.0


def as_dict(rows: list[int]) -> dict[str, Any]:
    return {"x": torch.ones(2, max(rows))}


BATCHES = {
    "dict": as_dict,
    "BatchEncoding": lambda rows: transformers.BatchEncoding(as_dict(rows)),
    "list": list,
    "tuple": tuple,
    "Tensor": torch.tensor,
    "SimpleNamespace": lambda rows: SimpleNamespace(rows=rows),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_of_any_type_is_what_its_collator_has_made(tmp_path: Path, kind: str) -> None:
    trainer = trainer_of(tmp_path, BATCHES[kind], [1, 2, 3, 4])
    clocks = Callback(tmp_path, loads=size_of).attach(trainer).clocks
    trainer.train()
    batches = [batch for step in trainer.seen.values() for batch in step]
    assert [type(batch).__name__ for batch in batches] == [kind] * 6
    assert all(set(batch) == {"x"} for batch in batches if hasattr(batch, "keys"))
    assert clocks.steps == [[size_of(batch)] for batch in batches]  # type: ignore[attr-defined]


class MakesItsLoader(Trainer):
    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.train_dataset, 2, collate_fn=as_dict)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 3, "dataloader_num_workers": 2},
        {"gradient_accumulation_steps": 2, "dataloader_num_workers": 1, "dataloader_persistent_workers": True},
        {"data": Stream([*range(1, 22)]), "max_steps": 9, "accelerator_config": {"dispatch_batches": True}},
        {"data": Stream([*range(1, 22)]), "max_steps": 9, "accelerator_config": {"dispatch_batches": False}},
        {"kind": MakesItsLoader, "gradient_accumulation_steps": 2},
    ],
)
def test_each_step_has_the_loads_of_its_batches_in_a_training_that_stops_and_goes_on(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # For so long a collected loader waits for a worker that it has kept, before it ends it: 5 s otherwise.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    given = {"collate": as_dict, "data": [*range(1, 22)], "num_train_epochs": 2, **options}
    trainer = trainer_of(tmp_path, save_strategy="steps", save_steps=3, **given)
    told = Callback(tmp_path, loads=size_of).attach(trainer).clocks.steps  # type: ignore[attr-defined]
    trainer.train()
    assert told == [[size_of(batch) for batch in step] for step in trainer.seen.values()]
    again = trainer_of(tmp_path, **given)
    callback = Callback(tmp_path, loads=size_of)
    again.add_callback(callback)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    told_again = callback.clocks.steps  # type: ignore[attr-defined]
    assert told_again == [[size_of(batch) for batch in step] for step in again.seen.values()] == told[3:]
    del trainer, again, callback
    gc.collect()  # the workers of a loader that keeps them end with it


def test_a_second_training_has_clocks_of_its_own_and_loaders_are_as_before(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, as_dict, [1, 2, 3, 4])
    callback = Callback(tmp_path, loads=size_of).attach(trainer)
    trainer.train()
    first = callback.clocks
    trainer.train()
    assert first.closed  # type: ignore[attr-defined]
    assert callback.clocks is not first
    assert len(callback.clocks.steps) == len(first.steps) == 6  # type: ignore[attr-defined]
    assert type(trainer.callback_handler.train_dataloader).__module__ == "accelerate.data_loader"


def test_a_loader_whose_batches_cannot_be_seen_is_named_and_trained_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class OfList(Trainer):
        def get_train_dataloader(self) -> Any:
            return [as_dict([1, 2])] * 3

    trainer = trainer_of(tmp_path, as_dict, [1, 2], kind=OfList, max_steps=3)
    Callback(tmp_path).attach(trainer)
    trainer.train()
    assert trainer.state.global_step == 3
    assert "the batches of a list cannot be seen" in caplog.text
