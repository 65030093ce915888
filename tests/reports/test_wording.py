"""What the report says in figures is what the data bear: signs, units, more or less, and totals that add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.directory import collect_directory, sums
from pfo_fs.reports.pictures import clock_bounds
from pfo_fs.reports.savings import savings_of, total_of
from pfo_fs.reports.summary import headline_section
from pfo_fs.reports.wording import duration_text, end_text, energy_text, percent, signed_percent
from pfo_fs.store import Files, JobFolder, SharedDirectory
from pfo_fs.store.bodies import EndBody

UNITS = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "kWh": 3.6e6, "s": 1.0, "min": 60.0, "h": 3600.0}


@given(st.floats(-10, 10), st.integers(0, 3))
def test_a_change_has_its_sign_and_zero_has_no_minus(share: float, digits: int) -> None:
    text = signed_percent(share, digits)
    value = float(text.removesuffix(" %").replace("−", "-"))
    assert abs(value - share * 100) <= 0.5 * 10**-digits + 1e-9
    assert text.startswith("−") == (value < 0)
    text = percent(share, digits)
    assert float(text.removesuffix("%")) == pytest.approx(100 * share, abs=0.5 * 10**-digits + 1e-9)
    assert text.startswith("-") == (float(text.removesuffix("%")) < 0)


@given(st.floats(0.01, 1e12))
def test_an_amount_has_a_unit_in_which_it_is_not_zero(amount: float) -> None:
    for text_of in (energy_text, duration_text):
        number, unit = text_of(amount).split()
        assert float(number.replace(",", "")) * UNITS[unit] == pytest.approx(amount, rel=0.06, abs=0.005)


def test_only_a_known_crash_is_called_a_crash() -> None:
    gone = "the training process of rank 0 ended without closing the optimizer"
    assert end_text(EndBody(reason="crashed", message=gone)) == "killed?"
    assert end_text(EndBody(reason="crashed", message="ValueError: 3")) == "crashed"
    assert end_text(EndBody(reason="terminated")) == "terminated"


def test_the_sums_of_a_job_are_all_iterations_measured_against_max_clocks(data: JobData) -> None:
    savings = savings_of(data)
    whole, against = total_of(data, savings), savings.baseline
    assert whole.iterations == data.last_step + 1
    assert whole.energy_j - whole.more_energy_j == pytest.approx(whole.iterations * against.energy_j)
    assert whole.time_s - whole.more_time_s == pytest.approx(whole.iterations * against.time_s)


def test_a_job_at_max_clocks_saves_nothing_whatever_the_energy_counters_say(data: JobData) -> None:
    measured = data.windows[1]
    top_mhz = max(data.infos[0].available_frequencies)
    schedules = {
        rank: plan.model_copy(update={"frequencies": [(name, top_mhz) for name, _ in plan.frequencies]})
        for rank, plan in measured.schedules.items()
    }
    highest = replace(measured, schedules=schedules)
    assert data.at_max_clocks(highest)
    less = replace(highest, measured=replace(highest.measured, energy_j=0.98 * highest.measured.energy_j))
    current = data.current.model_copy(update={"number": highest.number})
    savings = savings_of(replace(data, windows=[less], current=current))
    assert savings.measured.energy_j == savings.baseline.energy_j


def spread(data: JobData, spread: float) -> list[Window]:
    """The windows of a job as if its iterations scattered by this, relative."""
    return [
        replace(window, measured=replace(window.measured, time_spread=spread)) if window.measured else window
        for window in data.windows
    ]


def test_iterations_that_differ_in_work_are_not_compared_by_two_windows_and_the_page_says_why(data: JobData) -> None:
    unknown = data.model.model_copy(update={"energy_saved": None})
    job = replace(data, windows=spread(data, 0.2), model=unknown)
    found = savings_of(job)
    assert found.baseline is None
    assert savings_of(replace(job, windows=spread(data, 0.01))).baseline is not None
    section = headline_section(job, found)
    assert "20% under one schedule" in section["missing"]
    assert not any("instead of" in text for card in section["cards"] for text in card["small"])
    assert any("not compared with max clocks" in text for card in section["cards"] for text in card["small"])


def test_what_the_scheduler_knows_of_the_same_work_is_the_headline_even_if_iterations_differ(data: JobData) -> None:
    figures = {"energy_saved": 0.1, "energy_saved_error": 0.01, "more_time": 0.002, "more_time_error": 0.001}
    job = replace(data, windows=spread(data, 0.2), model=data.model.model_copy(update=figures))
    energy, time = headline_section(job, savings_of(job))["cards"][:2]
    assert energy["big"].startswith("−10.0 % ± 2.")
    assert time["big"] == "+0.20 % ± 0.20"


def test_a_single_low_clock_is_a_low_clock_on_the_scale(data: JobData) -> None:
    lowest = min(data.infos[0].available_frequencies)
    assert clock_bounds(data, [lowest]) == (lowest, max(data.infos[0].available_frequencies))


def test_a_directorys_sums_are_those_of_its_jobs(played_once: Path) -> None:
    rows = collect_directory(SharedDirectory(Files(played_once, create=False)))
    assert len(rows) == 1
    (user,), (day,) = sums(rows, lambda row: row.user).values(), sums(rows, lambda row: row.day).values()
    assert user == day
    assert user.saved_kwh == rows[0].saved_kwh


def test_jobs_that_have_ended_are_marked_for_a_sites_accounting(played: JobFolder) -> None:
    shared = SharedDirectory(played.files)
    assert [row.ended for row in collect_directory(shared)] == [False]
    played.write(EndBody(reason="finished"))
    assert [row.ended for row in collect_directory(shared)] == [True]
