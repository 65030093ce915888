"""Models of how time and power of an instruction follow a GPU's clock, and of clock changes, for simulated GPUs.

With x = clock / highest clock:

    time  = time_ref_s * (a / x + 1 - a)                        the part a of an instruction follows the clock
    power = floor_w + linear_w * x + steep_w * max(0, x - knee) ** exponent    above the knee the voltage rises

Above `cap_mhz` the GPU's power limit holds the clock back, whatever clock was set: time and power stay what they are at
`cap_mhz`. A lower limit lowers the cap to the clock that draws this power (`within`). The cap may be between two clocks
on offer, since a GPU at its limit alternates between them many times a second. It is never below the lowest clock.

Coefficients are fitted to the profiles of GPT-3 175B in the artifact of Perseus (SOSP'24; 8 stages, 1 micro-batch, 855
MHz to the highest clock); below 855 MHz the models extrapolate. Largest error over the rows, in time, power and energy:

    A100 SXM   2.8 %   3.8 %   2.9 %    (energy: root mean square 1.1 %)
    A40        4.8 %   1.6 %   4.2 %    (1.7 %; below 1,020 MHz the measured backward gets faster, the model's slower)

The A100's profile has 475 W at 1,410 MHz, more than the board's rated 400 W. The model keeps the artifact's value, with
power limits of up to 500 W, as some of these boards have. The A40 reaches its limit of 300 W at about 1,440 MHz.

For other kinds of GPU no training was published. They show how the rest of the package behaves there; the durations of
their instructions are our own choice:

    B300       bf16 products of matrices at five power caps, 926 to 2,032 MHz (github.com/sinkers/gpu-power-lab,
               249b1c9): time within 2.4 %, power within 1.4 %; waiting is its idle power
    RTX        the program breeze on an RTX PRO 6000 at eight clocks, 1,005 to 2,430 MHz
               (github.com/giordano/gpu-power-frequency-benchmarks, 2fe08d2): 3.2 %, 1.3 %; waiting: a sixth of it
    H100       the A100's times, and a power that reaches the limit of 700 W at 1,650 MHz; under load, an H100 ran at
               1,391 to 1,650 MHz, whatever higher clock was set
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pfo_fs.errors import ConfigError


class Coefficients(NamedTuple):
    """How time and power of one instruction follow the clock; see the module's docstring."""

    top_mhz: int
    time_ref_s: float
    a: float
    floor_w: float
    linear_w: float
    steep_w: float
    knee: float
    exponent: float
    cap_mhz: float = math.inf

    def time_s(self, mhz: float) -> float:
        x = min(mhz, self.cap_mhz) / self.top_mhz
        return self.time_ref_s * (self.a / x + 1 - self.a)

    def power_w(self, mhz: float) -> float:
        x = min(mhz, self.cap_mhz) / self.top_mhz
        return self.floor_w + self.linear_w * x + self.steep_w * math.pow(max(0.0, x - self.knee), self.exponent)

    def within(self, limit_w: float, lowest_mhz: float) -> Coefficients:
        """Returns the same instruction under a power limit in watts; the GPU never goes below the lowest clock."""
        low, high = lowest_mhz, min(self.cap_mhz, self.top_mhz)
        if self.power_w(high) <= limit_w:
            return self
        while high - low > 0.01:
            middle = (low + high) / 2
            low, high = (middle, high) if self.power_w(middle) <= limit_w else (low, middle)
        return self._replace(cap_mhz=low)


class GpuModel(NamedTuple):
    """A kind of GPU running GPT-3 175B.

    Attributes:
        clocks_mhz: The clocks on offer, in MHz, highest first.
        power_limits_w: The lowest and the highest power limit, in W; the highest is the default.
        blocking_power_w: Its power while it waits for other stages (the Perseus paper, section 6.1).
        last_stage: As `instructions`, for the last stage, which holds the language-model head and takes longer.
        caps_mhz: The clock that the power limit leaves wanders between these two values in some ten iterations; or ().
    """

    name: str
    clocks_mhz: tuple[int, ...]
    power_limits_w: tuple[float, float]
    blocking_power_w: float
    instructions: Mapping[str, Coefficients]
    last_stage: Mapping[str, Coefficients]
    caps_mhz: tuple[float, ...] = ()

    def coefficients(self, instruction: str, *, last_stage: bool = False) -> Coefficients:
        curve = (self.last_stage if last_stage else self.instructions)[like(instruction)]
        return curve._replace(time_ref_s=curve.time_ref_s * _DURATION_IN_BACKWARDS.get(instruction, 1.0))


def like(instruction: str) -> str:
    """Returns which of `forward` and `backward` an instruction follows the clock like."""
    return "backward" if instruction in _DURATION_IN_BACKWARDS else "forward"


_DURATION_IN_BACKWARDS = {"backward": 1.0, "backward_input": 0.5, "backward_weight": 0.5, "forward_backward": 1.5}
"""Duration of an instruction as a multiple of a backward's; all others take as long as a forward."""

A100 = GpuModel(
    "A100",
    tuple(range(1410, 209, -15)),
    (100.0, 500.0),
    83.64,
    {
        "forward": Coefficients(1410, 0.048759, 0.8998, 40.23, 317.8, 751.9, 0.7799, 1.137),
        "backward": Coefficients(1410, 0.090399, 0.8366, 48.96, 312.2, 855.1, 0.7693, 1.262),
    },
    {
        "forward": Coefficients(1410, 0.052639, 0.8952, 43.32, 301.9, 757.1, 0.7786, 1.164),
        "backward": Coefficients(1410, 0.096308, 0.8342, 50.36, 301.5, 865.2, 0.7684, 1.286),
    },
)

A40 = GpuModel(
    "A40",
    tuple(range(1740, 209, -15)),
    (100.0, 300.0),
    70.38,
    {
        "forward": Coefficients(1740, 0.10102, 0.58989, 92.405, 172.26, 908.75, 0.60678, 1.7554, 1436),
        "backward": Coefficients(1740, 0.26963, 0.23016, 95.185, 168.84, 304.65, 0.64311, 1.1965, 1498),
    },
    {
        "forward": Coefficients(1740, 0.10531, 0.59875, 90.871, 172.21, 767.16, 0.61515, 1.622, 1444),
        "backward": Coefficients(1740, 0.27655, 0.24214, 94.258, 169.01, 315.39, 0.64215, 1.2131, 1499),
    },
)

_B300 = Coefficients(2032, 0.025, 0.8301, 41.68, 894.3, 12751.3, 0.96, 1.5)
_RTX = Coefficients(2430, 0.08, 0.6237, 37.94, 411.5, 793.1, 0.9, 1.25)
_H100 = Coefficients(1980, 0.0251, 0.8998, 70.0, 650.0, 1460.0, 0.653, 1.64, 1650)


def _alike(name: str, lowest_mhz: int, limits_w: tuple[float, float], waiting_w: float, forward: Coefficients,
           backward: float, caps_mhz: tuple[float, ...] = ()) -> GpuModel:  # fmt: skip
    """Returns a kind whose backwards take `backward` times as long as its forwards, at the same power."""
    table = {"forward": forward, "backward": forward._replace(time_ref_s=backward * forward.time_ref_s)}
    clocks_mhz = tuple(range(forward.top_mhz, lowest_mhz - 1, -15))
    return GpuModel(name, clocks_mhz, limits_w, waiting_w, table, table, caps_mhz)


TRAINING: Mapping[str, GpuModel] = {model.name: model for model in (A100, A40)}
"""Kinds whose curves were measured in training."""
AT_LIMIT: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]] = {
    "A100": {
        "forward": (
            (1, 1.0000, 474.5), (0.97, 1.0041, 456.3), (0.94, 1.0227, 429.6), (0.9, 1.0607, 392.4),
            (0.85, 1.1174, 363.4), (0.78, 1.2084, 325.5), (0.7, 1.3370, 332.7), (0.6, 1.5450, 340.4),
        ),
        "backward": (
            (1, 1.0000, 463.6), (0.97, 1.0013, 459.5), (0.94, 1.0158, 433.6), (0.9, 1.0451, 398.7),
            (0.85, 1.0963, 366.8), (0.78, 1.1788, 328.7), (0.7, 1.3040, 335.8), (0.6, 1.4940, 342.2),
        ),
    }
}  # fmt: skip
"""Bloom 176B on A100s that their power limit holds near the highest clock, which the model of their kind does not show:
shares of that clock, time relative to that at it, and energy per second of that, in J. Straight lines fitted to the
profile in the artifact of Perseus: time within 1.8 %, energy within 3.5 %."""
MODELS: Mapping[str, GpuModel] = {
    **TRAINING,
    "B300": _alike("B300", 345, (200.0, 1100.0), 183.5, _B300, 2.0),
    "RTX": _alike("RTX", 300, (150.0, 600.0), 80.0, _RTX, 2.0),
    "H100": _alike("H100", 345, (200.0, 700.0), 130.0, _H100, 1.85, (1391, 1650)),
}


def gpu_model(name: str, where: str = "") -> GpuModel:
    """Returns the model of a kind of GPU; raises `ConfigError`, which begins with `where`, if there is none."""
    model = MODELS.get(name.upper())
    if model is None:
        raise ConfigError(f"{where}{name!r} is not a GPU model of pfo-fs; choose {', '.join(MODELS)}")
    return model


# ---- what a node does to changes of the clock
#
# The presets are chosen from what has been published, and are on its unfavourable side:
#
# - A call of `nvmlDeviceSetGpuLockedClocks` takes 3.2 ms for the lowest clock to 5.3 for the highest, and 8 to 12 in a
#   second mode (18,950 calls on a V100, github.com/thynics/gpu_ctl_probe; of 8 A800: 4.1 to 5.2 in the median). Calls
#   of all GPUs of a node wait for each other: 8 at once took 46 ms (A800).
# - Then up to 1.6 ms (V100; A800: 1 ms) pass until the clock is read back. When it acts depends on the clock that is
#   requested more than on the one before (arXiv:2502.20075: GH200, A100, Quadro; 1 to 500 ms over all pairs). For
#   Hopper 10 to 100 ms are reported.
# - A request that comes before the last one has acted replaces it.

_SLOW_S = 0.008, 0.012
"""Durations of calls in the second mode."""
_SPREAD = 0.05
"""Relative: other calls scatter by this much around the duration for their clock."""
_HIGHEST_MHZ = 1530


class NodePhysics(NamedTuple):
    """One kind of node.

    Attributes:
        call_s: How long a call that sets a very low clock takes, in s; 0: no call takes any time.
        most_call_s: The same for the highest clock, and for the default one.
        serial: Whether calls of all GPUs of the node wait for each other.
        least_latency_s: The shortest time from the return of a call until the clock acts, in s.
        most_latency_s: The longest time from the return of a call until the clock acts, in s.
        slow_share: The share of the calls that are in the second mode.
    """

    name: str
    call_s: float
    most_call_s: float
    serial: bool
    least_latency_s: float
    most_latency_s: float
    slow_share: float = 0.0

    def latency_s(self, mhz: int) -> float:
        """Returns the time from the return of a call until the clock (0: the default one) acts, in s.

        It depends only on the clock that is set, in no order, as in the published measurements.
        """
        place = (mhz // 15 * 7) % 11 / 10
        return self.least_latency_s + (self.most_latency_s - self.least_latency_s) * place**3

    def call_time_s(self, mhz: int, chance: float, other_chance: float) -> float:
        """Returns the duration of a call that sets a clock, in s, from two uniform random numbers between 0 and 1."""
        if not self.call_s:
            return 0.0
        if chance < self.slow_share:
            return _SLOW_S[0] + (_SLOW_S[1] - _SLOW_S[0]) * other_chance
        usual_s = self.call_s + (self.most_call_s - self.call_s) * min(1.0, (mhz or _HIGHEST_MHZ) / _HIGHEST_MHZ)
        return usual_s * (1 + _SPREAD * (2 * other_chance - 1))


PRESETS: Mapping[str, NodePhysics] = {
    node.name: node
    for node in (
        NodePhysics("none", 0.0, 0.0, False, 0.0, 0.0),
        NodePhysics("kind", 0.0, 0.0, False, 0.010, 0.010),
        NodePhysics("A100 node", 0.003, 0.0053, True, 0.002, 0.020, 0.06),
        NodePhysics("H100 node", 0.003, 0.0053, True, 0.010, 0.100, 0.06),
    )
}


def node_physics(name: str) -> NodePhysics:
    """Returns a preset; raises `ConfigError` if there is none of this name."""
    node = PRESETS.get(name)
    if node is None:
        raise ConfigError(f"{name!r} is not a kind of node that pfo-fs simulates; choose {', '.join(PRESETS)}")
    return node
