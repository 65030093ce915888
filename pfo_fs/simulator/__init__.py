"""Whole jobs in virtual time: thousands of iterations of a big pipeline in seconds."""

from pfo_fs.simulator.cluster import QUIET, Cluster, Episode, Nuisances, Played
from pfo_fs.simulator.job_generator import SimulatedJob, generated_job, varied_job
from pfo_fs.simulator.play import Iteration, Play
from pfo_fs.simulator.summary import Summary, summarize
from pfo_fs.simulator.traces import Trace, read_trace
from pfo_fs.simulator.truth import ModelTruth
from pfo_fs.simulator.variation import DrawnVariation, Mixture, read_step_factors

__all__ = [
    "QUIET",
    "Cluster",
    "DrawnVariation",
    "Episode",
    "Iteration",
    "Mixture",
    "ModelTruth",
    "Nuisances",
    "Play",
    "Played",
    "SimulatedJob",
    "Summary",
    "Trace",
    "generated_job",
    "read_step_factors",
    "read_trace",
    "summarize",
    "varied_job",
]
