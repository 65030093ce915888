"""The page in a real browser that reaches no network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pfo_fs.reports.collect import JobData
from pfo_fs.reports.page import render_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def page(data: JobData) -> str:
    return render_page(data)


def opened(page: str, folder: Path, width: int = 1280) -> tuple[str, list[str]]:
    """The document as it is after its scripts have run, and what went to the console."""
    assert CHROMIUM is not None
    path = folder / "report.html"
    path.write_text(page)
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", f"--window-size={width},2000"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-component-update", "--disable-background-networking"),
            *("--virtual-time-budget=3000", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def shown(document: str) -> tuple[float, float]:
    """Which part of the iteration the pipeline chart shows, in s; only the script writes that down."""
    found = re.search(r'<div id="pipelines"[^>]*data-from="([\d.]+)" data-to="([\d.]+)"', document)
    assert found is not None, "the script did not run"
    return float(found[1]), float(found[2])


def test_the_page_renders_with_nothing_on_the_console(page: str, tmp_path: Path) -> None:
    document, console = opened(page, tmp_path)
    assert console == []
    assert shown(document) == (0.0, pytest.approx(1.02, rel=0.1))
    boxes = re.findall(r'<span[^>]*style="left: [^"]*width: [^"]*">\d+</span>', document)
    assert len(boxes) == 32, "forward and backward of four micro-batches on four ranks"


def test_a_button_zooms_into_the_middle_and_one_colours_by_power(page: str, tmp_path: Path) -> None:
    press = """<script>
      document.querySelector('[data-zoom="0.625"]').click();
      document.querySelector('[data-colour="power"]').click();
    </script>"""
    allowed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    document, console = opened(allowed.replace("</body>", f"{press}</body>"), tmp_path)
    first, last = shown(document)
    assert console == []
    assert 0 < first < last < 2.5
    assert re.search(r'<div id="pipelines" class="(?:dense )?by-power"', document)


def test_scripts_that_are_not_the_page_s_own_do_not_run(page: str, tmp_path: Path) -> None:
    intruder = "<script>document.title = 'intruder'</script><img src=x onerror=\"document.title='intruder'\">"
    document, console = opened(page.replace("</body>", f"{intruder}</body>"), tmp_path)
    assert "<title>intruder" not in document
    assert any("Content Security Policy" in line for line in console)
