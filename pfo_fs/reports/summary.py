"""The data of the page's first sections: what the plan saves, what the whole job took, and all messages."""

import math
from collections.abc import Mapping

from pfo_fs.loads_known import LoadsKnown
from pfo_fs.models import counts_whole_module
from pfo_fs.reports.collect import JobData
from pfo_fs.reports.savings import Figures, JobTotal, Savings, savings_of, total_of
from pfo_fs.reports.verdict import MUCH_SLOWER, Verdict, verdict_of
from pfo_fs.reports.wording import (
    difference_text,
    duration_text,
    percent,
    seconds_text,
    signed_percent,
    switching_text,
    term_text,
)


def headline_section(data: JobData, savings: Savings, rates: Mapping[str, float] | None = None) -> dict[str, object]:
    """Returns savings against max clocks, of an iteration and the whole job; `rates` per kWh: {"{} kg CO2": 0.38}."""
    loads, verdict = data.loads, verdict_of(data)
    if loads is not None and verdict.by == "loads":
        title, lead, missing = "Clocks from loads, against max clocks", loads.text, ""
        cards = _load_cards(loads, verdict)
    else:
        known, now, base = verdict.saved is not None, savings.measured, savings.baseline
        title, missing = "Against max clocks" if known else "An iteration", "" if known else _missing(savings)
        lead, cards = _in_force(data), _iteration_cards(now, verdict)
        beside = f", compared with those {base.origin}" if base is not None and known else ""
        lead += f" Figures {now.origin}{beside}." if now is not None else ""
    total = total_of(data, savings)
    return {
        "verdict": verdict.sentence(data),
        "kind": "bad" if verdict.harm else "good" if (verdict.saved or 0.0) > verdict.saved_error else "even",
        "title": title,
        "cards": [*cards, *([] if total is None else _so_far(total, rates or {}, savings.work_differs, data))],
        "lead": lead,
        "missing": missing,
    }


def _card(title: str, big: str, *small: str, kind: str = "even") -> dict[str, object]:
    return {"title": title, "kind": kind, "big": big, "small": small}


def _change(title: str, change: float | None, error: float, small: str) -> dict[str, object]:
    """A relative change of energy, green if it is less beyond the error; or of time, red if people notice it."""
    is_energy = title.startswith("energy")
    big = "not known yet" if change is None else signed_percent(change, 1 if is_energy else 2, error)
    kind = "good" if is_energy and (change or 0.0) < -error else "even"
    return _card(title, big, small, kind="bad" if not is_energy and (change or 0.0) > MUCH_SLOWER else kind)


def _iteration_cards(now: Figures | None, verdict: Verdict) -> list[dict[str, object]]:
    """What an iteration takes, and by how much that differs from max clocks, as far as the verdict tells."""
    if now is None:
        return []
    energy, time = f"{now.energy_j:,.0f} J", seconds_text(now.span_s)
    cards = [_card("energy per iteration", energy), _card("time per iteration", time)]
    if (saved := verdict.saved) is not None and saved < 1:
        energy += f" instead of {now.energy_j / (1 - saved):,.0f} J"
        cards[0] = _change("energy per iteration", -saved, verdict.saved_error, energy)
    if (slower := verdict.slower) is not None and slower > -1:
        time += f" instead of {seconds_text(now.span_s / (1 + slower))}"
        cards[1] = _change("time per iteration", slower, verdict.slower_error, time)
    return cards


def _so_far(total: JobTotal, rates: Mapping[str, float], work_differs: float, data: JobData) -> list[dict[str, object]]:
    """Energy and time of all iterations of the job, and the difference to max clocks."""
    kwh, more_kwh = total.energy_j / 3.6e6, total.more_energy_j / 3.6e6
    modules = any(counts_whole_module(rank.gpu_name) for rank in data.ranks)
    energy = [f"of {'modules: CPUs may be in it' if modules else 'GPUs only'}, profiling included"]
    energy += [f"{unit.format(f'{rate * kwh:,.3g}')} ({rate:g} per kWh)" for unit, rate in rates.items()]
    time = [f"of {total.iterations:,} iterations; {total.known:,} ran under schedules that were measured"]
    if total.compared:
        amounts = [unit.format(f"{rate * abs(more_kwh):,.3g}") for unit, rate in {"{} kWh": 1.0, **rates}.items()]
        energy.append(f"{', '.join(amounts)} {'more' if more_kwh > 0 else 'less'} than at max clocks")
        time.append(f"{difference_text(total.more_time_s, duration_text)} than at max clocks")
    elif work_differs:
        energy.append("not compared with max clocks: iterations differ in work")
    energy_card = _card("energy so far", f"{kwh:,.3g} kWh", *energy)
    return [energy_card, _card("time so far", duration_text(total.time_s), *time)]


def _in_force(data: JobData) -> str:
    window = data.judged if data.is_over else data.in_force
    if window is None:
        said = data.current.message if data.current is not None else ""
        return f"No schedule yet: {said or 'clocks are left alone'}."
    term, who = "" if data.is_over else term_text(window.index, data.last_step), "by hand (schedule.yaml)"
    parts = (f"Schedule {window.number} since step {window.index.start_step}", term, who * window.by_hand)
    return ", ".join(filter(None, parts)) + "."


def _missing(savings: Savings) -> str:
    """Why nothing is compared."""
    if savings.measured is None:
        return "No energies of the schedule in force yet: there are no complete results of all ranks."
    if savings.baseline is None and savings.work_differs:
        return (
            f"Iterations differ in work: their times scatter by {percent(savings.work_differs, 0)} under one schedule, "
            "so those of two are not compared. Whether balanced batches or clocks from loads would help: `pfo-fs trace "
            "JOB -o job.csv`, then `pfo-fs simulate --trace job.csv --loads trace`."
        )
    if savings.baseline is None:
        return "Nothing to compare with: no iteration at max clocks, or with clocks left alone, was measured."
    return (
        "" if savings.change_errors[1] is not None else "One iteration alone has no error, so nothing is compared yet."
    )


def _load_cards(known: LoadsKnown, verdict: Verdict) -> list[dict[str, object]]:
    against = f"against {known.controls:,} control steps"
    explained = "too little" if known.explained is None else f"{math.floor(100 * known.explained)} %"
    return [
        _change("energy", None if known.saved is None else -known.saved, verdict.saved_error, against),
        _change("time", known.late, verdict.slower_error, against),
        _card("loads explain", explained, "of what varies between ranks"),
        _card("batches of equal work", signed_percent(-known.balanced, 0), "time; try this first"),
    ]


def messages(data: JobData) -> list[tuple[str, str, str]]:
    """Returns (kind, who, text) of all that coordinator, scheduler and ranks report, and of what could not be read."""
    rows = [("warn", "slower", verdict_of(data).harm), ("warn", "marks", nothing_marked(data))]
    about_all = whole_job_slower(data, total_of(data, savings_of(data)))
    rows.append(("warn" if data.is_over else "info", "the whole job", about_all))
    rows.append(("warn", "clocks from loads", data.loads.problem if data.loads is not None else ""))
    current = data.current
    if current is not None:
        state = "warn" if data.end is None or current.state == "broken" else "info"
        rows += [(state, "coordinator", current.message), ("warn", "schedule.yaml refused", current.yaml_problem)]
        if not data.is_over and (current.source is None or current.source.kind == "scheduler"):  # of its own plan
            rows.append(("info", "scheduler", current.status_text))
    rows.append(("info", "clocks", switching_text(data.progress)))
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


def whole_job_slower(data: JobData, total: JobTotal | None) -> str:
    """Returns by how much the whole job was slower than at max clocks, and why, if people notice it; else ''."""
    if total is None or not total.compared or total.more_time_s <= MUCH_SLOWER * (total.time_s - total.more_time_s):
        return ""
    first_steps: dict[str, int] = {}
    for window in data.windows:
        target = window.index.source.plan_inputs.target
        what = f"the target {target}" if target is not None else "the pace of a straggler" * window.follows_straggler
        first_steps.setdefault("schedule.yaml" if window.by_hand else what, window.index.start_step)
    why = [f"{what} (from step {step})" for what, step in first_steps.items() if what]
    share = percent(total.more_time_s / (total.time_s - total.more_time_s), 1)
    text = f"all steps together took {share} ({duration_text(total.more_time_s)}) longer than at max clocks"
    return f"{text}; in force were {', '.join(why)}" if why else text


def nothing_marked(data: JobData) -> str:
    """Returns what to do if ranks train but mark no instruction, and do not report it themselves; else ''."""
    if data.orders or data.last_step < 3 or any(rank.error for rank in data.progress):
        return ""
    return (
        f"{data.last_step + 1} iterations have run, and no rank has marked an instruction: call "
        "on_instruction_begin(name) before and on_instruction_end(name) after each forward and backward of a "
        "micro-batch, within a step. Until then nothing can be measured or planned"
    )
