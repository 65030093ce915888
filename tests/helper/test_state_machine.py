"""The helper's state under everything that may happen to it, in any order, in virtual time."""

import errno
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from jobs import rank_infos

from pfo_fs.errors import AlreadyClaimed, PfoError, RecordError, StoreUnavailable
from pfo_fs.helper import operations as op
from pfo_fs.helper.job import Around
from pfo_fs.helper.state import HelperState
from pfo_fs.helper.watches import FALLBACK_AFTER_S
from pfo_fs.ipc import messages as m
from pfo_fs.store import bodies

RANKS = 3
INFOS = rank_infos(RANKS)
ASKED = m.ReadProfile | m.SaveProfile
ERRORS: list[PfoError | None] = [None] * 3
ERRORS += [StoreUnavailable(errno.EIO, "no answer"), RecordError("damaged"), AlreadyClaimed(errno.EEXIST, "taken")]


class HelperMachine(RuleBasedStateMachine, Around):
    """Training, clock processes, the worker and the directory around one helper state.

    What must hold: the worker carries operations out in the order in which it was given them, so a lost one shows; no
    result reaches the directory twice; every registration is answered once the directory has spoken; ranks are sent to
    default clocks only after long silence, and told when it is over; what training asks for is carried out once, in
    its order, also after training has gone; the helper ends when all have gone; nothing grows without bound.
    """

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        Around.__init__(self, lambda: self.now_s, seed=0)
        self.now_s = 0.0
        self.state = HelperState("token", self)
        self.running: list[op.Operation] = []
        self.sent: dict[int, list[m.Message]] = {}
        self.trainers: dict[int, int] = {}
        self.clock_processes: dict[int, int] = {}
        self.results: list[tuple[int, int]] = []
        self.asked: list[Any] = []  # what rank 0 asked for and the worker has not been given
        self.resets = 0
        self.resetting: list[tuple[int, m.GpuToReset]] = []
        self.stopped = False
        self.next_client = 0
        self.measured = 0
        self.number = 0
        self.silent_since: float | None = None
        self.answered_s = 0.0  # when something was read last
        self.at_default_clocks: set[int] = set()  # clients that were told that the directory is lost
        self.tell(self.state.begin)

    # ---- what the loop does

    def send(self, client: int, message: m.Message) -> None:
        self.sent.setdefault(client, []).append(message)
        if isinstance(message, m.ClocksHeld):
            (self.at_default_clocks.add if message.why else self.at_default_clocks.discard)(client)

    def run(self, operation: op.Operation) -> None:
        if isinstance(operation, ASKED):
            assert operation == self.asked.pop(0), "in the order in which training asked"
            assert not any(isinstance(other, ASKED) for other in self.running), "one at a time"
        self.running.append(operation)

    def reset_gpu(self, rank: int, gpu: m.GpuToReset, pause_s: float = 0.0) -> None:
        self.resets += 1
        self.resetting.append((rank, gpu))

    def stop(self) -> None:
        self.stopped = True

    def tell(self, what: Callable[..., None], *arguments: Any) -> None:
        what(*arguments)
        self.state.time_passed()

    # ---- what happens

    @rule(rank=st.integers(0, RANKS - 1), name=st.sampled_from([None, 0, 1]))
    def a_rank_joins(self, rank: int, name: int | None) -> None:
        if rank in self.trainers:
            return
        client, self.next_client = self.next_client, self.next_client + 1
        self.trainers[rank] = client
        self.tell(self.state.message_arrived, client, m.Hello(rank=rank, role="training", token="token"))
        body = {"rank_info": INFOS[rank].model_dump(), "nonce": "n"}
        join = m.JoinJob(job_id="job", attempt="a", coordination="daemon", rank_body=body, helper_name=name)
        self.tell(self.state.message_arrived, client, join)

    @rule(rank=st.integers(0, RANKS - 1))
    def a_clock_process_connects(self, rank: int) -> None:
        if rank in self.clock_processes:
            return
        client, self.next_client = self.next_client, self.next_client + 1
        self.clock_processes[rank] = client
        hello = m.Hello(rank=rank, role="clocks", token="token", gpu=m.GpuToReset(f"gpu{rank}"))
        self.tell(self.state.message_arrived, client, hello)

    @precondition(lambda self: self.clock_processes)
    @rule(data=st.data())
    def a_clock_process_measures(self, data: Any) -> None:
        rank = data.draw(st.sampled_from(sorted(self.clock_processes)))
        self.measured += 1
        result = {"rank": rank, "iter_time": [1.0], "iter_energy": [1.0]}
        report = m.MeasurementReport(number=self.measured, first_step=0, result=result)
        self.tell(self.state.message_arrived, self.clock_processes[rank], report)

    @precondition(lambda self: self.clock_processes)
    @rule(data=st.data(), step=st.integers(-1, 1000))
    def a_clock_process_reports(self, data: Any, step: int) -> None:
        rank = data.draw(st.sampled_from(sorted(self.clock_processes)))
        report = m.ProgressReport(step=step, number=0, iter_time=1.0, iteration_times=[(max(step, 0), 0, 1.0)])
        self.tell(self.state.message_arrived, self.clock_processes[rank], report)

    @precondition(lambda self: self.clock_processes)
    @rule(data=st.data(), releases=st.booleans())
    def a_clock_process_goes(self, data: Any, releases: bool) -> None:
        rank = data.draw(st.sampled_from(sorted(self.clock_processes)))
        client = self.clock_processes.pop(rank)
        if releases:
            self.tell(self.state.message_arrived, client, m.ClocksReleased())
        before = self.resets
        self.tell(self.state.client_gone, client)
        assert self.resets == before + (not releases), "clocks are put back if, and only if, that was not done"

    @precondition(lambda self: self.resetting)
    @rule(problem=st.sampled_from(["", "the driver refuses"]))
    def a_reset_ends(self, problem: str) -> None:
        reset = self.resetting.pop(0)
        assert not self.state.is_idle
        self.tell(self.state.gpu_reset, *reset, problem)

    @precondition(lambda self: self.trainers)
    @rule(data=st.data(), says_goodbye=st.booleans())
    def a_rank_goes(self, data: Any, says_goodbye: bool) -> None:
        rank = data.draw(st.sampled_from(sorted(self.trainers)))
        client = self.trainers.pop(rank)
        if says_goodbye:
            self.tell(self.state.message_arrived, client, m.Goodbye(reason="finished"))
        self.tell(self.state.client_gone, client)
        assert self.stopped or self.trainers or self.clock_processes

    @precondition(lambda self: 0 in self.trainers)
    @rule(saves=st.booleans(), replace=st.booleans())
    def rank_0_asks_for_its_profile(self, saves: bool, replace: bool) -> None:
        path = f"/{replace}.json"
        self.asked.append(
            m.SaveProfile(path=path, content=b"new", replace=replace) if saves else m.ReadProfile(path=path)
        )
        self.tell(self.state.message_arrived, self.trainers[0], self.asked[-1])

    @rule(client=st.integers(0, 5))
    def a_stranger_speaks(self, client: int) -> None:
        stranger = 1000 + client
        self.tell(self.state.message_arrived, stranger, m.SaveProfile(path="/p.json", content=b"theirs", replace=True))
        self.tell(self.state.client_gone, stranger)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), publishes=st.booleans())
    def the_worker_comes_back(self, data: Any, publishes: bool) -> None:
        error = data.draw(st.sampled_from(ERRORS))
        if isinstance(self.running[0], op.OpenDirectory | op.PollSchedule) and isinstance(error, AlreadyClaimed):
            error = None
        self._carry_out(error, publishes)

    def _carry_out(self, error: PfoError | None = None, publishes: bool = False) -> None:
        operation, result = self.running.pop(0), None
        if error is None:
            match operation:
                case op.OpenDirectory():
                    result = True
                case m.ReadProfile() | m.SaveProfile():
                    result = [m.ProfileSaved()]
                case op.WriteResults(number, bodies_):
                    self.results += [(number, body.result.rank) for body in bodies_]
                case op.PollSchedule():
                    self.number += publishes
                    current = bodies.CurrentBody(generation=1, number=self.number, state="running")
                    schedule = m.NewSchedule(number=self.number) if publishes else None
                    result = op.ScheduleFound(current, schedule)
        if error is None and isinstance(operation, op.OpenDirectory | op.PollSchedule):
            self.answered_s = self.now_s
        told = self.sent.setdefault(self.trainers.get(0, -1), [])
        before = len(told)
        self.tell(self.state.operation_done, operation, result, error)
        if isinstance(operation, ASKED) and 0 in self.trainers:
            answers = [m.ProfileSaved() if error is None else m.LogLine(level=30, message=str(error))]
            assert [message for message in told[before:] if isinstance(message, m.ProfileSaved | m.LogLine)] == answers

    @rule(seconds=st.sampled_from([0.01, 0.3, 5.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.state.time_passed()

    # ---- what must hold

    @invariant()
    def the_worker_is_never_given_a_heap(self) -> None:
        assert len(self.running) <= 4

    @invariant()
    def no_result_is_written_twice(self) -> None:
        assert len(self.results) == len(set(self.results))

    @invariant()
    def the_next_wake_is_never_far(self) -> None:
        assert self.state.next_wake_s() <= self.now_s + 5.0

    @invariant()
    def ranks_are_not_sent_to_default_clocks_by_a_directory_that_answers(self) -> None:
        if self.at_default_clocks & set(self.trainers.values()) and not self.running:
            assert self.now_s - self.answered_s > FALLBACK_AFTER_S

    def teardown(self) -> None:
        """The directory answers again: everything that waited gets there, and the helper ends."""
        for client in list(self.clock_processes.values()):
            self.tell(self.state.message_arrived, client, m.ClocksReleased())
            self.tell(self.state.client_gone, client)
        while self.trainers:
            self.tell(self.state.client_gone, self.trainers.popitem()[1])
        for _ in range(5000):
            if self.resetting:
                self.tell(self.state.gpu_reset, *self.resetting.pop(0), "")
            elif self.running:
                self._carry_out()
            elif self.state.is_idle and (self.stopped or not self.next_client):
                break
            else:
                self.now_s += 2.0
                self.state.time_passed()
        else:
            raise AssertionError("the helper does not come to an end")
        assert not self.asked
        assert len(self.results) == len(set(self.results))


HelperMachine.TestCase.settings = settings(max_examples=45, stateful_step_count=40)
TestHelperState = HelperMachine.TestCase
