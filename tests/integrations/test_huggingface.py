"""The callbacks in real runs of the Hugging Face Trainer."""

import gc
import json
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from framework_pages import run_block
from power_limit_fakes import limits_set
from torchrun import torchrun

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.huggingface import HFGlobalPowerLimitOptimizer, HFLoadClocks
from pfo_fs.power_limit import Done, Energy, EnergyMonitor, MaxSlowdownConstraint, Ready, ZeusCost

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("sim_dir")

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS: dict[str, Any] = {"warmup_steps": 1, "profile_steps": 3, "pl_step": 200}


class Line(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: Any, labels: Any) -> Any:
        return {"loss": (self.layer(x) - labels).square().mean()}


LINE = {"x": torch.ones(2), "labels": torch.ones(1)}


def trainer_of(
    folder: Path,
    data: Any,
    collate: Any = None,
    kind: Any = transformers.Trainer,
    callbacks: Any = (),
    eval_dataset: Any = None,
    **options: Any,
) -> Any:
    fixed = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "remove_unused_columns": False}
    arguments = transformers.TrainingArguments(
        **{"output_dir": str(folder), "save_strategy": "no", "per_device_train_batch_size": 1, **fixed, **options}
    )
    more = {"train_dataset": data, "eval_dataset": eval_dataset, "data_collator": collate, "callbacks": [*callbacks]}
    return kind(model=Line(), args=arguments, **more)


# ---- one power limit


class Work(transformers.TrainerCallback):  # type: ignore[misc]
    """Each step runs on a simulated GPU."""

    def __init__(self, monitor: EnergyMonitor, fails_at: int | None = None) -> None:
        self.kernels, self.fails_at = monitor.simulated_kernels(time_scale=20), fails_at

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.kernels.run("forward")
        if state.global_step == self.fails_at:
            raise RuntimeError("training has failed")


class Reporter(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.reported: list[dict[str, float]] = []

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        self.reported.append(dict(logs))


@pytest.mark.slow
def test_a_trainer_finds_the_limit_over_several_epochs_and_gives_it_back_in_the_end(
    tmp_path: Path, sim_dir: Path
) -> None:
    monitor = EnergyMonitor(specs=["simulated:a"])
    callback = HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.3), **OPTIONS)
    callbacks = [callback, Work(monitor)]
    trainer_of(tmp_path, [LINE] * 3, callbacks=callbacks, num_train_epochs=12).train()  # shorter than a window of 1 + 3
    assert isinstance(callback.optimizer.state, Done)
    assert [m.power_limit for m in callback.optimizer.measurements] == [500, 300, 100]
    chosen_w = MaxSlowdownConstraint(1.3).select(callback.optimizer.measurements)
    assert callback.optimizer.state.optimal_power_limit == chosen_w
    assert limits_set(sim_dir)[:3] == [500, 300, 100]
    assert limits_set(sim_dir)[-1] == 500
    count = len(limits_set(sim_dir))
    callback.optimizer.state = Done(300)
    trainer_of(tmp_path, [LINE] * 3, callbacks=callbacks, num_train_epochs=1).train()
    assert limits_set(sim_dir)[count:] == [300, 500], "the choice holds for the next training, too"
    callback.close()
    monitor.close()


@pytest.mark.slow
def test_attached_it_measures_no_evaluation_logs_before_reporters_and_survives_an_exception(
    tmp_path: Path, sim_dir: Path
) -> None:
    monitor, reporter = EnergyMonitor(specs=["simulated:a"]), Reporter()
    callback = HFGlobalPowerLimitOptimizer(monitor, **OPTIONS)
    options = {"logging_steps": 1, "eval_steps": 2, "eval_strategy": "steps", "eval_dataset": [LINE] * 2}
    trainer = trainer_of(tmp_path, [LINE] * 40, callbacks=[Work(monitor, fails_at=30)], num_train_epochs=1, **options)
    trainer.callback_handler.callbacks.insert(1, reporter)
    callback.attach(trainer)
    with pytest.raises(RuntimeError, match="training has failed"):
        trainer.train()
    assert isinstance(callback.optimizer.state, Done), "each window of 3 steps had an evaluation in it"
    assert limits_set(sim_dir)[:3] == [500, 300, 100]
    assert limits_set(sim_dir)[-1] == 500
    assert "pfo_fs/step_time_s" in [logs for logs in reporter.reported if "loss" in logs][-1]
    assert "pfo_fs/saving" in [logs for logs in trainer.state.log_history if "loss" in logs][-1]
    callback.close()
    assert "train" not in vars(trainer)
    assert callback not in trainer.callback_handler.callbacks
    monitor.close()


@pytest.mark.slow
@pytest.mark.parametrize("section", ["Hugging Face Trainer", "A clock in place of a power limit"])
def test_the_lines_of_the_page_follow_a_trainer(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:a")
    trainer = trainer_of(tmp_path, [LINE] * 2)
    imported = {"HFGlobalPowerLimitOptimizer": HFGlobalPowerLimitOptimizer, "Energy": Energy}
    run_block("power-limit", section, 0, trainer=trainer, **imported)
    callback = trainer.callback_handler.callbacks[1]
    assert isinstance(callback, HFGlobalPowerLimitOptimizer)
    callback.close()


@pytest.mark.slow
def test_the_example_finds_a_limit_and_its_profile_answers_for_other_selectors(
    tmp_path: Path, sim_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:hf")
    path = tmp_path / "profile.json"
    command = [sys.executable, str(EXAMPLES / "train_hf.py"), "--steps", "45", "--pl-step", "100"]
    command += ["--warmup-steps", "1", "--profile-steps", "4", "--profile-path", str(path), "--factor", "1.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Done(optimal_power_limit=")
    assert [m["power_limit"] for m in json.loads(path.read_text())["measurements"]] == [500, 400, 300, 200, 100]
    assert limits_set(sim_dir, "hf")[-1] == 500


def test_it_is_a_trainer_callback_and_so_is_a_subclass_of_it() -> None:
    class Mine(HFGlobalPowerLimitOptimizer):
        pass

    monitor = EnergyMonitor(specs=["simulated:a"])
    with Mine(monitor, ZeusCost(1)) as callback:
        assert isinstance(callback, transformers.TrainerCallback)
        assert isinstance(callback, Mine)
        assert type(callback) is type(Mine(monitor))
        assert isinstance(callback.optimizer.state, Ready)
    monitor.close()


def test_without_transformers_there_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'pfo-fs\[huggingface\]'"):
        HFGlobalPowerLimitOptimizer()


# ---- clocks from loads


@pytest.mark.slow
def test_the_example_learns_what_loads_make_of_a_step(tmp_path: Path) -> None:
    arguments = "--shared-dir", tmp_path / "pfo", "--steps", "45"
    output = torchrun(tmp_path, 2, EXAMPLES / "train_hf_packed.py", *arguments, forked=True)
    # A busy machine may leave more unexplained than clocks are lowered for.
    assert re.search(r"loads (explain \d+ % of|leave \d+)", output.splitlines()[-1])
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
        return model(**LINE)["loss"]


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __iter__(self) -> Any:
        yield from self.data


def loads_trainer(folder: Path, collate: Any, data: Any, kind: Any = Trainer, **options: Any) -> Any:
    return trainer_of(folder, data, collate, kind, **{"per_device_train_batch_size": 2, **options})


def size_of(batch: Any) -> float:
    return float(batch["x"].numel()) if hasattr(batch, "keys") else 1.0


def as_dict(rows: list[int]) -> dict[str, Any]:
    return {"x": torch.ones(2, max(rows))}


BATCHES = {
    "dict": as_dict,
    "BatchEncoding": lambda rows: transformers.BatchEncoding(as_dict(rows)),
    "tuple": tuple,
    "SimpleNamespace": lambda rows: SimpleNamespace(rows=rows),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_of_any_type_is_what_its_collator_has_made(tmp_path: Path, kind: str) -> None:
    trainer = loads_trainer(tmp_path, BATCHES[kind], [1, 2, 3, 4])
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
    trainer = loads_trainer(tmp_path, save_strategy="steps", save_steps=3, **given)
    told = Callback(tmp_path, loads=size_of).attach(trainer).clocks.steps  # type: ignore[attr-defined]
    trainer.train()
    assert told == [[size_of(batch) for batch in step] for step in trainer.seen.values()]
    again = loads_trainer(tmp_path, **given)
    callback = Callback(tmp_path, loads=size_of)
    again.add_callback(callback)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    told_again = callback.clocks.steps  # type: ignore[attr-defined]
    assert told_again == [[size_of(batch) for batch in step] for step in again.seen.values()] == told[3:]
    del trainer, again, callback
    gc.collect()  # the workers of a loader that keeps them end with it


def test_a_second_training_has_clocks_of_its_own_and_loaders_are_as_before(tmp_path: Path) -> None:
    trainer = loads_trainer(tmp_path, as_dict, [1, 2, 3, 4])
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

    trainer = loads_trainer(tmp_path, as_dict, [1, 2], kind=OfList, max_steps=3)
    Callback(tmp_path).attach(trainer)
    trainer.train()
    assert trainer.state.global_step == 3
    assert "the batches of a list cannot be seen" in caplog.text
