"""What is typed wrong is refused with one message, in words for users, that names what is right. Nothing changes."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from commands import pfo_fs
from jobs import make_job, rank_infos, register

from pfo_fs.store import JobFolder, layout

CASES = """
off all -d ROOT                                         2 did you mean --all
off -d ROOT                                             2 name a job, or all of them by --all
off JOB --all -d ROOT                                   2 name a job, or all of them by --all
off --all -d empty                                      1 is not a shared directory of pfo-fs
off nobody -d ROOT                                      1 is not a job in
on JOB -d empty                                         1 is not a job in
daemon ROOT --slowdown 1.05                             2 --scheduler-args '{"slowdown": 1.05}'
daemon ROOT --scheduler-args '{'                        2 is not JSON
daemon ROOT --scheduler-args '[1]'                      2 must be a JSON object
daemon ROOT --scheduler-args '{"slowdwn": 1.05}'        1 did you mean slowdown
daemon ROOT --scheduler-args '{"slowdown": 5}'          1 give 1.05
daemon ROOT --scheduler Paretto                         1 Built in are Manual
daemon ROOT --allow-users ,                             2 names no user
daemon ROOT --allow-users no-such-user                  2 there is no user
daemon ROOT --metrics-file pfo.txt                      1 must end in .prom
daemon ROOT --metrics-file no/pfo.prom                  1 there is no folder
daemon no/such/folder                                   1 is not there: is the path right
daemon ''                                               2 give the path of the shared directory
status                                                  2 name the shared directory
status ' '                                              2 give the path of the shared directory
status none                                             1 is the file system mounted here?
status latest -d ROOT                                   2 `pfo-fs report latest`
status ROOT -d empty                                    2 name the one that you mean
status JOB ROOT                                         2 extra argument
report -d ROOT -o page.html                             2 name it
report nobody -d ROOT                                   1 is not a job in
report latest -o no/page.html -d ROOT                   1 cannot be written
report latest                                           2 name its directory by -d
report latest -d ROOT --price -1                        2 price
trace latest -o trace.csv -d ROOT                       1 no iteration was measured
trace                                                   2 Missing argument
target JOB -d ROOT                                      2 exactly one
target JOB --power 5 --slowdown 1.1 -d ROOT             2 exactly one
target JOB --slowdown 5 -d ROOT                         2 give 1.05
target JOB --slowdown 5% -d ROOT                        2 '5%'
target JOB --slowdown 0.5 -d ROOT                       2 must be at least 1, not 0.5
target JOB --power nan -d ROOT                          2 --power
straggler JOB -d ROOT                                   2 either --slowdown or --gone
straggler JOB --slowdown 20 -d ROOT                     2 give 1.2
straggler JOB --slowdown 1.2 --pipeline 4 -d ROOT       2 pipelines 0 to 3
schedule show                                           2 Missing argument
schedule show JOB -d ROOT                               1 has no schedule yet
schedule set JOB none.yaml -d ROOT                      1 none.yaml
schedule check JOB -d ROOT                              1 has no schedule.yaml
prune ROOT --older-than 5m                              2 12h, 30d or 8w
prune ROOT --older-than 5                               2 12h, 30d or 8w
prune ROOT --older-than -1d                             2 12h, 30d or 8w
prune empty                                             1 is not a shared directory of pfo-fs
check nobody -d ROOT                                    2 is not a job in
reset-clocks                                            2 name the GPUs
power-limit n.json --factor 1.05                        2 --factor belongs to --selector max-slowdown
power-limit n.json --selector best                      2 'max-slowdown', 'energy', 'time', 'zeus-cost'
power-limit n.json --selector max-slowdown              2 needs --factor
power-limit n.json --selector max-slowdown --factor 5   2 give 1.05
power-limit n.json --selector max-slowdown --factor 0.9 2 1.05 allows 5 %
power-limit n.json --eta-knob 2                         2 between 0 (time) and 1 (energy)
power-limit n.json --world-size 0                       2 1 or more
doctor --peer 2                                         2 name the directory
doctor --switching -o no/switching.json                 1 there is no folder
plan profile.csv --slowdown 5                           2 give 1.05
plan p.csv --num-microbatches 4 --gpu H100              1 profile-p2p
simulate --gpu H100                                     2 'a100', 'a40'
simulate --trace job.csv --generated 3                  2 give --num-microbatches
simulate --num-microbatches 4 --loads trace             2 --loads needs --trace
demo --slowdown 3                                       2 give 1.03
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """A job of four pipelines, in whose folder nothing may change."""
    folder = make_job(tmp_path_factory.mktemp("wrong") / "pfo", 1, 4)
    register(folder, rank_infos(1, 4))
    return folder


@pytest.mark.parametrize("case", CASES.strip().splitlines(), ids=lambda case: case[:56].strip())
def test_what_is_typed_wrong_is_refused_with_what_is_right(
    job: JobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("PFO_FS_SHARED_DIR", "CUDA_VISIBLE_DEVICES", "PFO_FS_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    names = {"ROOT": str(job.files.root), "JOB": job.job_id}
    before = sorted(os.walk(job.files.root))
    typed, code, text = re.split(r"  +([12]) ", case)
    done = pfo_fs(*(names.get(word, word) for word in shlex.split(typed)))
    assert (done.returncode, text in done.said) == (int(code), True), done.said
    assert not any(word in done.said for word in ("Traceback", "Errno", "pydantic", "Input should"))
    assert sorted(os.walk(job.files.root)) == before
    assert job.read_file(layout.YAML) is None
