"""Which clock training needs now: as the page says, or by how far the device has come in what training launched."""

from pfo_fs.device import shared_page
from pfo_fs.device.clocks.clock_follower import ClockFollower
from pfo_fs.device.clocks.followed_plan import START, FollowedPlan
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.gpu.driver_errors import NEVER

_LEFT_OPEN_NS, _TIMES_LONGER = 10_000_000_000, 5
"""A step with one clock that lasts for ten seconds and for five times as long as the one before counts as left open."""
_LOOK_NS = 2_000_000
"""Where each step has one clock, the device's progress is looked at every 2 ms while it is within a step."""


class ClockRequests:
    def __init__(self, words: memoryview, latencies: LatencyModel, pause_ns: int = 0) -> None:
        self._words = words
        self._follower = ClockFollower(latencies, pause_ns)
        self._keeps_pauses = pause_ns > 0
        self._plans: dict[int, tuple[int, FollowedPlan]] = {}  # by entry in `TURNS`, with the version of the slot
        self._progress = words[shared_page.PROGRESS]
        self._turn, self._place, self._is_counted = 0, shared_page.IDLE, False  # of the last mark
        self._since_ns = self._lasted_ns = 0

    @property
    def follows(self) -> bool:
        """Whether clocks follow the device, not the calls of the training thread."""
        return bool(self._words[shared_page.FOLLOWS])

    def wanted(self, now_ns: int) -> int:
        """Returns the clock to request now, in MHz; 0 for the default clock."""
        words = self._words
        if not words[shared_page.FOLLOWS]:
            return words[shared_page.TARGET]
        progress = words[shared_page.PROGRESS]
        if words[shared_page.FOLLOWS] == shared_page.ONE_CLOCK:
            if progress != self._progress:
                if self._progress & shared_page.POINT_MASK != shared_page.IDLE:
                    self._lasted_ns = now_ns - self._since_ns
                self._progress, self._since_ns = progress, now_ns
            return self._of_step(progress & 0xFFFF_FFFF, now_ns)
        if progress != self._progress:
            self._progress = progress
            self._reached(progress & 0xFFFF_FFFF, now_ns)
        else:
            self._follower.look(now_ns)
        return self._follower.wanted(now_ns)

    def _of_step(self, progress: int, now_ns: int) -> int:
        """The clock of the step that the device is in; training may still change it.

        It is the default in a step that lasts for much longer than the one before: training may have left it open.
        """
        turn = progress >> shared_page.TURN_SHIFT
        is_idle = progress & shared_page.POINT_MASK == shared_page.IDLE
        if is_idle or turn == shared_page.REPLAYED or now_ns >= self._open_until_ns:
            return 0
        mhz = self._words[shared_page.TURNS + turn % shared_page.RECENT_TURNS] & 0xFFFF
        return mhz if mhz >= 2 * shared_page.PLAN_SLOTS else 0  # else it is the plan of a step that followed a schedule

    @property
    def _open_until_ns(self) -> int:
        return self._since_ns + max(_LEFT_OPEN_NS, _TIMES_LONGER * self._lasted_ns)

    def _reached(self, progress: int, now_ns: int) -> None:
        turn, code = progress >> shared_page.TURN_SHIFT, progress & shared_page.POINT_MASK
        if not self._is_of_step(turn, -1 if code == START else code):
            if self._follower.plan is not None:
                self._follower.reached(-1, shared_page.IDLE, self._follower.plan, now_ns)
            return
        turn = self._turn
        plan_at = self._words[shared_page.TURNS + turn % shared_page.RECENT_TURNS]
        if not 0 <= plan_at < 2 * shared_page.PLAN_SLOTS:
            return  # a step that has one clock
        slot = plan_at % shared_page.MIXED
        version = shared_page.plan_version(self._words, slot)
        kept = self._plans.get(plan_at)
        if kept is None or kept[0] != version:
            known = shared_page.read_plan(self._words, slot)
            plan = FollowedPlan(*known, before=self._follower.plan, keeps_pauses=self._keeps_pauses)
            kept = self._plans[plan_at] = version, plan
        self._follower.reached(turn, code, kept[1], now_ns)

    def _is_of_step(self, turn: int, place: int) -> bool:
        """Finds the turn of a mark; returns whether training has begun the step of this mark, and of all marks before.

        All replays of a CUDA graph write the same numbers: a place not above the last one begins the next step.
        """
        words, turns, ahead = self._words, shared_page.REPLAYED, 0
        is_replayed = turn == turns
        if is_replayed:
            turn = (self._turn + (place <= self._place)) % turns
            ahead = (turn - (words[shared_page.LAUNCHED] >> shared_page.TURN_SHIFT)) % turns
        elif self._is_counted:
            ahead = (self._turn - turn) % turns
        if 0 < ahead < turns // 2:
            words[shared_page.REPLAYS_DIFFER] = 1
        self._turn, self._place, self._is_counted = turn, place, is_replayed
        return not words[shared_page.REPLAYS_DIFFER]

    def waits(self) -> bool:
        """Returns whether training will ring the doorbell before the next request can come.

        Where clocks follow the device, training rings when it launches something while the clock process sleeps. So
        nothing can come before the doorbell if the device has done everything that was launched.
        """
        words = self._words
        if not words[shared_page.FOLLOWS]:
            return True
        return words[shared_page.LAUNCHED] == words[shared_page.PROGRESS] == self._progress

    def wake_ns(self, now_ns: int) -> int:
        """Returns when to ask for the clock again, unless training rings the doorbell first."""
        follows = self._words[shared_page.FOLLOWS]
        if not follows:
            return NEVER
        if follows == shared_page.ONE_CLOCK:
            if not self.waits():
                return now_ns + _LOOK_NS
            is_open = self._progress & shared_page.POINT_MASK != shared_page.IDLE and now_ns < self._open_until_ns
            return self._open_until_ns if is_open else NEVER
        due_ns = self._follower.due_ns
        return due_ns if self.waits() else min(due_ns, self._follower.next_look_ns(now_ns))
