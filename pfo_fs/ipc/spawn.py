"""Starts the processes beside training, always by exec, since a process that uses CUDA must not fork without exec.

They start as the training process did: the same interpreter with the same options and environment, so that site
packages and their hooks do what they did in training, and then the same `sys.path` in the same order. The path is
passed, like the arguments, as the content of the new process's standard input, which has no limit of length.
"""

import atexit
import fcntl
import json
import marshal
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from pfo_fs.errors import plain_text
from pfo_fs.ipc.started import STARTED
from pfo_fs.ipc.system_calls import FLOCK, OwnFile, open_memory_file

_COMMAND = "import marshal;given=marshal.load(open(0,'rb',closefd=False));exec(given['begin'],given)"
_BEGIN = """
import os, sys
from importlib.machinery import PathFinder

# sys.path may hold packages with the names of standard modules, since training had loaded those before they were there.
class StandardModulesFirst:
    folder = os.path.dirname(os.__file__)
    places = [folder, os.path.join(folder, "lib-dynload")]

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return PathFinder.find_spec(name, cls.places) if name in sys.stdlib_module_names else None

sys.meta_path.insert(0, StandardModulesFirst)
sys.path[:] = path
try:
    from pfo_fs.ipc.started import run
except ModuleNotFoundError:  # training has found the package by a hook that is not installed here
    sys.modules.pop("pfo_fs", None)
    sys.path.append(home)
    from pfo_fs.ipc.started import run
run(module, arguments_json, outlives)
"""
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_INTERPRETER = re.compile(r"python|pypy|graalpy|hython|mayapy", re.IGNORECASE)
_FIRST_OWN_FD = 3
_WORDS_BYTES = 4096
_LEAVES_WITHIN_S = 5.0
"""A process that has not left its starter by then hangs in a file system; the signal then ends the starter."""

_started: list[subprocess.Popen[bytes]] = []
"""Processes that may outlive this one: the interpreter warns of a running process that no variable holds."""


class Child:
    """A process beside training. What it writes to its standard error stays in a file in memory.

    The process must not share training's standard error: if it hangs in a file system or a driver, it would keep a
    launcher's pipe open. The process holds a lock of that file (`started.run`): by the lock, the kernel tells whether
    the process runs, and its id, also where it is no child of this process.

    Args:
        starter: The process that was started; to make one that outlives training, it forks and ends.
    """

    def __init__(self, starter: subprocess.Popen[bytes], output: int, outlives: bool) -> None:
        self._starter = starter
        self._outlives = outlives
        self._pid = None if outlives else starter.pid
        self.output = output
        self._file = OwnFile(output)
        weakref.finalize(self, self._file.close).atexit = False

    @property
    def pid(self) -> int | None:
        """The process's id; None while it is not known yet."""
        if self._pid is None:
            self._holds_lock()
        return self._pid

    def poll(self) -> int | None:
        """Returns None while the process runs, else its exit status, or 0 where this is not known."""
        status = self._starter.poll()
        return status if status is not None and not self._holds_lock() else None

    def _holds_lock(self) -> bool:
        """Returns whether a process that outlives this one has left its starter, and runs; learns its id."""
        if not self._outlives or not self._file.is_open():  # or the program has closed it
            return False
        with suppress(AttributeError, OSError):
            lock = fcntl.fcntl(self.output, fcntl.F_GETLK, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            kind, _, _, _, pid = struct.unpack(FLOCK, lock)
            if kind != fcntl.F_UNLCK:
                self._pid = pid
                return True
        return False

    def wait(self, timeout_s: float = math.inf) -> int:
        """Waits for the end of the process; returns what `poll` does.

        Raises:
            TimeoutError: It has not ended within `timeout_s` seconds.
        """
        until_s = time.monotonic() + timeout_s
        while (status := self.poll()) is None:
            if time.monotonic() > until_s:
                raise TimeoutError(f"process {self._pid} has not ended within {timeout_s:g} s")
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Sends a signal; waits until the process has left its starter, or has ended."""
        until_s = time.monotonic() + _LEAVES_WITHIN_S
        while self.poll() is None and self.pid is None and time.monotonic() < until_s:
            time.sleep(0.005)
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid or self._starter.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def last_words(self) -> str:
        """Returns the last line that the process has written to its standard error; empty if there is none."""
        if not self._file.is_open():
            return ""
        with suppress(OSError):
            size = os.fstat(self.output).st_size
            text = os.pread(self.output, _WORDS_BYTES, max(0, size - _WORDS_BYTES)).decode(errors="replace")
            return plain_text((text.strip().splitlines() or [""])[-1].strip(), 400)
        return ""

    def how_it_ended(self, within_s: float = 0.0) -> str:
        """Returns, in brackets and for a message, what is known about the end of the process; may be empty."""
        with suppress(TimeoutError):
            self.wait(within_s)
        code, words = self.poll(), self.last_words()
        known = [f"ended by signal {-code}" if code < 0 else f"exit status {code}"] if code else []
        known += [f"its last words: {words}"] if words else []
        if code is not None and not known and self._outlives and self._file.is_open():
            known = ["without a word, as after SIGKILL"]
        return f" ({'; '.join(known)})" if known else ""


def why_no_processes() -> str:
    """Returns why this program can start no process beside it; empty if it can.

    A program that was made into one file has no Python interpreter: it would start itself, and so train once more.
    """
    main = sys.modules.get("__main__")
    maker = getattr(sys, "frozen", False) or hasattr(sys, "oxidized") or hasattr(main, "__compiled__")
    if maker or "__compiled__" in globals():
        return "this program is frozen (PyInstaller, Nuitka, cx_Freeze), and starting its executable would train again"
    program = sys.executable
    if not program or not _INTERPRETER.search(os.path.basename(program)) or not os.access(program, os.X_OK):
        return f"sys.executable ({program!r}) is not a Python interpreter that can be started"
    return ""


def start_process(
    module: str,
    arguments: Mapping[str, Any],
    *,
    fds: Mapping[str, int] | None = None,
    label: str = "",
    outlives: bool = False,
) -> Child:
    """Starts `main(arguments)` of a module in a process and session of its own.

    A launcher's signals to its process group do not reach the process; it ignores most others (`started.run`).

    Args:
        module: A module of this package with a `main` that takes the arguments.
        arguments: Values for the process; they must be JSON.
        fds: File descriptors that the process inherits, by the name of the argument that tells it their number.
        label: Shown after the module by `ps`.
        outlives: Whether the process must outlive this one, and so be no child of it: launchers such as Ray kill the
            children of training when it ends.

    Raises:
        OSError: The process cannot be started.
    """
    reason = why_no_processes()
    if reason:
        raise OSError(reason)
    with ExitStack() as stack:

        def keep(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        # The new process's standard streams take the numbers below 3, which this process may use for other files.
        passed = {name: keep(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_FD)) for name, fd in (fds or {}).items()}
        path = _absolute(sys.path)
        given = {"begin": _BEGIN, "path": path, "home": _HOME, "module": module, "outlives": outlives}
        given["arguments_json"] = json.dumps({**arguments, **passed})
        given_fd = keep(open_memory_file("pfo-fs-arguments"))
        os.pwrite(given_fd, marshal.dumps(given), 0)
        output = open_memory_file("pfo-fs-output")
        undo = stack.enter_context(ExitStack())
        undo.callback(os.close, output)
        fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONWARNINGS"}
        if "PYTHONPATH" in environment:
            environment["PYTHONPATH"] = _python_path(environment["PYTHONPATH"], path)
        with _signals_wait():
            starter = subprocess.Popen(
                [os.path.abspath(sys.executable), *_options(), "-c", _COMMAND, module, *([label] if label else [])],
                env={**environment, STARTED: module},
                cwd="/",
                stdin=given_fd,
                stdout=subprocess.DEVNULL,
                stderr=output,
                pass_fds=tuple(passed.values()),
                start_new_session=True,
            )
        _started.append(starter)
        undo.pop_all()
    for earlier in list(_started):
        if earlier.poll() is not None:
            with suppress(ValueError):  # another thread removes it at the same time
                _started.remove(earlier)
    return Child(starter, output, outlives)


def _absolute(path: list[str]) -> list[str]:
    """Returns a list of places for modules as absolute paths, because the new process starts in another folder."""
    try:
        here = os.getcwd()
    except OSError:  # it has been removed
        here = ""
    texts = [str(os.fsdecode(entry)) for entry in path if isinstance(entry, (str, bytes))]
    return [os.path.join(here, text) if text else here for text in texts if here or os.path.isabs(text)]


def _python_path(text: str, path: list[str]) -> str:
    """Returns PYTHONPATH with absolute entries; relative ones stay only if training has them in its `sys.path`."""
    kept = []
    for entry in text.split(os.pathsep):
        with suppress(OSError):  # the working directory has been removed
            place = entry if os.path.isabs(entry) else os.path.abspath(entry)
            if place == entry or place in path:
                kept.append(place)
    return os.pathsep.join(kept)


def _options() -> list[str]:
    """Returns the options of this interpreter that say where it finds modules, and how it encodes text."""
    flags = sys.flags
    single = {"E": flags.ignore_environment, "s": flags.no_user_site, "S": flags.no_site}
    options = ["-I"] if flags.isolated else [f"-{letter}" for letter, is_set in single.items() if is_set]
    if flags.isolated and flags.no_site:
        options.append("-S")
    return [*options, "-X", f"utf8={flags.utf8_mode}"]


def hold_standard_fds() -> None:
    """Opens /dev/null in place of standard streams that are closed: what libraries print must not reach other files."""
    with suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR)) < _FIRST_OWN_FD:
            pass
        os.close(fd)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Blocks signals for the moment of a start: the new process inherits that, and no signal ends it half started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_behind() -> None:
    for process in _started:
        if process.poll() is None:
            process.returncode = 0  # it runs on without this process, so the interpreter must not warn


atexit.register(_leave_behind)
