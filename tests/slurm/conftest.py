"""The cluster, and the jobs that all tests of it look at: they run side by side, since Slurm's times are in minutes."""

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from slurm_cluster import Cluster, end_processes, missing, no_cgroups, processes_of
from slurm_endings import NAMES, Site

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples" / "slurm"

_COMMAND = """#!/bin/bash
# Slurm's hooks start with an empty environment. Simulated GPUs are not known to CUDA.
export SLURM_CONF={root}/slurm.conf PYTHONPATH={repository} PFO_FS_SIM_DIR={root}/sim PFO_FS_RUN_DIR={root}/run
if [ "$*" = reset-clocks ]; then
  set -- reset-clocks $(for gpu in ${{CUDA_VISIBLE_DEVICES//,/ }}; do echo "simulated:$SLURMD_NODENAME-$gpu"; done)
fi
echo "$(date +%T.%N) $SLURMD_NODENAME job $SLURM_JOB_ID: $*" >>{root}/log/commands
exec {python} -m pfo_fs {prefix} "$@" 2>>{root}/log/commands
"""


def with_settings(text: str, **settings: str) -> str:
    """A script of `examples/slurm` with other values in the lines above "end of settings"."""
    above, mark, below = text.partition("# end of settings")
    for name, value in settings.items():
        above, count = re.subn(rf"(?m)^{name}=.*$", lambda _, line=f"{name}={value}": line, above)
        assert count == 1, f"{name}= is not a setting"
    return above + mark + below


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Site]]:
    """Returns the cluster with a way of following processes; it is started once, in whatever order the tests run."""
    started: dict[str, Site] = {}
    with ExitStack() as stack:

        def get(tracking: str) -> Site:
            if tracking not in started:
                why = missing() or (no_cgroups() if tracking == "cgroup" else "")
                if why:
                    pytest.skip(why)
                root = tmp_path_factory.mktemp(f"slurm-{tracking}")
                started[tracking] = stack.enter_context(running_site(root, tracking))
            return started[tracking]

        yield get


@pytest.fixture
def site(request: pytest.FixtureRequest, sites: Callable[[str], Site]) -> Site:
    return sites(request.param)


@contextmanager
def running_site(root: Path, tracking: str) -> Iterator[Site]:
    """A cluster with the hooks and scripts of `examples/slurm`, on which all jobs have been started."""
    cluster_root, shared, python = root / "cluster", root / "pfo", sys.executable
    for folder in (cluster_root / "bin", cluster_root / "sim", cluster_root / "run", shared):
        folder.mkdir(parents=True, mode=0o700)
    for name, prefix in (("pfo-fs", ""), ("pfo-fs-daemon", "daemon")):
        command = cluster_root / "bin" / name
        command.write_text(_COMMAND.format(root=cluster_root, repository=REPOSITORY, python=python, prefix=prefix))
        command.chmod(0o755)
    ours, scripts = str(cluster_root / "bin" / "pfo-fs"), ("prolog.sh", "epilog.sh")
    hooks = {name: with_settings((EXAMPLES / name).read_text(), pfo_fs=ours) for name in scripts}
    cluster = Cluster(cluster_root, len(NAMES[tracking]) + 1, tracking, hooks)
    path = f"{cluster_root}/bin:{cluster.environment['PATH']}:/usr/sbin"
    cluster.environment |= {
        "PATH": path,
        "PYTHONPATH": str(REPOSITORY),
        "PFO_FS_SIM_DIR": str(cluster_root / "sim"),
        "PFO_FS_RUN_DIR": str(cluster_root / "run"),
        "OMP_NUM_THREADS": "1",
    }
    for name in ("train.sbatch", "daemon.sbatch"):
        settings = {"shared": str(shared)}
        if name == "train.sbatch":
            settings["train"] = f'({python} {Path(__file__).with_name("train.py")} "$shared" "$STOP_FILE" "$EXIT_CODE")'
        (cluster_root / name).write_text(with_settings((EXAMPLES / name).read_text(), **settings))
    names = NAMES[tracking]
    site = Site(cluster, shared, names, ThreadPoolExecutor(len(names)))
    try:
        cluster.start()
        with site.threads:
            site.start_all()
            yield site
    finally:
        cluster.stop()
        for job in site.jobs:
            end_processes(processes_of(cluster, job))
