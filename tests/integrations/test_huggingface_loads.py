"""Clocks from loads in real runs of the Hugging Face Trainer, by two ranks on gloo."""

from __future__ import annotations

import gc
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


@pytest.mark.slow
def test_the_example_learns_what_loads_make_of_a_step_and_lowers_clocks(tmp_path: Path) -> None:
    output = torchrun(tmp_path, 2, EXAMPLE, "--shared-dir", tmp_path / "pfo", "--steps", "45")
    assert "loads explain" in output.splitlines()[-1]
    assert "no clock could be lowered" not in output.splitlines()[-1]


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
