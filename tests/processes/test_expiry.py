"""Clocks that were set for measuring, and for which nobody comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfo_fs import PFOFileOptimizer
from pfo_fs.device import page


def test_a_schedule_that_holds_for_some_steps_ends_by_itself_on_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated")
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path / "sim"))
    place = {f"{kind}_{what}": int(what == "degree") for kind in ("dp", "pp", "tp") for what in ("rank", "degree")}
    seen = []
    with PFOFileOptimizer(
        tmp_path / "pfo", rank=0, world_size=1, local_rank=0, coordination="local", wait_for_schedule_s=0, **place
    ) as opt:
        words = opt._clocks.words
        told = {"type": "schedule", "number": 50, "start_step": 2, "frequencies": [["forward", 900]], "stages": None}
        opt._handle({**told, "steps": 3})
        for _ in range(8):
            opt.on_step_begin()
            opt.on_instruction_begin("forward")
            seen.append(words[page.TARGET])
            opt.on_instruction_end("forward")
            opt.on_step_end()
        opt._handle({**told, "number": 51, "start_step": 9, "steps": 0})
        for _ in range(4):
            opt.on_step_begin()
            opt.on_instruction_begin("forward")
            seen.append(words[page.TARGET])
            opt.on_instruction_end("forward")
            opt.on_step_end()
    assert seen == [0, 0, 900, 900, 900, 0, 0, 0, 0, 900, 900, 900]
    assert caplog.text.count("nothing new has come for 3 steps") == 1
