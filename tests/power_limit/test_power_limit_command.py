"""`pfo-fs power-limit`, and the selectors behind it beside Zeus's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from commands import pfo_fs
from hypothesis import given
from hypothesis import strategies as st
from power_limit_fakes import at_limit

from pfo_fs import power_limit as pl
from pfo_fs.device.simulated.physics import A100
from pfo_fs.errors import ConfigError


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(pl.profile_text([at_limit(A100, level) for level in range(500, 99, -25)]))
    return path


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ("--selector max-slowdown --factor 1.05", 450),
        ("--selector max-slowdown --factor 1.2", 325),
        ("--selector energy", 275),
        ("--selector time", 500),
        ("", 350),
        ("--selector zeus-cost --eta-knob 0.8 --world-size 1", 300),
        ("--selector zeus-cost --world-size 8", 500),
    ],
)
def test_each_selector_answers_from_a_profile(profile: Path, arguments: str, level: int) -> None:
    answer = pfo_fs("power-limit", profile, "--json", *arguments.split()).answer
    assert (answer["power_limit"], len(answer["measurements"])) == (level, 17)


BENT = pl.profile_text(
    [
        found.model_copy(update={"time": found.time * (3 if found.level == 400 else 1)})  # as a busy machine bends it
        for found in (at_limit(A100, limit_w) for limit_w in (500, 400, 300, 200, 150))
    ]
)


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        ('{"measurements": [[1, 2]]}', [], 1, "measurements.0"),
        (BENT, [], 1, "at 400 W, but only"),
        (BENT, ["--force"], 0, ""),
        (
            '{"measurements": [{"clock": 900, "energy": 1, "time": 1}]}',
            [],
            0,
            "ZeusCost(eta_knob=0.5, world_size=1): 900 MHz",
        ),
    ],
)
def test_what_a_profile_tells_or_why_it_tells_nothing_is_said(
    profile: Path, text: str, arguments: list[str], code: int, said: str
) -> None:
    profile.write_text(text)
    done = pfo_fs("power-limit", profile, *arguments)
    assert (done.returncode, said in done.said) == (code, True), done.said


def test_the_loop_in_the_documentation_runs(tmp_path: Path, sim_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "power-limit.md").read_text()
    (block,) = re.findall(r"```python\n(from pfo_fs\.power_limit import GlobalPower.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFO_FS_GPU", "simulated:readme")
    names: dict[str, Any] = {"epochs": 2, "loader": range(450)}
    exec(block, names)
    assert isinstance(names["plo"].state, pl.Off)
    assert len(names["plo"].measurements) == 16, "an epoch measures 8 limits"


# ---- selectors


@given(
    numbers=st.dictionaries(
        st.integers(1, 1000), st.tuples(st.floats(0.1, 100), st.floats(0.1, 1e5)), min_size=1, max_size=40
    ),
    eta=st.floats(0, 1),
    world_size=st.integers(1, 1000),
    factor=st.floats(1, 4),
)
def test_every_selector_chooses_as_zeuss(
    numbers: dict[int, tuple[float, float]], eta: float, world_size: int, factor: float
) -> None:
    zeus = pytest.importorskip("zeus.optimizer.power_limit", reason="needs Zeus, with which it compares")
    ours = [pl.PowerLimitMeasurement(power_limit=w, time=t, energy=e) for w, (t, e) in numbers.items()]
    theirs = [zeus.PowerLimitMeasurement(power_limit=w, time=t, energy=e) for w, (t, e) in numbers.items()]
    for name, arguments in (
        ("Energy", {}),
        ("Time", {}),
        ("ZeusCost", {"eta_knob": eta, "world_size": world_size}),
        ("MaxSlowdownConstraint", {"factor": factor}),
    ):
        assert getattr(pl, name)(**arguments).select(ours) == getattr(zeus, name)(**arguments).select(theirs)


@pytest.mark.parametrize("kind", [pl.ZeusCost, pl.MaxSlowdownConstraint])
def test_no_number_is_no_argument_of_a_selector(kind: type[pl.ZeusCost] | type[pl.MaxSlowdownConstraint]) -> None:
    with pytest.raises(ConfigError):
        kind(float("nan"))
