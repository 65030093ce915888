"""Clocks from loads in the training process: how all ranks agree to have them, and the messages of each step."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.gpu.interface import POWER_CAP
from pfo_fs.device.shared_page import RECENT_TURNS, decided_mhz
from pfo_fs.errors import ConfigError
from pfo_fs.guard import reason_of
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages
from pfo_fs.ipc.collectives import Collectives, Problem, problem_of, raise_first
from pfo_fs.ipc.system_calls import held_send
from pfo_fs.loads.choice import CHANGE_S
from pfo_fs.loads.messages import TOKEN_BYTES, ReachDecider, StepBegun, packed
from pfo_fs.loads.step_rows import MOST_ENDED, checked_load
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.joining import JoinedJob
from pfo_fs.training.load_decider import LoadDecider, Orders
from pfo_fs.training.parallel_dims import ParallelDims
from pfo_fs.training.schedule_feed import ScheduleSwitcher

_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_TOLD_BYTES = 4096
_MOST_GIVEN = RECENT_TURNS - 2
"""Loads are taken for at most this many steps at once: the page has room for their clocks."""
_SAVE_EVERY = 1.5
"""What was learned is saved when 1.5 times as many steps have run as at the last time: rarely in long jobs."""
_TELL_EVERY_S = 2.0
"""After this time, in s, the helper is told the state of the loads again, for people to read."""


class StepLoads:
    """Tells one rank's clock process of each step; the clock process exchanges loads with the other ranks.

    Args:
        reach: How the clock process reaches the process that decides.
        decider: On rank 0, the process that decides; None on other ranks.
        tell: On rank 0, called with what is known, from time to time.
        micro_batches: In a pipeline, the number of micro-batches of a step; 0 without a pipeline.
    """

    def __init__(
        self,
        clocks: ClockProcess,
        reach: ReachDecider,
        decider: LoadDecider | None,
        warn: Callable[[str], object],
        tell: Callable[[LoadsKnown], object] = lambda state: None,
        micro_batches: int = 0,
    ) -> None:
        self._words, self._fd, self._file, self._decider = clocks.words, clocks.loads_fd, clocks.loads_file, decider
        self._is_capped = clocks.info.clock_backend == POWER_CAP
        self.warn, self._tell, self._micro_batches = warn, tell, micro_batches
        self._given: Sequence[Sequence[object] | None] = (None,)
        self._posted = -1
        self._works, self._has_failed, self._has_missed = True, False, False
        self._said: set[str] = set()
        self._told_at_s = time.monotonic()
        self._send(reach)

    @property
    def state(self) -> LoadsKnown | None:
        """On rank 0, what is known; None elsewhere, and before the first step."""
        return None if self._decider is None else self._decider.state

    def give(self, loads: Sequence[Sequence[object] | None]) -> None:
        """Sets the loads of the step that begins next and of the steps after it; None for a step without loads."""
        self._given = loads[:_MOST_GIVEN]

    def begin(self, tracker: InstructionTracker, step: int, switcher: ScheduleSwitcher) -> None:
        """Begins a step at its clock, if that is known; the clock may still change while the step runs."""
        now_s = time.monotonic()
        follows = not switcher.is_suspended and tracker.follows_device
        mhz = decided_mhz(self._words, step) if follows else 0
        if self._is_capped and not switcher.is_suspended:
            mhz = decided_mhz(self._words, step - 1)  # power limits change rarely: one step late is soon enough
        number, until = switcher.measured_number, switcher.measured_until
        if not tracker.step_begin(step, number, mhz, until=until, turn=switcher.turn(step)):
            mhz = -1
        times = tracker.step_times
        ended = [times.popleft() for _ in range(min(MOST_ENDED, len(times)))]
        turn = tracker.turn if follows else -1
        given, self._given = self._given, (None,)
        last = step + len(given) - 1
        if self._posted >= last:
            self._send(StepBegun(-1, step, turn, mhz, now_s, (), ended))
        while self._posted < last:
            self._posted = max(self._posted + 1, step)
            load = self._load_of(given[self._posted - step])
            self._send(StepBegun(self._posted, step, turn, mhz, now_s, load, ended))
            ended = []
        if now_s - self._told_at_s > _TELL_EVERY_S or not (self._works or self._has_failed):
            self._told_at_s = now_s
            self._tell_people()

    def _send(self, message: ReachDecider | StepBegun) -> None:
        """Tells the clock process; does not wait, and keeps the interpreter lock."""
        packet = packed(message)
        if not self._file.seems_open() or held_send(self._fd, packet, len(packet), _AT_ONCE) != len(packet):
            self._works = False  # the exchange has ended, or no longer reads

    def _load_of(self, loads: Sequence[object] | None) -> tuple[float, ...]:
        """Returns the load of a step; if it has none, warns once why and returns an empty load."""
        if loads is None and (self._micro_batches or self._has_missed):
            return ()  # another rank of the pipeline may know it; or there was a warning
        try:
            return checked_load(loads, self._micro_batches)
        except ConfigError as error:
            if not self._has_missed:
                self.misread(f"step {self._posted} has no load that can be used ({error}): default clocks")
            return ()

    def misread(self, why: str) -> None:
        """Warns of loads that cannot be used; steps without a load cause no warning from then on."""
        self._has_missed = True
        self.warn(f"clocks from loads: {why}")

    def _tell_people(self) -> None:
        """Passes on warnings of the clock process and of the deciding one, and tells the helper what is known."""
        with suppress(OSError):
            if self._file.is_open() and (told := os.read(self._fd, _TOLD_BYTES).decode("utf-8", "replace")):
                self.warn(f"clocks from loads: {told}; default clocks meanwhile")
        if not self._works and not self._has_failed:
            self._has_failed = True
            self.warn("clocks from loads: the ranks cannot exchange loads any more; default clocks from here on")
        if self._decider is not None and (state := self._decider.state) is not None:
            if state.problem and state.problem not in self._said:
                self._said.add(state.problem)
                self.warn(f"clocks from loads: {state.problem}")
            self._tell(state)

    def close(self) -> None:
        self._file.close()
        if self._decider is not None:
            self._decider.close()


def join_loads(
    dims: ParallelDims,
    lost_time: float,
    orders: Orders,
    profile_path: str | None,
    job: JoinedJob,
    problem: Callable[[str], None],
    link: HelperLink,
) -> StepLoads:
    """Returns the `StepLoads` of this rank; a collective call of all ranks.

    Args:
        lost_time: Relative: clocks may make training longer by this share on average.
        orders: What each rank of the pipeline runs in a step; empty without a pipeline.
        profile_path: The file that keeps what was learned for the next start of the job.

    Raises:
        ConfigError: On all ranks if one of them cannot have clocks from loads; the message says which one, and why.
    """
    clocks = job.clocks
    mine = clocks.message
    is_capped = clocks.info.clock_backend == POWER_CAP
    if not mine and job.parts.switching.mode == "launch" and not is_capped:
        mine = f"clocks cannot follow the device here ({job.parts.switching.note or 'switching=launch'})"
    if not 0 <= lost_time < 1:
        mine = f"lost_time is {lost_time:g}; it must be from 0 to below 1, such as 0.0005"
    if orders and len(orders) != dims.pp_degree:
        mine = f"orders= holds those of {len(orders)} ranks, the pipeline has {dims.pp_degree}"
    ranks = Collectives.of_job(dims.rank, dims.world_size)
    told = ranks.all_gather(((dims.dp_rank, dims.pp_rank), clocks.info.clocks_mhz, is_capped, _problem(mine)))
    raise_first([wrong for *_, wrong in told], strict=True)
    if dims.dp_degree == 1:
        raise ConfigError(
            f"there is one {'pipeline' if orders else 'data-parallel rank'}, so none waits for another and no clock "
            "can be lowered for free"
        )
    offered = set.intersection(*(set(clocks_mhz) for _, clocks_mhz, *_ in told))
    if not offered or any(max(clocks_mhz) != max(offered) for _, clocks_mhz, *_ in told):
        raise ConfigError("the max clocks of the ranks' GPUs differ; clocks from loads need equal GPUs")

    saved = 0
    learned = None if profile_path is None or dims.rank else _learned(profile_path, link, problem)

    def tell(state: LoadsKnown) -> None:
        nonlocal saved
        link.send(messages.LoadsSeen(known=state.model_dump(exclude={"learned"})))
        if learned is not None and profile_path is not None and state.learned and state.steps > _SAVE_EVERY * saved:
            saved, content = state.steps, state.model_dump_json().encode()
            link.send(messages.SaveProfile(path=profile_path, content=content, replace=True))

    decider: LoadDecider | None = None
    why = ""
    token = ranks.from_rank_0(secrets.token_hex(TOKEN_BYTES))
    if dims.rank == 0:
        places = [place for place, *_ in told]
        holds = any(capped for *_, capped, _ in told)
        change_s = 0.0 if holds else CHANGE_S
        try:
            from_top = sorted(offered, reverse=True)
            decider = LoadDecider(places, from_top, change_s, lost_time, orders, token, learned, holds)
        except Exception as error:  # noqa: BLE001  the other ranks must hear of it
            why = f"the process that decides clocks cannot be started: {reason_of(error)}"
    host = socket.gethostname()
    of_rank_0, addresses = ranks.from_rank_0((host, decider.addresses if decider is not None else []))
    if host != of_rank_0:  # a stranger may listen at this host's own address
        addresses = [
            address for address in addresses if address[0] != "localhost" and not address[0].startswith("127.")
        ]
    try:
        raise_first(ranks.all_gather(_problem(why)), strict=True)
    except ConfigError:
        if decider is not None:
            decider.close()
        raise
    reach = ReachDecider(dims.rank, sorted(offered), addresses, bytes.fromhex(token))
    micro_batches = len({micro_batch for order in orders for _, _, micro_batch in order})
    return StepLoads(clocks, reach, decider, problem, tell, micro_batches)


def _learned(path: str, link: HelperLink, problem: Callable[[str], None]) -> dict[str, list[float]] | None:
    """Returns what a profile holds; empty if there is none; None, after a warning, if the file is something else."""
    try:
        assert link.client is not None
        read = link.client.request(messages.ReadProfile(path=path), messages.ProfileRead, timeout_s=15.0)
        learned = LoadsKnown.model_validate_json(read.content).learned if read.profile == "read" else {}
        if read.profile == "none" or learned:
            return learned
        why = "it holds nothing that was learned"
    except Exception as error:  # noqa: BLE001  it is learned anew
        why = reason_of(error)
    problem(f"clocks from loads: {path} is neither used nor written: {why}")
    return None


def _problem(why: str) -> Problem | None:
    return problem_of(ConfigError(why), fatal=True) if why else None
