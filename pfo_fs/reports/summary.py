"""The data of the page's first sections: what the plan saves, what the whole job took, and all messages."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import median
from typing import Any

from pydantic import ValidationError

from pfo_fs.autotune.status_text import TIMES_THE_ERROR
from pfo_fs.models import Target
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.findings import Findings
from pfo_fs.reports.forecast import Predicted
from pfo_fs.reports.headline import Headline
from pfo_fs.reports.sections import seconds_text
from pfo_fs.reports.switching_text import switching_of, switching_text
from pfo_fs.reports.totals import JobTotal, total_of
from pfo_fs.reports.wording import (
    difference_text,
    duration_text,
    end_text,
    energy_text,
    percent,
    signed_percent,
    with_error,
)
from pfo_fs.store.loads_known import LoadsKnown


def headline_section(data: JobData, headline: Headline, predictions: Mapping[int, Predicted]) -> dict[str, Any]:
    """Returns savings against everything at the highest clocks, measured beside predicted."""
    window, best, against = data.in_force, headline.best, headline.against()
    cards: list[dict[str, Any]] = []
    time_error, energy_error = headline.change_errors()
    has_error = headline.measured is None or energy_error is not None
    if best is not None and against is not None and has_error:
        how = "measured" if headline.measured is not None else "predicted, not measured yet; its error is not known"
        if headline.same_work:
            how = "measured, for the same work"
        observed = observed_span_s(data) if headline.measured is None and not headline.work_differs else None
        span_s, span_how = (best.span_s, how) if observed is None else (observed, "measured; its energy is not yet")
        cards = [
            _card(
                "energy per iteration",
                with_error(signed_percent(best.energy_j / against.energy_j - 1), energy_error),
                f"{best.energy_j:,.0f} J instead of {against.energy_j:,.0f} J",
                how,
                "good" if best.energy_j < (1 - (energy_error or 0.0005)) * against.energy_j else "even",
            ),
            _card(
                "time per iteration",
                with_error(signed_percent(span_s / against.span_s - 1, 2), time_error, 2),
                f"{seconds_text(span_s)} instead of {seconds_text(against.span_s)}",
                span_how,
                "bad" if missed_target(data, headline) is not None else "even",
            ),
        ]
    elif best is not None:
        how = "measured" if headline.measured is not None else "predicted"
        errors = best.time_error, best.energy_error
        cards = [
            _plain_card("energy per iteration", f"{best.energy_j:,.0f} J", _plus_minus(errors[1]), how),
            _plain_card("time per iteration", seconds_text(best.span_s), _plus_minus(errors[0]), how),
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
    elif headline.work_differs and headline.measured is not None and against is None:
        missing = (
            f"Iterations differ in work: their times scatter by {percent(headline.work_differs, 0)} under one "
            "schedule, so those of two schedules are not compared. The scheduler, which compares the same work, has no "
            "figures for this schedule."
        )
    elif against is None:
        missing = (
            "Nothing to compare with: no iteration with everything at the highest clocks, or with clocks left alone, "
            "was measured."
        )
    elif not has_error:
        missing = "One iteration alone has no error, so nothing is compared yet."
    total = total_of(data, headline, predictions)
    title = "Against everything at the highest clocks" if against is not None and has_error else "An iteration"
    saved = _saved(data, headline)
    if data.loads is not None:
        title, saved, missing = "Clocks from loads, against the highest clocks", data.loads.text, ""
        cards = _load_cards(data.loads)
    return {
        "title": title,
        "cards": cards,
        "saved": saved,
        "missing": missing,
        "comparison": _comparison(headline) if data.loads is None else None,
        "total": _total(total),
        "total_how": _how_total(total, headline),
    }


def _card(title: str, big: str, small: str, how: str, kind: str) -> dict[str, Any]:
    return {"title": title, "kind": kind, "big": big, "small": [small], "how": how}


def _with_unsure(value: float, error: float | None, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text if error is None else f"{text} ± {TIMES_THE_ERROR * error * value:,.{digits}f}"


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f"± {percent(TIMES_THE_ERROR * error, 1)}"


def _load_cards(known: LoadsKnown) -> list[dict[str, Any]]:
    saved, over = "not known yet", f"over {known.steps} steps"
    if known.saved is not None:
        saved, over = signed_percent(-known.saved), f"± {100 * (known.saved_error or 0.0):.1f} %, {over}"
    explained = "too little" if known.explained is None else f"{math.floor(100 * known.explained)} %"
    return [
        _plain_card("energy", saved, over),
        _plain_card("time", signed_percent(known.late, 2), f"± {100 * known.late_error:.2f} %"),
        _plain_card("loads explain", explained, "of what varies between ranks"),
        _plain_card("batches of equal work", signed_percent(-known.balanced, 0), "time: that comes first"),
    ]


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
    error = headline.change_errors()[1]
    if steps < 1 or saved_j <= (error or 0.0) * against.energy_j * steps or (headline.measured and error is None):
        return ""
    unsure = f" (± {energy_text((error or 0.0) * against.energy_j * steps, saved_j)})"
    return (
        f"About {energy_text(saved_j)}{unsure} of GPU energy saved in the {steps:,} iterations under schedule "
        f"{window.number} so far (extrapolated from the measured ones)."
        if headline.measured is not None
        else f"About {energy_text(saved_j)} of GPU energy saved under schedule {window.number} so far, if predictions "
        "hold."
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
            [
                name,
                _with_unsure(figures.span_s, figures.time_error, 4),
                _with_unsure(figures.energy_j, figures.energy_error, 0),
                f"{figures.power_w:,.0f}",
                figures.origin,
            ]
            if figures is not None
            else [name, "–", "–", "–", "not known"]
            for name, figures in rows
        ],
    }


_TIME_TOLERANCE = 0.01
"""Relative: iterations that take at most this much longer than the target allows do not count as a missed target."""


def observed_span_s(data: JobData) -> float | None:
    """Returns the median time (s) of the last iterations under the schedule in force, as ranks reported them."""
    window = data.in_force
    by_step: dict[int, float] = {}
    for times in data.paces:
        for step, number, span_s in times.steps:
            if window is not None and number == window.number:
                by_step[step] = max(span_s, by_step.get(step, 0.0))
    return median(by_step.values()) if len(by_step) >= 3 else None


def missed_target(data: JobData, headline: Headline) -> str | None:
    """Returns by how much the schedule in force misses the job's target, as text; None if it does not."""
    window, measured, against = data.in_force, headline.measured, headline.against()
    if window is None or window.index.steps or window.index.source.kind != "scheduler":
        return None  # schedules for measuring and those of people have no target
    inputs = window.index.source.plan_inputs
    if (
        inputs.slow_pipelines
        or inputs.straggler is not None
        or not any(s.frequencies for s in window.schedules.values())
    ):
        return None
    target = inputs.target or default_target(data)
    if target.power is not None:
        if measured is None or measured.power_w <= target.power * (1 + _TIME_TOLERANCE):
            return None
        return f"iterations draw {measured.power_w:,.0f} W, the target is {target}"
    span_s = measured.span_s if measured is not None else observed_span_s(data)
    if span_s is None or (target.deadline is None and against is None):
        return None
    if target.deadline is not None:
        limit_s = target.deadline
    else:
        assert against is not None
        limit_s = against.span_s * (target.slowdown or 1.0)
    over = span_s / limit_s - 1
    if over <= _TIME_TOLERANCE:
        return None
    return (
        f"iterations take {seconds_text(span_s)}, {signed_percent(over, 2)} more than the {seconds_text(limit_s)} that "
        f"the target allows ({target})"
    ).replace(" +", " ")


def default_target(data: JobData) -> Target:
    """Returns the target in the arguments of the job's scheduler; without any, no slowdown."""
    given = {name: data.job.scheduler_args.get(name) for name in ("slowdown", "deadline", "power")}
    known = {name: value for name, value in given.items() if value is not None}
    try:
        return Target.model_validate(known) if known else Target(slowdown=_told_slowdown(data))
    except ValidationError:
        return Target(slowdown=1.0)


def _told_slowdown(data: JobData) -> float:
    """The slowdown in the scheduler's own words: the daemon's arguments are not in the job's folder."""
    told = re.match(r"target: at most ([\d.]+) times", data.current.status_text if data.current is not None else "")
    return max(1.0, float(told[1])) if told else 1.0


def _total(total: JobTotal | None) -> dict[str, Any] | None:
    if total is None:
        return None
    rows, whole = [], total.whole
    parts = (total.profiling, total.other, whole)
    more_time_s = max((part.more_time_s for part in parts), key=abs)
    more_energy_j = max((part.more_energy_j for part in parts), key=abs)
    for name, part in zip(("profiling", "everything else", "whole job"), parts, strict=True):
        row = [name, f"{part.iterations:,}", duration_text(part.time_s, whole.time_s)]
        row.append(energy_text(part.energy_j, whole.energy_j))
        if total.compared:
            row.append(difference_text(part.more_time_s, duration_text, more_time_s))
            row.append(difference_text(part.more_energy_j, energy_text, more_energy_j))
        rows.append(row)
    return {
        "caption": "Time and energy of all iterations so far",
        "head": ["part", "iterations", "time", "energy"]
        + (["time against the highest clocks", "energy against them"] if total.compared else []),
        "rows": rows,
    }


def _how_total(total: JobTotal | None, headline: Headline) -> str:
    if total is None:
        return ""
    alone = ""
    if headline.work_differs:
        alone = " Iterations differ in work, so these sums are not compared with the highest clocks."
    return (
        f"Sums of iterations, pauses between them left out. {total.known:,} of {total.whole.iterations:,} iterations "
        "ran under schedules of which some iterations were measured; the others count like predicted or mean ones."
        f"{alone}"
    )


def messages(found: Findings, headline: Headline) -> list[tuple[str, str, str]]:
    """Returns (kind, who, text) of all that coordinator, scheduler and ranks report, and of what could not be read."""
    data = found.data
    rows: list[tuple[str, str, str]] = [("warn", "the target is missed", missed_target(data, headline) or "")]
    rows.append(("warn", "marks", nothing_marked(data)))
    current = data.current
    if current is not None:
        state = "warn" if data.end is None or current.state == "broken" else "info"
        rows += [(state, "coordinator", current.message), ("warn", "schedule.yaml refused", current.yaml_problem)]
        rows += [("info", "scheduler", current.status_text)]
    switching = switching_of(data.progress)
    if switching:
        rows.append(("info", "clocks", switching_text(switching)))
    if data.end is not None:
        ended = end_text(data.end, data.batch_end)
        rows.append(("info", f"ended: {ended}", data.end.message or data.end.reason))
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
    rows = [row for row in dict.fromkeys(rows) if row[2]][:200]
    if not any(kind == "warn" for kind, _, _ in rows):
        rows.insert(0, ("fine", "no warnings", "neither coordinator nor ranks report a problem"))
    return rows


def nothing_marked(data: JobData) -> str:
    """Returns what to do if ranks train but mark no instruction, and do not report it themselves; else ''."""
    if data.orders or data.last_step < 3 or any(rank.error for rank in data.progress):
        return ""
    return (
        f"{data.last_step + 1} iterations have run, and no rank has marked an instruction: call "
        "on_instruction_begin(name) before and on_instruction_end(name) after each forward and backward of a "
        "micro-batch, within a step. Until then nothing can be measured or planned"
    )
