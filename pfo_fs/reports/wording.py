"""Figures as text, alike on the page, in `status` and in the demo: signs, units, and no zero with a sign."""

from __future__ import annotations


def signed_percent(share: float, digits: int = 1) -> str:
    """Returns a relative change as text: 0.0302 is "+3.0 %", and what rounds to zero is "0.0 %" without a sign."""
    text = f"{share * 100:+.{digits}f}"
    if not text.strip("+-0."):
        text = text[1:]
    return f"{text.replace('-', '−')} %"


def energy_text(joules: float) -> str:
    """Returns an energy with three digits and the unit that suits it: J, kJ, MJ up to 3.6 MJ, then kWh."""
    for limit, unit in ((999.5, "J"), (999.5e3, "kJ"), (3.6e6, "MJ")):
        if abs(joules) < limit:
            return f"{_three_digits(joules / {'J': 1.0, 'kJ': 1e3, 'MJ': 1e6}[unit])} {unit}"
    return f"{_three_digits(joules / 3.6e6)} kWh"


def duration_text(seconds: float) -> str:
    """Returns a duration with three digits and the unit that suits it: s, min or h."""
    if abs(seconds) < 120:
        return f"{_three_digits(seconds)} s"
    if abs(seconds) < 7200:
        return f"{_three_digits(seconds / 60)} min"
    return f"{_three_digits(seconds / 3600)} h"


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.{1 if size >= 9.995 else 2}f}"
    return text if text.strip("-0.") else "0"
