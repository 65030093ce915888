"""Whole jobs in virtual time: thousands of iterations of a big pipeline in seconds."""

from pfo_fs.simulator.cluster import QUIET, Cluster, Episode, ModelTruth, Nuisances, Played, ProfileTruth, Truth
from pfo_fs.simulator.play import Iteration, Play
from pfo_fs.simulator.summary import EpisodeSummary, Summary, summarize

__all__ = [
    "QUIET",
    "Cluster",
    "Episode",
    "EpisodeSummary",
    "Iteration",
    "ModelTruth",
    "Nuisances",
    "Play",
    "Played",
    "ProfileTruth",
    "Summary",
    "Truth",
    "summarize",
]
