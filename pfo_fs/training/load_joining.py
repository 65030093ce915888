"""All ranks agree on what clocks from loads need, or none has them."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence

from pfo_fs.errors import ConfigError, PfoError
from pfo_fs.guard import reason_of
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages
from pfo_fs.ipc.collectives import Collectives
from pfo_fs.loads.choice import CHANGE_S
from pfo_fs.loads.messages import TOKEN_BYTES, ReachDecider
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.switching_file import given_switching
from pfo_fs.training.joining import JoinedJob
from pfo_fs.training.load_decider import LoadDecider, Orders
from pfo_fs.training.parallel_dims import ParallelDims
from pfo_fs.training.step_loads import LoadLink, StepLoads


def join_loads(
    dims: ParallelDims,
    lost_time: float,
    orders: Orders,
    job: JoinedJob,
    problem: Callable[[str], None],
    link: HelperLink,
) -> StepLoads:
    """Returns what follows the steps of this rank; a collective call of all ranks.

    Args:
        dims: This process's place.
        lost_time: Relative: clocks may make training longer by this share on average.
        orders: What each rank of the pipeline runs in a step; empty without a pipeline.
        job: The job that all ranks have joined.
        problem: Called with the text of a problem, for the log and the status.
        link: The link to the host's helper.

    Raises:
        ConfigError: Clocks cannot come from loads, on all ranks; the message says on which rank, and why.
    """
    clocks = job.clocks
    mine = clocks.message
    if not mine and job.parts.switching.mode_now == "launch":
        mine = f"clocks cannot follow the device here ({job.parts.switching.note or 'switching=launch'})"
    if not 0 <= lost_time < 1:
        mine = f"lost_time is {lost_time:g}; it must be from 0 to below 1, such as 0.0005"
    if orders and len(orders) != dims.pp_degree:
        mine = f"orders= holds those of {len(orders)} ranks, the pipeline has {dims.pp_degree}"
    ranks = Collectives.of_job(dims.rank, dims.world_size)
    found = ranks.all_gather(((dims.dp_rank, dims.pp_rank), clocks.info.clocks_mhz, mine))
    _raise_first([why for _, _, why in found])
    if dims.dp_degree == 1:
        raise ConfigError(
            f"there is one {'pipeline' if orders else 'data-parallel rank'}, so none waits for another and no clock "
            "can be lowered for free"
        )
    offered = set.intersection(*(set(clocks_mhz) for _, clocks_mhz, _ in found))
    if not offered or any(max(clocks_mhz) != max(offered) for _, clocks_mhz, _ in found):
        raise ConfigError("the max clocks of the ranks' GPUs differ; clocks from loads need equal GPUs")

    def tell(state: LoadsKnown) -> None:
        link.send(messages.LoadsSeen(known=state.model_dump()))

    decider: LoadDecider | None = None
    why = ""
    token = ranks.from_rank_0(secrets.token_hex(TOKEN_BYTES))
    if dims.rank == 0:
        places, change_s = [place for place, *_ in found], _measured_change_s() or CHANGE_S
        try:
            decider = LoadDecider(places, sorted(offered, reverse=True), change_s, lost_time, orders, token)
        except Exception as error:  # noqa: BLE001  the other ranks must hear of it
            why = f"the process that decides clocks cannot be started: {reason_of(error)}"
    host = socket.gethostname()
    of_rank_0, addresses = ranks.from_rank_0((host, decider.addresses if decider is not None else []))
    if host != of_rank_0:  # a stranger may listen at this host's own address
        addresses = [
            address for address in addresses if address[0] != "localhost" and not address[0].startswith("127.")
        ]
    try:
        _raise_first(ranks.all_gather(why))
    except ConfigError:
        if decider is not None:
            decider.close()
        raise
    exchange = LoadLink(clocks, ReachDecider(dims.rank, sorted(offered), addresses, bytes.fromhex(token)))
    micro_batches = len({micro_batch for order in orders for _, _, micro_batch in order})
    return StepLoads(clocks.words, exchange, decider, problem, tell, micro_batches)


def _raise_first(problems: Sequence[str]) -> None:
    for rank, why in enumerate(problems):
        if why:
            raise ConfigError(f"rank {rank}: {why}")


def _measured_change_s() -> float:
    """The longest latency of a clock on this node, as the user's file says, in s; 0 if it is not known."""
    try:
        measured = given_switching()
    except PfoError:
        return 0.0
    return max(measured.latency_s.values(), default=0.0) if measured is not None else 0.0
