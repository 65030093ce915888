"""The callbacks in real runs of Lightning's Trainer (clocks from loads: two ranks on gloo); skips without Lightning."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
from framework_pages import run_block
from power_limit_fakes import limits_set
from torchrun import clocks_mhz, torchrun

from pfo_fs.integrations.lightning import LightningLoadClocks, LightningPowerLimitOptimizer
from pfo_fs.power_limit import Done, EnergyMonitor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning: Any = pytest.importorskip("lightning", reason="needs Lightning; .ci/frameworks installs it")

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.usefixtures("sim_dir"), pytest.mark.filterwarnings("ignore")]

OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 3, "pl_step": 200}


class Line(lightning.LightningModule):  # type: ignore[misc]
    """Counts its batches; with `kernels`, each one runs on a simulated GPU."""

    def __init__(self, kernels: Any = None, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.fails_at, self.kernels = fails_at, kernels
        self.trained = self.validated = 0

    def training_step(self, batch: Any, _index: int) -> Any:
        self.trained += 1
        if self.kernels is not None:
            self.kernels.run("forward")
        if self.trained == self.fails_at:
            raise RuntimeError("training has failed")
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, _index: int) -> None:
        self.validated += 1

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Kept(lightning.pytorch.loggers.logger.DummyLogger):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)


def fit(module: Line, callback: Any, batches: int, validated: int = 2, **options: Any) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        **{**quiet, "accumulate_grad_batches": 2, "log_every_n_steps": 1, **options},
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        callbacks=[callback],
    )
    trainer.fit(module, *(torch.utils.data.DataLoader(torch.ones(count, 2)) for count in (batches, validated)))


# ---- one power limit


def test_the_line_of_the_page_makes_a_trainer_with_the_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:a")
    trainer = run_block("power-limit", "Lightning", 0)["trainer"]
    (callback,) = [each for each in trainer.callbacks if isinstance(each, LightningPowerLimitOptimizer)]
    callback.close()


@pytest.mark.slow
def test_a_trainer_finds_the_limit_though_it_validates_within_each_window(sim_dir: Path) -> None:
    monitor, logger = EnergyMonitor(specs=["simulated:a"]), Kept()
    callback = LightningPowerLimitOptimizer(monitor=monitor, **OPTIONS)
    fit(Line(monitor.simulated_kernels(time_scale=20)), callback, batches=30, logger=logger, val_check_interval=4)
    assert callback.optimizer is not None
    assert isinstance(callback.optimizer.state, Done)
    assert [m.power_limit for m in callback.optimizer.measurements] == [500, 300, 100]
    assert limits_set(sim_dir)[:3] == [500, 300, 100]
    assert limits_set(sim_dir)[-1] == 500
    assert {"pfo_fs/step_time_s", "pfo_fs/saving"} <= set(logger.metrics[-1])
    callback.close()
    monitor.close()


@pytest.mark.slow
def test_after_an_exception_the_limit_is_back_at_once(sim_dir: Path) -> None:
    monitor = EnergyMonitor(specs=["simulated:a"])
    callback = LightningPowerLimitOptimizer(monitor=monitor, **OPTIONS)
    module = Line(monitor.simulated_kernels(time_scale=20), fails_at=11)
    with pytest.raises(RuntimeError, match="training has failed"):
        fit(module, callback, batches=30, num_sanity_val_steps=0)
    assert limits_set(sim_dir)[:2] == [500, 300]
    assert limits_set(sim_dir)[-1] == 500
    callback.close()
    monitor.close()


# ---- clocks from loads


TRAINING = """
import json, logging, os, random, sys, warnings
warnings.simplefilter("ignore")
import lightning, torch
from logged import warnings_of
from lightning.pytorch.strategies import DDPStrategy
from pfo_fs.integrations.lightning import LightningLoadClocks

WORK = 1 / 40

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.validated = 0

    def loss(self, batch):
        return (self.layer(batch["position_ids"].float()[..., None]) - 1).square().mean() / 1e4

    def training_step(self, batch, index):
        if self.trainer.global_step == options.get("fails_at"):
            raise RuntimeError("training has failed")
        kernels = clocks.clocks.simulated_kernels()
        kernels.stream.launch("forward_backward", work=batch["position_ids"].numel() * WORK)
        return self.loss(batch)

    def on_before_optimizer_step(self, optimizer):
        clocks.clocks.simulated_kernels().stream.synchronize()
        torch.distributed.barrier()

    def validation_step(self, batch, index):
        self.validated += 1
        self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        if options.get("unsized"):
            return torch.utils.data.DataLoader(Batches(), batch_size=None)
        return torch.utils.data.DataLoader(data, batch_size=1, collate_fn=lambda rows: rows[0][0], shuffle=False)

class Kept(lightning.pytorch.loggers.logger.DummyLogger):
    def log_metrics(self, metrics, step=None):
        logged.append(metrics)

options, warnings_told, logged = json.loads(sys.argv[2]), warnings_of(), []
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
drawn = random.Random(0)
data = [[{"position_ids": torch.arange(drawn.randrange(8, 40))}] for _ in range(options["batches"])]

class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        rank = torch.distributed.get_rank()
        yield from (one[0] for one in data[rank::2])

few = torch.utils.data.DataLoader(data[:8], batch_size=1, collate_fn=lambda rows: rows[0][0])
clocks = LightningLoadClocks(sys.argv[1], strict=True)
model = Model()
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), accumulate_grad_batches=2,
    max_epochs=options.get("epochs", 1), val_check_interval=options.get("val_check_interval", 1.0),
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, logger=Kept(),
    reload_dataloaders_every_n_epochs=options.get("reloads", 0),
    log_every_n_steps=10, callbacks=[clocks], num_sanity_val_steps=1)
failed = ""
try:
    trainer.fit(model, val_dataloaders=few)
except RuntimeError as error:
    failed = str(error)
told = json.dumps({
    "rank": trainer.global_rank, "status": clocks.clocks.status_text, "warnings": warnings_told, "failed": failed,
    "steps": trainer.global_step, "logged": logged, "validated": model.validated,
    "loaders_are_back": "process_dataloader" not in vars(trainer.strategy)})
open(f"{sys.argv[1]}-{trainer.global_rank}.json", "w").write(told)
"""


def train(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Trains with two ranks; returns what each tells."""
    (folder / "train.py").write_text(TRAINING)
    torchrun(folder, 2, folder / "train.py", folder / "pfo", json.dumps(options))
    return [json.loads((folder / f"pfo-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "steps", "validated"),
    [
        ({"batches": 90, "val_check_interval": 10}, 23, 1 + 4 * 4),  # the last step has one micro-batch
        ({"batches": 88, "unsized": True}, 22, 1 + 4),  # the trainer fetches batches ahead
        ({"batches": 24, "epochs": 4, "reloads": 1}, 24, 1 + 4 * 4),  # a loader is made in each epoch
    ],
)
def test_the_trainer_tells_the_loads_of_all_micro_batches_of_a_step_and_validates_between(
    tmp_path: Path, options: dict[str, Any], steps: int, validated: int
) -> None:
    said = train(tmp_path, **options)
    assert [(one["steps"], one["validated"]) for one in said] == [(steps, validated)] * 2
    assert not said[0]["warnings"] + said[1]["warnings"]
    assert said[0]["loaders_are_back"]
    assert "loads explain" in said[0]["status"]
    assert said[0]["logged"][-1]["pfo_fs/loads_explain"] > 0.5


@pytest.mark.slow
def test_after_an_exception_the_clocks_are_the_default_and_the_job_is_known_as_crashed(tmp_path: Path) -> None:
    said = train(tmp_path, batches=48, epochs=3, fails_at=22)
    assert [one["failed"] for one in said] == ["training has failed"] * 2
    assert [clocks_mhz(log)[-1] for log in (tmp_path / "sim").glob("*.log")] == [0, 0], "the default"
    (end,) = (tmp_path / "pfo").glob("jobs/*/end.json")
    assert json.loads(end.read_text())["body"]["reason"] == "crashed"


def test_validation_and_training_are_given_all_their_batches_where_clocks_cannot_come_from_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:a")
    module = Line()
    fit(module, LightningLoadClocks(tmp_path / "pfo"), batches=3, validated=7)
    assert (module.trained, module.validated) == (3, 2 + 7)  # two to see that validation works
    assert "there is one data-parallel rank" in caplog.text
