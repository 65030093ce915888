"""From an unknown job to its deployed plan, and through a straggler, over many seeds of noise.

    python benchmarks/closed_loop.py                    # 8 x 96 on A100s, 20 seeds; 16 pipelines with a straggler
    python benchmarks/closed_loop.py --seeds 3 --part unknown

The deployed plan is held against one that the same planner makes from the noise-free profile, with the same clocks on
offer, the true delays and the same price of a clock change; and against one for which clock changes cost nothing. Both
are evaluated on the same cluster without noise, in which clocks take 10 ms to change.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pfo_fs.device.simulated.physics import gpu_model
from pfo_fs.planner import Plan, Planner, Problem, Profile, SwitchCosts, all_maximum, make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import QUIET, Cluster, Episode, ModelTruth, Nuisances, Play, summarize
from pfo_fs.simulator.summary import Summary

STAGES, MICROBATCHES = 8, 96


def oracle(truth: ModelTruth, switch_time_s: float) -> Plan:
    """The plan for no slowdown, made from the true times and powers."""
    pipeline = make_pipeline("1f1b", STAGES, MICROBATCHES)
    kinds = sorted({(i.stage, i.name) for i in pipeline.instructions})
    profile = Profile({kind: [truth.measurement(*kind, mhz) for mhz in truth.clocks_mhz] for kind in kinds})
    problem = Problem(
        pipeline.with_delay(Nuisances().delay_s),
        profile,
        truth.blocking_power_w,
        switch_costs=SwitchCosts(switch_time_s),
    )
    planner = Planner(problem)
    full_s = all_maximum(problem).iteration_time_s
    if planner.fastest_s > full_s:  # high clocks that a board's power limit makes alike: every plan has changes
        return oracle(truth, switch_time_s / 10 if switch_time_s > 1e-5 else 0.0)
    return planner.at(deadline=full_s)


def evaluated(truth: ModelTruth, plan: Plan) -> tuple[float, float]:
    """Time and energy of an iteration of a plan without noise, in s and J."""
    odd = Nuisances()
    quiet = replace(QUIET, switch_s=odd.switch_s, delay_s=odd.delay_s, overhead_s=odd.overhead_s)
    cluster = Cluster(plan.problem.pipeline, truth, quiet)
    played = cluster.run(cluster.clocks_of([{s.rank: s.frequencies for s in plan.schedules()}]))
    return played.time_s, played.energy_j


def play(truth: ModelTruth, seed: int, iterations: int, pipelines: int, episodes: list[Episode]) -> Summary:
    cluster = Cluster(
        make_pipeline("1f1b", STAGES, MICROBATCHES), truth, pipelines=pipelines, episodes=episodes, seed=seed
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        job = Play(cluster, Path(folder) / "pfo", PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
        return summarize(job, list(job.run(iterations)))


def unknown(gpu: str, seeds: int, iterations: int) -> dict[str, object]:
    """Seeds of one job."""
    truth = ModelTruth(gpu_model(gpu), STAGES)
    same_j, free_j = (evaluated(truth, oracle(truth, switch_s))[1] for switch_s in (0.001, 0.0))
    rows = []
    for seed in range(seeds):
        began = time.perf_counter()
        summary = play(truth, seed, iterations, 1, [])
        rows.append(
            {
                "seed": seed,
                "deployed_at": summary.deployed_at,
                "settled_at": summary.settled_at,
                "slowdown": summary.slowdown,
                "saved": summary.energy_saved,
                "above_same": summary.plan_energy_j / same_j - 1,
                "above_free": summary.plan_energy_j / free_j - 1,
                "seconds": time.perf_counter() - began,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    full_j = summary.full_energy_j
    result = {
        "gpu": gpu,
        "settled_at_worst": max(row["settled_at"] or iterations for row in rows),
        "slowdown_mean": fmean(row["slowdown"] for row in rows),
        "slowdown_worst": max(row["slowdown"] for row in rows),
        "saved_mean": fmean(row["saved"] for row in rows),
        "oracle_saved_same_price": 1 - same_j / full_j,
        "oracle_saved_free_changes": 1 - free_j / full_j,
        "energy_above_same_mean": fmean(row["above_same"] for row in rows),
        "energy_above_same_worst": max(row["above_same"] for row in rows),
        "energy_above_free_mean": fmean(row["above_free"] for row in rows),
    }
    print(json.dumps(result, indent=1))
    return result


def straggler(gpu: str, iterations: int, pipelines: int = 16, slowdown: float = 1.2, length: int = 400) -> None:
    """Of many pipelines one is slow for a while; what is saved meanwhile, against a scheduler that knew it in advance.

    The oracle plans with the truth and changes plans at the right iteration, and clock changes cost it nothing. All
    is evaluated without noise, as energy of an iteration: before the straggler is noticed, and with what is in force.
    """
    truth, first = ModelTruth(gpu_model(gpu), STAGES), 150
    episode = Episode(slowdown, first, first + length, 5)
    cluster = Cluster(
        make_pipeline("1f1b", STAGES, MICROBATCHES), truth, pipelines=pipelines, episodes=[episode], seed=0
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        job = Play(cluster, Path(folder) / "pfo", PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
        played = list(job.run(iterations))
        summary = summarize(job, played)
        numbers = {i.number for i in played if episode.first <= i.step < episode.last}
        made = {number: job.schedules_of(number) for number in numbers}
    odd = Nuisances()
    quiet = Cluster(
        cluster.pipeline,
        truth,
        replace(QUIET, switch_s=odd.switch_s, delay_s=odd.delay_s, overhead_s=odd.overhead_s),
        pipelines,
    )
    slow = [slowdown if pipeline == episode.pipeline else 1.0 for pipeline in range(pipelines)]
    energies = {number: quiet.iterate(quiet.clocks_of(each), slow).energy_j for number, each in made.items()}
    usual = oracle(truth, 0.0)
    waiting = Planner(usual.problem).at(straggler=slowdown * usual.iteration_time_s)
    perfect = [{s.rank: s.frequencies for s in (usual if slowdown_ > 1 else waiting).schedules()} for slowdown_ in slow]
    oracle_j = quiet.iterate(quiet.clocks_of(perfect), slow).energy_j
    during = [i for i in played if episode.first <= i.step < episode.last]
    unaware_j = energies[during[0].number]
    saved_j = sum(unaware_j - energies[i.number] for i in during)
    (followed,) = summary.episodes
    result = {
        "followed_after": followed.followed_after,
        "back_after": followed.back_after,
        "saved_over_the_episode": saved_j / (unaware_j * len(during)),
        "of_what_an_oracle_saves": saved_j / ((unaware_j - oracle_j) * len(during)),
    }
    print(json.dumps(result, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["all", "unknown", "straggler"], default="all")
    parser.add_argument("--gpu", default="A100", choices=["A100", "A40"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=150)
    args = parser.parse_args()
    if args.part != "straggler":
        unknown(args.gpu, args.seeds, args.iterations)
    if args.part != "unknown":
        straggler(args.gpu, 600)


if __name__ == "__main__":
    main()
