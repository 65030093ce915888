"""The models of GPUs against the measured profiles they are fitted to."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pfo_fs.device.simulated.physics import MODELS, gpu_model
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


def test_an_unknown_gpu_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="A100, A40"):
        gpu_model("H9000")
