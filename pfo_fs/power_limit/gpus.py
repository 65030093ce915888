"""Access from training to a GPU's power limit or clock, and its energy, through the GPU's clock process.

The training process makes no driver calls. A call that sets a level returns at once; a few others wait for answers,
all but `bounds` with one deadline for all GPUs. After a GPU's driver has hung, training never waits for it again.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.shared_page import TARGET
from pfo_fs.errors import DeviceError, NotOffered
from pfo_fs.power_limit.measurements import Knob

ANSWER_WITHIN_S = 5.0
Answer = dict[str, Any]


class Levels(NamedTuple):
    """The levels that a GPU accepts; `offered`: all of them, highest first; empty: each number in between."""

    lowest: float
    highest: float
    offered: tuple[int, ...] = ()


class KnobGpu:
    """One GPU, driven by a clock process of its own, which restores the level when this process ends, even if killed.

    The other knob is left alone.

    Attributes:
        problem: Why levels are not set, or not any more; empty if they are. `check` updates it.
        trouble: Why the last level could not be set, if setting it again may help; the reader removes it.
    """

    def __init__(self, spec: str, knob: Knob = "power_limit") -> None:
        self.spec, self.knob = spec, knob
        self.clocks = ClockProcess(spec, ClockOptions(leave_clocks=knob == "power_limit"))
        self.problem = self.trouble = ""
        self._limits: Levels | None = None  # of power; None before they were asked for
        self._number = 0  # the newest request's number
        self._unconfirmed: set[int] = set()  # requests to change the level that have no answer yet
        self._given_up = False  # the driver has hung: answers are not waited for any more

    @property
    def name(self) -> str:
        return f"{self.clocks.info.gpu_name} {self.clocks.info.gpu_uuid}".strip()

    def bounds(self) -> Levels:
        """Returns the levels that the GPU accepts, and notes the power limit to restore in the end.

        Raises:
            DeviceError: Levels cannot be set, or not by this user; `problem` holds the reason.
        """
        info = self.clocks.info  # waits until the clock process has started, or has failed to start
        if self.knob == "clock":
            clocks_mhz = info.clocks_mhz
            if not clocks_mhz:
                self.problem = self.problem or self.clocks.message or "the GPU offers no clocks"
                raise DeviceError(self.problem)
            return Levels(clocks_mhz[-1], clocks_mhz[0], tuple(clocks_mhz))
        if self._limits is None:
            answer = self.ask({"ask": "limits"})(time.monotonic() + ANSWER_WITHIN_S)
            if self.problem or "error" in answer:
                self.problem = self.problem or str(answer["error"])
                raise DeviceError(self.problem)
            self._limits = Levels(answer["lowest_w"], answer["highest_w"])
            self.clocks.power_limit_before_w = answer["before_w"]
        return self._limits

    def set_level(self, level: int) -> None:
        """Requests a level, in W or MHz; `settle` waits for it."""
        if self.problem:
            return
        if self.knob == "clock":
            self.clocks.words[TARGET] = level
            self._request({"ask": "clock"})
        else:
            self._request({"ask": "set", "limit_w": level})

    def restore(self) -> None:
        """Requests the earlier level; `settle` waits for it."""
        if self._limits is not None:
            self._request({"ask": "give back"})
        elif self.knob == "clock" and self.clocks.words[TARGET]:
            self.clocks.words[TARGET] = 0
            self._request({"ask": "clock"})

    def settle(self, deadline_s: float) -> None:
        """Waits until all requested levels are in force or have failed, at most until a time on the monotonic clock."""
        while self._unconfirmed and not self._given_up:
            if self._take(deadline_s) is None:
                self._no_answer()

    def check(self) -> str:
        """Returns `problem`, updated from answers of the clock process, and from whether that process still runs.

        Does not wait; takes about a microsecond if the clock process has sent nothing new.
        """
        if self.clocks.check():
            while self._take(0.0) is not None:
                pass
        if self.clocks.lost:
            self.problem = self.problem or self._why_dead()
        return self.problem

    def ask(self, request: Answer) -> Callable[[float], Answer]:
        """Sends a request; returns a function that waits for its answer until a time, on the monotonic clock.

        An answer may be `{"error": why}`. After one answer has not come in time, all answers are errors.
        """
        if self._given_up:
            return lambda _: {"error": self.problem}
        number = self._send(request)

        def answer(deadline_s: float) -> Answer:
            while not self._given_up:
                taken = self._take(deadline_s)
                if taken is None:
                    self._no_answer()
                elif taken[0] == number:
                    return taken[1]
            return {"error": self.problem}

        return answer

    def report_to(self, helper: str, rank: int, token: str) -> None:
        """Makes the clock process report to this helper, which restores the level if both processes are killed."""
        self._send({"ask": "report", "to": helper, "rank": rank, "token": token})

    def leave(self) -> None:
        """Lets the clock process restore the level and end; `close` also waits for that."""
        self.clocks.leave()

    def close(self, within_s: float = ANSWER_WITHIN_S) -> None:
        self.clocks.close(within_s)

    def _request(self, request: Answer) -> None:
        """Sends a request to change the level; if it fails, that is a problem."""
        self._unconfirmed.add(self._send(request))

    def _send(self, request: Answer) -> int:
        self._number += 1
        self.clocks.send_request({**request, "id": self._number})
        return self._number

    def _take(self, deadline_s: float) -> tuple[int | None, Answer] | None:
        """Receives the next message: the request's number, and the answer; None if none comes in time."""
        answer = self.clocks.receive_answer(max(0.0, deadline_s - time.monotonic()))
        if answer is None:
            return None
        number = answer.pop("id", None)
        if (number is None or number in self._unconfirmed) and "error" in answer:
            if answer.get("passes"):
                self.trouble = str(answer["error"])
            else:
                self.problem = self.problem or str(answer["error"])
        self._unconfirmed.discard(number)
        return number, answer

    def _no_answer(self) -> None:
        """Notes that an answer did not come in time; from now on, no call waits for this GPU."""
        self._given_up = True
        self._unconfirmed.clear()
        alive = self.clocks.alive()
        text = f"the clock process gave no answer within {ANSWER_WITHIN_S:.0f} s; the driver may hang"
        self.problem = self.problem or (text if alive else self._why_dead())

    def _why_dead(self) -> str:
        never_worked = self.clocks.info.gpu_name == "none"
        return self.clocks.message if never_worked else "the clock process has died"


class EnergyReading(NamedTuple):
    """A reading of an energy counter, in J; `breaks`: how often the consumed energy could not be known so far."""

    energy_j: float
    breaks: int = 0


def read_energies(gpus: Sequence[KnobGpu]) -> list[EnergyReading]:
    """Returns the readings of the GPUs' energy counters, made at the same time.

    Raises:
        DeviceError: Energy cannot be read; trying again may help, unless the error is `NotOffered`.
    """
    waiting = [gpu.ask({"ask": "energy"}) for gpu in gpus]
    deadline_s = time.monotonic() + ANSWER_WITHIN_S
    answers = [wait(deadline_s) for wait in waiting]
    for answer in answers:
        if "energy_j" not in answer:
            raise (DeviceError if answer.get("passes") else NotOffered)(str(answer.get("error")))
    return [EnergyReading(float(answer["energy_j"]), int(answer.get("breaks", 0))) for answer in answers]


def close_all(gpus: Sequence[KnobGpu]) -> None:
    """Closes all GPUs at the same time."""
    for gpu in gpus:
        gpu.leave()
    deadline_s = time.monotonic() + ANSWER_WITHIN_S
    for gpu in gpus:
        gpu.close(max(0.0, deadline_s - time.monotonic()))


def settle_all(gpus: Sequence[KnobGpu]) -> None:
    """Waits until the requested levels of all GPUs are in force or have failed; one deadline for all."""
    deadline_s = time.monotonic() + ANSWER_WITHIN_S
    for gpu in gpus:
        gpu.settle(deadline_s)
