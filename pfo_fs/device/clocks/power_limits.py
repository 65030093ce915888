"""Answers training's requests to the clock process about power limits, the energy counter, and whether a clock is set.

Requests come over the socket between the two processes as lines of JSON, and each is answered by one line. When the
trainer ends, the clock process sets the limit that was in force before the first request, since the site may have
chosen it; a limit that an earlier job has left in force is not kept (`undo_note.py`).
"""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pfo_fs.device.clocks.undo import Undo
from pfo_fs.device.gpu.driver_errors import passes, patiently
from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.errors import DeviceError

_MAX_REQUEST_BYTES = 4096
SAYS = "!"
"""A line on the same socket that begins with this is a text for training's log, not an answer."""


class PowerLimits:
    """Answers requests about one GPU:

        {"ask": "limits"}                  {"lowest_w", "highest_w", "before_w"}; tries whether limits may be set
        {"ask": "set", "limit_w": 250}     {}
        {"ask": "give back"}               {}
        {"ask": "energy"}                  {"energy_j", "breaks"}
        {"ask": "clock"}                   {}; the clock that the shared page requests is in force
        {"ask": "report", "to": address, "rank": 3, "token": "..."}     {}; reports to this helper from now on

    or `{"error": "...", "passes": true}`, with a text for the log, and whether trying again may help. An answer has the
    "id" of its request. A line without an id is not an answer: it reports that no more limits are set, and why.

    `undo` restores the limit, and knows whether that is owed.
    """

    def __init__(
        self,
        gpu: Gpu,
        undo: Undo,
        report_to: Callable[[str, int, str], None] = lambda address, rank, token: None,
        why_clocks_stay: Callable[[], DeviceError | None] = lambda: None,
    ) -> None:
        self._gpu = gpu
        self._report_to = report_to
        self._why_clocks_stay = why_clocks_stay
        self._sets_clocks = False
        self.undo = undo
        self._before_w: float | None = None
        self._paused_w: float | None = None
        self._refused = ""
        self._text = b""

    def take(self, data: bytes, trainer: socket.socket) -> None:
        """Answers the requests that are complete with `data`; an answer that training does not read is dropped."""
        self._text += data
        *lines, self._text = self._text.split(b"\n")
        self._text = self._text[:_MAX_REQUEST_BYTES]
        for line in lines:
            _send(self._answer(line), trainer)

    def _answer(self, line: bytes) -> dict[str, Any]:
        request: dict[str, Any] = {}
        try:
            request = dict(json.loads(line))
            answer = self._result(request)
        except Exception as error:  # noqa: BLE001  any error of a driver becomes the answer
            answer = {"error": str(error) or repr(error), "passes": passes(error)}
        return {**answer, "id": request.get("id")}

    def _result(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["ask"] == "energy":
            return {"energy_j": patiently(self._gpu.energy_j, attempts=3), "breaks": self._gpu.energy_breaks}
        if request["ask"] == "report":
            self._report_to(request["to"], request["rank"], request["token"])
            return {}
        if request["ask"] == "clock":  # the clock process sets the clock before it answers
            self._sets_clocks = True
            why = self._why_clocks_stay()
            if why is not None:
                raise why
            return {}
        if self._refused:
            return {"error": self._refused}
        if request["ask"] == "limits":
            return self._limits()
        if request["ask"] == "set":
            self._set(float(request["limit_w"]))
        elif request["ask"] == "give back":
            self.restore()
            if self.undo.owed:
                raise DeviceError(self.undo.problem)
        return {}

    def _limits(self) -> dict[str, Any]:
        lowest_w, highest_w = patiently(self._gpu.power_limit_range_w)
        if self._before_w is None:
            before_w = patiently(lambda: self.undo.note.limit_before_w(self._gpu))
            # This call fails if this user may not set limits; it does not change the limit in force.
            patiently(lambda: self._gpu.set_power_limit_w(self._gpu.power_limit_w()))
            self._before_w = before_w
        return {"lowest_w": lowest_w, "highest_w": highest_w, "before_w": self._before_w}

    def _set(self, limit_w: float) -> None:
        if self._before_w is None:
            raise DeviceError("a power limit is set only after a request for 'limits', which reads the one in force")
        self.undo.will_set(limit_w, self._before_w, renew=True)
        try:
            patiently(lambda: self._gpu.set_power_limit_w(limit_w), attempts=3)
        except Exception:
            self.restore()
            raise

    def restore(self) -> None:
        """Sets the limit that was in force before, if a request has changed it; `undo` knows whether that is done."""
        if self.undo.value is not None:
            self.undo.now()

    def pause(self) -> None:
        """Restores the limit until `resume`."""
        self._paused_w = self.undo.value
        self.restore()

    def resume(self) -> None:
        """Sets again what was set before a stop of this process; others may have restored the limit meanwhile."""
        limit_w = self.undo.value if self._paused_w is None else self._paused_w
        self._paused_w = None
        if limit_w is not None and not self._refused:
            with suppress(Exception):
                self._set(limit_w)

    def refuse(self, reason: str, trainer: socket.socket) -> None:
        """Restores the limit, sets none from now on, and sends the reason if training asked for limits or a clock."""
        self.restore()
        if (self._sets_clocks or self._before_w is not None) and not self._refused:
            _send({"error": reason}, trainer)
        self._refused = reason


def _send(answer: dict[str, Any], trainer: socket.socket) -> None:
    """Sends an answer; drops it if training does not read."""
    with suppress(OSError):
        trainer.send(json.dumps(answer).encode() + b"\n", socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
