"""Whole jobs in virtual time: thousands of iterations of a big pipeline in seconds."""

from pfo_fs.simulator.cluster import QUIET, Cluster, Episode, ModelTruth, Nuisances, Played, ProfileTruth, Truth
from pfo_fs.simulator.play import Iteration, Play

__all__ = [
    "QUIET",
    "Cluster",
    "Episode",
    "Iteration",
    "ModelTruth",
    "Nuisances",
    "Play",
    "Played",
    "ProfileTruth",
    "Truth",
]
