"""docs/doctor.md: every line that `pfo-fs doctor` prints, from the data that it prints them from."""

from __future__ import annotations

from pfo_fs.doctor import catalogue_directory, catalogue_node
from pfo_fs.doctor.lines import Line

_WORDS = {True: "ok", False: "no", None: "-"}
_HEAD = """# What `pfo-fs doctor` tells

<!-- Written by tools/make_commands from pfo_fs/doctor/catalogue_*.py; change those. -->

<!-- not run: needs a GPU, a second host and permission to set clocks; tests/doctor has stand-ins -->
```bash
pfo-fs doctor                         # this node: GPUs, who may set clocks, what was left locked
pfo-fs doctor /shared/pfo             # and the shared directory, as this host sees it
pfo-fs doctor /shared/pfo --peer 2    # the same on two hosts at once: what they see of each other
pfo-fs doctor --fix                   # also resets GPUs that were left with a locked clock or another power limit
```

Run it on a compute node and on the host of the daemon before the first job, as the user who will run jobs. With
`--peer N`, start it on N hosts within two minutes (`--wait`); they find each other in the directory. With `--json`,
each line is an object with `name`, `ok` (true, false or null), `found`, `meaning` and `hint`.

The exit status is 1 if a line says **no**: something does not work. A line with **-** works with a limit, does not
matter here, or could not be found out; where there is something to do, the line says what.

Every call on the directory is made in a process of its own. If one does not end within `--answer-within` (15 s), the
line *answers* says so, and the command ends. The command writes small files in the directory and removes them; it
changes no setting of a GPU without `--fix` or `--switching` (docs/switching.md).
"""


def doctor_markdown() -> str:
    """Returns the page."""
    parts = [_HEAD, "## The shared directory\n", *map(_section, catalogue_directory.LINES)]
    parts += ["## The node\n", *map(_section, catalogue_node.LINES)]
    return "\n".join(parts)


def _section(line: Line) -> str:
    rows = [
        f"| {_WORDS[outcome.ok]} | {_cell(outcome.meaning)} | {_cell(outcome.todo) or 'nothing'} |"
        for outcome in line.outcomes.values()
    ]
    head = f"### {line.name.strip()}\n\nWhat is looked at: {line.looks_at}.\n\n| result | what it means | what to do |"
    return "\n".join([head, "| --- | --- | --- |", *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
