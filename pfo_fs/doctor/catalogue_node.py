"""The lines about a node, in the order in which they are printed."""

from __future__ import annotations

from pfo_fs.doctor.lines import Line, Outcome

GPUS = Line(
    "GPUs",
    "the GPUs that this process sees",
    {
        "ok": Outcome(True, "Jobs of this user can use them."),
        "none": Outcome(
            False,
            "Jobs here measure time only.",
            "without a GPU, jobs measure time only; PFO_FS_GPU=simulated tries everything without one",
        ),
        "none-needed": Outcome(None, "No job can save energy on this host; a daemon needs no GPU."),
    },
)
CLOCKS = Line(
    "clocks",
    "who may set clocks here, and by which way",
    {
        "ok": Outcome(True, "Jobs of this user set clocks in this way."),
        "none": Outcome(
            False,
            "Jobs of this user train at default clocks: they measure, but save nothing.",
            "jobs train at default clocks; docs/clock-backends.md tells operators what to set up",
        ),
    },
)
WAY = Line(
    "  nvml, zeusd, sudo, geopm, slurm-step",
    "one line for each way to set clocks, in the order in which they are tried",
    {
        "ok": Outcome(True, "This way seems to work; its first call can still be refused."),
        "no": Outcome(None, "This way does not work here, for the reason that the line gives."),
    },
)
LEFT = Line(
    "clocks and limits left",
    "GPUs whose clock is locked or whose power limit is not the default one",
    {
        "none": Outcome(True, "No GPU was left with a lowered clock or power limit."),
        "in-use": Outcome(None, "A running job holds the GPU; its clock process resets it when the job ends."),
        "left": Outcome(
            False,
            "A job that was killed together with its clock process has left it so: this GPU is slower for others.",
            "run this with --fix, which resets it",
        ),
        "fixed": Outcome(True, "It was left so, and is at its defaults again."),
        "not-fixed": Outcome(
            False, "It is still so.", "run `nvidia-smi -i GPU -rgc` and `nvidia-smi -i GPU -pl DEFAULT` as root"
        ),
        "site": Outcome(
            None,
            "The power limit is not the board's default. No job of this user has noted that it has set it, so it may "
            "be the site's own; --fix leaves it.",
            "if it is not the site's own: `nvidia-smi -i GPU -pl DEFAULT` as root",
        ),
        "perhaps": Outcome(
            None,
            "The driver does not tell locked clocks from a busy GPU's, and no job runs on it. An idle GPU normally "
            "runs at a low clock.",
            "if no operator has locked it, run this with --fix, which resets it",
        ),
        "unknown": Outcome(None, "The driver did not say.", "look at `nvidia-smi -q -d CLOCK,POWER`"),
    },
)
_MEND = "mend what the line says, or set up this Python so that `python -c 'import pfo_fs.helper.process'` works"
CLOCK_PROCESS = Line(
    "clock process",
    "the process that sets clocks and measures, started as training starts it; it sets nothing here",
    {
        "ok": Outcome(True, "Jobs started like this command have one for each rank."),
        "no": Outcome(False, "Jobs started like this command train at default clocks, and measure nothing.", _MEND),
    },
)
HELPER_PROCESS = Line(
    "helper process",
    "the process that reads and writes the shared directory, started as training starts it, in an empty directory",
    {
        "ok": Outcome(True, "Jobs started like this command have one for each host."),
        "no": Outcome(False, "Jobs started like this command take no part: they train at default clocks.", _MEND),
    },
)
MARKS = Line(
    "marks at device time",
    "whether the GPU itself can tell how far it is in a step",
    {
        "ok": Outcome(True, "Clocks follow the GPU, also where training launches work ahead."),
        "untested": Outcome(None, "Not tested.", "run this where training runs"),
        "no": Outcome(
            False,
            "Clocks follow the launches of training.",
            "clocks follow the launches, which is right only if training waits for each",
        ),
    },
)
OTHERS = Line(
    "jobs here",
    "other processes of this user that set clocks on this node",
    {"ok": Outcome(None, "Measurements with --switching need a node without them.")},
)
COSTS = Line(
    "costs of clock changes",
    "the file that PFO_FS_SWITCHING_FILE names",
    {
        "ok": Outcome(True, "Plans count the time that clock changes take here."),
        "unset": Outcome(
            None,
            "Each job learns the costs of clock changes itself, in its first minutes.",
            "pfo-fs doctor --switching measures them (it sets clocks)",
        ),
        "no": Outcome(False, "Jobs here stop with this error.", "measure again, or unset the variable"),
    },
)

LINES = (GPUS, CLOCKS, WAY, LEFT, CLOCK_PROCESS, HELPER_PROCESS, MARKS, OTHERS, COSTS)
