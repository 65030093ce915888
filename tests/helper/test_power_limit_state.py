"""The helper's state for a power-limit optimizer, under everything that may happen to it, in any order."""

from __future__ import annotations

import errno
from typing import Any

from helper_host import connected
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pfo_fs.errors import PfoError, StoreError
from pfo_fs.helper import events as e
from pfo_fs.helper import operations as op
from pfo_fs.helper.state import HelperState
from pfo_fs.helper.write_queue import MAX_WAITING
from pfo_fs.ipc import messages as m

ASKED = m.ReadProfile | m.SaveProfile
BROKEN: list[PfoError | None] = [None, None, None, StoreError(errno.EIO, "a fault of the helper itself")]


class PowerLimitMachine(RuleBasedStateMachine):
    """Training and the worker around one helper state; both processes may be killed.

    What must hold: the worker has one request of training at a time, in the order in which training sent them, also
    after training has gone; what the worker finds reaches training once; the helper ends when training has gone and all
    is carried out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.next_client = 0
        self.begin()

    def begin(self) -> None:
        """A helper starts; its worker has done nothing yet."""
        self.state = HelperState("token", poll_interval_s=None, now_s=self.now_s, seed=0)
        self.running: list[Any] = []
        self.client: int | None = None
        self.sent: list[m.Message] = []
        self.found: list[m.Message] = []  # what the worker has found while training was there
        self.asked: list[Any] = []  # what training asked for and the worker has not been given
        self.stopped = False
        self.do(self.state.first_actions())

    # ---- what the loop does

    def do(self, actions: list[e.Action]) -> None:
        for action in actions:
            match action:
                case e.Send(client, message):
                    assert client == self.client, "only training that is there is told anything"
                    self.sent.append(message)
                case e.Run(operation):
                    if isinstance(operation, ASKED):
                        assert operation == self.asked.pop(0), "in the order in which training asked"
                        assert not any(isinstance(other, ASKED) for other in self.running), "one at a time"
                    self.running.append(operation)
                case e.Stop():
                    self.stopped = True

    def tell(self, event: e.Event) -> None:
        self.do(self.state.handle(event, self.now_s))

    def ask(self, message: Any) -> None:
        assert self.client is not None
        self.asked.append(message)
        self.tell(e.MessageArrived(self.client, message))

    # ---- what happens

    @precondition(lambda self: self.client is None)
    @rule()
    def training_connects(self) -> None:
        self.finish()
        self.begin()
        self.client, self.next_client = self.next_client, self.next_client + 1
        self.tell(e.MessageArrived(self.client, m.Hello(rank=0, role="training", token="token")))
        self.ask(m.ReadProfile(path="/p.json"))

    @precondition(lambda self: self.client is not None)
    @rule(replace=st.booleans())
    def training_saves(self, replace: bool) -> None:
        self.ask(m.SaveProfile(path="/p.json", content=b"new", replace=replace))

    @precondition(lambda self: self.client is not None)
    @rule(says_goodbye=st.booleans())
    def training_goes(self, says_goodbye: bool) -> None:
        client, self.client = self.client, None
        assert client is not None
        if says_goodbye:
            self.tell(e.MessageArrived(client, m.Goodbye(reason="finished")))
        self.tell(e.ClientGone(client))
        assert self.stopped

    @rule()
    def a_stranger_speaks(self) -> None:
        before = len(self.sent)
        self.tell(e.MessageArrived(10_000, m.Hello(rank=0, role="training", token="guess")))
        self.tell(e.MessageArrived(10_001, m.SaveProfile(path="/p.json", content=b"theirs", replace=True)))
        assert len(self.sent) == before

    @precondition(lambda self: self.running)
    @rule(error=st.sampled_from(BROKEN))
    def the_worker_comes_back(self, error: PfoError | None) -> None:
        operation = self.running.pop(0)
        found = None if error else self.result_of(operation)
        if isinstance(operation, ASKED) and self.client is not None:
            self.found += found if isinstance(found, list) else [m.LogLine(level=30, message=str(error))]
        self.tell(e.OperationDone(operation, found, error))

    def result_of(self, operation: Any) -> op.Result:
        match operation:
            case m.ReadProfile():
                return [m.ProfileRead(profile="none")]
            case m.SaveProfile():
                return [m.ProfileSaved()]
            case op.OpenDirectory():
                return True
        return None

    @rule(seconds=st.sampled_from([0.01, 0.6, 5.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(e.TimePassed())

    # ---- what must hold

    @invariant()
    def what_was_found_has_reached_training_once(self) -> None:
        assert self.sent == self.found

    @invariant()
    def the_next_wake_is_never_far(self) -> None:
        assert self.state.next_wake_s() <= self.now_s + 5.0

    def finish(self) -> None:
        """The files answer: everything that training asked for is done, and the helper ends."""
        for _ in range(5000):
            if not self.running:
                break
            self.the_worker_comes_back(None)
        assert self.state.is_idle
        assert not self.asked

    def teardown(self) -> None:
        if self.client is not None:
            self.training_goes(True)
        self.finish()


PowerLimitMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPowerLimitState = PowerLimitMachine.TestCase


def test_a_worker_that_hangs_is_given_nothing_more_and_the_helper_keeps_a_bounded_number() -> None:
    state = connected()
    given: list[e.Action] = []
    for _ in range(MAX_WAITING + 10):
        given += state.handle(e.MessageArrived(0, m.SaveProfile(path="/p", content=b"", replace=True)), 0.0)
    for _ in range(MAX_WAITING + 10):
        action = given.pop(0)
        assert isinstance(action, e.Run)
        given += state.handle(e.OperationDone(action.operation, [m.ProfileSaved()]), 0.0)[1:]
        if not given:
            break
    assert state.is_idle
    assert _ == MAX_WAITING  # the first one, and those that waited


def test_warnings_of_the_helper_reach_training() -> None:
    line = m.LogLine(level=30, message="a warning")
    assert connected().handle(e.ForTraining(line), 0.0) == [e.Send(0, line)]


def test_a_rank_that_watches_the_switch_is_told_at_once_and_when_it_changes() -> None:
    state = connected(3)
    look = state.handle(e.MessageArrived(3, m.WatchSwitch()), 0.0)
    assert look == [e.Run(op.ReadSwitch())]
    for number, (off, told) in enumerate([(False, [""]), (False, []), (True, ["off"]), (False, [""])]):
        actions = state.handle(e.OperationDone(op.ReadSwitch(), op.SwitchFound(off)), 10.0 * number)
        sent = [action.message for action in actions if isinstance(action, e.Send)]
        assert sent == [m.ClocksHeld(why=why) for why in told]
        state.handle(e.TimePassed(), 10.0 * number + 9.0)
    state.handle(e.MessageArrived(4, m.Hello(rank=4, role="training", token="token")), 40.0)
    (answer,) = state.handle(e.MessageArrived(4, m.WatchSwitch()), 40.0)
    assert answer == e.Send(4, m.ClocksHeld())


def test_a_switch_that_cannot_be_read_at_first_is_told_when_it_can() -> None:
    state = connected()
    state.handle(e.MessageArrived(0, m.WatchSwitch()), 0.0)
    error = StoreError(errno.EIO, "no answer")
    assert state.handle(e.OperationDone(op.ReadSwitch(), error=error), 0.0) == []
    assert state.handle(e.TimePassed(), 10.0) == [e.Run(op.ReadSwitch())]
    actions = state.handle(e.OperationDone(op.ReadSwitch(), op.SwitchFound(True)), 10.0)
    assert e.Send(0, m.ClocksHeld(why="off")) in actions
