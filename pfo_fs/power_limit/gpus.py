"""A GPU as training sees it: its power limit and its energy, both through its clock process.

No driver call is made in the training process. Setting a limit does not wait; what is asked for once in many steps
waits for the answer, with a deadline.
"""

from __future__ import annotations

import time
from typing import Any

from pfo_fs.device import ClockProcess
from pfo_fs.errors import DeviceError

_ANSWER_WITHIN_S = 5.0


class LimitedGpu:
    """One GPU, driven by a clock process of its own, which sets the limit back when this process ends, however.

    Args:
        spec: The GPU, as `find_gpu_spec` names it.
    """

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._clocks = ClockProcess(spec, leave_clocks=True)
        self._unanswered = 0
        self._limits: dict[str, float] | None = None
        self.problem = ""
        """Why limits are not set, or not any more; empty if they are. `check` brings it up to date."""

    @property
    def name(self) -> str:
        """Product name and UUID."""
        return f"{self._clocks.gpu_name} {self._clocks.gpu_uuid}".strip()

    @property
    def pid(self) -> int | None:
        """The clock process's id."""
        return self._clocks.pid

    def wait_until_ready(self) -> None:
        """Waits until the clock process has started, or failed to."""
        _ = self._clocks.info

    def range_w(self) -> tuple[float, float]:
        """Returns the lowest and the highest limit, in watts, and takes note of the one to set back in the end.

        Raises:
            DeviceError: This GPU's limit cannot be set, or not by this user; so says `problem`, too.
        """
        if self._limits is None:
            answer = self._ask({"ask": "limits"})
            if self.problem or "error" in answer:
                self.problem = self.problem or str(answer["error"])
                raise DeviceError(self.problem)
            self._limits = answer
            self._clocks.power_limit_before_w = answer["before_w"]
        return self._limits["lowest_w"], self._limits["highest_w"]

    def set_limit_w(self, limit_w: float) -> None:
        """Has the limit set, in watts; does not wait for that."""
        if not self.problem:
            self._clocks.send_request({"ask": "set", "limit_w": limit_w})
            self._unanswered += 1

    def settle(self) -> None:
        """Waits until the limit is in force, or known not to be; it mostly is long before this is called."""
        self._take_answers(_ANSWER_WITHIN_S)
        if self._unanswered:
            self.problem = self.problem or f"the clock process gave no answer within {_ANSWER_WITHIN_S:.0f} s"

    def check(self) -> str:
        """Returns `problem`, after a look at what became of limits that were set, and of the clock process.

        Does not wait; about a microsecond where there is no news.
        """
        if self._unanswered:
            self._take_answers(0.0)
        elif not self.problem:
            self._clocks.check()
            if self._clocks.lost:
                self.problem = self._why_dead()
        return self.problem

    def energy_j(self) -> float:
        """Returns the reading of the GPU's energy counter, in joules.

        Raises:
            DeviceError: There is no reading.
        """
        answer = self._ask({"ask": "energy"})
        if "energy_j" not in answer:
            raise DeviceError(str(answer.get("error", self.problem)))
        return float(answer["energy_j"])

    def give_back(self) -> None:
        """Sets back the limit that was in force before, and waits for that, but not for ever."""
        if self._limits is not None:
            self._ask({"ask": "give back"})

    def close(self) -> None:
        """Sets back the limit and ends the clock process."""
        self._clocks.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Asks and waits for the answer; without one, `problem` says why, for ever."""
        self._clocks.send_request(request)
        self._take_answers(_ANSWER_WITHIN_S)
        answer = None if self._unanswered else self._clocks.receive_answer(_ANSWER_WITHIN_S)
        if answer is None:
            alive = self._clocks.alive()
            self.problem = self.problem or (
                f"the clock process gave no answer within {_ANSWER_WITHIN_S:.0f} s" if alive else self._why_dead()
            )
            return {"error": self.problem}
        return answer

    def _take_answers(self, timeout_s: float) -> None:
        """Takes the answers to earlier requests, waiting for them at most so long."""
        deadline_s = time.monotonic() + timeout_s
        while self._unanswered:
            answer = self._clocks.receive_answer(max(0.0, deadline_s - time.monotonic()))
            if answer is None:
                if not self._clocks.alive():
                    self._unanswered = 0
                    self.problem = self.problem or self._why_dead()
                return
            self._unanswered -= 1
            self.problem = self.problem or str(answer.get("error", ""))

    def _why_dead(self) -> str:
        return self._clocks.message if self._limits is None else "the clock process has died"
