"""Write the profile of a simulated GPU, by default the A100 that `pfo-fs demo` trains on, to try the planner with.

    python examples/make_profile.py profile.csv
    pfo-fs plan profile.csv --num-microbatches 12 --gpu A100 -o plan

A profile of your own has the same five columns; Zeus's profiler and `InstructionProfilingResult.to_csv` write them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pfo_fs.device.simulated.physics import MODELS, gpu_model
from pfo_fs.planner import Measurement, Profile

LOWEST_MHZ = 855
"""Below, the simulated GPU is an extrapolation: real ones burn more energy there, not less."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the CSV to write")
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--gpu", default="A100", choices=list(MODELS))
    args = parser.parse_args()
    gpu = gpu_model(args.gpu)
    measurements = {}
    for stage in range(args.stages):
        for name in ("forward", "backward"):
            model = gpu.coefficients(name, last_stage=stage == args.stages - 1)
            measurements[stage, name] = [
                Measurement(mhz, model.time_s(mhz), model.time_s(mhz) * model.power_w(mhz))
                for mhz in gpu.clocks_mhz
                if mhz >= LOWEST_MHZ
            ]
    Profile(measurements).to_csv(args.output)


if __name__ == "__main__":
    main()
