"""The one reader and writer of profile CSVs: exact on the way there and back, and never more than a PlanError."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pfo_fs.errors import PlanError
from pfo_fs.planner.profile_csv import COLUMNS, read_table, table_text

HEADER = ",".join(COLUMNS) + "\n"
cells = st.one_of(
    st.sampled_from(["", "0", "forward", "1410", "0.1", "1e999", "nan", "-1", '"', "1_0", "\x00", "9" * 400, "0x10"]),
    st.text(max_size=8),
)


@given(
    st.one_of(st.text(), st.lists(st.lists(cells, max_size=7).map(",".join)).map(lambda rows: HEADER + "\n".join(rows)))
)
@example(HEADER + "0,forward,1410,0.1,20\n0,forward,1410,0.1,20,1\n")
@example(HEADER + '0,"forward,1410,0.1,20\n')
@example("," * 100_000)
def test_whatever_a_file_holds_it_is_a_table_or_a_plan_error(text: str) -> None:
    try:
        table = read_table("p.csv", text)
    except PlanError as error:
        assert str(error).startswith("p.csv")
    else:
        assert set(COLUMNS) <= set(table.columns)
        assert (table["time"] > 0).all()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.integers(50, 2000), *[st.floats(1e-9, 1e5)] * 2))
)
def test_what_is_written_is_read_exactly(rows: list[tuple[int, str, int, float, float]]) -> None:
    table = read_table("p.csv", table_text(rows, COLUMNS))
    assert [tuple(row) for row in table.itertuples(index=False)] == rows
