"""Whole jobs in virtual time, for the tests that play them."""

from dataclasses import replace

from pfo_fs.planner import Measurement
from pfo_fs.simulator import Iteration, ModelTruth, Play
from pfo_fs.store import bodies


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
