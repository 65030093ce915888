"""The data of the page's first sections: what the plan saves, what the whole job took, and all messages."""

from __future__ import annotations

import math

from pfo_fs.autotune.status_text import TIMES_THE_ERROR
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.savings import JobTotal, Savings, total_of
from pfo_fs.reports.wording import (
    difference_text,
    duration_text,
    energy_text,
    percent,
    seconds_text,
    signed_percent,
    switching_of,
    switching_text,
    term_text,
    with_error,
)


def headline_section(data: JobData, savings: Savings) -> dict[str, object]:
    """Returns savings against max clocks, of an iteration and of the whole job."""
    loads = data.loads
    if loads is not None:
        title, lead, missing, cards = "Clocks from loads, against max clocks", loads.text, "", _load_cards(loads)
    else:
        compared = _is_comparable(savings)
        title, lead, missing = "Against max clocks" if compared else "An iteration", _how(savings), _missing(savings)
        cards = [*(_compared(data, savings) if compared else _alone(savings)), _in_force(data, savings)]
    total = total_of(data, savings)
    return {
        "title": title,
        "cards": cards,
        "lead": lead,
        "missing": missing,
        "total": _total(total) if total is not None else None,
        "total_how": _how_total(total, savings) if total is not None else "",
    }


def _is_comparable(savings: Savings) -> bool:
    """Whether figures of the schedule in force and of max clocks are known, with the error of their difference."""
    return savings.change_errors[1] is not None


def _how(savings: Savings) -> str:
    """Where the figures come from."""
    if savings.measured is None:
        return ""
    baseline = savings.baseline
    compared = f", compared with those {baseline.origin}" if baseline is not None and _is_comparable(savings) else ""
    return f"Figures {savings.measured.origin}{compared}."


def _card(title: str, big: str, *small: str, kind: str = "even") -> dict[str, object]:
    return {"title": title, "kind": kind, "big": big, "small": small}


def _compared(data: JobData, savings: Savings) -> list[dict[str, object]]:
    """What the schedule in force changes, in percent."""
    now, base, (time_error, energy_error) = savings.measured, savings.baseline, savings.change_errors
    assert now is not None
    assert base is not None
    assert energy_error is not None
    return [
        _card(
            "energy per iteration",
            with_error(signed_percent(now.energy_j / base.energy_j - 1), energy_error),
            f"{now.energy_j:,.0f} J instead of {base.energy_j:,.0f} J",
            kind="good" if now.energy_j < (1 - energy_error) * base.energy_j else "even",
        ),
        _card(
            "time per iteration",
            with_error(signed_percent(now.span_s / base.span_s - 1, 2), time_error, 2),
            f"{seconds_text(now.span_s)} instead of {seconds_text(base.span_s)}",
            kind="bad" if missed_target(data) else "even",
        ),
    ]


def _alone(savings: Savings) -> list[dict[str, object]]:
    """What an iteration takes, where there is nothing to compare it with."""
    now = savings.measured
    if now is None:
        return []
    return [
        _card("energy per iteration", f"{now.energy_j:,.0f} J", _plus_minus(now.energy_error)),
        _card("time per iteration", seconds_text(now.span_s), _plus_minus(now.time_error)),
    ]


def _in_force(data: JobData, savings: Savings) -> dict[str, object]:
    window = data.in_force
    if window is None:
        said = data.current.message if data.current is not None else ""
        return _card("in force", "no schedule yet", said or "clocks are left alone")
    since = f"since step {window.index.start_step}"
    if savings.same_since is not None and savings.same_since != window.index.start_step:
        since += f"; the same clocks first at step {savings.same_since}"
    target = "by hand (schedule.yaml)" if window.index.source.kind == "yaml" else _target_of(data, window)
    return _card("in force", f"schedule {window.number}", since, term_text(window.index, data.last_step), target)


def _missing(savings: Savings) -> str:
    """Why nothing is compared."""
    if savings.measured is None:
        return "No energies of the schedule in force yet: there are no complete results of all ranks."
    if savings.baseline is None and savings.work_differs:
        return (
            f"Iterations differ in work: their times scatter by {percent(savings.work_differs, 0)} under one "
            "schedule, so those of two schedules are not compared. The scheduler, which compares the same work, has no "
            "figures for this schedule. Whether balanced batches or clocks from loads would help: `pfo-fs trace JOB -o "
            "job.csv`, then `pfo-fs simulate --trace job.csv --loads trace`."
        )
    if savings.baseline is None:
        return "Nothing to compare with: no iteration at max clocks, or with clocks left alone, was measured."
    return "" if _is_comparable(savings) else "One iteration alone has no error, so nothing is compared yet."


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f"± {percent(TIMES_THE_ERROR * error, 1)}"


def _load_cards(known: LoadsKnown) -> list[dict[str, object]]:
    def card(title: str, more: float | None, error: float | None, digits: int) -> dict[str, object]:
        against = f"against {known.controls:,} control steps"
        if more is None:
            return _card(title, "not known yet", against)
        return _card(title, signed_percent(more, digits), f"± {100 * (error or 0.0):.{digits}f} %, {against}")

    explained = "too little" if known.explained is None else f"{math.floor(100 * known.explained)} %"
    return [
        card("energy", None if known.saved is None else -known.saved, known.saved_error, 1),
        card("time", known.late, known.late_error, 2),
        _card("loads explain", explained, "of what varies between ranks"),
        _card("batches of equal work", signed_percent(-known.balanced, 0), "time: do that first"),
    ]


def _target_of(data: JobData, window: Window) -> str:
    """The target that a schedule was made for, as the scheduler says where no person has set one."""
    target = window.index.source.plan_inputs.target
    if target is not None:
        return f"target: {target}"
    status_text = data.current.status_text if data.current is not None else ""
    return status_text.split(";")[0] if status_text.startswith("target: ") else ""


_TARGET_TOLERANCE = 0.01
"""Relative: a plan that is believed to be this much above the target does not count as a missed target."""


def missed_target(data: JobData) -> str:
    """Returns by how much the plan in force misses the job's target, as its scheduler believes; empty: it does not."""
    window, over = data.in_force, data.model.off_target if data.model is not None else None
    if window is None or over is None or not _TARGET_TOLERANCE < over < math.inf:
        return ""
    if not window.index.stays or window.index.source.kind != "scheduler" or window.follows_straggler:
        return ""  # schedules for measuring and those of people have no target
    return f"iterations are {percent(over)} above it, by what the scheduler has measured ({_target_of(data, window)})"


def _total(total: JobTotal) -> dict[str, object]:
    rows, whole = [], total.whole
    more_time_s = max((part.more_time_s for part in total.parts.values()), key=abs)
    more_energy_j = max((part.more_energy_j for part in total.parts.values()), key=abs)
    for name, part in total.parts.items():
        row = [name, f"{part.iterations:,}", duration_text(part.time_s, whole.time_s)]
        row.append(energy_text(part.energy_j, whole.energy_j))
        if total.compared:
            row.append(difference_text(part.more_time_s, duration_text, more_time_s))
            row.append(difference_text(part.more_energy_j, energy_text, more_energy_j))
        rows.append(row)
    return {
        "caption": "Time and energy of all iterations so far",
        "head": ["part", "iterations", "time", "energy"]
        + (["time against max clocks", "energy against max clocks"] if total.compared else []),
        "rows": rows,
    }


def _how_total(total: JobTotal, savings: Savings) -> str:
    if "profiling" not in total.parts:
        return "Steps from start to start; what was saved is measured against steps at default clocks."
    text = (
        f"Sums of iterations, pauses between them left out. {total.known:,} of {total.whole.iterations:,} iterations "
        "ran under schedules of which some iterations were measured; the others are estimated by the mean of these."
    )
    if savings.work_differs:
        text += " Iterations differ in work, so these sums are not compared with max clocks."
    return text


def messages(data: JobData) -> list[tuple[str, str, str]]:
    """Returns (kind, who, text) of all that coordinator, scheduler and ranks report, and of what could not be read."""
    rows: list[tuple[str, str, str]] = [("warn", "the target is missed", missed_target(data))]
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
        rows.append(("info", f"ended: {data.text}", data.end.message or data.end.reason))
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
