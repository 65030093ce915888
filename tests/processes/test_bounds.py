"""What one job can take of a real daemon, and what other jobs notice of it."""

import gc
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import current_of, make_job, number_of, rank_infos, register, result_body, write_results
from record_corpus import sign
from running import Processes, wait_for

from pfo_fs.coordination import results
from pfo_fs.coordination.rank_registry import RankRegistry
from pfo_fs.errors import PlanError, RecordError
from pfo_fs.models import RankInfo
from pfo_fs.store import JobFolder, bodies, decode
from pfo_fs.store.records import SCHEMA


def job_of(root: Path, metadata: str, infos: list[RankInfo]) -> JobFolder:
    degrees = {"pp_degree": len(infos), "dp_degree": 1, "tp_degree": 1, "world_size": len(infos)}
    info = {**degrees, "job_id": f"job-{metadata.replace(' ', '-') or 'good'}", "job_metadata": metadata}
    folder = make_job(root, len(infos), job_info=info)
    register(folder, infos)
    return folder


def test_a_policy_that_ends_its_process_is_reported_and_other_jobs_go_on(tmp_path: Path, processes: Processes) -> None:
    daemon = processes.leader(tmp_path, "--scheduler", "schedulers:Misbehaves")
    infos, said = rank_infos(1), {"a signal": "SIGSEGV", "an exit": "SystemExit: as asked", "": ""}
    jobs = {metadata: job_of(tmp_path, metadata, infos) for metadata in said}
    for folder in jobs.values():
        wait_for(lambda folder=folder: number_of(folder) == 0, what="a schedule")
        write_results(folder, 0, infos)
    good = jobs.pop("")
    wait_for(lambda: number_of(good) == 1, what="the good job's next schedule")
    for metadata, folder in jobs.items():
        wait_for(lambda folder=folder: current_of(folder).state == "broken", what="a report about the bad job")
        assert said[metadata] in current_of(folder).message
        wait_for(lambda folder=folder: number_of(folder) == 1, what="default clocks")
        assert folder.read(bodies.IndexBody, number=1).files == {}
    assert daemon.poll() is None


# ---- without a daemon


def test_a_record_that_cannot_be_read_leaves_nothing_of_it_in_memory(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1)
    folder.files.make_folder(f"{folder.path}/prof/0")
    folder.files.claim(f"{folder.path}/prof/0/0.json", b" " * (4 << 20))
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(5):
            with pytest.raises(RecordError):
                folder.read_results(0, 0)
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
        gc.enable()


RESULTS = '{"results":[{"result":{"rank":0,"iter_time":[1],"iter_energy":[1],"time_breakdown":{"a":[['


def of_files(keys: int) -> str:
    return '{"files":{' + ",".join(f'"stage:{stage}":1' for stage in range(keys)) + "}}"


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (RESULTS + "],[" * 400_000 + "]]}}}]}", "results", "300,000 lists"),
        (RESULTS + '"x",' * 900_000 + "0]]}}}]}", "results", r"time_breakdown\.a\.0\.0 [^(]*$"),
        (RESULTS + '["x"],' * 200_000 + "0]]}}}]}", "results", r"time_breakdown\.a\.0\.0 [^(]*$"),
        (of_files(200_000), "index", "more than 100,000 keys"),
        (of_files(9_000), "index", "9,004 values are wrong"),
    ],
    ids=["lists", "wrong values", "wrong lists", "keys", "wrong keys"],
)
def test_a_record_of_very_much_is_refused_early_or_at_its_first_wrong_value(body: str, kind: str, said: str) -> None:
    record = sign({"schema": SCHEMA, "kind": kind, "writer": "w", "body": "@@changed@@"}, body)
    assert len(record) < 8 << 20
    with pytest.raises(RecordError, match=said):
        decode(record, kind, bodies.ResultsBody if kind == "results" else bodies.IndexBody)


def registry_of(folder: JobFolder, infos: list[RankInfo]) -> RankRegistry:
    registry = RankRegistry(folder)
    registry.by_rank = {info.rank: info for info in infos}
    return registry


def test_results_that_wait_for_a_rank_take_a_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infos = rank_infos(2, dp=8)
    folder = make_job(tmp_path, 2, dp=8)
    register(folder, infos)
    ranks = registry_of(folder, infos)
    monkeypatch.setattr(results, "_MOST_RESULT_BYTES", 8 * len(result_body().result.model_dump_json()))
    reader = results.Results(folder, ranks)
    for info in reversed(infos[1:]):  # those of the last pipelines come first
        folder.write_results(0, [result_body(info.rank)])
        assert info.rank not in reader.missing(0)
        assert sum(map(len, reader._stored.values())) <= results._MOST_RESULT_BYTES
    assert reader.missing(0) == [0]
    kept = [infos[result.rank] for result in reader.read(0)]
    assert {info.pp_rank for info in kept} == {0, 1}
    assert max(info.dp_rank for info in kept) <= 4


def test_a_policy_gets_few_clocks_at_even_distances_with_the_ends_of_each_rank(tmp_path: Path) -> None:
    infos = [*rank_infos(1, clocks=list(range(4096, 0, -1))), *rank_infos(1, clocks=[1410, 1397, 213])]
    infos[1] = infos[1].model_copy(update={"rank": 1, "pp_rank": 1})
    planned = registry_of(make_job(tmp_path, 2), infos).planned_infos
    clocks = planned[0].available_frequencies
    assert len(clocks) <= 258
    assert (max(clocks), min(clocks)) == (4096, 1)
    assert clocks == sorted(clocks, reverse=True)
    assert max(high - low for high, low in pairwise(clocks)) <= 20
    assert {1410, 213} <= set(planned[1].available_frequencies)


def test_ranks_with_more_lists_of_clocks_than_there_are_kinds_of_gpus_are_refused(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1, dp=100)
    infos = rank_infos(1, dp=100)
    register(folder, [info.model_copy(update={"available_frequencies": [1000 + info.rank]}) for info in infos])
    with pytest.raises(PlanError, match="different lists of clocks"):
        RankRegistry(folder).poll(folder.read_job().job_info)


def test_ranks_with_millions_of_instructions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfo_fs.coordination.rank_registry.MAX_JOB_INSTRUCTIONS", 50)
    folder, infos = make_job(tmp_path, 8), rank_infos(8)
    registry = registry_of(folder, infos)
    for info in infos[:4]:  # equal ones count once
        folder.write(bodies.OrderBody(rank=info.rank, instructions=[("forward", None)] * 20))
    assert registry.orders([])[0] is registry.orders([])[3]
    for info in infos[4:]:
        folder.write(bodies.OrderBody(rank=info.rank, instructions=[(f"f{info.rank}", None)] * 20))
    with pytest.raises(PlanError, match="instructions"):
        registry.orders([])
