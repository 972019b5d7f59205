"""Numbers for people: ticks that are round, and values in few digits."""

import math
from collections.abc import Sequence

_UNITS = ("", "k", "M", "G", "T")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
NOTHING = "–"


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> tuple[float, ...]:
    """Return at most about `most` round numbers that enclose low..high; integers only, if `whole`.

    >>> ticks(0, 9.3)
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


def number(value: float | None, digits: int = 4) -> str:
    """Write a number in so many significant digits.

    >>> number(5.98371), number(1234567.0), number(1e-5), number(None)
    ('5.984', '1,234,567', '1e-05', '–')
    """
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return {math.inf: "infinite", -math.inf: "minus infinite"}.get(value, "not a number")
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.{digits}g}"
    return f"{value:.{digits}g}"


def short(value: float) -> str:
    """Write the number of a tick.

    >>> short(2500000), short(0.25), short(20000)
    ('2.5M', '0.25', '20k')
    """
    size = abs(value)
    place = min(len(_UNITS) - 1, int(math.log10(size) // 3)) if size >= 10_000 else 0
    return f"{value / 1000**place:.6g}{_UNITS[place]}"


def size(count: float | None) -> str:
    """Write a number of bytes.

    >>> size(1536), size(2_500_000), size(None)
    ('1.54 kB', '2.5 MB', '–')
    """
    if count is None:
        return NOTHING
    place = min(len(_UNITS) - 1, int(math.log10(count) // 3)) if count >= 1000 else 0
    return f"{count / 1000**place:.3g} {_UNITS[place]}B"


def duration(seconds: float | None) -> str:
    """Write a time.

    >>> duration(0.25), duration(75), duration(7384)
    ('0.25 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def percent(part: float | None) -> str:
    """Write a part of a whole.

    >>> percent(0.1234)
    '12.3 %'
    """
    return NOTHING if part is None else f"{100 * part:.3g} %"


def span(values: Sequence[float], digits: int = 4) -> str:
    """Write the least and the largest of some values, or the one that they all are.

    >>> span([3, 13, 5]), span([1.0, 1.0]), span([])
    ('3 to 13', '1', '–')
    """
    low, high = number(min(values, default=None), digits), number(max(values, default=None), digits)
    return low if low == high else f"{low} to {high}"


def count(amount: int, what: str, plural: str = "") -> str:
    """Write how many of something there are.

    >>> count(1, "round"), count(3, "round")
    ('1 round', '3 rounds')
    """
    return f"{amount:,} {what if amount == 1 else plural or what + 's'}"
