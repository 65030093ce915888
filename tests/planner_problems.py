"""Problems for the planner's tests: random profiles, small pipelines of every kind, and the published profiles."""

import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from pfo_fs.planner import Measurement, Pipeline, Problem, Profile, make_pipeline, read_profile

SMALL = [
    ("1f1b", 2, 2, None),
    ("1f1b", 3, 1, None),
    ("gpipe", 2, 2, None),
    ("interleaved", 2, 2, 1),
    ("interleaved", 4, 1, 2),
    ("zb-h1", 2, 1, None),
    ("zb-v", 2, 1, None),
    ("early-recomputation", 2, 2, None),
]
"""Schedule, stages, micro-batches and ranks of pipelines that are small enough to try everything."""


def random_profile(rng: random.Random, pipeline: Pipeline, clocks: int) -> Profile:
    """A profile in which slower clocks take longer and mostly less energy, as measured ones do."""
    measurements = {}
    for kind in sorted({(i.stage, i.name) for i in pipeline.instructions}):
        time_s = rng.uniform(0.02, 0.2)
        energy_j = time_s * rng.uniform(150, 400)
        rows = []
        for number in range(clocks):
            rows.append(Measurement(1400 - 15 * number, time_s, energy_j))
            time_s *= rng.uniform(1.005, 1.15)
            energy_j *= rng.uniform(0.85, 1.01)
        measurements[kind] = rows
    return Profile(measurements)


@st.composite
def small_problems(draw: st.DrawFn, clocks: int = 3) -> Problem:
    """A problem of every kind of schedule with at most a few thousand assignments."""
    schedule, stages, microbatches, ranks = draw(st.sampled_from(SMALL))
    delay_s = draw(st.sampled_from([0.0, 0.003]))
    pipeline = make_pipeline(schedule, stages, microbatches, num_ranks=ranks).with_delay(delay_s)
    rng = random.Random(draw(st.integers(0, 10**9)))
    if len(pipeline.instructions) > 8:
        clocks = 2
    profile = random_profile(rng, pipeline, clocks)
    return Problem(pipeline, profile, rng.uniform(20, 120), overhead_s=draw(st.sampled_from([0.0, 0.05])))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A problem of some tens of instructions and several clocks."""
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-v", "early-recomputation", "interleaved"]))
    ranks = draw(st.integers(1, 4))
    microbatches = ranks * draw(st.integers(1, 3))
    stages = 2 * ranks if schedule in ("zb-v", "interleaved") else ranks
    pipeline = make_pipeline(schedule, stages, microbatches, num_ranks=ranks)
    rng = random.Random(draw(st.integers(0, 10**9)))
    return Problem(pipeline, random_profile(rng, pipeline, rng.randint(2, 12)), rng.uniform(20, 120))


class Options(NamedTuple):
    """The clocks that plans may use for a node, by rising time, with times and effective energies."""

    frequencies_mhz: list[int]
    times_s: list[float]
    costs_j: list[float]


def options_of(problem: Problem) -> list[Options]:
    table = problem.table
    found = []
    for kind in table.kind:
        own = table.options[kind][table.options[kind] >= 0]
        clocks_mhz = [table.mhz[number] for number in own]
        found.append(Options(clocks_mhz, table.time_s[kind, own].tolist(), table.cost_j[kind, own].tolist()))
    return found


def measured_mhz(problem: Problem) -> list[list[int]]:
    """The clocks at which each node was measured, from the highest."""
    rows = (problem.wider or problem.profile).measurements
    return [[m.frequency_mhz for m in rows[i.stage, i.name]] for i in problem.pipeline.instructions]


def least_energy_by_trying_all(problem: Problem, deadline_s: float, straggler: bool = False) -> float:
    """The least energy of any assignment within the deadline, in J."""
    options = options_of(problem)
    every: Any = np.array(list(itertools.product(*(range(len(own.times_s)) for own in options)))).T
    times_s = np.stack([np.array(c.times_s)[row] for c, row in zip(options, every, strict=True)])
    effective_j = sum(np.array(c.costs_j)[row] for c, row in zip(options, every, strict=True))
    lengths_s = problem.paths.ends(times_s).ends_s.max(axis=0) + problem.overhead_s
    over_s = deadline_s if straggler else lengths_s
    return float(np.where(lengths_s <= deadline_s, effective_j + problem.waiting_power_w * over_s, np.inf).min())


def published(
    data: Path, microbatches: int, profile: str = "gpt3-175b+a100_sxm_bf16", schedule: str = "1f1b"
) -> Problem:
    """A problem with one of the Perseus artifact's profiles."""
    read = read_profile(data / "profiles" / f"{profile}.csv")
    power_w = 70.38 if "a40" in profile else 83.64
    return Problem(make_pipeline(schedule, read.num_stages, microbatches), read, power_w)
