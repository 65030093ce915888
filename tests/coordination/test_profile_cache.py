"""Profiles that outlive their job."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_jobs import ORDER
from jobs import make_job

from pfo_fs.coordination.profile_cache import ProfileCache
from pfo_fs.store import bodies


def job_body(model: str = "gpt", pp: int = 2) -> bodies.JobBody:
    return bodies.JobBody.model_validate(
        {
            "job_info": {"pp_degree": pp, "dp_degree": 1, "tp_degree": 1, "world_size": pp, "job_metadata": model},
            "coordination": "auto",
            "versions": {"torch": "2.13.0", "python": "3.11"},
        }
    )


ORDERS = {0: ORDER, 1: ORDER}
GPUS = {0: "A100", 1: "A100"}
CSV = "stage,instruction,frequency,time,energy\n0,forward,1410,1,1\n"


def test_a_later_job_of_the_same_kind_finds_the_profile(tmp_path: Path) -> None:
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileCache(first)
    assert shelf.known(job_body(), ORDERS, GPUS) is None
    shelf.keep(CSV)
    known = ProfileCache(second).known(job_body(), ORDERS, GPUS)
    assert known is not None
    assert (known.csv, known.source) == (CSV, first.job_id)


@pytest.mark.parametrize(
    ("body", "orders", "gpus"),
    [
        (job_body(), ORDERS, {0: "A100", 1: "H100"}),
        (job_body().model_copy(update={"versions": {"torch": "2.14.0"}}), ORDERS, GPUS),
    ],
    ids=["GPUs", "software"],
)
def test_a_job_on_other_gpus_or_with_other_software_does_not(
    tmp_path: Path, body: bodies.JobBody, orders: dict, gpus: dict
) -> None:  # type: ignore[type-arg]
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileCache(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    assert ProfileCache(second).known(body, orders, gpus) is None


@pytest.mark.parametrize(
    ("body", "orders"),
    [(job_body("bert"), ORDERS), (job_body(), {0: ORDER, 1: [*ORDER, *ORDER]})],
    ids=["model", "micro-batches"],
)
def test_a_job_of_another_size_on_equal_gpus_finds_the_profile_if_there_is_no_better_one(
    tmp_path: Path,
    body: bodies.JobBody,
    orders: dict,  # type: ignore[type-arg]
) -> None:
    first, second, third = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b", "c"))
    shelf = ProfileCache(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    other = ProfileCache(second)
    known = other.known(body, orders, GPUS)
    assert known is not None
    assert known.source == first.job_id
    other.keep(CSV)
    exact = ProfileCache(third).known(body, orders, GPUS)
    assert exact is not None
    assert exact.source == second.job_id


@pytest.mark.parametrize("about", [b"", b"[]", b"{", b'{"gpus": 3}', b"[" * 100_000])
def test_a_damaged_description_of_another_kind_of_job_does_no_harm(tmp_path: Path, about: bytes) -> None:
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileCache(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    next((tmp_path / "profiles").rglob("about.json")).write_bytes(about)
    assert ProfileCache(second).known(job_body("bert"), ORDERS, GPUS) is None


def test_what_was_known_at_the_begin_stays_known_whatever_others_measure_meanwhile(tmp_path: Path) -> None:
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileCache(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    before = ProfileCache(second).known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV + "0,backward,1410,1,1\n")
    assert ProfileCache(second).known(job_body(), ORDERS, GPUS) == before


def test_without_all_orders_nothing_is_looked_for(tmp_path: Path) -> None:
    shelf = ProfileCache(make_job(tmp_path, 2))
    assert shelf.known(job_body(), {0: ORDER, 1: None}, GPUS) is None
    assert not shelf.consulted


def test_a_profile_gives_way_only_to_one_that_is_complete_or_larger(tmp_path: Path) -> None:
    def kept() -> str:
        return folder.profiles.read_own(next((tmp_path / "profiles").iterdir()).name)

    folder = make_job(tmp_path, 2, attempt="a")
    full = CSV + "0,backward,1410,1,1\n"
    for attempt in range(2):
        shelf = ProfileCache(folder)
        shelf.known(job_body(), ORDERS, GPUS)
        if attempt == 0:
            shelf.keep(full)
        shelf.keep(CSV.splitlines()[0] + "\n")
        shelf.keep(CSV, measuring=True)
        assert kept() == full, "also after a restart"
    shelf.keep(CSV)
    assert kept() == CSV


def test_a_profile_without_measurements_is_nothing_to_begin_with(tmp_path: Path) -> None:
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileCache(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    path = next((tmp_path / "profiles").rglob("*.csv"))
    path.write_text(CSV.splitlines()[0] + "\n")
    later = ProfileCache(second)
    assert later.known(job_body(), ORDERS, GPUS) is None
    known = second.read_cached_profile()
    assert known is not None
    assert known.source == ""
