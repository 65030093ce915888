"""Processes beside training: they start as training did, whatever that was, and their last words are kept."""

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipapp
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import HANGS_AFTER_S, environment, wait_for

from pfo_fs.ipc import spawn
from pfo_fs.ipc.process_end import start_of

PACKAGE = Path(__file__).parents[2] / "pfo_fs"


@pytest.fixture
def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes the `main(given)` of a module that a process can be started with; returns the module's name."""

    def write(body: str) -> str:
        folder = tmp_path / "modules"
        folder.mkdir()
        (folder / "child_of_test.py").write_text(
            "import json, os, signal, sys, time\ndef main(given):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        )
        monkeypatch.syspath_prepend(folder)
        return "child_of_test"

    return write


def answer_of(module: str, *, waits: bool = True) -> Any:
    """What the module's `main` writes to the file descriptor `to_fd`."""
    reading, writing = os.pipe()
    with open(reading) as answers:
        try:
            child = spawn.start_process(module, {}, fds={"to_fd": writing})
        finally:
            os.close(writing)
        text = answers.read()
    assert not waits or child.wait(HANGS_AFTER_S) == 0, child.how_it_ended()
    return json.loads(text)


def test_an_ended_process_is_reaped_at_the_next_start(tmp_path: Path, interpreter: Callable[[str], None]) -> None:
    interpreter(f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done")
    pid = spawn.start_process("any", {}).pid
    (tmp_path / "go").touch()
    wait_for(lambda: not start_of(pid), what="its end")
    last = spawn.start_process("any", {})
    assert not os.path.exists(f"/proc/{pid}")
    assert pid not in {process.pid for process in spawn._started}
    last.wait()


TELLS_PATH = "json.dump([sys.path, os.getcwd()], open(given['to_fd'], 'w'))"


def test_a_process_has_the_same_path_in_the_same_order_with_relative_entries_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child_module: Callable[[str], str]
) -> None:
    """It may be longer than a command or a pipe holds."""
    module = child_module(TELLS_PATH)
    monkeypatch.chdir(tmp_path)
    more = [*sys.path, os.fsdecode(b"/not/utf-8/\xff"), *(f"/nowhere/{number}/{'x' * 240}" for number in range(2000))]
    monkeypatch.setattr(sys, "path", ["", "relative/folder", *more, Path("/ignored/by/Python")])
    assert answer_of(module) == [[str(tmp_path), str(tmp_path / "relative/folder"), *more], "/"]


def test_packages_with_names_of_standard_modules_do_not_reach_a_process_whose_training_runs_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child_module: Callable[[str], str]
) -> None:
    module = child_module(
        """
        import pfo_fs.device.clock_process, pfo_fs.helper.process, pfo_fs.helper.operations, argparse, statistics
        json.dump([argparse.__file__, statistics.__file__], open(given["to_fd"], "w"))
        """
    )
    shadows = tmp_path / "target"
    shadows.mkdir()
    here = [name for name in sys.stdlib_module_names - {"antigravity", "this"} if importlib.util.find_spec(name)]
    for name in here:  # as `pip install --target` of old backports leaves them
        (shadows / f"{name}.py").write_text("raise SyntaxError('this is for Python 2')")
    monkeypatch.setattr(sys, "path", [str(shadows), *sys.path])
    found = answer_of(module)
    assert all(not path.startswith(str(tmp_path)) for path in found)


def test_neither_the_folder_of_the_start_nor_python_options_of_the_moment_add_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child_module: Callable[[str], str]
) -> None:
    module = child_module("import statistics, warnings\nwarnings.warn('x', DeprecationWarning)\n" + TELLS_PATH)
    monkeypatch.chdir(tmp_path)
    for name in ("statistics", "marshal", "sitecustomize", "pfo_fs"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONPATH", f".{os.pathsep}")  # relative to where training began, which was elsewhere
    assert str(tmp_path) not in answer_of(module)[0]


def finds(module: str, file: Path, places: list[str] | None = None) -> str:
    """A program that has a module found by an import hook, and not by the path."""
    return textwrap.dedent(
        f"""
        import importlib.util, sys
        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == {module!r}:
                    found = {str(file)!r}
                    return importlib.util.spec_from_file_location(name, found, submodule_search_locations={places})
        sys.meta_path.insert(0, Finder)
        """
    )


def starts(module: str, **given: str) -> str:
    start = f"from pfo_fs.ipc.spawn import start_process\nchild = start_process({module!r}, {given!r})\n"
    return f"{start}assert child.wait(20) == 0, child.how_it_ended()\n"


@pytest.mark.parametrize("python_path", ["{tmp_path}/site:{package}", "site:{package}"], ids=["absolute", "relative"])
def test_hooks_of_site_packages_work_in_a_process_as_they_do_in_training(tmp_path: Path, python_path: str) -> None:
    """As an editable install whose package is found by an import hook, and not by the path."""
    (tmp_path / "site").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/hooked.py").write_text("def main(given):\n    open(given['file'], 'w').write('ran')\n")
    (tmp_path / "site/sitecustomize.py").write_text(finds("hooked", tmp_path / "elsewhere/hooked.py"))
    given = environment(PYTHONPATH=python_path.format(tmp_path=tmp_path, package=PACKAGE.parent))
    command = [sys.executable, "-c", starts("hooked", file=str(tmp_path / "ran"))]
    subprocess.run(command, check=True, env=given, cwd=tmp_path)
    assert (tmp_path / "ran").read_text() == "ran"


def test_a_package_that_training_has_found_by_a_hook_of_the_moment_is_found_by_its_processes(tmp_path: Path) -> None:
    """As after `activate_this.py` of an environment with an editable install."""
    (tmp_path / "runs.py").write_text("def main(given):\n    pass\n")
    path = f"sys.path[:] = [{str(tmp_path)!r}, *(x for x in sys.path if x not in ('', {str(PACKAGE.parent)!r}))]\n"
    script = finds("pfo_fs", PACKAGE / "__init__.py", [str(PACKAGE)]) + path + starts("runs")
    subprocess.run([sys.executable, "-I", "-c", script], check=True)


TRAINS = """
import time
import pfo_fs
def train(shared):
    opt = pfo_fs.PFOFileOptimizer(shared, pp_degree=1, scheduler="Manual")
    assert opt.coordination == "local", opt.coordination
    assert opt._clocks.alive() and not opt._clocks.message, opt._clocks.message
    for step in range(3):
        opt.on_step_begin()
        opt.on_instruction_begin("forward")
        opt.on_instruction_end("forward")
        opt.on_step_end()
    opt.close()
    print("trained")
"""


def test_training_from_a_zip_file_starts_its_processes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = source / path.relative_to(PACKAGE.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    needs = [entry for entry in sys.path if entry.endswith("site-packages")]
    (source / "trains.py").write_text(TRAINS)
    (source / "__main__.py").write_text(
        f"import sys\nsys.path += {needs!r}\nimport trains, pfo_fs\n"
        "assert '.pyz' in pfo_fs.__file__\ntrains.train(sys.argv[1])\n"
    )
    zipapp.create_archive(source, tmp_path / "job.pyz")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "job.pyz", str(tmp_path / "shared")],
        cwd=tmp_path, env=environment(PFO_FS_GPU="simulated"), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("trained\n", 0), done.stderr


def test_an_interpreter_may_be_relative(monkeypatch: pytest.MonkeyPatch, child_module: Callable[[str], str]) -> None:
    module = child_module(TELLS_PATH)
    monkeypatch.chdir(Path(sys.executable).parent)
    monkeypatch.setattr(sys, "executable", f"./{Path(sys.executable).name}")
    assert answer_of(module)[0] == sys.path


@pytest.mark.parametrize(
    ("holder", "name", "value"),
    [
        (sys, "frozen", True),
        (sys, "oxidized", True),
        (sys.modules, "__main__", SimpleNamespace(__compiled__=object())),
        (sys, "executable", ""),
        (sys, "executable", None),
        (sys, "executable", "/nowhere/python3"),
        (sys, "executable", "/bin/sh"),
    ],
    ids=["PyInstaller", "PyOxidizer", "Nuitka", "empty", "None", "missing", "another program"],
)
def test_no_interpreter_is_no_process(monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, value: object) -> None:
    if holder is sys.modules:
        monkeypatch.setitem(holder, name, value)
    else:
        monkeypatch.setattr(holder, name, value, raising=False)
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *_, **__: pytest.fail("a process is started"))
    with pytest.raises(OSError, match=r"frozen|not a Python interpreter"):
        spawn.start_process("any", {})


def test_a_program_that_is_run_again_ends_where_it_imports(tmp_path: Path, interpreter: Callable[[str], None]) -> None:
    (tmp_path / "main.py").write_text("import pfo_fs; open('trained-again', 'w')")
    interpreter(f"cd {tmp_path}; PYTHONPATH={PACKAGE.parent} exec {sys.executable} main.py")
    child = spawn.start_process("any", {})
    assert child.wait(HANGS_AFTER_S) == 1
    assert "started the program a second time" in child.last_words()
    assert not (tmp_path / "trained-again").exists()


KEPT = "SIGKILL SIGSTOP SIGTSTP SIGCONT SIGCHLD SIGSEGV SIGBUS SIGFPE SIGILL SIGABRT SIGTRAP SIGSYS SIGTERM".split()


def test_no_signal_of_a_batch_system_or_terminal_ends_it(tmp_path: Path, child_module: Callable[[str], str]) -> None:
    module = child_module("while not os.path.exists(given['go']): time.sleep(0.01)")
    go = tmp_path / "go"
    sent = signal.valid_signals() - {signal.Signals[name] for name in KEPT}
    child = spawn.start_process(module, {"go": str(go)})
    for _ in range(20):
        for number in sent:
            child.send_signal(number)
        time.sleep(0.01)
    go.touch()
    assert child.wait(HANGS_AFTER_S) == 0, child.how_it_ended()


def test_no_process_inherits_blocked_or_ignored_signals_and_sigterm_waits(child_module: Callable[[str], str]) -> None:
    module = child_module(
        """
        import subprocess
        from pfo_fs.ipc.started import on_sigterm
        ignored = [number for number in (signal.SIGCHLD, signal.SIGCONT) if signal.getsignal(number) == signal.SIG_IGN]
        failed = subprocess.run(["false"]).returncode
        blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        got = []
        os.kill(os.getpid(), signal.SIGTERM)
        before = list(got)
        on_sigterm(lambda *_: got.append("got it"))
        json.dump([ignored, failed, blocked, before, got], open(given["to_fd"], "w"))
        """
    )
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGALRM, signal.SIGTSTP})
    try:
        found = answer_of(module, waits=False)
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert found == [[], 1, [signal.SIGTERM], [], ["got it"]]


@pytest.mark.parametrize("closed", [(0,), (0, 1, 2)], ids=str)
def test_training_whose_standard_streams_are_closed_gets_its_processes(tmp_path: Path, closed: tuple[int, ...]) -> None:
    (tmp_path / "job.py").write_text(
        f"import os\nfor fd in {closed}: os.close(fd)\n{TRAINS}\ntrain('shared')\nopen('trained', 'w').close()\n"
    )
    given = environment(PFO_FS_GPU="simulated")
    subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=given, capture_output=True)
    assert (tmp_path / "trained").exists()


def test_a_process_that_hangs_keeps_no_stream_of_training_open(tmp_path: Path) -> None:
    script = f"""
        import sys
        from pfo_fs.ipc.spawn import start_process
        sys.path.insert(0, {str(tmp_path)!r})
        print(start_process("hangs", {{}}).pid)
    """
    (tmp_path / "hangs.py").write_text("import time\ndef main(given):\n    time.sleep(60)\n")
    done = subprocess.run(  # waits until all copies of the pipes are closed
        [sys.executable, "-c", textwrap.dedent(script)], env=environment(), capture_output=True, text=True
    )
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import nothing", "exit status 1; its last words: ModuleNotFoundError: No module named 'nothing'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by signal 9"),
    ],
)
def test_the_end_is_said_with_the_last_words(child_module: Callable[[str], str], body: str, said: str) -> None:
    child = spawn.start_process(child_module(body), {})
    child.wait(HANGS_AFTER_S)
    assert child.how_it_ended() == f" ({said})"


def test_a_process_outlives_training(child_module: Callable[[str], str], interpreter: Callable[[str], None]) -> None:
    child = spawn.start_process(child_module("time.sleep(60)"), {}, outlives=True)
    pid = wait_for(lambda: child.pid, what="its id")
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert (parent == os.getpid(), child.poll()) == (False, None)
    child.kill()
    child.wait(20)
    assert child.how_it_ended() == " (without a word, as after SIGKILL)"
    interpreter("exit 3")
    assert spawn.start_process("any", {}, outlives=True).wait(20) == 3, "also of one that ends before it begins"


def test_a_file_that_took_the_place_of_ours_is_left_alone(child_module: Callable[[str], str], tmp_path: Path) -> None:
    child = spawn.start_process(child_module("import no_such_package"), {})
    child.wait(HANGS_AFTER_S)
    (tmp_path / "diary").write_text("secret")
    with (tmp_path / "diary").open() as file:
        os.dup2(file.fileno(), child.output)
        fd = child.output
        assert child.last_words() == ""
        del child
        spawn.start_process("json.tool", {}).wait(HANGS_AFTER_S)  # those that have ended are dropped then
        gc.collect()
        assert os.read(fd, 6) == b"secret"
        os.close(fd)


def test_a_process_that_writes_without_end_keeps_little_and_its_last_words(child_module: Callable[[str], str]) -> None:
    module = child_module(
        """
        from pfo_fs.ipc.started import OwnOutput
        output = OwnOutput()
        for number in range(100):
            os.write(2, 10_000 * b"x" + b"\\n")
            told = output.new_text()
            assert 0 < len(told) <= 2000
        assert output.new_text() == ""
        print("the end", file=sys.stderr)
        """
    )
    child = spawn.start_process(module, {})
    assert child.wait(HANGS_AFTER_S) == 0
    assert os.fstat(child.output).st_size < 300_000
    assert child.last_words() == "the end"
