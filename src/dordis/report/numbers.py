"""Numbers as text for people: ticks of an axis, and values with few digits."""

import math
from collections.abc import Sequence

_UNITS = ("", "k", "M", "G", "T")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MISSING = "–"


def choose_ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> tuple[float, ...]:
    """Return about `most` evenly spaced ticks, with few digits, that enclose low..high; integers only if `whole`.

    >>> choose_ticks(0, 9.3)
    (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    """
    if not low < high:
        low, high = low - (abs(low) * 0.5 or 0.5), high + (abs(high) * 0.5 or 0.5)
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(float(f"{step * place:.12g}") for place in range(first, last + 1))


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number as text with this many significant digits; a dash for None.

    >>> format_number(5.98371), format_number(1234567.0), format_number(1e-5), format_number(None)
    ('5.984', '1,234,567', '1e-05', '–')
    """
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return {math.inf: "infinite", -math.inf: "minus infinite"}.get(value, "not a number")
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.{digits}g}"
    return f"{value:.{digits}g}"


def format_tick(value: float) -> str:
    """Return the number of a tick as text, with k for thousands and M for millions.

    >>> format_tick(2500000), format_tick(0.25), format_tick(20000)
    ('2.5M', '0.25', '20k')
    """
    size = abs(value)
    place = min(len(_UNITS) - 1, int(math.log10(size) // 3)) if size >= 10_000 else 0
    return f"{value / 1000**place:.6g}{_UNITS[place]}"


def format_bytes(count: float | None) -> str:
    """Return a number of bytes as text in kB, MB and so on; a dash for None.

    >>> format_bytes(1536), format_bytes(2_500_000), format_bytes(None)
    ('1.54 kB', '2.5 MB', '–')
    """
    if count is None:
        return MISSING
    place = min(len(_UNITS) - 1, int(math.log10(count) // 3)) if count >= 1000 else 0
    return f"{count / 1000**place:.3g} {_UNITS[place]}B"


def format_duration(seconds: float | None) -> str:
    """Return a duration, given in seconds, as text; a dash for None.

    >>> format_duration(0.25), format_duration(75), format_duration(7384)
    ('0.25 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_percent(part: float | None) -> str:
    """Return a share between 0 and 1 as text in percent; a dash for None.

    >>> format_percent(0.1234)
    '12.3 %'
    """
    return MISSING if part is None else f"{100 * part:.3g} %"


def format_range(values: Sequence[float], digits: int = 4) -> str:
    """Return the range of values as text: the smallest and the largest, or one number if all are equal.

    >>> format_range([3, 13, 5]), format_range([1.0, 1.0]), format_range([])
    ('3 to 13', '1', '–')
    """
    low, high = format_number(min(values, default=None), digits), format_number(max(values, default=None), digits)
    return low if low == high else f"{low} to {high}"


def format_count(amount: int, what: str, plural: str = "") -> str:
    """Return a count with its noun in singular or plural.

    >>> format_count(1, "round"), format_count(3, "round")
    ('1 round', '3 rounds')
    """
    return f"{amount:,} {what if amount == 1 else plural or what + 's'}"
