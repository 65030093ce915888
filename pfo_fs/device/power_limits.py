"""The clock process's second duty: power limits, and readings of the energy counter, when training asks.

Requests come over the socket between the two as lines of JSON, and each is answered by one line. What is set here is
set back at the trainer's end, to what was in force before the first request, whatever that was: a limit may be the
site's own. One that an earlier job has left behind is not (`limit_note.py`).
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

from pfo_fs.device.gpu import Gpu
from pfo_fs.device.limit_note import LimitNote
from pfo_fs.errors import DeviceError

_MAX_REQUEST_BYTES = 4096


class PowerLimits:
    """Answers requests about one GPU:

        {"ask": "limits"}                  {"lowest_w", "highest_w", "before_w"}; tries whether limits may be set
        {"ask": "set", "limit_w": 250}     {}
        {"ask": "give back"}               {}
        {"ask": "energy"}                  {"energy_j"}

    or `{"error": "..."}`, for people. A request's "id" comes back with its answer. What has no id was not asked for:
    limits are not set any more, and why.

    Args:
        gpu: The GPU.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._note = LimitNote(gpu.uuid)
        self._before_w: float | None = None
        self._changed = False
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
        except Exception as error:  # noqa: BLE001  whatever a driver raises, it is an answer
            answer = {"error": str(error) or repr(error)}
        return {**answer, "id": request.get("id")}

    def _result(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["ask"] == "energy":
            return {"energy_j": self._gpu.energy_j()}
        if self._refused:
            return {"error": self._refused}
        if request["ask"] == "limits":
            return self._limits()
        if request["ask"] == "set":
            self._set(float(request["limit_w"]))
        elif request["ask"] == "give back":
            self.restore()
        return {}

    def _limits(self) -> dict[str, Any]:
        lowest_w, highest_w = self._gpu.power_limit_range_w()
        if self._before_w is None:
            now_w = self._gpu.power_limit_w()
            left = self._note.left(now_w)
            if left is None or not lowest_w <= left.before_w <= highest_w:
                left = None
            in_use = left is not None and left.in_use
            before_w = now_w if left is None else left.before_w
            # Shows whether this user may, and mostly changes nothing.
            self._gpu.set_power_limit_w(now_w if in_use else before_w)
            if left is not None and not in_use:
                self._note.remove(left.pid)
            self._before_w = before_w
        return {"lowest_w": lowest_w, "highest_w": highest_w, "before_w": self._before_w}

    def _set(self, limit_w: float) -> None:
        if self._before_w is None:
            raise DeviceError("no power limit is set before the one in force is known")
        self._changed = True
        self._note.write(self._before_w, limit_w)
        try:
            self._gpu.set_power_limit_w(limit_w)
        except Exception:
            self.restore()
            raise

    def restore(self) -> None:
        """Sets back what was in force before, if it was changed."""
        if self._changed and self._before_w is not None:
            with suppress(Exception):
                self._gpu.set_power_limit_w(self._before_w)
                self._changed = False
                self._note.remove()

    def refuse(self, reason: str, trainer: socket.socket) -> None:
        """Sets back what was in force before, sets no limit any more, and tells training, if that is its business."""
        self.restore()
        if self._before_w is not None and not self._refused:
            _send({"error": reason}, trainer)
        self._refused = reason


def _send(answer: dict[str, Any], trainer: socket.socket) -> None:
    """An answer that training does not read is dropped."""
    with suppress(OSError):
        trainer.send(json.dumps(answer).encode() + b"\n", socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
