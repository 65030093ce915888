"""Files that a user names: one form of CSV for all commands, and limits that hold also after decompression."""

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from traced_jobs import trace_rows, write_trace

from pfo_fs import user_files
from pfo_fs.errors import PlanError
from pfo_fs.planner import read_profile
from pfo_fs.simulator.load_play import loads_of
from pfo_fs.simulator.traces import read_trace
from pfo_fs.simulator.uneven_job import read_lengths
from pfo_fs.user_files import csv_table, read_user_file

TEXT = "name,size\na,1\nb,2\n"


def rows_of(path: Path) -> list[tuple[int, str, int]]:
    with csv_table(path, ("name", "size"), "a list") as table:
        return [(table.line, name, table.whole("size", size)) for name, size in table]


def _loads(path: Path) -> Any:
    trace = read_trace(write_trace(path.parent / "trace of loads.csv", trace_rows()))
    return loads_of(trace, str(path)).tolist()


def _rows(header: str, *rows: tuple[object, ...]) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


TRACE = _rows("step,dp_rank,stage,instruction,micro_batch,time_s", *trace_rows())
PLACES = sorted({(row[0], row[1], row[4]) for row in trace_rows()})
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "profile": (
        read_profile,
        "stage,instruction,frequency,time,energy\n0,forward,1410,0.1,20\n0,forward,1200,0.11,18\n",
    ),
    "trace": (lambda path: read_trace(path).table.tolist(), TRACE),
    "loads": (_loads, _rows("step,dp_rank,micro_batch,load", *((*place, 1.5) for place in PLACES))),
    "lengths": (read_lengths, _rows("step,dp_rank,micro_batch,length", *((*place, 7) for place in PLACES))),
}
FORMS: dict[str, Callable[[str], bytes]] = {
    "byte order mark": lambda text: ("\ufeff" + text).encode(),
    "blanks around cells": lambda text: text.replace(",", " , ").encode(),
    "blank lines": lambda text: text.replace("\n", "\n\n , \n").encode(),
    "lines of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "capitals": lambda text: text.partition("\n")[0].upper().encode() + b"\n" + text.partition("\n")[2].encode(),
    "quotation marks": lambda text: text.replace(",", '","').replace("\n", '"\n"').join('""').rstrip('"').encode(),
    "a column more": lambda text: text.replace("\n", ",x\n").encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip with a byte order mark": lambda text: gzip.compress(("\ufeff" + text).encode()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", READERS)
def test_every_reader_reads_the_same_from_every_form_of_a_csv(tmp_path: Path, kind: str, form: str) -> None:
    read, text = READERS[kind]
    plain, other = tmp_path / "plain", tmp_path / "other"
    plain.write_text(text)
    other.write_bytes(FORMS[form](text))
    assert read(other) == read(plain)


BROKEN: dict[str, tuple[Callable[[str], bytes], str]] = {
    "nothing": (lambda text: b"", "column .* is missing; .* the first row here has nothing"),
    "semicolons": (lambda text: text.replace(",", ";").encode(), "separated by semicolons"),
    "tabs": (lambda text: text.replace(",", "\t").encode(), "separated by tabs"),
    "another name": (lambda text: ("x" + text).encode(), "is missing"),
    "UTF-16": (lambda text: text.encode("utf-16"), "not text in UTF-8"),
    "cut off": (lambda text: gzip.compress(text.encode())[:-9], "damaged, or cut off"),
    "a bit flipped": (lambda text: flipped(gzip.compress(text.encode())), "damaged, or cut off|not text"),
    "a long row": (lambda text: b"\0" * 10_000, "row 1 is longer than 4096 characters"),
    "a cell more": (lambda text: text.replace("\n", ",7\n").replace(",7", "", 1).encode(), "cells under . columns"),
    "an open quotation mark": (lambda text: (text + '"' + text).encode(), "row .*: a quotation mark is not closed"),
}


def flipped(data: bytes) -> bytes:
    """The compressed data with a wrong bit, at a place where it does not end as it should."""
    for place in range(12, len(data) - 8):
        wrong = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        try:
            zlib.decompress(wrong, 31)
        except zlib.error:
            return wrong
    raise AssertionError


@pytest.mark.parametrize("form", BROKEN)
@pytest.mark.parametrize("kind", READERS)
def test_every_reader_refuses_a_broken_file_with_its_name_and_the_reason(tmp_path: Path, kind: str, form: str) -> None:
    (read, text), (made, said) = READERS[kind], BROKEN[form]
    path = tmp_path / "file.csv"
    path.write_bytes(made(text))
    with pytest.raises(PlanError, match=f"file.csv.*(?:{said})"):
        read(path)


def test_rows_have_the_line_numbers_of_the_file_and_columns_are_there_once(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("\ufeffname, size\n\na, 1\n\n\nb, 3.0\n")
    assert rows_of(path) == [(3, "a", 1), (6, "b", 3)]
    path.write_text("name,size,Name\n")
    with pytest.raises(PlanError, match="column name appears twice"):
        rows_of(path)


@pytest.mark.parametrize("cell", ["", "-1", "1.5", "nan", "inf", "1e400", "-0x1", "x", "9" * 400])
def test_a_cell_that_is_no_whole_number_is_named(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "list.csv"
    path.write_text(TEXT + f"c,{cell}\n")
    with pytest.raises(PlanError, match=f"row 4, column size: '{cell[:30]}.* is not a whole number"):
        rows_of(path)


def test_a_compressed_table_is_read_no_further_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "MOST_CSV_CHARS", 10_000)
    path = tmp_path / "list.csv"
    path.write_bytes(gzip.compress((TEXT + "a,1\n" * 100_000).encode()))
    with pytest.raises(PlanError, match="more than 10,000 characters"):
        rows_of(path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkdir, "Is a directory"),
        (os.mkfifo, "nothing"),
        (lambda path: path.symlink_to("/dev/zero"), "row 1 is longer than"),
    ],
)
def test_what_is_no_plain_table_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(PlanError, match=said):
        rows_of(tmp_path / "x")
    with pytest.raises(PlanError, match="/dev/zero: is larger than 100 bytes, so it cannot be a list"):
        read_user_file("/dev/zero", 100, "a list")


def test_a_pipe_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, gzip.compress(TEXT.encode()))
    os.close(writing)
    assert len(rows_of(Path(f"/dev/fd/{reading}"))) == 2
    os.close(reading)
