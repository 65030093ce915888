"""The state of a power-limit optimizer's helper under everything that may happen to it, in any order."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pfo_fs.errors import PfoError, StoreError, StoreUnavailable
from pfo_fs.helper import events as e
from pfo_fs.helper import power_limit_operations as op
from pfo_fs.helper.power_limit_state import MAX_WAITING, PART_BYTES, PowerLimitState
from pfo_fs.ipc import messages as m
from pfo_fs.store.power_limit_folder import PowerLimitChoice, PowerLimitMeasurement, PowerLimitUpdates

LIMITS_W = (100, 200, 300)
ERRORS: list[PfoError | None] = [
    None,
    None,
    None,
    StoreUnavailable(errno.EIO, "no answer"),
    StoreError(28, "it is full"),
]
Shared = op.AnnounceLimit | op.PublishMeasurement | op.PublishChoice | op.PollUpdates


class PowerLimitMachine(RuleBasedStateMachine):
    """Training, the worker, and files that several jobs use, around one helper state; both processes may be killed.

    What must hold: the worker has one operation at a time; the shared folder is not used before it is open; each
    question is answered once, and truly; what the files hold reaches training once; what training asked for is carried
    out in its order before the helper lets it go; nothing is told twice in a row; nothing grows without bound.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.next_client = 0
        self.profile: bytes | None = None
        self.updates: list[m.LimitMeasured] = []  # what other jobs have written and this helper has not read
        self.choice: PowerLimitChoice | None = None
        self.begin()

    @initialize(profile=st.sampled_from([None, b"", b"x" * 10, b"y" * (PART_BYTES + 1)]))
    def a_profile_is_there_or_not(self, profile: bytes | None) -> None:
        self.profile = profile

    def begin(self) -> None:
        """A helper starts; its worker has done nothing yet."""
        self.state = PowerLimitState("token", now_s=self.now_s)
        self.running: list[Any] = []
        self.client: int | None = None
        self.sent: list[m.Message] = []
        self.asked: list[Any] = []  # what training asked for and the worker has not been given
        self.questions = 0
        self.is_open = self.said_goodbye = self.hung_up = self.stopped = False
        self.read: bytes | PfoError | None = None
        self.read_updates: list[m.LimitMeasured] = []
        self.do(self.state.first_actions())

    # ---- what the loop does

    def do(self, actions: list[e.Action]) -> None:
        for action in actions:
            match action:
                case e.Send(client, message):
                    assert client == self.client, "only training that is there is told anything"
                    self.sent.append(message)
                case e.Run(operation):
                    assert not self.running, "the worker has one operation at a time"
                    assert self.is_open or not isinstance(operation, Shared), "the folder is used before it is open"
                    self.running.append(operation)
                    if isinstance(operation, (op.WriteProfile, op.AnnounceLimit, op.PublishMeasurement)):
                        assert operation == self.asked.pop(0), "in the order in which training asked"
                case e.HangUp(client) if client == self.client:
                    assert self.said_goodbye
                    assert not self.running
                    assert not self.asked
                    self.hung_up, self.client = True, None
                case e.Stop():
                    self.stopped = True

    def tell(self, event: e.Event) -> None:
        self.do(self.state.handle(event, self.now_s))

    def say(self, message: m.ToHelper) -> None:
        assert self.client is not None
        self.tell(e.MessageArrived(self.client, message))

    def is_there(self) -> bool:
        return self.client is not None and not self.said_goodbye

    # ---- what happens

    @precondition(lambda self: self.client is None and not self.hung_up)
    @rule(profile=st.booleans(), shared=st.booleans())
    def training_connects(self, profile: bool, shared: bool) -> None:
        if self.stopped:
            self.begin()
        self.client, self.next_client = self.next_client, self.next_client + 1
        self.say(m.Hello(rank=0, role="training", token="token"))
        paths = "/p.json" if profile else None, "/shared" if shared else None
        self.questions += 1
        self.say(m.OpenPowerLimitFiles(profile_path=paths[0], shared_dir=paths[1], key="key"))

    @precondition(lambda self: self.is_there())
    @rule(level=st.sampled_from(LIMITS_W), energy_j=st.floats(1, 2))
    def training_measures(self, level: int, energy_j: float) -> None:
        if self.is_open:
            measurement = PowerLimitMeasurement(power_limit=level, energy=energy_j, time=1.0)
            self.asked += [op.AnnounceLimit(level), op.PublishMeasurement(measurement)]
        self.say(m.LimitBegun(level=level))
        self.say(m.LimitMeasured(level=level, energy_j=energy_j, time_s=1.0))

    @precondition(lambda self: self.is_there())
    @rule(level=st.sampled_from(LIMITS_W))
    def training_chooses(self, level: int) -> None:
        self.say(m.LimitChosen(selector="Energy()", level=level))

    @precondition(lambda self: self.is_there())
    @rule(replace=st.booleans())
    def training_saves(self, replace: bool) -> None:
        self.asked.append(op.WriteProfile("/p.json", b"new", replace))
        self.say(m.SaveProfile(path="/p.json", content=b"new", replace=replace))

    @precondition(lambda self: self.is_there())
    @rule(offset=st.sampled_from([0, 5, PART_BYTES, PART_BYTES + 1, 10**9]))
    def training_asks_for_a_part(self, offset: int) -> None:
        self.say(m.ReadProfile(offset=offset))
        content = self.read if isinstance(self.read, bytes) else b""
        assert m.ProfilePart(offset=offset, content=content[offset:][:PART_BYTES]) in self.sent

    @precondition(lambda self: self.is_there())
    @rule()
    def training_says_what_is_not_expected(self) -> None:
        self.say(m.ClocksReleased())
        assert any(isinstance(message, m.FilesProblem) for message in self.sent)

    @precondition(lambda self: self.is_there())
    @rule()
    def training_says_goodbye(self) -> None:
        self.said_goodbye = True
        self.say(m.Goodbye(reason="finished"))

    @precondition(lambda self: self.client is not None)
    @rule()
    def training_is_killed(self) -> None:
        client, self.client = self.client, None
        assert client is not None
        self.tell(e.ClientGone(client))
        assert self.stopped
        self.finish()
        self.begin()

    @rule()
    def a_stranger_speaks(self) -> None:
        before = len(self.sent)
        self.tell(e.MessageArrived(10_000, m.Hello(rank=0, role="training", token="guess")))
        self.tell(e.MessageArrived(10_001, m.SaveProfile(path="/p.json", content=b"theirs", replace=True)))
        assert len(self.sent) == before

    @rule()
    def the_helper_is_killed(self) -> None:
        """What it knew is gone; a new one reads the files again."""
        self.updates = self.read_updates + self.updates
        self.begin()

    @rule(level=st.sampled_from(LIMITS_W), energy_j=st.floats(1, 2))
    def another_job_measures(self, level: int, energy_j: float) -> None:
        self.updates.append(m.LimitMeasured(level=level, energy_j=energy_j, time_s=1.0))

    @precondition(lambda self: self.running)
    @rule(error=st.sampled_from(ERRORS))
    def the_worker_comes_back(self, error: PfoError | None) -> None:
        operation = self.running.pop()
        if isinstance(operation, op.ReadProfile):
            self.read = self.profile if error is None else error
        if isinstance(operation, op.OpenFolder) and error is None:
            self.is_open = True
        self.tell(e.OperationDone(operation, None if error else self.result_of(operation), error))

    def result_of(self, operation: Any) -> op.PowerLimitResult:
        match operation:
            case op.ReadProfile():
                return self.profile
            case op.OpenFolder():
                return True
            case op.PublishChoice(selector, level):
                self.choice = self.choice or PowerLimitChoice(selector=selector, power_limit=level)
                return self.choice
            case op.PollUpdates():
                measured = [
                    PowerLimitMeasurement(power_limit=found.level, energy=found.energy_j, time=found.time_s)
                    for found in self.updates
                ]
                self.read_updates, self.updates = self.read_updates + self.updates, []
                return PowerLimitUpdates(measured, [], [])
        return None

    @rule(seconds=st.sampled_from([0.01, 0.6, 5.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(e.TimePassed())
        if self.is_open and self.is_there() and seconds > 0.5:
            assert self.running, "the helper looks for what other jobs write"

    # ---- what must hold

    @invariant()
    def every_question_is_answered_truly_and_once(self) -> None:
        answers = [message for message in self.sent if isinstance(message, m.PowerLimitFilesOpened)]
        if not answers:
            return
        (answer,) = answers
        assert self.questions == 1
        assert answer.shares == self.is_open
        if isinstance(self.read, PfoError):
            assert answer.profile == "unknown"
        else:
            read = m.PowerLimitFilesOpened(profile="read", profile_bytes=len(self.read or b""), shares=self.is_open)
            none = m.PowerLimitFilesOpened(profile="none", shares=self.is_open)
            assert answer == (none if self.read is None else read)

    @invariant()
    def what_was_read_has_reached_training_once(self) -> None:
        told = [
            found for message in self.sent if isinstance(message, m.SharedUpdates) for found in message.measurements
        ]
        if self.client is not None:
            assert told == self.read_updates

    @invariant()
    def jobs_hear_of_no_choice_but_the_first(self) -> None:
        for message in self.sent:
            if isinstance(message, m.SharedUpdates) and message.choices:
                assert self.choice is not None
                assert {choice.level for choice in message.choices} == {self.choice.power_limit}

    @invariant()
    def a_problem_is_not_told_twice_in_a_row(self) -> None:
        problems = [message for message in self.sent if isinstance(message, m.FilesProblem)]
        assert all(one != two for one, two in pairwise(problems))

    @invariant()
    def the_next_wake_is_never_far(self) -> None:
        assert self.state.next_wake_s() <= self.now_s + 5.0

    def finish(self) -> None:
        """The files answer: everything that training asked for is done, and the helper ends."""
        for _ in range(5000):
            if self.running:
                operation = self.running.pop()
                self.is_open = self.is_open or isinstance(operation, op.OpenFolder)
                self.tell(e.OperationDone(operation, self.result_of(operation)))
            elif self.state.is_idle and not self.asked:
                break
        else:
            raise AssertionError("the helper does not come to an end")

    def teardown(self) -> None:
        if self.client is not None and not self.said_goodbye:
            self.training_says_goodbye()
        self.finish()
        if self.said_goodbye:
            assert self.hung_up
            assert self.stopped


PowerLimitMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPowerLimitState = PowerLimitMachine.TestCase


def connected(now_s: float = 0.0) -> PowerLimitState:
    state = PowerLimitState("token", now_s=now_s)
    state.handle(e.MessageArrived(0, m.Hello(rank=0, role="training", token="token")), now_s)
    return state


def test_a_worker_that_hangs_is_given_nothing_more_and_the_helper_keeps_a_bounded_number() -> None:
    state = connected()
    told: list[e.Action] = []
    for _ in range(MAX_WAITING + 10):
        told += state.handle(e.MessageArrived(0, m.SaveProfile(path="/p", content=b"", replace=True)), 0.0)
    assert sum(isinstance(action, e.Run) for action in told) == 1
    assert len(state._waiting) == MAX_WAITING
    problems = [action.message for action in told if isinstance(action, e.Send)]
    assert problems == [m.FilesProblem(message="the file system does not answer, and more waits than the helper keeps")]


def test_a_helper_without_training_ends_after_a_minute() -> None:
    state = PowerLimitState("token", now_s=0.0)
    assert state.handle(e.TimePassed(), 59.0) == []
    assert state.handle(e.TimePassed(), 61.0) == [e.Stop()]


def test_warnings_of_the_helper_reach_training() -> None:
    assert connected().handle(e.Logged(30, "a warning"), 0.0) == [e.Send(0, m.FilesProblem(message="a warning"))]
    assert connected().handle(e.Logged(20, "not a warning"), 0.0) == []
