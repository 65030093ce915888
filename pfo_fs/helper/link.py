"""A training process's link to the host's helper; a helper that replaces a dead one is sent again what it needs.

A helper may die at any time, also before it has written what it has received. So the link keeps each message that a new
helper needs (registration, ranks, order of instructions, schedule applied) and sends them all, in their order, to the
helper that replaces a dead one. Only `wait_for_schedule` waits, and no method raises.
"""

import logging
import time
from collections.abc import Callable

import msgspec

from pfo_fs.guard import WarnOnce
from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc import messages
from pfo_fs.ipc.messages import Message, NewSchedule, ToTraining

log = logging.getLogger("pfo_fs")

_REVIVE_EVERY_S = 2.0
"""The time between two tries to replace a helper that died."""
_READ_FOR_S = 0.02
"""Messages are read for at most this long in one step; the rest waits for the next step."""


class HelperLink:
    """What training uses of its helper, whether there is one or not.

    Args:
        log_line: Logs a line (level, text) of the helper, which has no output of its own.
    """

    def __init__(
        self,
        warn: WarnOnce,
        monotonic: Callable[[], float] = time.monotonic,
        log_line: Callable[[int, str], None] = lambda level, text: log.log(level, "%s", text),
    ) -> None:
        self.client: HelperClient | None = None
        self._warn = warn
        self._monotonic = monotonic
        self._log_line = log_line
        self._kept: dict[type[Message], Message] = {}
        self._unsent: set[type[Message]] = set()  # kept messages for which the helper had no room
        self._unread: list[ToTraining] = []
        self._revive_at_s = 0.0
        self._told_dead: messages.ProblemSeen | None = None  # goes to the next helper, for the job's status

    def send(self, message: Message) -> bool:
        """Sends a message that may be lost with the helper; returns whether the message was sent."""
        return self.client is not None and self.client.send(message)

    def send_kept(self, message: Message) -> None:
        """Sends a message, and keeps it for new helpers in place of an older message of its class."""
        self.keep(message)
        if self.client is not None and not self.client.send(message):
            self._unsent.add(type(message))

    def keep(self, message: Message) -> None:
        """Keeps a message for new helpers without sending it now."""
        self._kept[type(message)] = message

    def note_joined(self, joined: messages.Joined) -> None:
        """Notes the name under which the helper keeps its records, so that the next helper uses the same."""
        join = self._kept.get(messages.JoinJob)
        if join is not None and joined.helper_name >= 0:
            self.keep(msgspec.structs.replace(join, helper_name=joined.helper_name))

    def wait_for_schedule(self, timeout_s: float) -> NewSchedule | None:
        """Waits for a schedule while the optimizer is set up; the next `poll` does not return it."""
        try:
            kinds = (NewSchedule, messages.ClocksHeld)
            answer = self.client.wait_for(kinds, timeout_s) if self.client is not None else None
        except (OSError, ValueError) as error:
            self._warn(f"the helper process for the shared directory sent an invalid message: {error}", "helper sent")
            return None
        if isinstance(answer, messages.Refused):
            self._warn(answer.message)
        elif isinstance(answer, messages.ClocksHeld):
            self.put_back(answer)  # the job is switched off: no schedule will come
        return answer if isinstance(answer, NewSchedule) else None

    def put_back(self, message: ToTraining) -> None:
        """Makes the next `poll` return this message first."""
        self._unread.append(message)

    def poll(self) -> list[ToTraining]:
        """Returns the messages that have come for the schedule feed; starts a new helper if this one has died."""
        found, self._unread = self._unread, []
        client = self.client
        if client is None:
            return found
        message = client.poll()
        if message is not None:
            until_s = self._monotonic() + _READ_FOR_S
            while message is not None:
                if isinstance(message, messages.LogLine):
                    self._log_line(message.level, message.message)
                elif isinstance(message, messages.Refused):
                    self._warn(message.message)
                elif isinstance(message, messages.Joined):
                    self.note_joined(message)
                else:
                    found.append(message)
                message = client.poll() if self._monotonic() < until_s else None
        if client.lost:
            self._revive(client)
        elif self._unsent:
            self._unsent = {kind for kind, kept in self._kept.items() if kind in self._unsent and not client.send(kept)}
        return found

    def leave(self, goodbye: Message) -> None:
        """Tells the helper, or a new one in place of a dead one, how training ends, and closes the connection."""
        client = self.client
        try:
            if client is not None and not client.send(goodbye) and client.lost:
                self._revive_at_s = 0.0
                self._revive(client)
                client.send(goodbye)
        finally:
            self.close()

    def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.close()

    def forget(self) -> None:
        """Drops the connection in a forked child without closing it: it belongs to the parent."""
        self.client = None
        self._unread = []

    def _revive(self, client: HelperClient) -> None:
        now_s = self._monotonic()
        if now_s < self._revive_at_s:
            return
        self._revive_at_s = now_s + _REVIVE_EVERY_S
        text = f"the helper process for the shared directory has died{client.how_it_ended()}; another one is started"
        if self._warn(text, "helper died"):
            self._told_dead = messages.ProblemSeen(message=text)
        unsent = [*self._kept.values()]
        try:
            revived = client.revive(unsent)
        except OSError as error:  # the process cannot be started, for example because there are too many
            self._warn(f"no new helper process can be started: {error}", "helper start")
            return
        if revived:
            if self._told_dead is not None:
                client.send(self._told_dead)
            self._told_dead = None
            self._unsent = {type(message) for message in unsent}
            self._warn.forget("helper died")
