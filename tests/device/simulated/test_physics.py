"""The models of GPUs against the profiles that they are fitted to, and those of nodes against what was published."""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random

import pytest

from pfo_fs.device.simulated.physics import MODELS, PRESETS, gpu_model, node_physics
from pfo_fs.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "file", "time_error", "energy_error"),
    [("A100", "gpt3-175b+a100_sxm_bf16", 0.0285, 0.0295), ("A40", "gpt3-175b+a40_bf16", 0.0485, 0.0425)],
)
def test_time_and_energy_follow_the_measured_profile_within_the_stated_error(
    shared_data: Path, name: str, file: str, time_error: float, energy_error: float
) -> None:
    rows = list(csv.DictReader((shared_data / "profiles" / f"{file}.csv").read_text().splitlines()))
    assert len(rows) > 600
    for row in rows:
        model = gpu_model(name).coefficients(row["instruction"], last_stage=row["stage"] == "7")
        mhz = int(row["frequency"])
        assert model.time_s(mhz) == pytest.approx(float(row["time"]), rel=time_error)
        assert model.time_s(mhz) * model.power_w(mhz) == pytest.approx(float(row["energy"]), rel=energy_error)


@pytest.mark.parametrize("name", MODELS)
def test_a_lower_clock_is_never_faster_and_never_takes_more_power(name: str) -> None:
    model = gpu_model(name)
    for instruction in ("forward", "backward", "backward_weight", "something else"):
        coefficients = model.coefficients(instruction)
        times = [coefficients.time_s(mhz) for mhz in model.clocks_mhz]
        powers = [coefficients.power_w(mhz) for mhz in model.clocks_mhz]
        assert times == sorted(times)
        assert powers == sorted(powers, reverse=True)
        assert powers[-1] > model.blocking_power_w


@pytest.mark.parametrize(("mhz", "median_s"), [(135, 0.0032), (975, 0.0045), (1530, 0.0053), (0, 0.0053)])
def test_calls_take_as_long_as_published(mhz: int, median_s: float) -> None:
    rnd = Random(1)
    took_s = sorted(PRESETS["A100 node"].call_time_s(mhz, rnd.random(), rnd.random()) for _ in range(20_000))
    assert took_s[10_000] == pytest.approx(median_s, rel=0.05)
    assert 0.010 < took_s[19_800] < took_s[-1] < 0.0125
    assert PRESETS["kind"].call_time_s(mhz, 0.0, 0.0) == 0


def test_a_node_without_a_name_of_ours_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"'DGX'.*A100 node"):
        node_physics("DGX")
    assert node_physics("kind").latency_s(900) == 0.010
