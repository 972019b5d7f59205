"""What the paper and this library claim about round times, beside what was found."""

from collections.abc import Iterable, Sequence

import msgspec

from dordis.privacy.xnoise import Scheme
from dordis.reproduce.round_times import CNN, RATES, RESNET, RESNET_16, VGG, RoundTime, Task, added

MOST_OVER_BOUND, MOST_ADDED_PIPELINED, MOST_ADDED_PLAIN = 1.15, 0.03, 0.08
"""What this library promises for ResNet-18 with 100 clients, 10 % of which drop out, and the scheme `single`."""
ABOUT_ONE = 1.15


class Claim(msgspec.Struct, frozen=True):
    """A statement, what is claimed, what was found, and whether it holds; None where it is shown, not promised."""

    statement: str
    claimed: str
    found: str
    holds: bool | None


def paper_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare rounds under the paper's cost mix with the paper."""
    speedups = {task: [each.speedup for each in of(rounds, task)] for task in (CNN, RESNET, RESNET_16, VGG)}
    large = [*speedups[RESNET], *speedups[RESNET_16], *speedups[VGG]]
    plain = next(each for each in of(rounds, RESNET_16) if (each.scheme, each.dropout) == ("orig", 0.1))
    idle = [1 - plain.plain_busy[name] for name in ("s-comp", "c-comp", "comm")]
    return [
        Claim(
            "idle in plain execution, ResNet-18, n = 16: s-comp, c-comp, comm",
            "53, 63, 93 %",
            _percent(idle, ", "),
            _near(idle),
        ),
        Claim("speed-up, CNN 1M", "negligible", _range(speedups[CNN]), max(speedups[CNN]) <= ABOUT_ONE),
        Claim("speed-up, ResNet-18, n = 100", "1.7-2.0", _range(speedups[RESNET]), None),
        Claim("speed-up, ResNet-18, n = 16", "1.3-1.5", _range(speedups[RESNET_16]), None),
        Claim("speed-up, VGG-19, n = 16", "1.9-2.5", _range(speedups[VGG]), None),
        Claim("speed-up, ResNet-18 and VGG-19", "1.3-2.5", _range(large), 1.3 <= min(large) <= max(large) <= 2.5),
        Claim("larger models gain more", "yes", *_every(rounds, VGG, RESNET_16)),
        Claim("more clients gain more", "yes", *_every(rounds, RESNET, RESNET_16)),
        *_xnoise(rounds),
        Claim("chunks: CNN, ResNet n = 100, n = 16, VGG", "2, 11, 3 or 6, 5", _chunks(rounds), None),
    ]


def padding_claim(unpadded: Sequence[RoundTime]) -> Claim:
    """Say what is left of the speed-ups if chunks are not padded, so that many waste no less than one."""
    left = ", ".join(_range([each.speedup for each in of(unpadded, task)]) for task in (RESNET, RESNET_16, VGG))
    return Claim("the three speed-ups if chunks were not padded to powers of two", "", left, None)


def own_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare rounds with costs measured on this machine with what this library promises."""
    each = next(
        each
        for each in of(rounds, RESNET)
        if (each.graph, each.scheme, each.dropout) == ("SecAgg", Scheme.SINGLE.value, 0.1)
    )
    key = (each.model, each.clients, each.graph, each.dropout)
    plain, pipelined = (added(rounds, Scheme.SINGLE, pipelined=flag)[key] for flag in (False, True))
    return [
        Claim(
            f"{each.model}, n = {each.clients}, 10 % dropout: aggregation over the lower bound ({each.bottleneck})",
            f"at most {MOST_OVER_BOUND}",
            f"{each.over_bound:.3f}",
            each.over_bound <= MOST_OVER_BOUND,
        ),
        Claim(
            "XNoise (single) adds to the pipelined round",
            f"at most {MOST_ADDED_PIPELINED:.0%}",
            f"{pipelined:.1%}",
            pipelined <= MOST_ADDED_PIPELINED,
        ),
        Claim(
            "XNoise (single) adds to the plain round",
            f"at most {MOST_ADDED_PLAIN:.0%} (paper: 12-34 %)",
            f"{plain:.1%}",
            plain <= MOST_ADDED_PLAIN,
        ),
    ]


def share_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare the share of aggregation in plain rounds of more and more clients with the paper."""
    secagg = [each for each in rounds if each.graph == "SecAgg"]
    noisy = [each.share for each in secagg if each.scheme == "orig"]
    bare = [each.share for each in secagg if each.scheme == "none"]
    both, more = [*noisy, *bare], all(a >= b for a, b in zip(noisy, bare, strict=True))
    plus = [each.share for each in rounds if each.graph == "SecAgg+"]
    return [
        Claim("SecAgg in a plain round", "86-91 %, up to 97 %", f"{min(both):.1%} to {max(both):.1%}", None),
        Claim("more with DP than without", "slightly", _percent(noisy, ", "), more),
        Claim("more at scale", "yes", _percent(noisy, " < "), noisy == sorted(noisy)),
        Claim("SecAgg+ dominates, too", "yes", f"{min(plus):.0%} to {max(plus):.0%}", min(plus) > 0.5),
    ]


def of(rounds: Iterable[RoundTime], task: Task) -> list[RoundTime]:
    """Return the rounds of a task."""
    return [each for each in rounds if (each.model, each.clients) == (task.name, task.clients)]


def _xnoise(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare what the paper's XNoise adds to plain rounds, at most, `other` included, for each rate of dropout."""
    base = {_key(each): each for each in rounds if each.scheme == "orig"}
    found = []
    for rate in map(float, RATES):
        exact = [each for each in rounds if each.scheme == "exact" and each.graph == "SecAgg" and each.dropout == rate]
        paired = [(each, base[_key(each)]) for each in exact]
        found.append(max((each.plain + each.other) / (orig.plain + orig.other) - 1 for each, orig in paired))
    return [Claim("XNoise (exact) adds to plain rounds at most", "34, 19, 13, 12 %", _percent(found, ", "), None)]


def _key(each: RoundTime) -> tuple[str, int, str, float]:
    return each.model, each.clients, each.graph, each.dropout


def _every(rounds: Sequence[RoundTime], more: Task, less: Task) -> tuple[str, bool]:
    """Tell whether each configuration of one task gains more than the same of another."""
    pairs = list(zip(of(rounds, more), of(rounds, less), strict=True))
    count = sum(a.speedup > b.speedup for a, b in pairs)
    return f"in {count} of {len(pairs)} configurations", count == len(pairs)


def _chunks(rounds: Sequence[RoundTime]) -> str:
    numbers = ({each.chunks for each in of(rounds, task)} for task in (CNN, RESNET, RESNET_16, VGG))
    return ", ".join(" or ".join(map(str, sorted(each))) for each in numbers)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def _percent(values: Iterable[float], between: str) -> str:
    return between.join(f"{100 * value:.0f}" for value in values) + " %"


def _near(idle: Sequence[float], claimed: Sequence[float] = (0.53, 0.63, 0.93)) -> bool:
    return all(abs(a - b) <= 0.02 for a, b in zip(idle, claimed, strict=True))
