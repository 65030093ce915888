"""The page about one job: one file of HTML that needs nothing else, neither a network nor JavaScript."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import pfo_fs
from pfo_fs.reports.collect import JobData
from pfo_fs.reports.findings import work_out
from pfo_fs.reports.headline import headline_of
from pfo_fs.reports.markup import Markup, h
from pfo_fs.reports.sections import all_schedules, frontier, life, pipeline, profile, stragglers
from pfo_fs.reports.summary import headline_section, messages


def render_page(data: JobData, points: int | None = None) -> str:
    """Returns the page.

    Args:
        data: The job.
        points: How many plans the frontier has, with what clock changes cost planned in; None: what takes seconds.
    """
    found = work_out(data, points)
    headline = headline_of(data, found.forecast, found.predictions)
    style = files(pfo_fs.reports).joinpath("page.css").read_text()
    script = files(pfo_fs.reports).joinpath("page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    title = f"{data.folder.job_id} – pfo-fs report"
    page = h(
        "html",
        h(
            "head",
            h("meta", charset="utf-8"),
            h("meta", http_equiv="Content-Security-Policy", content=policy),
            h("meta", name="viewport", content="width=device-width, initial-scale=1"),
            h("meta", name="color-scheme", content="light dark"),
            h("meta", name="generator", content=f"pfo-fs {pfo_fs.__version__}"),
            h("title", title),
            h("style", Markup(style)),
        ),
        h(
            "body",
            _header(data),
            h(
                "main",
                headline_section(data, headline),
                messages(found),
                frontier(found, headline),
                pipeline(found),
                life(found),
                stragglers(found),
                profile(found),
                all_schedules(found),
            ),
            h("footer", f"pfo-fs {pfo_fs.__version__}, from {data.folder.path}"),
            h("script", Markup(script)),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _header(data: JobData) -> Markup:
    info = data.job.job_info
    state: str = data.current.state if data.current is not None else "waiting"
    if data.end is not None:
        state = data.end.reason
    elif data.archived:
        state = "archived"
    gpus = sorted({rank.gpu_name for rank in data.ranks if rank.gpu_name})
    facts = [
        f"{info.pp_degree} {data.place}s × {info.dp_degree} pipeline{'s' if info.dp_degree > 1 else ''}"
        + (f" × {info.tp_degree} GPUs each" if info.tp_degree > 1 else ""),
        f"{info.world_size} × {', '.join(gpus)}" if gpus else f"{info.world_size} ranks",
        f"{len(data.ranks)} of {info.world_size} ranks registered" if len(data.ranks) < info.world_size else "",
        f"started {data.job.started}" if data.job.started else "",
        f"last step {data.last_step}" if data.last_step >= 0 else "no step yet",
        "scheduled by " + {"daemon": "a daemon", "local": "rank 0"}[data.claim.kind] if data.claim else "",
        data.job.scheduler,
    ]
    return h(
        "header",
        h("p", "pfo-fs report", class_="brand"),
        h("h1", data.folder.job_id, " ", h("span", state, class_=f"state {state}")),
        h("p", " · ".join(fact for fact in facts if fact), class_="facts"),
        h("p", info.job_metadata, class_="facts") if info.job_metadata else None,
    )
