"""Clocks from loads in real runs of the Hugging Face Trainer, by two ranks on gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pfo_fs import loads

pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_hf_packed.py"

TRAINING = """
import json, logging, random, sys, torch, transformers
from pfo_fs.integrations.huggingface_loads import HFLoadClocks

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
collate = trainer.data_collator
clocks = HFLoadClocks(sys.argv[2], strict=True).attach(trainer)
Model.kernels = clocks.clocks.simulated_kernels()
trainer.train()
clocks.close()
print(json.dumps({
    "rank": torch.distributed.get_rank(), "status": clocks.clocks.status_text, "warnings": kept,
    "steps": trainer.state.global_step, "logged": [one for one in trainer.state.log_history if "loss" in one][-1],
    "collator_is_back": trainer.data_collator is collate}))
"""


def train(folder: Path, *program: str) -> list[str]:
    """Runs a program on two ranks; returns the lines that they have printed."""
    (folder / "sim").mkdir(mode=0o700)
    environment = {**os.environ, "PFO_FS_GPU": "simulated", "PFO_FS_SIM_DIR": str(folder / "sim")}
    environment |= {"PFO_FS_RUN_DIR": str(folder / "sim"), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_example_learns_what_loads_make_of_a_step_and_lowers_clocks(tmp_path: Path) -> None:
    lines = train(tmp_path, str(EXAMPLE), "--shared-dir", str(tmp_path / "pfo"), "--steps", "45")
    assert "loads explain" in lines[-1]
    assert "no clock could be lowered" not in lines[-1]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_trainer_tells_the_loads_of_all_micro_batches_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    lines = train(tmp_path, str(tmp_path / "train.py"), str(tmp_path / "out"), str(tmp_path / "pfo"))
    said = sorted((json.loads(line) for line in lines if line.startswith('{"rank"')), key=lambda one: one["rank"])
    assert [one["steps"] for one in said] == [20, 20]
    assert not said[0]["warnings"] + said[1]["warnings"]
    assert said[0]["collator_is_back"]
    assert "loads explain" in said[0]["status"]
    assert said[0]["logged"]["pfo_fs/loads_explain"] > 0.5


@pytest.mark.parametrize(
    ("batch", "load"),
    [
        ({"cu_seq_lens_q": [0, 3, 5], "position_ids": [[0] * 5]}, (5.0, 13.0)),
        ({"seq_lens": [[3, 2], [4]], "input_ids": [[0] * 5]}, (9.0, 29.0)),
        ({"position_ids": [[0, 1, 2, 0, 1]], "attention_mask": None}, (5.0, 13.0)),
        ({"attention_mask": [[1, 1, 0], [1, 0, 0]], "input_ids": [[0] * 3] * 2}, (3.0, 5.0, 6.0, 18.0)),
        ({"input_ids": [[0] * 3] * 2}, (6.0, 18.0)),
    ],
)
def test_the_load_of_a_batch_is_read_from_what_its_collator_gives(batch: dict[str, Any], load: Any) -> None:
    assert loads.from_batch(batch) == load
