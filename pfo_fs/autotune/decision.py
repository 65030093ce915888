"""The one rule by which plans are chosen, and the first low clocks, measured where ranks wait.

run    the plan with the largest expected saving among those that are late by more than the tolerance with a
       probability of at most 16 % (one standard error)
try    a plan that may save more since it uses clocks that are hardly known, if the possible gain is worth a window
hold   when there is none: the plan in force stays until the monitor finds that something has changed
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from statistics import NormalDist

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.curves import CAUTIOUS, HOPEFUL, View
from pfo_fs.autotune.job_layout import ClockPlan, Kind
from pfo_fs.autotune.judgements import Judgement
from pfo_fs.autotune.model import JobModel

TOLERANCE = 0.0008
"""Relative: iterations of a plan may be longer than the target by this much on average. If a job's iterations scatter
by 1 %, it takes 150 of them to measure so small a difference."""
SURE = 1.0
"""A plan counts as in time if it is late by less than the tolerance even when it is later than expected by this many
standard errors: 84 % of such plans are in time."""
LEAST_GAIN = 0.003
"""Relative to the energy at max clocks: another plan takes the place of the one in force if it saves this much
more. A smaller difference is within the error of what is believed of two plans."""
HORIZON = 300
"""What a trial may win counts for 300 iterations, or for as many as the job has run, if they are more: most jobs that
have run for n iterations run for n more (Lindy's law)."""
LOST_TIME = 0.0005
"""Relative: all trials together may take 0.05 % of the time of the iterations so far and those of the horizon. A trial
counts with the time that it is expected to take, and later with the time that it took."""
MOST_LATE_TRIAL = 0.015
"""Relative: a plan that may be later than this, by one standard error, is not tried: its steps would stand out in a
training log."""
LUCK = 0.05
"""A plan is as good as is hoped of it with about this probability (two standard errors in time, one in power)."""
_HOPES = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Shares of `HOPEFUL`: a less optimistic plan loses less if it is wrong. The first plan that may be tried counts."""
_EVERY = (1, 2, 4, 8, 16)
"""A trial changes the clocks of all stretches of an iteration, or of every second, fourth and so on: that tells all
about the clocks of which something is hoped."""
PARTS = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""A trial changes the clocks by all that is hoped for, or by half of it, a quarter and so on: a small step tells how
closely an instruction follows its clock, so that the next step can be larger."""
_REMEMBERED = 8
"""Of the plans that were measured, the latest 8 may run again: about as many as a job tries until it settles."""
_MOST_WINDOWS = 3
"""A trial goes on while it is neither surely in time nor surely late, for three windows at most. Each has
twice the steps of the window before, so that a plan that is far too late ends after few steps."""
TRIALS_IN_VAIN = 2
"""After two trials in a row that won nothing, only one hopeful plan is tried after each regular measurement of the plan
in force. These come ever more rarely, so that the number of trials grows with the logarithm of the iterations. A plan
that is expected to save more is tried until twice as many were in vain, so that a job settles in any case."""
_MOST_MADE = 4
"""A plan is made four times at most, each time for another end, until it is surely in time, and hardly early."""
_STEPS = (1.0, 0.95, 0.87, 0.75, 0.62, 0.5, 0.4)
"""Clocks that are measured, as shares of the highest one: a few, so that the ticks of an energy counter tell the power
of each. The curves tell of the clocks in between."""
_FIRST_STEPS = (2, 1)
"""Each kind of instruction is lowered in one stretch at least, by two steps, or by one, unless that is too late."""


@dataclass(frozen=True)
class Choice:
    """What to do.

    Attributes:
        judgement: What is believed of the plan.
        margin: By how much the time that the planner was asked for exceeds the target, relative.
        stays: The plan that runs if a trial is no better; None: there is no such plan yet.
        trial: Whether the plan is tried because it may save more than is expected of it.
        converged: Whether nothing is worth another window.
        in_vain: How many trials in a row have won nothing.
        windows: How many windows of the plan were measured before, if its trial goes on; else 0.
        steady: Whether plans have one clock per rank so far.
        note: Why, as text for the status.
    """

    plan: ClockPlan
    judgement: Judgement
    margin: float = 0.0
    stays: ClockPlan | None = None
    trial: bool = False
    converged: bool = False
    in_vain: int = 0
    windows: int = 0
    steady: bool = False
    note: str = ""


def in_time(judgement: Judgement) -> bool:
    """Returns whether a plan very likely keeps to its target."""
    return judgement.late + SURE * judgement.late_error <= TOLERANCE


def is_late(judgement: Judgement) -> bool:
    """Returns whether a plan very likely misses its target."""
    return judgement.late - SURE * judgement.late_error > TOLERANCE


def may_be_tried(judgement: Judgement) -> bool:
    """Returns whether a plan is very likely within the limit of a trial."""
    return judgement.late + SURE * judgement.late_error <= MOST_LATE_TRIAL


def trial_time(judgement: Judgement, iterations: int) -> float:
    """Returns how much more time a trial is expected to take, as a number of iterations; an early end counts as 0.

    All ranks follow the plan for `iterations` iterations, or half of the ranks for twice as many.
    """
    late, error = judgement.late, max(judgement.late_error, 1e-9)
    normal = NormalDist()
    return (error * normal.pdf(late / error) + late * normal.cdf(late / error)) * iterations


def choose(
    model: JobModel,
    last: Choice | None,
    iterations: int,
    tried: Sequence[ClockPlan],
    lost: float = 0.0,
    is_regular: bool = False,
) -> Choice:
    """Applies the rule.

    If an iteration is too short for a second clock to act surely within it, plans have one clock per rank at first: a
    window tells much of such plans, and hardly anything of clocks that change. Other plans follow when none of these is
    worth another window; never, if clocks do not follow the device.

    Args:
        model: What is believed.
        last: The choice whose plan is in force; None: none was made yet.
        iterations: Number of iterations so far.
        tried: The plans that were measured, the latest last.
        lost: Time that trials have taken so far, as a number of iterations.
        is_regular: Whether this follows a regular measurement of a plan that had settled.
    """
    if model.one_stretch and (last is None or last.steady):
        choice = _Decision(model, last, iterations, tried, lost, is_regular, steady=True).choice()
        if model.only_steady or not choice.converged:
            return replace(choice, steady=True)
    return _Decision(model, last, iterations, tried, lost, is_regular, steady=False).choice()


@dataclass(frozen=True)
class _Decision:
    """The rule for plans with any clocks, or with one clock per rank (`steady`); other attributes as for `choose`."""

    model: JobModel
    last: Choice | None
    iterations: int
    tried: Sequence[ClockPlan]
    lost: float
    is_regular: bool
    steady: bool

    def choice(self) -> Choice:
        """Returns what to do."""
        model, last = self.model, self.last
        run = self._known()
        least = model.judge(run).saved + LEAST_GAIN if run is not None else 0.0
        if last is not None and last.trial and last.plan in self.tried and last.windows + 1 < _MOST_WINDOWS:
            judgement = model.judge(last.plan) if model.knows(last.plan) else None
            is_open = judgement is not None and not in_time(judgement) and not is_late(judgement)
            if judgement is not None and is_open and judgement.saved > least and may_be_tried(judgement):
                return replace(last, judgement=judgement, windows=last.windows + 1, note="measuring a plan again")
        margin, sure, perhaps = self._planned(last.margin if last is not None else TOLERANCE / 2, least, run)
        note = ""
        if run is None or (sure is not None and model.judge(sure).saved > least):
            run, note = sure or model.max_clocks, "another plan saves more" if last is not None else ""
        judgement = model.judge(run)
        stays = run if run in self.tried else None
        in_vain = self._in_vain(run)
        choice = Choice(run, judgement, margin, stays or run, in_vain=in_vain, note=note)
        left = LOST_TIME * (HORIZON + self.iterations) - self.lost
        for likely in filter(None, (perhaps, model.plan(1 + TOLERANCE / 2, CAUTIOUS, run, self.steady))):
            expected = model.judge(likely)
            is_more = expected.saved > judgement.saved + LEAST_GAIN
            is_new = likely not in self.tried and in_vain < 2 * TRIALS_IN_VAIN
            if is_new and is_more and self._may_take(expected, left):
                note = "testing a plan that should be in time"
                return replace(choice, plan=likely, judgement=expected, stays=stays, trial=True, note=note)
        if stays is None:
            return choice
        # Half of the time that is left, so that there is some for the next trial.
        hoped = self._hopeful_plan(run, left / 2) if left > 0 and in_vain < TRIALS_IN_VAIN else None
        if hoped is not None:
            plan, more = hoped
            expected = model.judge(plan)
            energy = max(0.0, judgement.saved - expected.saved) * model.trial_iterations
            if LUCK * more * max(HORIZON, self.iterations) > energy:
                note = "trying clocks that may take less energy"
                return replace(choice, plan=plan, judgement=expected, trial=True, note=note)
        return replace(choice, converged=True)

    def _known(self) -> ClockPlan | None:
        """The plan that saves most among those that ran or were tried and may run on; None if none saves energy."""
        model, last = self.model, self.last
        if last is None:
            return None
        before = [last.stays, last.plan, *self.tried[-_REMEMBERED:]]
        # The plan that runs, or ran before a trial, stays unless it is surely late; one that was tried has to be in
        # time. A first plan has to be in time more likely than not: there is no plan to go back to.
        stays = last.stays if last.trial else last.plan
        first = last.plan if stays is None else None
        run: ClockPlan | None = None
        for plan in before:
            if plan is None or not model.knows(plan):
                continue
            judgement = model.judge(plan)
            may_stay = (plan is stays and not is_late(judgement)) or (plan is first and judgement.late <= TOLERANCE)
            if not in_time(judgement) and not may_stay:
                continue
            if run is None or judgement.saved > model.judge(run).saved + LEAST_GAIN:
                run = plan
        return None if run is None or model.judge(run).saved < 0 else run

    def _planned(
        self, margin: float, least_saved: float, near: ClockPlan | None
    ) -> tuple[float, ClockPlan | None, ClockPlan | None]:
        """Makes plans for the target, the first for a time longer by `margin`; plans below `least_saved` are of no use.

        Plans are made for fewer iterations than they are judged by, and with times that are not known exactly. So the
        time that the planner is asked for moves until the verdict agrees. Returns the margin at last, and the plan that
        saves most of those that very likely keep to the target, and of those that perhaps do.
        """
        model = self.model
        made: list[tuple[float, Judgement, ClockPlan]] = []
        # A plan can hardly be faster than max clocks, so the margin comes near that limit in steps.
        least_margin = min(0.0, model.full_s / model.target_s - 1)
        margin = margin if margin > least_margin else least_margin + TOLERANCE / 2
        for _ in range(_MOST_MADE):
            plan = model.plan(1 + margin, near=near, steady=self.steady)
            judgement = model.judge(plan)
            over = judgement.late + SURE * judgement.late_error - TOLERANCE
            made.append((margin, judgement, plan))
            # Where there is no room for an earlier end, only a measurement tells.
            is_unsure = judgement.late <= TOLERANCE < SURE * judgement.late_error and margin - over < least_margin
            if judgement.saved <= least_saved or -TOLERANCE / 2 <= over <= 0 or is_unsure:
                break
            margin = max(margin - over - TOLERANCE / 4, least_margin + (margin - least_margin) / 4)
        sure = max((each for each in made if in_time(each[1])), key=lambda each: each[1].saved, default=None)
        likely = max((each for each in made if not is_late(each[1])), key=lambda each: each[1].saved, default=None)
        return sure[0] if sure else margin, sure[2] if sure else None, likely[2] if likely else None

    def _in_vain(self, run: ClockPlan) -> int:
        """How many trials in a row have won nothing, if this plan is to run; a regular measurement allows one more."""
        last = self.last
        if last is None or last.stays is None or run != last.stays:
            return 0
        trials = last.in_vain + last.trial
        return min(trials, TRIALS_IN_VAIN - 1) if self.is_regular else trials

    def _may_take(self, expected: Judgement, most_time: float) -> bool:
        """Whether a plan may be tried, and is expected to take no more time than this, as a number of iterations."""
        return may_be_tried(expected) and trial_time(expected, self.model.trial_iterations) <= most_time

    def _hopeful_plan(self, run: ClockPlan, most_time: float) -> tuple[ClockPlan, float] | None:
        """Returns a plan that uses clocks which may be better than expected, and how much more it saves if they are.

        Trials alternate: the full change in few stretches, or part of the change in all, so that a trial takes no more
        than `most_time`. No plan is tried again. Neither way is better on all jobs: where a change of the clock takes
        long, few stretches tell nothing.
        """
        model, number = self.model, len(self.tried)
        for share in _HOPES:
            view = View(*(share * each for each in HOPEFUL))
            hoped = model.plan(1 + TOLERANCE / 2, view, run, self.steady)
            more = model.saved_if(hoped, view) - model.saved_if(run, view)
            if more <= LEAST_GAIN:
                continue
            few = (model.mixed(run, hoped, every, number + first) for every in _EVERY for first in range(every))
            steps = (model.nearer(run, hoped, part) for part in PARTS)
            for plan in chain(steps, few) if number % 2 else chain(few, steps):
                if plan != run and plan not in self.tried and self._may_take(model.judge(plan), most_time):
                    return plan, more
        return None


def probe_plan(model: JobModel, beliefs: Beliefs) -> ClockPlan:
    """Returns a first plan that makes no iteration longer even if instructions follow the clock as closely as they can.

    Kinds of instructions that have no slack at all are lowered once per iteration, those that take most of the time
    first, unless that is expected to be later than a trial may be.
    """
    whole = model.plan(1 + TOLERANCE / 2, CAUTIOUS, steady=model.one_stretch)
    # Iterations differ: where ranks have waited in the few measured ones, they may not wait in those that come.
    parts = (model.nearer(model.max_clocks, whole, part) for part in PARTS)
    cautious = next((plan for plan in parts if may_be_tried(model.judge(plan))), model.max_clocks)
    ladder = _ladders(model)
    instructions = model.problem.pipeline.instructions
    places: dict[Kind, list[int]] = {}
    for node, instruction in enumerate(instructions):
        places.setdefault((instruction.stage, instruction.name), []).append(node)
    rows = [
        [min(step for step in ladder[one.stage] if step >= mhz) for one, mhz in zip(instructions, clocks, strict=True)]
        for clocks in cautious.clocks_mhz
    ]
    top_s = {kind: next(iter(beliefs.samples.timed(kind).values())).time_s for kind in places}
    by_time = sorted(places, key=lambda kind: (-len(places[kind]) * top_s[kind], kind))
    for group, row in enumerate(rows):
        for kind in by_time:
            nodes, steps = places[kind], ladder[kind[0]]
            if any(row[node] < steps[0] for node in nodes):
                continue
            before, chosen = list(row), nodes[(len(nodes) // 2 + group) % len(nodes)]
            first, end = next((a, b) for a, b in pairwise(model.problem.pipeline.first_nodes) if a <= chosen < b)
            stretch = [node for node in range(first, end) if model.stretches[node] == model.stretches[chosen]]
            for number in _FIRST_STEPS:
                for node in stretch:
                    row[node] = min(before[node], steps[min(number, len(steps) - 1)])
                if model.judge(ClockPlan(tuple(map(tuple, rows)), cautious.group_of)).late <= MOST_LATE_TRIAL:
                    break
                row[:] = before
    return ClockPlan(tuple(map(tuple, rows)), cautious.group_of)


def _ladders(model: JobModel) -> dict[int, list[int]]:
    """For each stage, the clocks that are measured, highest first: those nearest to the steps."""
    known: dict[int, set[int]] = {}
    for (stage, _), rows in model.everything.profile.measurements.items():
        known[stage] = known.get(stage, {row.frequency_mhz for row in rows}) & {row.frequency_mhz for row in rows}
    ladders = {stage: [max(clocks)] for stage, clocks in known.items()}
    for stage, ladder in ladders.items():
        for share in _STEPS[1:]:
            lower = sorted(mhz for mhz in known[stage] if mhz < ladder[-1])
            ladder += [min(lower, key=lambda mhz: abs(mhz - share * ladder[0]))] if lower else []
    return ladders
