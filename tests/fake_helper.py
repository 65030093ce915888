"""A helper client for tests: what the helper sends is put into it, and what it was sent can be read."""

from collections import deque

from pfo_fs.ipc import messages
from pfo_fs.ipc.messages import Message, NewSchedule, ToTraining


class FakeClient:
    def __init__(self) -> None:
        self.lost = False
        self.may_revive = True
        self.reads = True
        self.inbox: deque[ToTraining] = deque()
        self.sent: list[Message] = []
        self.told_on_revival: list[list[Message]] = []
        self.closed = False
        self.ended = ""

    def how_it_ended(self) -> str:
        return self.ended

    def poll(self) -> ToTraining | None:
        return self.inbox.popleft() if self.inbox and not self.lost else None

    def send(self, message: Message) -> bool:
        if self.lost or not self.reads:
            return False
        self.sent.append(message)
        return True

    def die(self) -> None:
        """The helper dies; what it has sent and was not read is gone, and so is what it knew."""
        self.lost = True
        self.inbox.clear()

    def revive(self, joining: list[Message]) -> bool:
        if self.may_revive:
            self.lost = False
            self.told_on_revival.append([*joining])
            joining[:] = [message for message in joining if not self.send(message)]
        return self.may_revive

    def wait_for(self, kind: type[NewSchedule], timeout_s: float) -> NewSchedule | messages.Refused | None:
        for message in self.inbox:
            if isinstance(message, kind):
                self.inbox.remove(message)
                return message
        return None

    def close(self) -> None:
        self.closed = True
