"""Imports point downwards only, and what must start fast imports nothing heavy."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from running import modules_loaded_by

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "pfo_fs"

VOCABULARY = {"arrays", "clock_latency", "errors", "guard", "loads_known", "models", "settings", "turns", "user_files"}
# What each room may import besides itself and the vocabulary: rooms above it, and of these only the ones listed.
ROOMS: dict[str, set[str]] = {
    "store": set(),
    "ipc": set(),
    "planner": set(),
    "loads": {"planner"},
    "schedule_yaml": set(),
    "scheduler": {"schedule_yaml"},
    "device": {"ipc", "loads"},
    "autotune": {"scheduler", "planner"},
    "coordination": {"store", "ipc", "scheduler", "schedule_yaml"},
    "helper": {"ipc", "store", "device", "coordination"},
    "training": {"ipc", "helper", "device", "scheduler", "loads"},
    "power_limit": {"ipc", "device", "helper"},
    "integrations": {"ipc", "planner", "loads", "training", "power_limit"},
    "doctor": {"ipc", "store", "coordination", "device", "helper", "training"},
    "simulator": {"ipc", "device", "planner", "loads", "store", "coordination", "helper", "training"},
    "reports": {"store", "coordination", "planner", "autotune"},
}
ROOMS["cli"] = set(ROOMS)
# The vocabulary, and the two files that only name things.
TOP = {
    "arrays": set(),
    "clock_latency": set(),
    "errors": set(),
    "guard": {"errors"},
    "loads_known": {"models"},
    "models": {"errors"},
    "settings": {"errors"},
    "turns": set(),
    "user_files": {"errors"},
    "__main__": {"cli"},
    "__init__": {*VOCABULARY, "planner", "loads", "training", "scheduler", "power_limit", "integrations"},
}
MOST_LINES = 400


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            if node.module == "pfo_fs":
                modules = [f"pfo_fs.{alias.name}" for alias in node.names]
        found |= {module.split(".")[1] for module in modules if module.startswith("pfo_fs.")}
    return found


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if "examples" not in path.parts]


def test_nothing_lies_loose_at_the_top_but_vocabulary() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(TOP)


def test_each_room_has_a_row_and_imports_only_rooms_above_it() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ROOMS)
    above: set[str] = set()
    for room, allowed in ROOMS.items():
        assert allowed <= above, f"{room} stands above a room that it may import"
        above.add(room)


def test_a_module_imports_only_what_its_room_may_import() -> None:
    parts = {*TOP, *ROOMS}
    for path in MODULES:
        room = part_of(path)
        allowed = TOP[room] if room in TOP else ROOMS[room] | VOCABULARY | {room}
        assert imports_of(path) & parts <= allowed, path


def test_no_row_allows_more_than_its_room_needs() -> None:
    for room in ROOMS.keys() - {"cli"}:
        needed = set().union(*(imports_of(path) for path in MODULES if part_of(path) == room))
        assert ROOMS[room] <= needed, room


def test_a_module_fits_on_a_few_screens() -> None:
    assert [path for path in MODULES if len(path.read_text().splitlines()) > MOST_LINES] == []


def test_heavy_packages_are_imported_inside_functions() -> None:
    heavy = {"torch", "pandas", "pynvml", "numpy", "scipy", "lowtime", "watchdog", "matplotlib", "highspy", "networkx"}
    heavy |= {"transformers", "zeus", "jinja2", "markupsafe", "deepspeed", "megatron", "torchtitan", "filelock"}
    heavy |= {"prometheus_client"}
    for path in MODULES:
        for node in tree_of(path).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {name.split(".")[0] for name in names}, path


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import pfo_fs", {"torch", "pydantic", "pandas", "pynvml"}),
        ("import pfo_fs.cli", {"torch", "pydantic", "pandas", "pynvml", "watchdog", "filelock", "prometheus_client"}),
        ("import pfo_fs.coordination.daemon", {"torch", "pandas", "pynvml", "numpy"}),
        ("import pfo_fs.helper.process", {"torch", "pandas", "pynvml", "numpy", "rich", "watchdog"}),
        (
            "import pfo_fs.training.optimizer",
            {"torch", "pandas", "pynvml", "numpy", "yaml", "rich", "watchdog", "filelock"},
        ),
        (
            "import pfo_fs.device.clock_process, pfo_fs.device.simulated.gpu, pfo_fs.device.gpu.nvml",
            {"torch", "pydantic", "pandas", "numpy", "rich", "pynvml", "yaml", "asyncio", "logging", "dataclasses"},
        ),
        ("from pfo_fs import GlobalPowerLimitOptimizer", {"torch", "pandas", "pynvml", "numpy", "rich"}),
        ("from pfo_fs import HFGlobalPowerLimitOptimizer", {"torch", "transformers", "numpy"}),
        ("from pfo_fs import attach", {"torch", "numpy", "deepspeed", "megatron", "torchtitan"}),
    ],
)
def test_starting_does_not_import(code: str, absent: set[str]) -> None:
    assert not absent & modules_loaded_by(code)


def test_one_module_reads_yaml_of_users_and_nothing_else_makes_objects_from_it() -> None:
    reading = re.compile(r"\byaml\.(\w*[Ll]oad\w*|scan|parse|compose\w*|C?\w*Constructor)\b")
    readers = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if reading.search(path.read_text())}
    assert readers == {"schedule_yaml/nodes.py", "doctor/lines.py"}
    doctor = (PACKAGE / "doctor" / "lines.py").read_text()
    assert reading.findall(doctor) == ["safe_load"]
    assert 'yaml.safe_load(files("pfo_fs.doctor").joinpath("lines.yaml")' in doctor, "a file of the package itself"


def test_each_public_name_is_there() -> None:
    import pfo_fs

    assert {"PFOFileOptimizer", "LoadClocks", "attach", "loads"} <= set(pfo_fs.__all__)
    assert all(getattr(pfo_fs, name) is not None for name in pfo_fs.__all__)
    with pytest.raises(AttributeError, match=r"in pfo_fs\.power_limit and"):
        pfo_fs.MaxSlowdownConstraint  # noqa: B018


TIME = r"([\w.]+\.)?time"
REPLACES = re.compile(
    rf'\b(setattr|delattr|patch|object)\(\s*("{TIME}\.\w+"|{TIME},)|^\s*(del {TIME}\.\w+$|{TIME}\.\w+ = )', re.MULTILINE
)


def test_no_test_replaces_the_clock_of_the_whole_process() -> None:
    """Other threads and pytest itself use it."""
    of_its_own = TESTS / "processes" / "faulty" / "sitecustomize.py"  # in processes that are there for nothing else
    for path in TESTS.rglob("*.py"):
        found = path != of_its_own and REPLACES.search(path.read_text())
        assert not found, f"{path}: {found[0]}: clock.replace_time replaces that of a package"
