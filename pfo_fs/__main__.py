"""Starts the commands: `pfo-fs`, `pfo-fs-daemon`, and `python -m pfo_fs`, which is `pfo-fs`."""

import os
import sys

import pfo_fs


def main() -> None:
    """The command `pfo-fs`."""
    _forget_working_directory()
    from pfo_fs.cli import main

    main()


def daemon_main() -> None:
    """The command `pfo-fs-daemon`."""
    _forget_working_directory()
    from pfo_fs.cli import daemon_main

    daemon_main()


def _forget_working_directory() -> None:
    """Takes the working directory out of `sys.path`, where `python -m` and an empty part of PYTHONPATH put it.

    It may be a shared directory: a file `statistics.py` of another user there would run in place of the module.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:
        return
    if here != os.path.realpath(f"{os.path.dirname(pfo_fs.__file__)}/.."):
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]


if __name__ == "__main__":
    main()
