"""XNoise in one picture: the noise of eight clients, two of which drop out, from the plan that rounds use."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from dordis.privacy.xnoise_components import NoisePlan, Scheme
from tools.drawing import WIDTH, draw_bar, draw_line, wrap_picture, write

CLIENTS, TOLERANCE, DROPPED, TARGET = 8, 4, (3, 6), Fraction(100)
PANEL, BAR, UNIT, TALL = 348, 26, Fraction(3, 2), Fraction(12, 5)
CONTEXT = b"picture"
Shares = dict[int, tuple[Fraction, Fraction]]
"""For each client that is in the sum, the noise that stays and the noise that may be removed."""


def make_plan(scheme: Scheme) -> NoisePlan:
    """Return the plan of the picture under a scheme, without colluders."""
    return NoisePlan(scheme, CLIENTS, TOLERANCE, 0, TARGET)


def list_shares(plan: NoisePlan, clients: Sequence[int], *, removed: bool) -> Shares:
    """Return the noise of these clients, after the due components are removed if `removed`."""
    due = plan.due_components(clients, CONTEXT) if removed else dict.fromkeys(clients, ())
    base = sum(plan.base, Fraction(0))
    return {u: (base, sum((v for k, v in enumerate(plan.removable) if k not in due[u]), Fraction(0))) for u in clients}


def draw_panel(x: int, y: int, title: str, shares: Shares, verdict: str) -> Iterator[str]:
    """Yield the noise of each client as a bar, and below them the noise of the sum beside the target."""
    yield write(x, y, title, "name")
    floor = y + 84
    for u in range(1, CLIENTS + 1):
        left = x + (u - 1) * (BAR + 12)
        if u not in shares:
            yield draw_bar(left, floor - 30, BAR, 30, "")
            yield write(left + 9, floor + 16, str(u), "note")
            continue
        base, upper = (int(TALL * share) for share in shares[u])
        yield draw_bar(left, floor - base, BAR, base, "s-comp")
        if upper:
            yield draw_bar(left, floor - base - upper, BAR, upper, "comm")
        yield write(left + 9, floor + 16, str(u))
    stays, removable = (sum((share[k] for share in shares.values()), Fraction(0)) for k in (0, 1))
    total, bottom = stays + removable, floor + 30
    yield draw_bar(x, bottom, int(UNIT * stays), 22, "s-comp")
    if removable:
        yield draw_bar(x + int(UNIT * stays), bottom, int(UNIT * removable), 22, "comm")
    yield draw_line(x + int(UNIT * TARGET), bottom - 6, x + int(UNIT * TARGET), bottom + 28, "rule")
    yield write(x, bottom + 42, f"noise of the sum: {int(total)} {verdict}")


def draw_xnoise() -> str:
    """Return the picture as SVG: with XNoise above, with even shares below."""
    everyone = tuple(range(1, CLIENTS + 1))
    survivors = tuple(u for u in everyone if u not in DROPPED)
    xnoise, orig = make_plan(Scheme.SINGLE), make_plan(Scheme.ORIG)
    gone = " and ".join(map(str, DROPPED))
    panels = [
        (
            "XNoise: everyone adds more than a share",
            list_shares(xnoise, everyone, removed=False),
            "before dropout",
        ),
        (f"Clients {gone} drop out with their noise", list_shares(xnoise, survivors, removed=False), "is too much"),
        ("The server removes the excess", list_shares(xnoise, survivors, removed=True), "is what was planned"),
        ("Without XNoise (orig): even shares", list_shares(orig, everyone, removed=False), "before dropout"),
        (f"Clients {gone} drop out with their noise", list_shares(orig, survivors, removed=False), "is too little"),
    ]
    parts: list[str] = []
    for place, (title, shares, verdict) in enumerate(panels):
        x, y = 20 + place % 3 * PANEL, 26 + place // 3 * 196
        parts += draw_panel(x, y, title, shares, verdict)
    parts.append(draw_line(8, 206, WIDTH - 8, 206))
    x, y = 20 + 2 * PANEL, 230
    for colour, text in (("s-comp", "noise that stays"), ("comm", "noise that can be removed: its seed is shared")):
        parts += [draw_bar(x, y, 18, 14, colour), write(x + 28, y + 12, text)]
        y += 26
    parts += [
        draw_line(x, y + 8, x + 18, y + 8, "rule"),
        write(x + 28, y + 12, f"noise that epsilon needs: {TARGET}", "gate"),
    ]
    parts += [draw_bar(x, y + 26, 18, 14, ""), write(x + 28, y + 38, "a client that dropped out", "note")]
    parts.append(write(x, y + 70, f"Planned for up to T = {TOLERANCE} dropouts of {CLIENTS} clients.", "note"))
    parts.append(write(x, y + 90, "Numbers are variances; shares come from the plan.", "note"))
    return wrap_picture(parts, 404, "XNoise in one picture")
