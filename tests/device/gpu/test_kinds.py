"""All there is, on GPUs of the kinds that training runs on, as our library in place of NVIDIA's answers for them."""

import json
from pathlib import Path

import pytest
from fake_nvml import use_library
from torchrun import torchrun

PROGRAM = Path(__file__).with_name("kinds_program.py")
PARTS = ("pipeline", "power_limits", "loads")
LACKS: dict[str, dict[str, str]] = {
    **{kind: {} for kind in ("V100", "A100", "H100", "GH200", "B200", "B300")},
    "H100-": dict.fromkeys(PARTS, "this user may not"),
    "RTX": dict.fromkeys(PARTS, "does not support it"),
}
"""For each kind, which part of pfo-fs warns, and of what; `-`: this user may not set it."""


@pytest.mark.slow
def test_each_kind_runs_to_its_end_and_says_once_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_library(monkeypatch, tmp_path / "gpus", "A100")
    torchrun(tmp_path, 2, PROGRAM, tmp_path, *LACKS)
    for kind, said in json.loads((tmp_path / "said.json").read_text()).items():
        for part in PARTS:
            assert len(said[part]) == (part in LACKS[kind]), (kind, part, said[part])
            assert all(LACKS[kind][part] in warning for warning in said[part])
        checks = said["doctor"]
        assert checks["GPUs"][0] is True
        assert ("CPU included" in checks["GPUs"][1]) == (kind == "GH200")
        assert checks["nvml"][0] is (None if kind == "RTX" else True)
        assert checks["clock process"][0] is True
        assert checks["clocks and limits left"][0] is True, "all is back"
