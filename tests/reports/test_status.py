"""`pfo-fs status`: bounded, whatever lies in the directory."""

import logging
import re
from io import StringIO
from pathlib import Path

import pytest
from commands import pfo_fs
from jobs import daemon_body
from record_corpus import ESCAPES, load, make_directory, places, plant, sign
from rich.console import Console

from pfo_fs.cli.terminal import PlainFormatter, say
from pfo_fs.errors import plain_text
from pfo_fs.reports.status import DirectoryStatus, _with_sign_of_life, collect_status, render
from pfo_fs.store import JobFolder, bodies

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def screen(state: DirectoryStatus, *, verbose: bool = False, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(render(state, verbose))
    text: str = console.file.getvalue()
    return text


def tell(folder: JobFolder, *ranks: dict[str, object]) -> None:
    told = [bodies.RankProgress.model_validate({"rank": rank, **report}) for rank, report in enumerate(ranks)]
    folder.write(bodies.ProgressBody(ranks=told))


def test_ten_thousand_empty_folders_are_one_line(tmp_path: Path) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    for n in range(10_000):
        (tmp_path / "pfo" / "jobs" / f"zzz-{n}").mkdir()
    listed, real = [], shared.files.names_if_there
    shared.files.names_if_there = lambda path: (listed.append(path), real(path))[1]
    state = collect_status(shared)
    assert len(listed) < 600
    assert [job.job_id for job in state.jobs] == [folder.job_id]
    assert state.folders_without_job + state.jobs_not_shown == 10_000
    text = screen(state)
    assert "499 folders without job.json; 9,501 more jobs" in text
    assert len(text.splitlines()) < 10


def test_a_daemon_lives_however_long_its_jobs_took_to_read(tmp_path: Path) -> None:
    shared, _ = make_directory(tmp_path / "pfo")
    shared.read_daemon = map(daemon_body, range(9)).__next__
    assert _with_sign_of_life(shared, shared.read_daemon(), since_s=-60.0).alive


def test_a_mistake_in_the_sites_rules_is_shown_with_its_line_and_key(tmp_path: Path) -> None:
    shared, _ = make_directory(tmp_path / "pfo")
    assert "site.yaml" not in screen(collect_status(shared))
    (tmp_path / "pfo" / "site.yaml").write_text("# rules\ncoordination: deamon-only\n")
    assert "site.yaml is not valid: line 2: coordination is 'deamon-only'" in screen(collect_status(shared))


COSTS = {"call_s": 0.0046, "wait_s": 0.03, "latency_s": 0.012}
DEVICE, LAUNCH = {"switching": {"mode": "device"}}, {"switching": {"mode": "launch"}}
BUSY = {"switching": {"mode": "device", "ahead_s": 0.5, "call_s": 0.004}}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([{"clock_backend": "zeusd"}] * 2, "clocks set through: zeusd"),
        ([{"clock_backend": way} for way in ("zeusd", "none", "zeusd")], "through: none (1 rank), zeusd (2 ranks)"),
        (
            [{"error": "another problem"}, {"undo_owed": 1, "undo_failures": 12, "error": "not restored"}],
            "1 GPU setting(s) could not be put back yet (12 attempts failed) not restored",
        ),
        ([LAUNCH], "clocks switched at launch time"),
        (
            [BUSY, {"switching": {"mode": "device", "ahead_s": 0.2, **COSTS}}],
            "clocks switched at device time; training launches 500 ms ahead of the device; a call takes 4.6 ms; "
            "waits up to 30 ms for other GPUs; clocks take effect up to 12 ms later",
        ),
        (
            [DEVICE, LAUNCH, {"switching": {"mode": "device", "call_s": 0.00001}}],
            "clocks switched at device time (2 ranks), launch time (1 rank)",
        ),
        ([{}, {}], None),
    ],
)
def test_what_ranks_report_is_shown(tmp_path: Path, ranks: list[dict[str, object]], said: str | None) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    tell(folder, *ranks)
    text = " ".join(screen(collect_status(shared), verbose=True).split())
    assert said in text if said else "clocks s" not in text


def cells(state: DirectoryStatus) -> dict[str, str]:
    """The cells of the first job, by the head of their column."""
    _, heads, row, *_ = screen(state, width=300).splitlines()
    starts = [heads.index(head) for head in re.split("  +", heads)]
    places = list(zip(starts, [*starts[1:], None], strict=True))
    return {heads[start:end].strip(): row[start:end].strip() for start, end in places}


def test_a_job_is_a_row_with_what_it_saves_its_clocks_and_its_energy(tmp_path: Path) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    figures = {"energy_saved": 0.086, "energy_saved_error": 0.002, "more_time": 0.0001, "more_time_error": 0.0001}
    folder.write(bodies.ModelBody(blocking_power_w=1, delay_s=0, **figures, off_target=0.0))
    source = bodies.Source(kind="scheduler", index=1)
    folder.write(bodies.CurrentBody(generation=1, number=1, start_step=0, state="running", source=source))
    body = folder.read_job()
    size = body.job_info.world_size
    clocks = [900 + 100 * (rank % 2) for rank in range(size)]
    tell(folder, *({"step": 99, "iter_energy": 1.0, "energy_j": 3600.0, "clock_mhz": mhz} for mhz in clocks))
    row = cells(collect_status(shared))
    assert row["job"] == folder.job_id
    assert (row["state"], row["saved"], row["slower"]) == ("running", "8.6 ± 0.4 %", "0.01 ± 0.02 %")
    assert row["clocks now"] == ("900–1,000 MHz" if size > 1 else "900 MHz")
    assert row["energy so far"] == f"~{3.6 * size:.2f} kJ"


@pytest.mark.parametrize(
    ("ranks", "said"),
    [([{}], "default"), ([{"clock_backend": "none"}], "not set"), ([{"clock_mhz": 900, "held": True}], "default")],
)
def test_clocks_that_pfo_fs_leaves_are_no_figure(tmp_path: Path, ranks: list[dict[str, object]], said: str) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    tell(folder, *ranks)
    assert cells(collect_status(shared))["clocks now"] == said


def test_a_job_that_is_slower_than_its_target_says_so_without_being_asked(tmp_path: Path) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    source = bodies.Source(kind="scheduler", index=1)
    folder.write(bodies.CurrentBody(generation=1, number=1, start_step=0, state="running", source=source))
    for more, said in ((0.03, True), (0.0005, False)):
        figures = {"more_time": more, "more_time_error": 0.0001, "off_target": more}
        folder.write(bodies.ModelBody(blocking_power_w=1, delay_s=0, **figures))
        assert ("slower than at default clocks" in screen(collect_status(shared))) == said


def test_a_problem_that_a_rank_and_a_text_repeat_is_shown_once(tmp_path: Path) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    tell(folder, {"loads": {"problem": "ranks race", "text": "ranks race. No loads"}, "error": "rank 0: ranks race"})
    assert screen(collect_status(shared), verbose=True).count("ranks race") == 1


def test_an_impossible_target_is_a_problem_that_needs_no_details(tmp_path: Path) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    text = {"status_text": "target: at most 20 W, which is impossible: 808 W is the least; not measured yet"}
    folder.write(bodies.CurrentBody(generation=1, number=-1, state="running", **text))
    assert "impossible: 808 W is the least\n" in screen(collect_status(shared))


def test_on_a_narrow_screen_nothing_is_cut(tmp_path: Path) -> None:
    shared, folder = make_directory(tmp_path / "pfo")
    text = screen(collect_status(shared), width=80)
    assert folder.job_id in text
    assert all(len(line) <= 80 for line in text.splitlines()[1:])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("daemon", "host version scheduler"),
        ("job", "host started"),
        ("current", "message status_text yaml_problem"),
        ("progress", "store_error"),
        ("end", "message"),
    ],
)
def test_escape_sequences_in_records_do_not_reach_the_terminal(tmp_path: Path, kind: str, keys: str) -> None:
    _, folder = make_directory(tmp_path / "pfo")
    place = next(place for place in places(folder) if place.kind == kind)
    document = load(tmp_path / "pfo", place)
    document["body"].update(dict.fromkeys(keys.split(), "@@changed@@"))
    plant(tmp_path / "pfo", place, sign(document, ESCAPES))
    done = pfo_fs("status", tmp_path / "pfo", code=0)
    assert not CONTROL.search(done.stdout)
    assert not any(line.startswith("FORGED") for line in done.stdout.splitlines())


def test_a_message_that_is_plain_stays_as_it_is_and_any_other_is_shown_on_one_line() -> None:
    assert plain_text("Läuft: 1,410 MHz, 中文") == "Läuft: 1,410 MHz, 中文"
    assert plain_text("a\x1b[31mb\r\nc\u202ed\ud800\0") == "a?[31mb  c?d??"
    assert plain_text("x" * 5000) == "x" * 3997 + "..."


def test_a_log_line_cannot_be_forged() -> None:
    formatter = PlainFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError("x\nERROR forged\x1b")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("pfo_fs", logging.INFO, "f", 1, "job %s", ("a\nERROR forged\x1b[2J",), info)
    lines = formatter.format(record).split("\n")
    assert lines[0] == "INFO job a ERROR forged?[2J"
    assert all(line.startswith("  ") for line in lines[1:])
    assert "\x1b" not in "".join(lines)


def test_markup_is_shown_and_not_obeyed() -> None:
    console = Console(file=StringIO(), width=100)
    say("[bold]x[/] [/]", (" [red]y", "bold"), to=console)
    assert console.file.getvalue() == "[bold]x[/] [/] [red]y\n"
