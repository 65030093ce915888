"""What the model of durations finds in windows that are drawn from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pfo_fs.autotune.load_rows import Ratios
from pfo_fs.autotune.loads import Found, LoadModel
from pfo_fs.autotune.windows import Window, kinds_of
from pfo_fs.planner import make_pipeline

Array = Any
PIPELINE = make_pipeline("1f1b", 2, 8)
KINDS, KIND_OF_NODE = kinds_of(PIPELINE)
TOP_MHZ, CLOCKS = 1410.0, np.arange(600.0, 1411.0, 15.0)
SLOPES = {(0, "backward"): 0.9, (0, "forward"): 0.7, (1, "backward"): 0.85, (1, "forward"): 0.6}
TIMES_S = {(0, "backward"): 0.2, (0, "forward"): 0.1, (1, "backward"): 0.21, (1, "forward"): 0.11}
LOGS = np.log([TIMES_S[kind] for kind in KINDS])


def true_log(kind: tuple[int, str], mhz: float) -> float:
    """Log r of a kind at a clock."""
    return SLOPES[kind] * math.log(TOP_MHZ / mhz)


def unsure() -> Ratios:
    """What is believed before anything was measured."""
    z = np.log(TOP_MHZ / CLOCKS)[None].repeat(len(KINDS), axis=0)
    return Ratios(CLOCKS, 0.7 * z, 0.4 * z, np.full(len(KINDS), TOP_MHZ))


def exact() -> Ratios:
    logs = np.array([[true_log(kind, mhz) for mhz in CLOCKS.tolist()] for kind in KINDS])
    return Ratios(CLOCKS, logs, np.full(logs.shape, 1e-4), np.full(len(KINDS), TOP_MHZ))


@dataclass(frozen=True)
class Job:
    """How durations of a job vary, as standard deviations of logarithms; `whole_steps`: all those of a step alike."""

    load: float = 0.0
    noise: float = 0.002
    of_step: float = 0.0
    whole_steps: float = 0.0
    slower: Mapping[int, float] | None = None

    def window(self, rng: Any, mhz: Array, iterations: int = 10, pipelines: int = 2) -> Window:
        """A window with a clock for each node."""
        shape = iterations, len(KIND_OF_NODE), pipelines
        micro_batch = np.array([instruction.microbatch for instruction in PIPELINE.instructions])
        loads = rng.normal(size=(iterations, micro_batch.max() + 1, pipelines))[:, micro_batch]
        steps = self.of_step * rng.normal(size=(iterations, len(KINDS), 1))[:, KIND_OF_NODE]
        steps = steps + self.whole_steps * rng.normal(size=(iterations, 1, 1))
        base = LOGS[KIND_OF_NODE]
        ratio = np.array([true_log(KINDS[kind], clock) for kind, clock in zip(KIND_OF_NODE, mhz, strict=True)])
        own = np.array([math.log((self.slower or {}).get(pipeline, 1.0)) for pipeline in range(pipelines)])
        logs = (base + ratio)[None, :, None] + own + self.load * loads + steps + self.noise * rng.normal(size=shape)
        clocks_mhz, spans_s = np.broadcast_to(mhz[:, None], shape).astype(float), np.full((iterations, pipelines), 5.0)
        return Window(  # of ranks whose clocks act at once
            tuple(range(pipelines)),
            tuple(range(iterations)),
            np.exp(logs),
            np.ones((iterations, 2, pipelines), bool),
            clocks_mhz,
            clocks_mhz.copy(),
            np.ones(shape, bool),
            np.zeros(shape),
            spans_s,
            spans_s,
            spans_s.mean(axis=0),
            np.zeros((iterations, 2, pipelines)),
        )


def highest() -> Array:
    return np.full(len(KIND_OF_NODE), TOP_MHZ)


def mixed(rng: Any, low_mhz: float = 1110.0) -> Array:
    """Every kind at the highest clock for some micro-batches, at a low one for others."""
    found = highest()
    for number in range(len(KINDS)):
        nodes = np.flatnonzero(number == KIND_OF_NODE)
        found[rng.choice(nodes, len(nodes) // 2, replace=False)] = low_mhz
    return found


def of_low_clocks(found: list[Found]) -> list[Found]:
    return [each for each in found if not each.is_highest]


def found_by(job: Job, seed: int, later: Job | None = None) -> tuple[LoadModel, list[Found]]:
    """What is found after a window at the highest clocks, and one in which half of them are low."""
    rng = np.random.default_rng(seed)
    model, first = LoadModel(PIPELINE), job.window(rng, highest())
    model.fit([first], unsure())
    return model, model.fit([first, (later or job).window(rng, mixed(rng))], unsure())


def off_by(model: LoadModel, each: Found) -> float:
    """By how much the logarithm of a ratio is wrong."""
    base_s = float(np.exp(model.first_bases[KINDS.index(each.kind)]))
    return math.log(each.time_s / base_s) - true_log(each.kind, each.mhz)


@pytest.mark.parametrize(
    "job",
    [
        Job(),
        Job(noise=0.02),
        Job(load=0.1, noise=0.003),
        Job(load=0.03, noise=0.01),
        Job(load=0.05, noise=0.004, of_step=0.02),
        Job(load=0.05, noise=0.004, slower={1: 1.2}),
    ],
    ids=["steady", "noisy", "loads", "loads and noise", "loads and steps", "a slow pipeline"],
)
def test_ratios_of_clocks_are_within_their_stated_errors(job: Job) -> None:
    fits = [found_by(job, seed) for seed in range(12)]
    off = np.array([off_by(model, each) / each.error for model, found in fits for each in of_low_clocks(found)])
    assert len(off) == 12 * len(KINDS)
    assert float(np.sqrt((off**2).mean())) < 1.6
    assert float(np.median(np.abs(off))) > 0.2, "errors are not stated far too large either"


def test_iterations_that_have_more_work_by_chance_are_not_taken_for_what_a_low_clock_makes() -> None:
    """With all instructions at a low clock, only earlier windows tell how much the work of iterations differs."""
    job, off = Job(load=0.02, noise=0.004, whole_steps=0.03), []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        model, first = LoadModel(PIPELINE), job.window(rng, highest(), 60, 1)
        model.fit([first], unsure())
        found = model.fit([first, job.window(rng, np.full(len(KIND_OF_NODE), 1110.0), 5, 1)], unsure())
        off += [off_by(model, each) / each.error for each in of_low_clocks(found)]
    assert float(np.sqrt((np.array(off) ** 2).mean())) < 1.6


@pytest.mark.parametrize("load", [0.0, 0.02, 0.1, 0.3])
def test_sensitivities_and_noises_are_found(load: float) -> None:
    rng = np.random.default_rng(2)
    model = LoadModel(PIPELINE)
    model.fit([Job(load=load, noise=0.005).window(rng, highest(), 40)], unsure())
    assert model.sensitivities == pytest.approx(load, rel=0.15, abs=0.004)
    assert model.noises == pytest.approx(0.005, rel=0.25)


def test_a_pipeline_that_is_slow_for_good_has_its_own_base_and_times_are_those_of_an_ordinary_one() -> None:
    model = LoadModel(PIPELINE)
    job = Job(load=0.05, slower={1: 1.3})
    found = model.fit([job.window(np.random.default_rng(4), highest(), pipelines=3)], unsure())
    for pipeline, slower in enumerate((1.0, 1.3, 1.0)):
        assert model.bases[pipeline] == pytest.approx(LOGS + math.log(slower), abs=0.02)
    assert {each.kind: each.time_s for each in found} == {
        kind: pytest.approx(time_s, rel=0.02) for kind, time_s in TIMES_S.items()
    }


def test_data_that_becomes_longer_for_all_does_not_make_a_low_clock_look_slower() -> None:
    job = Job(load=0.05, noise=0.003)
    model, found = found_by(job, 6, replace(job, slower={0: 1.1, 1: 1.1}))
    for each in of_low_clocks(found):
        assert off_by(model, each) == pytest.approx(0.0, abs=0.02)


def test_a_run_that_did_not_settle_tells_nothing_of_its_clock() -> None:
    rng = np.random.default_rng(7)
    model, job = LoadModel(PIPELINE), Job()
    first, window = job.window(rng, highest()), job.window(rng, mixed(rng))
    model.fit([first], unsure())
    window.at_clock[window.clocks_mhz < TOP_MHZ] = False
    assert of_low_clocks(model.fit([first, window], unsure())) == []


def test_iterations_at_low_clocks_are_told_as_they_would_be_at_the_highest_ones() -> None:
    rng = np.random.default_rng(8)
    model, job = LoadModel(PIPELINE), Job(noise=0.0)
    window = job.window(rng, mixed(rng))
    model.fit([window], exact())
    full_s = model.at_max_clocks_s(window, exact())
    expected = np.array([TIMES_S[KINDS[number]] for number in KIND_OF_NODE])
    assert full_s == pytest.approx(np.broadcast_to(expected[None, :, None], full_s.shape), rel=1e-6)


def test_runs_of_which_the_clock_is_unknown_leave_the_ratios_of_others_alone() -> None:
    """They took as long as at a low clock; the clock process believes in one near the highest."""
    rng = np.random.default_rng(3)
    kind = KINDS.index((0, "backward"))
    low_mhz = highest()
    low_mhz[kind == KIND_OF_NODE] = 900.0
    first, latest = Job().window(rng, highest()), Job().window(rng, low_mhz)
    unknown = np.flatnonzero(kind == KIND_OF_NODE)[::2]
    latest.clocks_mhz[:, unknown] = latest.ran_mhz[:, unknown] = 1350.0
    latest.or_mhz[:, unknown], latest.at_clock[:, unknown] = TOP_MHZ, False
    model = LoadModel(PIPELINE)
    model.fit([first], unsure())
    (found,) = of_low_clocks(model.fit([first, latest], unsure()))
    ratio = found.time_s / float(np.exp(model.first_bases[kind]))
    assert math.log(ratio) == pytest.approx(true_log((0, "backward"), 900), abs=0.01)
