"""One valid record of every kind, in a directory, and records with one thing changed that still prove themselves.

For tests that show that nothing which lies in the shared directory ends a process, blocks it, or makes it write
elsewhere: `make_directory` makes a running job with every record there is, `damaged_records` draws a record of it with
one field of header or body changed, signed again, and `plant` puts it in place.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from jobs import CLOCKS, index_of, one_f_one_b, rank_infos
from pydantic import BaseModel

from pfo_fs.models import FrequencySchedule, InstructionPower, JobInfo, PlanInputs, ProfilingResult, Straggler, Target
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies, layout
from pfo_fs.store.records import SCHEMA
from pfo_fs.turns import Term

STAGES, MICROBATCHES = 2, 3
JOB_ID = "2026-01-02-03-04-05+dp1+pp2+tp1+ParetoScheduler"
ATTEMPT = "a1b2c3"
END = bodies.EndBody(reason="crashed", message="x")
_MARK = "@@changed@@"

_PROFILE = "stage,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{name},{mhz},{0.01 * 1410 / mhz:.5f},{1.0 + mhz / 1410:.5f}\n"
    for stage in range(STAGES)
    for name in ("forward", "backward")
    for mhz in CLOCKS[:20]
)
_INFO = JobInfo(job_id=JOB_ID, pp_degree=STAGES, dp_degree=1, tp_degree=1, world_size=STAGES, job_metadata="gpt")
_INPUTS = PlanInputs(
    target=Target(slowdown=1.1), straggler=Straggler(slowdown=1.2, pipeline=0), slow_pipelines={0: 1.2}
)
_SOURCE = bodies.Source(kind="scheduler", index=0, policy="Test-1", plan_inputs=_INPUTS, observed_with=PlanInputs())


@dataclass(frozen=True)
class Place:
    path: str
    model: type[BaseModel]

    @property
    def kind(self) -> str:
        return layout.RECORDS[self.model].kind


def make_directory(root: Path) -> tuple[SharedDirectory, JobFolder]:
    """Makes a shared directory with a leading daemon and one running job that has written everything."""
    shared = SharedDirectory(Files(root, create=True), "corpus")
    shared.write(bodies.DirectoryBody(directory_id="0123456789abcdef" * 2, host="login1"))
    shared.make_folders()
    shared.leaders.claim(bodies.LeaderBody(generation=1, nonce="n", host="login1", pid=42))
    shared.write(
        bodies.DaemonBody(
            generation=1, counter=7, host="login1", pid=42, version="1", scheduler="ParetoScheduler", interval_s=0.25
        )
    )
    folder = shared.create_job(
        bodies.JobBody(
            job_info=_INFO,
            coordination="auto",
            scheduler="ParetoScheduler",
            scheduler_args={"target": {"slowdown": 1.0}},
            host="node1",
            started="2026-01-02 03:04:05",
            versions={"torch": "2.6"},
        ),
        ATTEMPT,
    )
    folder.claim_coordinator(bodies.ClaimBody(kind="daemon", nonce="n"))
    infos = rank_infos(STAGES)
    schedules = []
    folder.register_ranks(
        [bodies.RankBody(rank_info=info, nonce=f"n{info.rank}", host="node1", gpu_name="A100") for info in infos]
    )
    for info in infos:
        steps = one_f_one_b(info.pp_rank, STAGES, MICROBATCHES, 1410)
        folder.write(bodies.OrderBody(rank=info.rank, instructions=[(name, None) for name, _ in steps]))
        schedules.append(FrequencySchedule(rank=info.rank, frequencies=steps))
    folder.write_schedule(0, 1, 3, _SOURCE, schedules, infos, Term(until=103, after=0, turns=(1, 2, 3, 0)))
    folder.write_rank_files(0, infos)
    folder.write(
        bodies.CurrentBody(
            generation=1, number=0, start_step=3, state="running", source=_SOURCE, lease_s=60, heartbeat=1
        )
    )
    results = []
    for info in infos:
        forwards, backwards = [[0.01] * MICROBATCHES] * 2, [[0.02] * MICROBATCHES] * 2
        result = ProfilingResult(
            rank=info.rank,
            iter_time=[0.1, 0.11],
            iter_energy=[20.0, 21.0],
            time_breakdown={"forward": forwards, "backward": backwards},
            energy_breakdown={"forward": forwards, "backward": backwards},
            iter_span=[0.09, 0.1],
            powers=[InstructionPower(instruction="forward", frequency=1410, power=300, error=1, seconds=2)],
        )
        results.append(bodies.ResultBody(result=result, first_step=3))
    folder.write_results(0, results)
    progress = bodies.RankProgress(
        rank=0, step=9, step_age_s=0.1, number=0, iter_time=0.1, iter_energy=20, clock_mhz=1410
    )
    folder.write(bodies.ProgressBody(ranks=[progress]))
    folder.write(bodies.IterationTimesBody(rank=0, steps=[(8, 0, 0.1), (9, 0, 0.1)], throttled="power"))
    folder.write(bodies.CheckBody(nonce="0123456789abcdef", block=2, steps=96))
    folder.write_file(layout.PROFILE, _PROFILE.encode())
    folder.write(bodies.ModelBody(blocking_power_w=75, delay_s=0.0))
    return shared, folder


def places(folder: JobFolder, number: int = 0) -> list[Place]:
    """Every record of a job and its directory, and `end.json`, which is not there; of its schedules, one by number."""
    plans = (min(index_of(folder, number).files.values()), "1.json")
    below = [
        *((model, {}) for model in (bodies.JobBody, bodies.ClaimBody)),
        (bodies.RanksBody, {"name": 0}),
        (bodies.OrderBody, {"rank": 1}),
        (bodies.CurrentBody, {}),
        (bodies.IndexBody, {"number": number}),
        *((bodies.PlanBody, {"number": number, "name": name}) for name in plans),
        (bodies.ResultsBody, {"number": number, "name": 0}),
        (bodies.ProgressBody, {"name": 0}),
        (bodies.IterationTimesBody, {"rank": 0}),
        *((model, {}) for model in (bodies.CheckBody, bodies.ModelBody, bodies.EndBody)),
    ]
    above = [Place(layout.RECORDS[model].path, model) for model in (bodies.DirectoryBody, bodies.DaemonBody)]
    above.append(Place("leaders/1.json", bodies.LeaderBody))
    return above + [Place(folder.path_of(model, **place), model) for model, place in below]


def one_of_each_kind(folder: JobFolder) -> dict[str, Place]:
    return {place.kind: place for place in reversed(places(folder))}


def load(root: Path, place: Place) -> dict[str, Any]:
    path = root / place.path
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text())
        return document
    head = {"schema": SCHEMA, "kind": place.kind, "attempt": ATTEMPT, "writer": "w"}
    return {**head, "body": END.model_dump()}


def sign(document: dict[str, Any], raw: str = "null") -> bytes:
    """The bytes of a record, with right length and checksum; `raw` takes the place of what was changed."""

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":")).replace(json.dumps(_MARK), raw)

    body = text(document.get("body", {})).encode("utf-8", "surrogatepass")
    head = {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    head = {**{key: value for key, value in document.items() if key != "body"}, **head}
    for key in ("length", "sha256"):
        if document.get(key) == _MARK:
            head[key] = _MARK  # type: ignore[assignment]
    return text(head).encode("utf-8", "surrogatepass")[:-1] + b',"body":' + body + b"}\n"


NESTED = "[" * 300 + "]" * 300
ESCAPES = json.dumps("\x1b[31mred\x1b]0;title\x07\nFORGED 2026-01-01 ERROR all is lost\r\u202etxt")
MARKUP = "</script></style><img src=x onerror=alert(1)>"
_JUNK = st.one_of(
    st.sampled_from(
        [
            "null", "true", "-1", "0", "1", "9223372036854775808", "1" + "0" * 30, "-" + "9" * 5000, "1e308", "1e999",
            "-1e999", "NaN", "-Infinity", "1e-320", "2147483648", "999999999", "1000000000000", "0.5", "[]", "{}",
            NESTED, '{"a":' * 100 + "1" + "}" * 100, '""', '"a\\u0000b"', '"\\ud800"', '"../../../../outside"',
            json.dumps(MARKUP), '"/etc/passwd"', '"[bold red]markup[/]"', '"[/]"', ESCAPES, json.dumps("x" * 100_000),
            json.dumps("\u202e" * 300), "[" + "1," * 5000 + "1]", '"pfo-fs/1"', '"1e999"', '[["forward",60000]]',
            "[[]]", "[null]", '{"0":null}', '{"-1":1e308}',
        ]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(st.characters(codec="utf-8"), max_size=40).map(json.dumps),
)  # fmt: skip


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        found += _paths(item, (*path, key))
    return found


@st.composite
def damaged_records(draw: st.DrawFn, root: Path, all_places: list[Place]) -> tuple[Place, bytes]:
    """Draws a record with one value changed, removed or added, which its length and checksum still fit."""
    place = draw(st.sampled_from(all_places))
    document = load(root, place)
    *above, key = draw(st.sampled_from(_paths(document)))
    holder: Any = document
    for step in above:
        holder = holder[step]
    action = draw(st.sampled_from(["change"] * 6 + ["remove", "add"]))
    if action == "change":
        holder[key] = _MARK
    elif action == "remove":
        del holder[key]
    elif isinstance(holder, dict):
        holder[draw(st.sampled_from(["added", "", "\x1b[31m", "-1", "999999999999", "stage:7", "rank:1"]))] = _MARK
    else:
        holder.append(_MARK)
    return place, sign(document, draw(_JUNK))


def plant(root: Path, place: Place, data: bytes) -> None:
    (root / place.path).unlink(missing_ok=True)
    (root / place.path).write_bytes(data)
