"""Whole jobs in virtual time, for the tests that play them."""

from collections.abc import Sequence
from dataclasses import replace

from pfo_fs.device.simulated.physics import node_physics
from pfo_fs.planner import Measurement
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Iteration, ModelTruth, Play
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.store import bodies

STAGES, MICROBATCHES = 4, 8
SETTINGS = PFOSettings(scheduler="ParetoScheduler", profile_steps=4)
KIND = NodeSettings(node_physics("kind"))


def late(played: Sequence[Iteration]) -> float:
    """By how much longer iterations took than at max clocks with the same noise, relative."""
    return sum(i.time_s for i in played) / sum(i.full_time_s for i in played) - 1


def saved(played: Sequence[Iteration]) -> float:
    """Energy that iterations saved, likewise."""
    return 1 - sum(i.energy_j for i in played) / sum(i.full_energy_j for i in played)


class LongTruth(ModelTruth):
    """Iterations of few micro-batches last as long as those of a real job: some seconds."""

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        known = super().measurement(stage, instruction, mhz)
        return replace(known, time_s=3 * known.time_s, energy_j=3 * known.energy_j)


def converged(play: Play, most: int = 400) -> list[Iteration]:
    """Plays until a plan has been measured and stays, and its turns are over."""
    played: list[Iteration] = []
    for iteration in play.run(most):
        played.append(iteration)
        current = play.folder.read(bodies.CurrentBody)
        if current is not None and current.converged and iteration.number == current.number:
            index = play.folder.read(bodies.IndexBody, number=current.number)
            if index is not None and iteration.step > index.until + 2:
                return played
    raise AssertionError(f"no plan was converged on within {most} iterations: {played[-1].status_text}")
