"""The page about one job: one file of HTML that needs nothing else, neither a network nor JavaScript.

Templates (`templates/`) hold the markup, the sections the data. Jinja2 escapes everything except this package's
pictures, because texts in the shared directory can come from any member of its group.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import pfo_fs
from pfo_fs.reports import sections
from pfo_fs.reports.collect import JobData
from pfo_fs.reports.figures import SHADES, colour
from pfo_fs.reports.load_advice import load_advice
from pfo_fs.reports.pipeline_section import pipeline
from pfo_fs.reports.savings import savings_of
from pfo_fs.reports.summary import headline_section, messages


def render_page(data: JobData) -> str:
    """Returns the page about a job."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("pfo_fs.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    advice = load_advice(data)
    style, script = (files("pfo_fs.reports").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:",
        version=pfo_fs.__version__,
        job_id=data.folder.job_id,
        path=str(data.folder.path),
        style=Markup(style),  # noqa: S704  a file of this package
        script=Markup(script),  # noqa: S704  a file of this package
        ramp=f"linear-gradient(90deg, {', '.join(colour(step) for step in range(SHADES))})",
        state=data.text,
        facts=_facts(data),
        metadata=data.job.job_info.job_metadata,
        advice=advice.text if advice is not None else "",
        headline=headline_section(data, savings_of(data)),
        messages=messages(data),
        last_step=sections.last_step(data),
        pipeline=pipeline(data),
        schedules=sections.schedules(data),
    )


def _facts(data: JobData) -> list[str]:
    info = data.job.job_info
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
    return [fact for fact in facts if fact]
