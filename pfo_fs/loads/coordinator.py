"""Rank 0's side of clocks from loads: takes the rows of all ranks at each step, and gives each its clock.

Ranks of one data-parallel place (a lane: a pipeline, or one rank or more of tensor parallelism) hold the same
micro-batches and get the same clock. Of the ranks that share a stage, the one that ends last counts.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pfo_fs.arrays import Array, np
from pfo_fs.loads.choice import LoadChoice, StepPowers
from pfo_fs.loads.durations import StepShape
from pfo_fs.loads.step_rows import UNKNOWN, StepRows
from pfo_fs.loads.turns import MOST_BLOCK_S, RECENT, Compared, ControlSteps, Figure, HeldClocks, Pace, Took, Waits
from pfo_fs.loads_known import LEAST_BALANCED, LastLoadStep, LoadsKnown
from pfo_fs.models import share_text

_LOWEST = 0.6
"""No clock is below this share of the highest one: measured GPUs (A100, A40, H100) take least energy at 0.55 to 0.65 of
it, and the ranks' own measurements may raise it."""
_KEPT = 64
"""A step is forgotten if a rank has not told its end after 64 further steps."""
_PAUSED = 0.1
"""A step that takes a tenth longer than its work and the usual rest has a pause in it, such as an evaluation."""
_RESTS = 16
"""How long a step usually takes beside the ranks' work: the median of the last 16 steps at the highest clocks."""

SHOWN_LANES = 32
"""At most this many lanes of a step are shown: a picture of more has no room for names, and records stay small."""


@dataclass
class _Open:
    """A step that has begun: its loads, and what ranks have told of its begin and its end.

    Attributes:
        allowed_mhz: The clock of each lane that its loads allow.
        asked_mhz: The clock of each lane that was asked for: the highest in a control step, otherwise `allowed_mhz`.
        period: The period of `ControlSteps` that it is in.
        work_s, mhz: The time of each rank's work in s, and its clock.
        begins_s, energies_j: When each rank has begun it, in s, and its energy counter then, in J.
    """

    step: int
    loads: Array
    allowed_mhz: Array
    asked_mhz: Array
    period: int
    work_s: Array
    mhz: Array
    begins_s: Array
    energies_j: Array


class LoadCoordinator:
    """Chooses the clocks of all ranks.

    Args:
        places: The lane of each rank, counted from 0, and its rank in the pipeline.
        offered_mhz, change_s, lost_time: As for `LoadChoice`.
        shape: What the ranks of a pipeline run in a step; without a pipeline, None.
        learned: What an earlier start of the job has learned (`LoadsKnown.learned`).
        holds: Whether clocks are power limits, which are changed rarely.

    Attributes:
        choice: What is known of durations, and which clocks follow from it.
    """

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        offered_mhz: Sequence[int],
        change_s: float,
        lost_time: float,
        shape: StepShape | None = None,
        learned: Mapping[str, Sequence[float]] | None = None,
        holds: bool = False,
    ) -> None:
        top = offered_mhz[0]
        self._offered = [mhz for mhz in offered_mhz if mhz >= _LOWEST * top]
        self._shape = shape or StepShape.alone()
        self._lanes, self._stages = (np.array(column) for column in zip(*places, strict=True))
        self._num_lanes = int(self._lanes.max()) + 1
        self.choice = LoadChoice(self._shape, self._offered, change_s, lost_time)
        if learned and learned.get("clocks_mhz") == self._offered:
            self.choice.begin_from(learned, self._num_lanes)
        self._powers, self._turns, self._pace = StepPowers(top), ControlSteps(MOST_BLOCK_S if holds else 0.0), Pace()
        self._held = HeldClocks() if holds else None
        self._times, self._energies = Compared(), Compared()
        self._waits = Waits(self._lanes, self._stages)
        self._rests_s: deque[float] = deque(maxlen=_RESTS)
        self._open: deque[_Open] = deque(maxlen=_KEPT)
        self._untaken: StepRows | None = None
        self._odd: int | None = None  # a rank whose loads have another form than those of most
        self._silent: deque[int] = deque(maxlen=_KEPT)  # of each of the last steps: a lane without loads, or -1
        self._lowered = 0
        self._time_s, self._energy_j, self._step_s = 0.0, 0.0, 1.0  # of all steps; the mean step
        self._last: LastLoadStep | None = None
        self._varied: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def receive(self, rows: Sequence[Sequence[float]], began_s: float = UNKNOWN) -> list[int]:
        """Takes a step's rows; returns the clock of each rank in MHz, 0 for the default clock. `learn` comes after it.

        Args:
            rows: `step_rows.make_row` of all ranks, in their order.
            began_s: When ranks whose rows do not tell it have begun the step, in s.

        Raises:
            ValueError: The ranks are not at the same step.
        """
        told = StepRows(rows)
        steps = told.steps
        if not (steps == steps[0]).all():
            raise ValueError(f"rank {int(steps.argmax())} is at step {steps.max():g}, another one at {steps.min():g}")
        self._untaken, self._odd = told, told.odd_rank
        loads = told.loads_of(self._lanes, self._shape.micro_batches)
        known = np.isfinite(loads).all(axis=(0, 2))
        self._silent.append(-1 if known.all() or not known.any() else int(known.argmin()))
        top, choice = self._offered[0], self.choice
        allowed = [top] * self._num_lanes
        if loads.shape[-1] == choice.durations.features and not self._waits.apart and not self._pace.checks:
            late_s: Array = np.zeros(self._num_lanes)
            begins_s = np.where(np.isfinite(told.begins_s), told.begins_s, began_s)
            if np.isfinite(begins_s).all():
                np.maximum.at(late_s, self._lanes, begins_s - begins_s.min())
            allowed = choice.choose(loads, late_s)
        if self._held is not None:
            allowed = self._held.take(allowed, top, self._step_s)
        mhz, period = self._turns.take(allowed, top, self._step_s)
        unknown: Array = np.full((4, len(rows)), np.nan)
        self._open.append(_Open(int(steps[0]), loads, np.array(allowed), np.array(mhz), period, *unknown))
        self._lowered += min(mhz) < top
        return [0 if mhz[lane] == top else mhz[lane] for lane in self._lanes]

    def learn(self) -> None:
        """Learns from the steps that the last rows say have ended; call it after each `receive`."""
        told, self._untaken = self._untaken, None
        if told is None:
            return
        for step in self._open:
            rank, place = np.nonzero(told.ended[:, :, 0] == step.step)
            step.work_s[rank], step.mhz[rank] = told.ended[rank, place, 1], np.abs(told.ended[rank, place, 2])
            begun = told.readings[:, 0] == step.step
            step.energies_j[begun], step.begins_s[begun] = told.readings[begun, 1], told.readings[begun, 2]
        # Each rank tells its ends in order: an end that is missing before the last complete step will not come.
        complete = [step.step for step in self._open if np.isfinite(step.work_s).all()]
        while complete and self._open[0].step <= complete[-1]:
            done = self._open[0]
            after = self._open[1] if len(self._open) > 1 and self._open[1].step == done.step + 1 else None
            if done.step == complete[-1] and not (after and np.isfinite(after.begins_s).all()):
                return  # it has ended when the next step has begun
            self._open.popleft()
            if done.step in complete:
                self._learn(done, after)

    def _learn(self, done: _Open, after: _Open | None) -> None:
        """Learns from a step that all ranks have ended, and from the begin of the one after it."""
        ends_s: Array = np.full((self._shape.ranks, self._num_lanes), -np.inf)
        np.maximum.at(ends_s, (self._stages, self._lanes), done.work_s)
        top, choice = self._offered[0], self.choice
        is_known = bool(np.isfinite(done.loads).all())
        if is_known and choice.durations.features not in (0, done.loads.shape[-1]):
            choice.forget()
        of_ranks = np.where(np.isfinite(done.mhz), done.mhz, top)
        mhz = np.bincount(self._lanes, of_ranks) / np.bincount(self._lanes)
        at_top_s = choice.at_top_s(done.loads, ends_s, mhz)
        next_s = done.begins_s * np.nan if after is None else after.begins_s
        cost_s = ends_s.max(axis=0) - at_top_s.max(axis=0)
        lost_s = self._waits.add(done.step, done.begins_s, next_s, done.work_s, cost_s)
        self._last = last_step(done.step, mhz, ends_s.max(axis=0), at_top_s.max(axis=0)) or self._last
        step_s = float(np.median(next_s - done.begins_s))
        if step_s > 0 and after is not None:
            energies_j = after.energies_j - done.energies_j
            self._time_s += step_s
            self._step_s = self._time_s / (choice.steps + 1)
            self._energy_j += float(np.nansum(energies_j))
            if is_known:
                self._compare(done, step_s, energies_j, mhz)
        choice.learn(done.loads, ends_s, mhz, lost_s)
        if self._energies.controls:
            choice.least_mhz = self._powers.least_mhz(self._offered, choice.durations.slope)
        if choice.explains and is_known:
            # Only what loads explain counts: neither noise nor a slow worker can be balanced.
            due_s = choice.durations.ends_s(done.loads).max(axis=0) / choice.durations.pace
            self._varied.append((float(due_s.max()), float(due_s.mean())))

    def _compare(self, done: _Open, step_s: float, energies_j: Array, mhz: Array) -> None:
        """Compares a step with control steps, if it is in a period of them, and with the steps before."""
        top, model = self._offered[0], self.choice.durations
        is_lowered = bool(done.asked_mhz.min() < top)
        work_s = float(done.work_s.max())
        if not is_lowered:
            self._rests_s.append(max(0.0, step_s - work_s))
        if not self._rests_s:
            return
        took = Took(step_s, median(self._rests_s), done.loads)
        slower = self._pace.add(took, model if self.choice.explains else None, is_lowered)
        self.choice.add_lost(slower * RECENT * step_s)
        if not self.choice.explains:
            return
        due_s, in_order = took.due_s(model), (self._stages, self._lanes)
        whole_s = work_s + took.rest_s + _PAUSED * due_s  # without a pause
        known = np.isfinite(energies_j) & (energies_j > 0)
        low = known & (done.allowed_mhz < top)[self._lanes]
        busy_s = model.ends_s(done.loads) * model.busy(done.loads)
        expected = self._powers.expected(due_s, busy_s[in_order][low])
        energy_j = math.nan
        if step_s <= whole_s:
            energy_j = float(energies_j[low].sum())
            worked_s = done.work_s * model.busy(done.loads, top / mhz - 1)[in_order]
            self._powers.add(energies_j, step_s, worked_s, mhz[self._lanes])
        self._times.add(min(step_s, whole_s), due_s, done.period, not is_lowered)
        self._energies.add(energy_j, expected, done.period, not is_lowered)

    @property
    def state(self) -> LoadsKnown:
        """What is known now."""
        choice = self.choice
        longest, mean = (sum(column) for column in zip(*self._varied, strict=True)) if self._varied else (0.0, 0.0)
        balanced = 1 - mean / longest if longest else 0.0
        explained = choice.durations.explained if choice.explains else None
        learned = choice.durations.learned
        energy = self._energies.figure(self._energy_j, self._step_s)
        time = self._times.figure(self._time_s)
        if self._lowered:
            found = _found(energy, time, self._times.controls)
        else:
            change = f"the {1000 * choice.change_s:.0f} ms in which a clock changes"
            found = f"no clock could be lowered: ranks with less work wait no longer than the margin and {change}"
        text, problem = choice.status_text(found), ""
        silent = [lane for lane in self._silent if lane >= 0]
        if self._waits.apart:
            problem = (
                f"ranks do not wait for each other in each step ({self._waits.seen}), so lower clocks would cost time: "
                "default clocks. Call step() equally often on all ranks, and once for all work until ranks wait"
            )
            text = f"{problem}. {found}"
        elif self._odd is not None:
            problem = f"rank {self._odd} gives loads of another form than most ranks: default clocks in such steps"
        elif silent:
            kind = "pipeline" if self._shape.ranks > 1 else "data-parallel rank"
            problem = f"{kind} {silent[-1]} gives no loads in some steps: default clocks in such steps"
        if problem and not self._waits.apart:
            count = f" ({len(silent)} of the last {len(self._silent)})" if silent else ""
            text += f". {problem[0].upper()}{problem[1:]}{count}"
        if balanced >= LEAST_BALANCED:
            text += f". Batches of equal work would make steps {100 * balanced:.0f} % shorter"
        return LoadsKnown.model_construct(
            text=text,
            problem=problem,
            steps=choice.steps,
            explained=explained,
            margin=choice.margin,
            saved=energy and -energy.more,
            saved_error=energy and energy.error,
            late=time and time.more,
            late_error=time and time.error,
            controls=self._times.controls,
            balanced=balanced,
            time_s=self._time_s,
            energy_j=self._energy_j,
            last=self._last,
            learned=learned and {"clocks_mhz": self._offered, **learned},
        )


def _found(energy: Figure | None, time: Figure | None, controls: int) -> str:
    """Returns what was measured against control steps, in words."""
    saved = "energy not known yet" if energy is None else f"saves {share_text(-energy.more, energy.error, 1)}"
    late = "time not known yet"
    if time is not None:
        late = f"{share_text(abs(time.more), time.error, 2)} {'slower' if time.more >= 0 else 'faster'}"
    return f"{saved}, {late}, against {controls:,} control steps"


def last_step(step: int, mhz: Array, work_s: Array, full_s: Array) -> LastLoadStep | None:
    """Returns what is shown of a step; None if the clock or a time of the work of a lane is not known."""
    if not np.isfinite(mhz + work_s + full_s).all():
        return None
    order = np.argsort(-full_s, kind="stable")
    lanes = order.tolist()
    if len(order) > SHOWN_LANES:
        chosen = order[np.linspace(0, len(order) - 1, SHOWN_LANES - 1).round().astype(int)]
        # The lane that ended last is not always the one with most work: it is shown in any case.
        lanes = [lane for lane in lanes if lane in {*chosen.tolist(), int(np.argmax(work_s))}]
    seconds = [[float(f"{values[lane]:.4g}") for lane in lanes] for values in (work_s, full_s)]
    clocks = [round(float(mhz[lane])) for lane in lanes]
    return LastLoadStep.model_construct(
        step=step, lanes=len(order), lane=lanes, mhz=clocks, work_s=seconds[0], full_s=seconds[1]
    )
