"""The callback in real runs of the Hugging Face Trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from framework_pages import run_block
from power_limit_fakes import limits_set

from pfo_fs import HFGlobalPowerLimitOptimizer
from pfo_fs.errors import ConfigError
from pfo_fs.power_limit import Done, Energy, EnergyMonitor, MaxSlowdownConstraint, Ready, ZeusCost

pytestmark = pytest.mark.usefixtures("sim_dir")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_hf.py"

TRAINING = """
import sys, torch, transformers
from pfo_fs.integrations.huggingface import HFGlobalPowerLimitOptimizer
from pfo_fs.power_limit import EnergyMonitor, MaxSlowdownConstraint

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}

class Work(transformers.TrainerCallback):
    def __init__(self, kernels, fails_at=None):
        self.kernels, self.fails_at = kernels, fails_at
    def on_step_end(self, args, state, control, **kwargs):
        self.kernels.run("forward")
        if state.global_step == self.fails_at:
            raise RuntimeError("training has failed")

def make_trainer(folder, callback, work, steps, epochs=1):
    data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * (steps // epochs)
    arguments = transformers.TrainingArguments(
        output_dir=folder, num_train_epochs=epochs, per_device_train_batch_size=1, report_to=[], disable_tqdm=True,
        save_strategy="no", use_cpu=True, logging_steps=1000)
    return transformers.Trainer(model=Line(), args=arguments, train_dataset=data, callbacks=[callback, work])
"""

OPTIONS: dict[str, Any] = {"warmup_steps": 1, "profile_steps": 3, "pl_step": 200}


def training() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(TRAINING, names)
    return names


@pytest.mark.slow
def test_a_trainer_finds_the_limit_over_several_epochs_and_gives_it_back_in_the_end(
    tmp_path: Path, sim_dir: Path
) -> None:
    names = training()
    monitor = EnergyMonitor(specs=["simulated:a"])
    callback = HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.3), **OPTIONS)
    work = names["Work"](monitor.simulated_kernels(time_scale=20))
    trainer = names["make_trainer"](str(tmp_path), callback, work, steps=36, epochs=12)
    trainer.train()  # an epoch of 3 steps is shorter than a window of 1 + 3
    assert isinstance(callback.optimizer.state, Done)
    assert [m.power_limit for m in callback.optimizer.measurements] == [500, 300, 100]
    chosen_w = MaxSlowdownConstraint(1.3).select(callback.optimizer.measurements)
    assert callback.optimizer.state.optimal_power_limit == chosen_w
    assert limits_set(sim_dir)[:3] == [500, 300, 100]
    assert limits_set(sim_dir)[-1] == 500
    count = len(limits_set(sim_dir))
    callback.optimizer.state = Done(300)
    names["make_trainer"](str(tmp_path), callback, work, steps=3).train()
    assert limits_set(sim_dir)[count:] == [300, 500], "the choice holds for the next training, too"
    callback.close()
    monitor.close()


@pytest.mark.slow
def test_attached_it_measures_no_evaluation_logs_before_reporters_and_survives_an_exception(
    tmp_path: Path, sim_dir: Path
) -> None:
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            reported.append(dict(logs))

    reported: list[dict[str, float]] = []
    names = training()
    monitor = EnergyMonitor(specs=["simulated:a"])
    callback = HFGlobalPowerLimitOptimizer(monitor, **OPTIONS)
    work = names["Work"](monitor.simulated_kernels(time_scale=20), fails_at=30)
    trainer = names["make_trainer"](str(tmp_path), Reporter(), work, steps=40)
    trainer.args.logging_steps, trainer.args.eval_steps = 1, 2
    trainer.args.eval_strategy = trainer.args.logging_strategy = "steps"
    trainer.args.gradient_accumulation_steps = 1
    trainer.eval_dataset = trainer.train_dataset[:2]
    trainer.callback_handler.callbacks.insert(1, trainer.pop_callback(Reporter))
    callback.attach(trainer)
    with pytest.raises(RuntimeError, match="training has failed"):
        trainer.train()
    assert isinstance(callback.optimizer.state, Done), "each window of 3 steps had an evaluation in it"
    assert limits_set(sim_dir)[:3] == [500, 300, 100]
    assert limits_set(sim_dir)[-1] == 500
    losses = [logs for logs in reported if "loss" in logs]
    assert "pfo_fs/step_time_s" in losses[-1]
    assert "pfo_fs/saving" in [logs for logs in trainer.state.log_history if "loss" in logs][-1]
    callback.close()
    assert "train" not in vars(trainer)
    assert callback not in trainer.callback_handler.callbacks
    monitor.close()


@pytest.mark.slow
@pytest.mark.parametrize("section", ["Hugging Face Trainer", "A clock in place of a power limit"])
def test_the_lines_of_the_page_follow_a_trainer(
    section: str, tmp_path: Path, sim_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:a")
    from transformers import TrainerCallback

    trainer = training()["make_trainer"](str(tmp_path), TrainerCallback(), TrainerCallback(), steps=2)
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
    command = [sys.executable, str(EXAMPLE), "--steps", "45", "--pl-step", "100", "--warmup-steps", "1"]
    command += ["--profile-steps", "4", "--profile-path", str(path), "--factor", "1.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Done(optimal_power_limit=")
    assert [m["power_limit"] for m in json.loads(path.read_text())["measurements"]] == [500, 400, 300, 200, 100]
    assert limits_set(sim_dir, "hf")[-1] == 500


def test_it_is_a_trainer_callback_and_so_is_a_subclass_of_it() -> None:
    from transformers import TrainerCallback

    class Mine(HFGlobalPowerLimitOptimizer):
        pass

    for kind in (HFGlobalPowerLimitOptimizer, Mine):
        monitor = EnergyMonitor(specs=["simulated:a"])
        with kind(monitor, ZeusCost(1)) as callback:
            assert isinstance(callback, TrainerCallback)
            assert isinstance(callback, kind)
            assert type(callback) is type(kind(monitor))
            assert isinstance(callback.optimizer.state, Ready)
        monitor.close()


def test_without_transformers_there_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'pfo-fs\[huggingface\]'"):
        HFGlobalPowerLimitOptimizer()
