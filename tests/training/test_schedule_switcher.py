"""Which schedule is followed at which step."""

from typing import Any

import pytest
from schedule_rank import Rank


def s(number: int, start_step: int = 0, until: int = 0, **term: Any) -> dict[str, Any]:
    """A schedule that comes."""
    return {"number": number, "start_step": start_step, "until": until, **term}


@pytest.mark.parametrize(
    "happens",
    [
        [s(0, until=2), s(1, 2, until=3), s(2, 4, until=5), "00", "1-2-"],
        [s(7, until=1), s(9, 6), "7--", "withdraw", s(2, 4), "-2222"],
        [s(5, until=4, turns=[2], after=3), "-", "withdraw", s(0, 2), "-00000"],
        [s(0, turns=[1, 2]), "0-" * 50],
        [s(0, turns=[1, 2]), s(1, 2, until=5, after=0), "0-111-0-0-"],
        [s(3, until=4, after=3, turns=[2, 1]), "-3-33333", s(4, 8, until=9, after=3), "4333"],
        [s(2, until=3, after=1), "222--", s(3, 5), "33"],  # it comes late, and lacks the schedule that is to follow
        [s(0), "000", s(1, until=2, after=0), "00"],  # it hears of a schedule after its end
        # A person's schedule is followed again after a suspension, until its end.
        [s(0), s(1, 1, until=6, after=0, turns=[3], by_hand=True), "01", "suspend", "--", "resume", "1100"],
        [s(0), s(1, 1, until=3, after=0, turns=[1], by_hand=True), "01", "suspend", "---", "resume", "00"],
        # One that only measures is not: it gives way to the schedule before.
        [s(0), s(1, 1, until=9, after=0, turns=[3]), "01", "suspend", "resume", "00"],
        [s(0, until=100), "0", "suspend", "resume", "-"],
        # A newer schedule takes the place of another one at once, and is followed by it, after steps of which training
        # has not heard.
        [s(0), s(1, 2), "0", 4, s(2, 3, until=7, after=1), "2211"],
    ],
    ids=str,
)
def test_each_step_follows_the_schedule_that_is_due(rank: Rank, happens: list[Any]) -> None:
    for what in happens:
        match what:
            case dict():
                rank.expect(**what)
            case int():
                rank.step = what
            case "withdraw":
                rank.switcher.withdraw()
                assert (rank.runs, rank.switcher.number, rank.switcher.has_turn(rank.step)) == (None, -1, True)
            case "suspend":
                rank.switcher.suspend("switched off", "text")
            case "resume":
                rank.switcher.resume("switched off")
            case _:
                assert rank.steps(len(what)) == what


def test_schedules_that_pile_up_without_ever_starting_do_not_fill_the_memory(rank: Rank) -> None:
    assert (rank.switcher.number, rank.switcher.newest) == (-1, -1)
    for number in range(1000):
        rank.expect(number, start_step=1000 + number)
    assert rank.switcher.newest == 999
    followed = set()
    for _ in range(2000):
        rank.steps(1)
        followed.add(rank.runs)
    assert rank.runs == 999
    assert len(followed - {None}) <= 64


def test_a_schedule_that_ends_by_itself_is_not_measured_any_more(rank: Rank) -> None:
    rank.expect(0, start_step=1, until=4)
    assert rank.steps(6) == "-000--"
    assert (rank.switcher.number, rank.switcher.measured_number) == (0, -1)
    rank.expect(1, start_step=7, until=9)
    assert rank.steps(2) == "-1"
    assert rank.switcher.measured_number == 1
    assert rank.steps(2) == "1-"
    assert not rank.said, "it is routine"


@pytest.mark.parametrize("half", [0, 1])
def test_each_half_follows_a_schedule_in_its_turns_and_at_its_end_all_follow_the_one_before(
    rank: Rank, half: int
) -> None:
    rank.switcher.half = half
    rank.expect(0)
    rank.expect(2, start_step=1, until=8, after=0, turns=[3, 0, 1, 2])
    expected = "0" + "".join("2" if [3, 0, 1, 2][step % 4] >> half & 1 else "-" for step in range(1, 8)) + "000"
    assert rank.steps(11) == expected
    assert rank.switcher.measured_number == 0
    assert rank.switcher.measured_until == -1, "it was measured before"


@pytest.mark.parametrize("first", [0, 9])
@pytest.mark.parametrize(
    ("turns", "until", "measured"),
    [([1, 2, 3, 0], 0, 25), ([1, 2, 3, 0], 12, 12), ([3] * 7, 500, 29), ([3] * 30, 0, 31)],
)
def test_a_persons_turns_are_measured_in_whole_rounds_that_end_at_one_step_on_all_ranks(
    rank: Rank, turns: list[int], until: int, measured: int, first: int
) -> None:
    rank.step = first - 1
    rank.expect(0, until=until, turns=turns, by_hand=True)
    rank.steps(1)
    assert rank.switcher.measured_until == measured
