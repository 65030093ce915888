"""Computes time and energy of steps and instructions from marks and readings of an energy counter.

Energy counters of GPUs tick every 20 to 100 ms, and reading one takes time, so instructions are shorter than the time
between two readings. The energy of an instruction is interpolated linearly between readings: within a tick, energy is
divided in proportion to time. This mixes the powers of instructions that share a tick; `instruction_power.py`
separates the powers by a fit over many ticks, and gives the standard error of each power.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pfo_fs.device import shared_page
from pfo_fs.device.metering.energy_curve import EnergyCurve, WindowTicks
from pfo_fs.device.metering.instruction_power import Power, PowerFit
from pfo_fs.ipc.messages import MeasurementReport, SwitchingReport

_INSTRUCTIONS_BETWEEN_YIELDS, _MARKS_BETWEEN_YIELDS = 16, 32
"""After this many, which take some 50 us, the caller may do more urgent work."""
_MAX_INSTRUCTIONS_OF_A_STEP = 65_535
_MAX_PACE = 64
_MOST_TIMES = 8
"""A result covers at most eight times as many steps as were asked for."""


class EndedStep(NamedTuple):
    """A step whose marks are complete, and whose energy may not be known yet.

    Attributes:
        number: The number of the schedule in force; `shared_page.NO_NUMBER` if training has marked no number yet.
        until: The step before which the result under this number ends; 0: it ends after the number of steps asked for.
        usable: Whether the step ran as scheduled and its instructions were marked.
        instructions: (place in the name table, begin, end), ordered by end.
    """

    step: int
    number: int
    until: int
    begin_ns: int
    end_ns: int
    last_end_ns: int
    usable: bool
    instructions: list[tuple[int, int, int]]


class Step(NamedTuple):
    """One complete step.

    Attributes:
        energy_j: Energy of the step in J, over `time_s`; 0 if it is not known.
        span_s: Time from the step's begin to the end of its last instruction, without later work of the optimizer.
        times: Duration of each instruction in seconds, by name, in the order of their begins.
        energies: Energy of each instruction in joules, in the same form.
        clocks: The mean clock of each instruction in MHz, by the likely times at which clocks act; 0: the default.
    """

    step: int
    number: int
    time_s: float
    energy_j: float
    span_s: float
    times: dict[str, list[float]]
    energies: dict[str, list[float]]
    clocks: dict[str, list[int]]


class Measured(NamedTuple):
    """What was measured while schedule `number` was in force."""

    number: int
    first_step: int
    steps: list[Step]
    powers: list[Power]

    def report(self, rank: int, switching: SwitchingReport | None = None) -> MeasurementReport:
        """Returns the message, in Zeus's shape: `time_breakdown["forward"][i]` lists the forwards of iteration i."""
        names = sorted({name for step in self.steps for name in step.times})
        result: dict[str, object] = {
            "rank": rank,
            "iter_time": [_short(step.time_s) for step in self.steps],
            "iter_energy": [_short(step.energy_j) for step in self.steps],
            "iter_span": [_short(step.span_s) for step in self.steps],
            "iter_step": [step.step for step in self.steps],
            "time_breakdown": {
                name: [[*map(_short, step.times.get(name, []))] for step in self.steps] for name in names
            },
            "energy_breakdown": {
                name: [[*map(_short, step.energies.get(name, []))] for step in self.steps] for name in names
            },
            "clock_breakdown": {name: [step.clocks.get(name, []) for step in self.steps] for name in names},
            "powers": [power._asdict() for power in self.powers],
        }
        if switching is not None:
            result["switching"] = switching
        return MeasurementReport(number=self.number, first_step=self.first_step, result=result)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


class MarkedSteps:
    """Collects the steps of one rank from its marks.

    Attributes:
        ended: Complete steps, oldest first; the reader removes them.
    """

    def __init__(self) -> None:
        self.ended: deque[EndedStep] = deque()
        self._number, self._until = shared_page.NO_NUMBER, 0
        self._step = -1
        self._begin_ns = -1  # -1: between steps
        self._last_end_ns = 0
        self._open: list[tuple[int, int]] = []
        self._instructions: list[tuple[int, int, int]] = []

    def take(self, marks: list[tuple[int, int]]) -> Iterator[None]:
        """Adds the next marks, (first word, code) each.

        Yields:
            None every 32 marks, so that the caller can do more urgent work.
        """
        for position, (first, code) in enumerate(marks):
            if position % _MARKS_BETWEEN_YIELDS == 0:
                yield None
            kind, value = code & 0xFF, code >> 8
            if kind == shared_page.BEGIN:
                if len(self._open) < _MAX_INSTRUCTIONS_OF_A_STEP:
                    self._open.append((value, first))
            elif kind == shared_page.END:
                self._end_instruction(value, first)
            elif kind == shared_page.STEP_BEGIN:
                self._step, self._begin_ns, self._last_end_ns = value, first, 0
                self._drop_instructions()
            elif kind == shared_page.NUMBER:
                self._number, self._until = first, value
            elif kind == shared_page.LAST_END:
                self._last_end_ns = first
            elif kind == shared_page.STEP_END and self._begin_ns >= 0:
                self._end_step(first, usable=value == 0)

    def lost(self) -> None:
        """Drops the step whose marks are being read: marks were lost, so it cannot be complete."""
        self._begin_ns = -1
        self._drop_instructions()

    def _drop_instructions(self) -> None:
        self._open.clear()
        self._instructions = []

    def _end_instruction(self, place: int, t_ns: int) -> None:
        """Pairs an instruction's end with the last open begin of the same name; an end without a begin is ignored."""
        for position in range(len(self._open) - 1, -1, -1):
            if self._open[position][0] == place:
                _, begin_ns = self._open.pop(position)
                if len(self._instructions) < _MAX_INSTRUCTIONS_OF_A_STEP:
                    self._instructions.append((place, begin_ns, t_ns))
                return

    def _end_step(self, end_ns: int, *, usable: bool) -> None:
        last_end_ns = self._last_end_ns or end_ns
        self.ended.append(
            EndedStep(
                self._step, self._number, self._until, self._begin_ns, end_ns, last_end_ns, usable, self._instructions
            )
        )
        self._begin_ns = -1


class StepMeter:
    """Computes steps from marks, and collects `profile_steps` of them for each schedule number.

    The first complete step after a change of the schedule is left out: caches are cold, and clocks may still change.
    Where the energy counter ticks so slowly that the steps cover few ticks, more steps are collected
    (`WindowTicks`).

    Args:
        name: Returns the name of an instruction from its place in the page's name table.
        least_s: Steps are added to a result until together they have lasted this long, in s.
        top_mhz: The highest clock of the GPU, in MHz, as which the default clock counts; 0: no clock is ever set.

    Attributes:
        total_j: Energy of all steps so far, in J.
        done_number: The schedule number of the last complete result.
        pace: (step, number, span in s) of the last complete steps; the reader removes them.
        held: Whether clocks are held at their default: then no step counts as measured under its schedule.
    """

    def __init__(self, profile_steps: int, name: Callable[[int], str], least_s: float = 0.0, top_mhz: int = 0) -> None:
        self.curve = EnergyCurve()
        self.last_step: Step | None = None
        self.total_j = 0.0
        self.done_number = shared_page.NO_NUMBER
        self.pace: deque[tuple[int, int, float]] = deque(maxlen=_MAX_PACE)
        self.held = False
        self._profile_steps, self._least_s = profile_steps, least_s
        self._name = name
        self._marked = MarkedSteps()
        self._powers = PowerFit(top_mhz)
        self._collecting = shared_page.NO_NUMBER
        self._skipped_first = False
        self._collected: list[Step] = []
        self._ticks = WindowTicks(self._powers)

    @property
    def waits(self) -> bool:
        """Whether a step has ended whose energy is not known yet."""
        return bool(self._marked.ended)

    def clock_acts(self, t_ns: int, mhz: int) -> None:
        self._powers.clock_acts(t_ns, mhz)

    def take(self, marks: list[tuple[int, int]], *, everything: bool = False) -> Iterator[Measured | None]:
        """Adds marks; computes a step's time and energy once the energy curve covers its end.

        Args:
            everything: Compute all steps, since no further readings will come.

        Yields:
            Finished results, and None in between, so that the caller can do more urgent work than arithmetic.
        """
        yield from self._marked.take(marks)
        ended = self._marked.ended
        while ended and (everything or self.curve.covers(ended[0].end_ns)):
            yield from self._end_step(ended.popleft())

    def lost(self) -> None:
        """Drops the step whose marks are being read: marks were lost, so it cannot be complete."""
        self._marked.lost()

    def _end_step(self, ended: EndedStep) -> Iterator[Measured | None]:
        """Computes a step; keeps it if its schedule is still to be measured; yields as `take` does."""
        if ended.number != self._collecting or self.held:
            self._collecting, self._skipped_first = ended.number, False
            self._clear()
        is_over = 0 < ended.until <= ended.step
        wanted = ended.number != self.done_number and ended.usable and not self.held and not is_over
        collected = wanted and self._skipped_first
        times: dict[str, list[float]] = {}
        energies: dict[str, list[float]] = {}
        curve = self.curve
        if not curve.knows(ended.begin_ns, ended.end_ns):  # it cannot be part of a result, nor can what precedes it
            collected = wanted = False
            self._clear()
            curve = EnergyCurve()
        ended.instructions.sort(key=lambda instruction: instruction[1])
        named = [(self._name(place), t0, t1) for place, t0, t1 in ended.instructions]
        clocks: dict[str, list[int]] = {}
        for position, ((name, t0, t1), mhz) in enumerate(zip(named, self._powers.mean_clocks(named), strict=True)):
            if position % _INSTRUCTIONS_BETWEEN_YIELDS == 0:
                yield None
            times.setdefault(name, []).append((t1 - t0) / 1e9)
            energies.setdefault(name, []).append(curve.at(t1) - curve.at(t0))
            clocks.setdefault(name, []).append(mhz)
        energy_j = curve.at(ended.end_ns) - curve.at(ended.begin_ns)
        time_s, span_s = (ended.end_ns - ended.begin_ns) / 1e9, (ended.last_end_ns - ended.begin_ns) / 1e9
        step = Step(ended.step, ended.number, time_s, energy_j, span_s, times, energies, clocks)
        self.total_j += energy_j or (self.last_step.energy_j if self.last_step is not None else 0.0)  # if not known
        self.last_step = step
        self.pace.append((step.step, step.number, span_s))
        if collected:
            self._collected.append(step)
            yield from self._ticks.add(ended, named, curve)
        # What lies before a step's begin is needed only if the step comes directly after a collected one.
        needed_ns = min(self._ticks.since_ns, ended.end_ns) if collected else ended.end_ns
        self._powers.forget_before(needed_ns)
        self.curve.forget_before(needed_ns)
        self._skipped_first |= wanted
        if (collected or (ended.until and self._collected)) and self._is_complete(ended):
            steps = self._steps(in_turns=ended.until > 0)
            yield Measured(ended.number, steps[0].step, steps, self._powers.solve())
            self._clear()
            self.done_number = ended.number

    def _is_complete(self, ended: EndedStep) -> bool:
        steps, wanted, ticks = len(self._collected), self._profile_steps, self._ticks
        if ended.until:  # turns end at a step, the same on all ranks
            return ended.step >= ended.until - 1
        if steps >= _MOST_TIMES * wanted:
            return True
        return steps >= wanted and ticks.lasts_s >= self._least_s and ticks.enough(self.curve)

    def _steps(self, *, in_turns: bool) -> list[Step]:
        """Returns the collected steps; their energies contain nothing from before the window.

        Steps in turns stay as they are: they differ from each other, and blocks of them are long enough.
        """
        power_w = self._ticks.mean_power_w()
        if power_w is None or in_turns:
            return list(self._collected)
        return [_with_energy(step, power_w * step.time_s) for step in self._collected]

    def _clear(self) -> None:
        self._collected.clear()
        self._ticks.clear()


def _with_energy(step: Step, energy_j: float) -> Step:
    """Returns the step with another energy, divided among its instructions in the same proportion as before."""
    factor = energy_j / step.energy_j if step.energy_j > 0 else 0.0
    energies = {name: [factor * each for each in values] for name, values in step.energies.items()}
    return step._replace(energy_j=energy_j, energies=energies)
