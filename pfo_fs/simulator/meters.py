"""Measuring in virtual time: the real step meters, with simulated marks and simulated energy counters."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pfo_fs.arrays import np
from pfo_fs.device import shared_page
from pfo_fs.device.metering.meter import StepMeter
from pfo_fs.ipc.messages import MeasurementReport, RankPlan
from pfo_fs.models import RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator.cluster import Cluster, Played

_TICK_JITTER_S = 0.001
"""Largest error of the time of a tick of the energy counter."""


class PlayedStep(NamedTuple):
    """One iteration as the ranks run it.

    Attributes:
        measured_number: The number of the schedule that the measurement counts for; negative if the iteration is not to
            be measured.
        until: The step before which that measurement ends; 0: after as many steps as usual.
        plans: What each rank follows; None: default clocks.
    """

    step: int
    measured_number: int
    until: int
    begin_s: float
    played: Played
    plans: Mapping[int, RankPlan | None]


class SimulatedMeters:
    """The meters of all ranks.

    A step's marks (times of its instructions) are given to the meters one iteration later, when the energy counters
    have ticked beyond its end. The cluster's noise jitters these ticks.
    """

    def __init__(self, cluster: Cluster, infos: Sequence[RankInfo], settings: PFOSettings) -> None:
        self._cluster = cluster
        self._infos = infos
        self._names: list[str] = []  # as the table of names in the shared page
        steps, seconds = settings.profile_steps, settings.profile_seconds
        top_mhz = max(cluster.truth.clocks_mhz)
        self._meters = {info.rank: StepMeter(steps, self._names.__getitem__, seconds, top_mhz) for info in infos}
        self._energies_j = dict.fromkeys(self._meters, 0.0)
        self._last: PlayedStep | None = None

    def measure(self, new: PlayedStep) -> list[tuple[int, MeasurementReport]]:
        """Adds an iteration; returns (rank, result) of the results that are complete."""
        last, self._last = self._last, None
        is_over = new.until and new.step >= new.until
        wanted = (
            new.measured_number >= 0
            and not is_over
            and any(meter.done_number != new.measured_number for meter in self._meters.values())
        )
        if wanted:
            self._last = new
        for info in self._infos:
            self._tick(info, self._meters[info.rank], new)
        if last is None and not wanted and not any(meter.waits for meter in self._meters.values()):
            return []
        reports = []
        for info in self._infos:
            meter = self._meters[info.rank]
            if wanted and info.available_frequencies:
                self._set_clocks(info, meter, new)
            for measured in meter.take([] if last is None else self._marks(info, last)):
                if measured is not None:
                    switching = self._cluster.switching(info.dp_rank, info.pp_rank)
                    reports.append((info.rank, measured.report(info.rank, switching)))
        return reports

    def _rows(self, info: RankInfo) -> slice:
        """Returns the rows of a rank's instructions in the arrays of `Played`."""
        firsts = self._cluster.pipeline.first_nodes
        return slice(firsts[info.pp_rank], firsts[info.pp_rank + 1])

    def _tick(self, info: RankInfo, meter: StepMeter, new: PlayedStep) -> None:
        """Adds the ticks of a rank's energy counter in an iteration to the meter's energy curve."""
        rows, pipeline, tick_s = self._rows(info), info.dp_rank, self._cluster.nuisances.tick_s
        begin_s, played = new.begin_s, new.played
        starts, ends = played.starts_s[rows, pipeline], played.ends_s[rows, pipeline]
        corners = np.empty(2 * len(starts) + 2)
        corners[0], corners[-1] = 0.0, played.time_s
        corners[1:-1:2], corners[2:-1:2] = starts, ends
        watts = np.full(len(corners) - 1, self._cluster.truth.blocking_power_w)
        watts[1::2] = played.powers_w[rows, pipeline]
        energies = self._energies_j[info.rank] + np.concatenate([[0.0], np.cumsum(np.diff(corners) * watts)])
        self._energies_j[info.rank] = float(energies[-1])
        first, last = np.ceil(begin_s / tick_s), np.floor((begin_s + played.time_s) / tick_s)
        ticks = np.arange(first, last + 1) * tick_s
        readings = np.interp(ticks - begin_s, corners, energies)
        seen = ticks + self._cluster.noise(len(ticks), _TICK_JITTER_S)
        for at_s, energy_j in zip(seen.tolist(), readings.tolist(), strict=True):
            meter.curve.add(round(max(0.0, at_s) * 1e9), energy_j)

    def _set_clocks(self, info: RankInfo, meter: StepMeter, new: PlayedStep) -> None:
        """Passes the changes of a rank's clock in an iteration to its meter."""
        cluster, played = self._cluster, new.played
        if played.clocks_set:
            clocks_set = played.clocks_set[info.dp_rank][info.pp_rank]
        else:
            clocks_set = self._planned_changes(info, new)
        for set_s, mhz in clocks_set:
            acts_s = set_s + cluster.latency_s(info.dp_rank, info.pp_rank, mhz)
            meter.clock_acts(round((new.begin_s + acts_s) * 1e9), mhz)

    def _planned_changes(self, info: RankInfo, new: PlayedStep) -> list[tuple[float, int]]:
        """Returns when a rank's clock is set if that happens as each instruction begins: (s, MHz)."""
        plan = new.plans[info.rank]
        if plan is None:
            return []
        starts = new.played.starts_s[self._rows(info), info.dp_rank].tolist()
        changes: list[tuple[float, int]] = []
        for start_s, (_, mhz) in zip(starts, plan.frequencies, strict=True):
            if mhz and (not changes or changes[-1][1] != mhz):
                changes.append((start_s, mhz))
        return [*changes, (float(new.played.spans_s.max()), 0)]

    def _marks(self, info: RankInfo, marked: PlayedStep) -> list[tuple[int, int]]:
        """Returns the marks that training writes in an iteration."""
        begin_s, played, rows = marked.begin_s, marked.played, self._rows(info)
        order = self._cluster.pipeline.orders[info.pp_rank]
        starts = played.starts_s[rows, info.dp_rank].tolist()
        ends = played.ends_s[rows, info.dp_rank].tolist()
        number = shared_page.NUMBER | max(0, marked.until) << 8
        marks = [(round(begin_s * 1e9), shared_page.STEP_BEGIN | marked.step << 8), (marked.measured_number, number)]
        for instruction, start_s, end_s in zip(order, starts, ends, strict=True):
            if instruction.name not in self._names:
                self._names.append(instruction.name)
            place = self._names.index(instruction.name) << 8
            marks.append((round((begin_s + start_s) * 1e9), shared_page.BEGIN | place))
            marks.append((round((begin_s + end_s) * 1e9), shared_page.END | place))
        marks.append((round((begin_s + ends[-1]) * 1e9), shared_page.LAST_END))
        marks.append((round((begin_s + float(played.spans_s.max())) * 1e9), shared_page.STEP_END))
        return marks
