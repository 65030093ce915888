"""Runs the parts, each in a process of its own: an error of one, of CUDA too, does not end the others."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_LONGEST_LIST = 40
ROOT = Path(__file__).resolve().parents[2]

LIMITS_S = {
    "graph": 60.0,
    "pipeline": 320.0,
    "loads": 240.0,
    "waves": 120.0,
    "idle": 90.0,
    "neighbours": 90.0,
}
"""Each part, and the longest time that it may take."""


def work(part: str) -> None:
    """Runs one part in this process: prints a JSON line for each result."""
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    for result in importlib.import_module(f"benchmarks.gpu.{part}").measure():
        print(json.dumps(plain({"part": part, "device": device, **result}), allow_nan=False), flush=True)


def plain(value: Any) -> Any:
    """Returns a value with None in place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_part(part: str, folder: Path, limit_s: float) -> Iterator[dict[str, Any]]:
    """Runs one part in a process of its own; its last result says why, if it failed."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PFO_FS_DRY_RUN": "1", "PFO_FS_GPU_OUT": str(folder.resolve())}
    log = folder / f"{part}.log"
    command = [sys.executable, "-m", "benchmarks.gpu", "--worker", part]
    began_s = time.monotonic()
    error = ""
    with log.open("wb") as sink, (folder / f"{part}.out").open("w+b") as output:
        process = subprocess.Popen(command, stdout=output, stderr=sink, cwd=ROOT, env=environment)
        try:
            if process.wait(limit_s):
                error = f"ended with {process.returncode}: {last_line(log)}"
        except subprocess.TimeoutExpired:
            error = f"was not done in {limit_s:.0f} s"
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        yield from results_in(output.read().decode("utf-8", "replace"))
    took = {"part": part, "what": "took", "seconds": round(time.monotonic() - began_s, 1)}
    yield {**took, "error": error} if error else took


def results_in(text: str) -> list[dict[str, Any]]:
    """Returns the JSON lines of a part's output; leaves out what libraries print, and a last line that is cut off."""
    found = []
    for line in text.splitlines():
        if line.startswith('{"part"'):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def last_line(log: Path) -> str:
    """Returns the last line of a file that says something."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote no error"


def figures(result: Mapping[str, Any]) -> str:
    """Returns a result's values as text for the table, without long lists."""
    texts = []
    for key, value in result.items():
        if key in ("part", "what", "device") or (isinstance(value, list) and len(value) > _LONGEST_LIST):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{inner} {short(one)}" for inner, one in value.items())
            texts.append(f"{key}: {value}")
        elif value != "":
            texts.append(f"{key} {short(value)}")
    return "\n".join(texts)


def short(value: object) -> str:
    """Returns a number with four digits that count."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show(results: list[dict[str, Any]]) -> None:
    """Prints the table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    devices = sorted({str(result["device"]) for result in results if "device" in result})
    table = Table("part", "what", "figures", title=f"pfo-fs on {', '.join(devices) or 'no GPU'}", show_lines=True)
    for result in results:
        table.add_row(result["part"], Text(str(result.get("what", ""))), Text(figures(result)))
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)


def main() -> int:
    """Runs the command; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Measures pfo-fs on one NVIDIA GPU in some ten minutes; changes none of its settings.",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results.jsonl and the logs")
    parser.add_argument("--only", nargs="*", choices=list(LIMITS_S), default=list(LIMITS_S), help="these parts")
    parser.add_argument("--limit-s", type=float, default=900.0, help="the longest time for all parts together")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time for each figure, to see what works")
    parser.add_argument("--worker", choices=list(LIMITS_S), help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["PFO_FS_DRY_RUN"] = "1"
    if given.quick:
        os.environ["PFO_FS_GPU_QUICK"] = "1"
    if given.worker:
        work(given.worker)
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + given.limit_s
    results = []
    with (given.out / "results.jsonl").open("w") as file:
        for part in given.only:
            for result in run_part(part, given.out, max(1.0, min(LIMITS_S[part], until_s - time.monotonic()))):
                results.append(result)
                line = json.dumps(result)
                file.write(line + "\n")
                file.flush()
                print(line, flush=True)
    show(results)
    return 1 if any("error" in result and result["what"] == "took" for result in results) else 0
