"""Profiles that outlive their job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from coordinator_jobs import ORDER
from jobs import make_job

from pfo_fs.coordination.profile_cache import ProfileCache
from pfo_fs.errors import PlanError
from pfo_fs.store import bodies
from pfo_fs.store.profile_files import ProfileFiles


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


def kept_by(tmp_path: Path, attempt: str = "a") -> ProfileCache:
    """The cache of a job that has kept its profile."""
    cache = ProfileCache(make_job(tmp_path, 2, attempt=attempt))
    cache.known(job_body(), ORDERS, GPUS)
    cache.keep(CSV)
    return cache


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
    kept_by(tmp_path)
    second = make_job(tmp_path, 2, attempt="b")
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
    kept_by(tmp_path)
    second = make_job(tmp_path, 2, attempt="b")
    next((tmp_path / "profiles").rglob("about.json")).write_bytes(about)
    assert ProfileCache(second).known(job_body("bert"), ORDERS, GPUS) is None


def test_what_was_known_at_the_begin_stays_known_whatever_others_measure_meanwhile(tmp_path: Path) -> None:
    shelf, second = kept_by(tmp_path), make_job(tmp_path, 2, attempt="b")
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


def left_by(tmp_path: Path, contents: dict[str, str]) -> Path:
    """Profiles of other jobs of the kind, by their names; returns their folder."""
    kept_by(tmp_path)
    kind = next((tmp_path / "profiles").iterdir())
    for name, content in contents.items():
        (kind / f"{name}.csv").write_text(content)
    return kind


def refuses(word: str) -> Callable[[str, str], None]:
    def check(csv: str, source: str) -> None:
        if word in csv:
            raise PlanError("row 2: no GPU has that")

    return check


def test_profiles_that_the_policy_cannot_use_are_left_out_and_named_and_the_next_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    larger = CSV + "0,backward,1410,1,1\n"
    kind = left_by(tmp_path, {"evil": larger + "0,odd,1410,5e-324,1\n", "usable": larger})
    known = ProfileCache(make_job(tmp_path, 2, attempt="b")).known(job_body(), ORDERS, GPUS, refuses("5e-324"))
    assert known is not None
    assert known.source == "usable"
    assert f"profiles/{kind.name}/evil.csv is left out: row 2: no GPU has that" in caplog.text


def test_a_job_of_another_size_leaves_out_profiles_that_it_cannot_use(tmp_path: Path) -> None:
    left_by(tmp_path, {"evil": CSV + "0,odd,1410,5e-324,1\n"})
    second = make_job(tmp_path, 2, attempt="b")
    known = ProfileCache(second).known(job_body("bert"), ORDERS, GPUS, refuses("5e-324"))
    assert known is not None
    assert known.source != "evil"


def test_a_job_begins_without_a_profile_rather_than_search_for_long(tmp_path: Path) -> None:
    left_by(tmp_path, {f"evil{number}": CSV + "0,odd,1,5e-324,1\n" for number in range(16)})
    now_s, asked = [0.0], []

    def slow(csv: str, source: str) -> None:
        asked.append(source)
        now_s[0] += 2.0
        raise PlanError("no")

    cache = ProfileCache(make_job(tmp_path, 2, attempt="b"), monotonic=lambda: now_s[0])
    assert cache.known(job_body(), ORDERS, GPUS, slow) is None
    assert cache.consulted
    assert len(asked) <= 3


def test_of_very_many_kinds_of_jobs_few_are_looked_at_those_with_the_models_name_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by(tmp_path, {})
    for number in range(300):
        (tmp_path / "profiles" / f"a{number}-0123456789abcdef").mkdir()
    read, read_about = [], ProfileFiles.read_about
    monkeypatch.setattr(ProfileFiles, "read_about", lambda self, key: read.append(key) or read_about(self, key))
    third = make_job(tmp_path, 2, attempt="c")
    known = ProfileCache(third).known(job_body(pp=4), ORDERS, GPUS)
    assert known is not None
    assert read[0].startswith("gpt-")
    assert len(read) <= 64


def test_a_profile_without_measurements_is_nothing_to_begin_with(tmp_path: Path) -> None:
    kept_by(tmp_path)
    second = make_job(tmp_path, 2, attempt="b")
    path = next((tmp_path / "profiles").rglob("*.csv"))
    path.write_text(CSV.splitlines()[0] + "\n")
    later = ProfileCache(second)
    assert later.known(job_body(), ORDERS, GPUS) is None
    known = second.read_cached_profile()
    assert known is not None
    assert known.source == ""
