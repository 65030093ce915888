"""The pages describe what is there: files, tests, rooms, modes, settings; and use one word for each concept."""

import re

import pytest
from test_layers import PACKAGE, ROOMS

from pfo_fs.device.gpu.spec import NAMES
from pfo_fs.device.simulated.physics import PRESETS
from pfo_fs.settings import PFOSettings
from pfo_fs.training.step_parts import MODES

ROOT = PACKAGE.parent
PAGES = {path.name: path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}
CONTRIBUTING = PAGES["CONTRIBUTING.md"]
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "failures.md", "threat-model.md", "switching.md"])
def test_every_file_and_test_that_is_named_exists(page: str) -> None:
    text = PAGES[page]
    files = re.findall(r"`((?:[a-z_.]+/)*[a-z_]+\.py|(?:pfo_fs|benchmarks|tests|tools)/[\w/]+)`", text)
    files += re.findall(r"\]\(([^):#]+)\)", text)
    assert files
    places = (ROOT, PACKAGE, ROOT / "docs")
    planted = {"pfo_fs.py"}  # by another user, in the threat model
    assert {name for name in files if not any((place / name).exists() for place in places)} <= planted
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in TESTS] == []


def test_files_of_a_room_lie_in_that_room() -> None:
    named = re.findall(r"`([a-z_]+)/[a-z_/]+(?:\.py)?`", CONTRIBUTING)
    assert len(named) > 40, "the pattern above does not find them any more"
    assert set(named) - {"tests", "docs", "tools", "deploy", "benchmarks", "examples", "off", "iteration"} <= set(ROOMS)


def section(title: str) -> str:
    return CONTRIBUTING.partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_the_map_has_each_room_with_what_it_may_import() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .+ \| (.*?) ?\|$", section("The rooms"), re.MULTILINE))
    assert list(rows) == list(ROOMS)
    for room, listed in rows.items():
        if listed not in ("all", "most of the above"):
            assert {name for name in listed.split(", ") if name} == ROOMS[room], room


def test_the_modules_that_decide_are_in_the_rooms_that_the_table_names() -> None:
    rows = re.findall(r"^\| .+? \| (`.+?) \|", section("What is decided where"), re.MULTILINE)
    decisions = [pair for row in rows for pair in re.findall(r"`([a-z_]+)`: ((?:`[a-z_]+`(?:, )?)+)", row)]
    assert len(decisions) > 20, "the pattern above does not find them any more"
    for room, names in decisions:
        for name in re.findall(r"`([a-z_]+)`", names):
            assert list((PACKAGE / room).rglob(f"{name}.py")), f"{room} has no module {name}"


def test_each_of_the_requirements_on_file_systems_has_a_row_with_a_test() -> None:
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+?) \|$", section("What pfo-fs asks of a shared file system"), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    assert all("`test_" in tests for _, tests in rows)


def test_the_one_command_exists_and_can_be_run() -> None:
    assert "tools/gate" in CONTRIBUTING
    assert (ROOT / "tools" / "gate").stat().st_mode & 0o111
    assert "tools/gate" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    ("page", "name"),
    [*(("switching.md", name) for name in (*MODES, *PRESETS)), *(("clock-backends.md", name) for name in NAMES[1:])],
)
def test_each_mode_each_simulated_node_and_each_way_to_set_clocks_has_a_row(page: str, name: str) -> None:
    assert re.search(rf"^\| `{name}`(, the default)? \|", PAGES[page], re.MULTILINE)
    assert page == "switching.md" or name == "none" or f"\n## {name}\n" in PAGES[page]


def test_every_setting_of_the_table_exists() -> None:
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    known = {f"PFO_FS_{name.upper()}" for name in PFOSettings.model_fields} | set(re.findall(r"PFO_FS_[A-Z_]+", code))
    named = set(re.findall(r"`(PFO_FS_[A-Z_]+)", PAGES["operating.md"]))
    assert named
    assert named <= known


def test_the_readme_is_short() -> None:
    text = re.sub(r"^```.*?^```$", "", PAGES["README.md"], flags=re.MULTILINE | re.DOTALL)
    assert len(text.split()) < 800


GIVEN_UP = {
    **dict.fromkeys(("somebody", "someone", "nobody", "anybody", "anyone"), "the name of the process or person"),
    **dict.fromkeys(("everybody", "everyone"), "all ranks, all users ..."),
    "whoever": "the process that ...",
    "agent": "helper",
    "announcer": "status publisher",
    "calming": "change reduction",
    "cursor": "tracker",
    "diffuse": "greedy round",
    "doubtful": "noisy",
    **dict.fromkeys(("heed", "heeded", "heeds"), "apply"),
    "lockstep": "broadcast",
    "news": "status text, or what is new",
    "recall": "load",
    "roster": "rank registry",
    **dict.fromkeys(("shelf", "shelved"), "profile cache"),
    "warmth": "power drift",
    **dict.fromkeys(("wish", "wished", "wishes"), "request"),
}


def test_words_that_were_given_up_for_others_are_gone() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".html")]
    files += [*ROOT.glob("examples/*.py"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r}: rather {GIVEN_UP[word.lower()]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", line)  # those of CamelCase one by one
        if word.lower() in GIVEN_UP
    ]
    assert not found
