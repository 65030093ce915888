"""The helper of a power-limit optimizer as a state machine: events in, actions out, no clock, no socket and no file.

It reads the profile and opens the shared directory when training requests that, then polls for what other jobs write,
and writes what training sends. `loop.py` runs it in the helper process. It gives the worker one operation at a time; if
a mount hangs, it blocks the worker, and what training sends meanwhile waits here.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Any

import msgspec
from pydantic import ValidationError

from pfo_fs.errors import PfoError
from pfo_fs.helper import events as e
from pfo_fs.helper import power_limit_operations as op
from pfo_fs.ipc import messages as m
from pfo_fs.store.power_limit_folder import KNOBS, ClockChoice, Knob, PowerLimitChoice, PowerLimitUpdates

PART_BYTES = 100_000
"""Bytes of a profile in one message; they fit into a packet even if they cannot be compressed."""
MAX_WAITING = 1000
"""At most this many operations wait for the worker; the helper drops further ones, and reports that."""
_PER_MESSAGE = 500
_LOCAL_INTERVAL_S = 0.5
_REMOTE_INTERVAL_S = 2.0
_REMOTE_SWITCH_S = 5.0
_FIRST_CLIENT_WITHIN_S = 60.0


class PowerLimitState:
    """See the module's docstring.

    Args:
        token: The job's secret, which a client must send first.
        now_s: Monotonic time.
    """

    def __init__(self, token: str, *, now_s: float) -> None:
        self._token = token
        self._now_s = self._started_s = now_s
        self._clients: dict[int, bool] = {}  # whether it has sent `Goodbye`
        self._had_clients = False
        self._waiting: deque[op.PowerLimitOperation] = deque()
        self._running: op.PowerLimitOperation | None = None
        self._opened: m.PowerLimitFilesOpened | None = None  # the parts that are known so far
        self._profile = b""
        self._knob: Knob = "power_limit"
        self._interval_s: float | None = None  # between two polls of the shared directory; None: it is not used
        self._look_at_s = 0.0
        self._problem = ""
        self._switch = ""  # the directory whose switch is watched; empty: none
        self._switch_at_s = 0.0
        self._is_off: bool | None = None
        self._watchers: set[int] = set()
        self._actions: list[e.Action] = []

    # ---- for the loop

    @property
    def is_idle(self) -> bool:
        """Whether no operation runs or waits."""
        return self._running is None and not self._waiting

    def first_actions(self) -> list[e.Action]:
        """Returns what to do before the first event: nothing."""
        return []

    def handle(self, event: e.Event, now_s: float) -> list[e.Action]:
        """Handles an event; returns what to do, in this order.

        Args:
            event: What has happened.
            now_s: Monotonic time, never less than before.
        """
        self._now_s = max(self._now_s, now_s)
        match event:
            case e.MessageArrived(client, message):
                self._on_message(client, message)
            case e.ClientGone(client):
                self._clients.pop(client, None)
                self._watchers.discard(client)
            case e.OperationDone():
                self._on_operation_done(event)
            case e.Logged(level, text):
                if level >= logging.WARNING:
                    self._tell_problem(text)
        self._do_what_is_due()
        actions, self._actions = self._actions, []
        return actions

    def next_wake_s(self) -> float:
        """Returns when `handle(TimePassed())` is due if no other event comes first."""
        latest_s = min(self._now_s + 5.0, self._switch_at_s if self._watchers and self.is_idle else math.inf)
        return min(latest_s, self._look_at_s) if self._looks() and self.is_idle else latest_s

    # ---- connections

    def _on_message(self, client: int, message: m.ToHelper) -> None:
        self._had_clients = True
        if client not in self._clients:
            if isinstance(message, m.Hello) and message.token == self._token:
                self._clients[client] = False
            else:
                self._act(e.HangUp(client))
            return
        try:
            self._on_known_message(client, message)
        except (ValueError, ValidationError) as error:
            self._tell_problem(f"the helper cannot use a message ({type(message).__name__}): {error}")

    def _on_known_message(self, client: int, message: m.ToHelper) -> None:
        match message:
            case m.OpenPowerLimitFiles():
                self._opened = m.PowerLimitFilesOpened(profile="none")
                if message.profile_path is not None:
                    self._run(op.ReadProfile(message.profile_path))
                if message.shared_dir is not None:
                    self._knob = message.knob
                    self._run(op.OpenFolder(message.shared_dir, message.key, message.knob))
                    self._run(op.PollUpdates())
            case m.WatchSwitch(shared_dir=shared_dir):
                self._switch = shared_dir
                self._watchers.add(client)
                if self._is_off is not None:
                    self._act(e.Send(client, m.ClocksHeld(why="off" if self._is_off else "")))
            case m.ReadProfile(offset=offset):
                self._act(e.Send(client, m.ProfilePart(offset=offset, content=self._profile[offset:][:PART_BYTES])))
            case m.SaveProfile(path=path, content=content, replace=replace):
                self._run(op.WriteProfile(path, content, replace))
            case m.LimitBegun(level=level):
                self._share(op.AnnounceLimit(level))
            case m.LimitMeasured(level=level, energy_j=energy_j, time_s=time_s):
                measurement = KNOBS[self._knob].measurement.at(level, energy_j, time_s)
                self._share(op.PublishMeasurement(measurement))
            case m.LimitChosen(selector=selector, level=level):
                self._share(op.PublishChoice(selector, level))
            case m.Goodbye():
                self._clients[client] = True
            case _:
                raise ValueError("it is not expected here")

    # ---- files

    def _share(self, operation: op.PowerLimitOperation) -> None:
        if self._interval_s is not None:
            self._run(operation)

    def _run(self, operation: op.PowerLimitOperation) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(operation)
        else:
            self._tell_problem("the file system does not answer, and more waits than the helper keeps")

    def _on_operation_done(self, event: e.OperationDone) -> None:
        operation, result, error = event.operation, event.result, event.error
        self._running = None
        if error is not None:
            self._on_failure(operation, error)
            return
        match operation, result:
            case op.ReadProfile(), bytes(content):
                self._profile = content
                self._note_opened(profile="read", profile_bytes=len(content))
            case op.OpenFolder(), bool(local):
                self._interval_s = _LOCAL_INTERVAL_S if local else _REMOTE_INTERVAL_S
                self._note_opened(shares=True)
            case op.LookAtSwitch(), op.Switched(off, local):
                self._switch_at_s = self._now_s + (_LOCAL_INTERVAL_S if local else _REMOTE_SWITCH_S)
                if off != self._is_off:
                    self._is_off = off
                    for client in self._watchers:
                        self._act(e.Send(client, m.ClocksHeld(why="off" if off else "")))
            case op.PollUpdates(), PowerLimitUpdates() as updates:
                self._tell_updates(updates)
            case op.PublishChoice(), PowerLimitChoice() | ClockChoice() as first:
                self._tell_updates(PowerLimitUpdates([], [first], []))
        if isinstance(operation, op.PollUpdates):
            self._look_at_s = self._now_s + (self._interval_s or 0.0)
        elif isinstance(operation, (op.AnnounceLimit, op.PublishMeasurement, op.PublishChoice)):
            self._look_at_s = self._now_s  # training decides again soon, and needs what others have done

    def _on_failure(self, operation: object, error: PfoError) -> None:
        if isinstance(operation, op.LookAtSwitch):  # everything stays as it is
            self._switch_at_s = self._now_s + _REMOTE_SWITCH_S
            return
        text = str(error.args[-1])
        if isinstance(operation, op.ReadProfile):
            self._note_opened(profile="unknown")
        elif isinstance(operation, op.OpenFolder):
            self._waiting = deque(other for other in self._waiting if not isinstance(other, op.PollUpdates))
        elif isinstance(operation, op.PollUpdates):
            self._look_at_s = self._now_s + (self._interval_s or 0.0)
        if not isinstance(operation, (op.ReadProfile, op.WriteProfile)):
            text = f"measurements are not shared: {text}"
        self._tell_problem(text)

    def _note_opened(self, **found: Any) -> None:
        if self._opened is not None:
            self._opened = msgspec.structs.replace(self._opened, **found)

    # ---- what is due

    def _looks(self) -> bool:
        return self._interval_s is not None and not all(self._clients.values())

    def _do_what_is_due(self) -> None:
        if self.is_idle and self._opened is not None:
            self._tell_all(self._opened)
            self._opened = None
        if self.is_idle and self._looks() and self._now_s >= self._look_at_s:
            self._waiting.append(op.PollUpdates())
        if self.is_idle and self._watchers and self._now_s >= self._switch_at_s:
            self._waiting.append(op.LookAtSwitch(self._switch))
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
            self._act(e.Run(self._running))
        if self.is_idle:
            for client in [client for client, leaves in self._clients.items() if leaves]:
                del self._clients[client]
                self._act(e.HangUp(client))  # by this training learns that everything is written
        if not self._clients and (self._had_clients or self._now_s - self._started_s > _FIRST_CLIENT_WITHIN_S):
            self._act(e.Stop())

    # ---- messages to training

    def _tell_updates(self, updates: PowerLimitUpdates) -> None:
        measured = [
            m.LimitMeasured(level=found.level, energy_j=found.energy, time_s=found.time)
            for found in updates.measurements
        ]
        chosen = [m.LimitChosen(selector=found.selector, level=found.level) for found in updates.choices]
        for at in range(0, max(len(measured), len(chosen), len(updates.begun)), _PER_MESSAGE):
            lot = slice(at, at + _PER_MESSAGE)
            self._tell_all(
                m.SharedUpdates(measurements=measured[lot], choices=chosen[lot], begun=list(updates.begun[lot]))
            )

    def _tell_problem(self, text: str) -> None:
        """Sends a problem to training, unless it is the same as the last one."""
        if text != self._problem:
            self._problem = text
            self._tell_all(m.FilesProblem(message=text))

    def _tell_all(self, message: m.Message) -> None:
        for client in self._clients:
            self._act(e.Send(client, message))

    def _act(self, action: e.Action) -> None:
        self._actions.append(action)
