"""The data of the page's first sections: what the plan saves, and messages of coordinator, scheduler and ranks."""

from __future__ import annotations

from typing import Any

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.findings import Findings
from pfo_fs.reports.headline import Headline
from pfo_fs.reports.sections import seconds_text
from pfo_fs.reports.switching_text import switching_of, switching_text


def headline_section(data: JobData, headline: Headline) -> dict[str, Any]:
    """Returns savings against everything at the highest clocks, measured beside predicted."""
    window, best, against = data.in_force, headline.best, headline.against()
    cards: list[dict[str, Any]] = []
    if best is not None and against is not None:
        how = "measured" if headline.measured is not None else "predicted, not measured yet"
        cards = [
            _card(
                "energy per iteration", best.energy_j / against.energy_j - 1, "J", against.energy_j, best.energy_j, how
            ),
            _card(
                "time per iteration", best.span_s / against.span_s - 1, "s", against.span_s, best.span_s, how, digits=2
            ),
            _card("average power", best.power_w / against.power_w - 1, "W", against.power_w, best.power_w, how),
        ]
    elif best is not None:
        how = "measured" if headline.measured is not None else "predicted"
        cards = [
            _plain_card("energy per iteration", f"{best.energy_j:,.0f} J", how),
            _plain_card("time per iteration", seconds_text(best.span_s), how),
            _plain_card("average power", f"{best.power_w:,.0f} W", how),
        ]
    if window is not None:
        since = f"since step {window.index.start_step}"
        if headline.same_since is not None and headline.same_since != window.index.start_step:
            since += f"; the same clocks first at step {headline.same_since}"
        cards.append(_plain_card("in force", f"schedule {window.number}", since, _target_of(data, window)))
    else:
        said = data.current.message if data.current is not None else ""
        cards.append(_plain_card("in force", "no schedule yet", said or "clocks are left alone"))
    missing = ""
    if best is None:
        missing = "No energies yet: there are neither complete results of all ranks nor a model of the job."
    elif against is None:
        missing = (
            "Nothing to compare with: no iteration with everything at the highest clocks, or with clocks left alone, "
            "was measured."
        )
    return {
        "title": "Against everything at the highest clocks" if against is not None else "An iteration",
        "cards": cards,
        "saved": _saved(data, headline),
        "missing": missing if against is None else "",
        "comparison": _comparison(headline),
    }


def _card(title: str, change: float, unit: str, before: float, now: float, how: str, digits: int = 1) -> dict[str, Any]:
    now_text, before_text = (seconds_text(v) if unit == "s" else f"{v:,.0f} {unit}" for v in (now, before))
    return {
        "title": title,
        "kind": "good" if change < -0.0005 else "bad" if change > 0.01 else "even",
        "big": f"{change * 100:+.{digits}f} %".replace("-", "−"),
        "small": [f"{now_text} instead of {before_text}"],
        "how": how,
    }


def _plain_card(title: str, big: str, *small: str) -> dict[str, Any]:
    return {"title": title, "kind": "even", "big": big, "small": small, "how": ""}


def _target_of(data: JobData, window: Window) -> str:
    if window.index.source.kind == "yaml":
        return "by hand (schedule.yaml)"
    target = window.index.source.plan_inputs.target
    if target is not None:
        return f"target: {target}"
    status_text = data.current.status_text if data.current is not None else ""
    return status_text.split(";")[0] if status_text.startswith("target: ") else ""


def _saved(data: JobData, headline: Headline) -> str:
    window, best, against = data.in_force, headline.best, headline.against()
    if window is None or best is None or against is None:
        return ""
    steps = data.last_step - window.index.start_step + 1
    saved_j = (against.energy_j - best.energy_j) * steps
    if steps < 1 or saved_j <= 0:
        return ""
    amount = f"{saved_j / 3.6e6:,.2f} kWh" if saved_j > 3.6e5 else f"{saved_j / 1e3:,.0f} kJ"
    return (
        f"About {amount} of GPU energy saved in the {steps:,} iterations under schedule {window.number} so far "
        "(extrapolated from the measured ones)."
        if headline.measured is not None
        else f"About {amount} of GPU energy saved under schedule {window.number} so far, if predictions hold."
    )


def _comparison(headline: Headline) -> dict[str, Any] | None:
    rows = [
        ("highest clocks, measured", headline.baseline),
        ("highest clocks, predicted", headline.predicted_baseline),
        ("schedule in force, measured", headline.measured),
        ("schedule in force, predicted", headline.predicted),
    ]
    if not any(figures for _, figures in rows):
        return None
    return {
        "caption": "Measured and predicted figures of an iteration",
        "head": ["iteration", "time s", "energy J", "power W", "how"],
        "rows": [
            [name, f"{figures.span_s:.4f}", f"{figures.energy_j:,.0f}", f"{figures.power_w:,.0f}", figures.origin]
            if figures is not None
            else [name, "–", "–", "–", "not known"]
            for name, figures in rows
        ],
    }


def messages(found: Findings) -> list[tuple[str, str, str]]:
    """Returns (kind, who, text) of all that coordinator, scheduler and ranks report, and of what could not be read."""
    data = found.data
    rows: list[tuple[str, str, str]] = []
    current = data.current
    if current is not None:
        rows += [("warn", "coordinator", current.message), ("warn", "schedule.yaml refused", current.yaml_problem)]
        rows += [("info", "scheduler", current.status_text)]
    switching = switching_of(data.progress)
    if switching:
        rows.append(("info", "clocks", switching_text(switching)))
    if data.end is not None:
        rows.append(("info", f"ended: {data.end.reason}", data.end.message or data.end.reason))
    by_text: dict[tuple[str, str], list[int]] = {}
    for rank in data.ranks:
        by_text.setdefault(("registering", rank.message), []).append(rank.rank_info.rank)
    for progress in data.progress:
        by_text.setdefault(("error", progress.error), []).append(progress.rank)
    for iteration_times in data.paces:
        by_text.setdefault(("clocks are held back", iteration_times.throttled), []).append(iteration_times.rank)
    for (what, text), ranks in by_text.items():
        some = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        rows.append(("warn", f"rank {some}: {what}", text))
    rows += [("warn", "shared directory", text) for text in dict.fromkeys(data.store_errors)]
    rows += [("warn", "not readable", text) for text in dict.fromkeys(data.unreadable)]
    rows += [("warn", "profile", text) for text in (found.forecast.problem.warnings if found.forecast else ())]
    rows = [row for row in rows if row[2]][:200]
    if not any(kind == "warn" for kind, _, _ in rows):
        rows.insert(0, ("fine", "no warnings", "neither coordinator nor ranks report a problem"))
    return rows
