"""Whole jobs in virtual time: thousands of iterations of a big pipeline in seconds."""

from pfo_fs.simulator.cluster import QUIET, Cluster, Episode, Nuisances, Played, SimulatedJob
from pfo_fs.simulator.play import Iteration, Play
from pfo_fs.simulator.summary import Summary, summarize
from pfo_fs.simulator.traces import Trace, read_trace
from pfo_fs.simulator.truth import ModelTruth

__all__ = [
    "QUIET",
    "Cluster",
    "Episode",
    "Iteration",
    "ModelTruth",
    "Nuisances",
    "Play",
    "Played",
    "SimulatedJob",
    "Summary",
    "Trace",
    "read_trace",
    "summarize",
]
