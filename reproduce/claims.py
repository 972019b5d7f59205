"""Claims of the paper and of this library about round times, compared with simulated rounds."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from dordis.privacy.xnoise_components import Scheme
from reproduce.round_times import RATES, RESNET, WORKLOADS, RoundTime, Workload, group_by

MOST_OVER, LEAST_GAIN, MOST_PIPELINED, MOST_PLAIN = 1.15, 1.5, 0.03, 0.08
"""The promises of this library for ResNet-18, 100 clients, 10 % dropout and the scheme `single`: the most that
aggregation takes over the transfers of the slowest link, the least that pipelining gains on it, and the most that noise
adds to pipelined and to plain rounds."""
ABOUT_ONE = 1.15
PAPER_IDLE = (0.53, 0.63, 0.93)


class Claim(msgspec.Struct, frozen=True):
    """A claim about round times, the observed value, and whether it holds; None if it is informative only."""

    statement: str
    claimed: str
    observed: str
    holds: bool | None


def paper_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare rounds under the paper's cost mix with the paper."""
    cnn, resnet, resnet_16, vgg = (speedups(rounds, workload) for workload in WORKLOADS)
    large = [*resnet, *resnet_16, *vgg]
    plain = next(t for t in rounds if (t.model, t.clients, t.scheme, t.dropout) == (RESNET.model, 16, "orig", 0.1))
    idle = [1 - plain.plain_busy[name] for name in ("s-comp", "c-comp", "comm")]
    near = all(abs(ours - paper) <= 0.02 for ours, paper in zip(idle, PAPER_IDLE, strict=True))
    where = "idle in plain execution, ResNet-18, n = 16: s-comp, c-comp, comm"
    return [
        Claim(where, "53, 63, 93 %", _percent(idle, ", "), near),
        Claim("speed-up, CNN 1M", "negligible", _range(cnn), max(cnn) <= ABOUT_ONE),
        Claim("speed-up, ResNet-18, n = 100", "1.7-2.0", _range(resnet), None),
        Claim("speed-up, ResNet-18, n = 16", "1.3-1.5", _range(resnet_16), None),
        Claim("speed-up, VGG-19, n = 16", "1.9-2.5", _range(vgg), None),
        Claim("speed-up, ResNet-18 and VGG-19", "1.3-2.5", _range(large), 1.3 <= min(large) <= max(large) <= 2.5),
        Claim("larger models gain more", "yes", *_more(vgg, resnet_16)),
        Claim("more clients gain more", "yes", *_more(resnet, resnet_16)),
        Claim("XNoise (exact) adds to plain rounds at most", "34, 19, 13, 12 %", _added_by_exact(rounds), None),
        Claim("chunks: CNN, ResNet n = 100, n = 16, VGG", "2, 11, 3 or 6, 5", _chunks(rounds), None),
    ]


def padding_claim(unpadded: Sequence[RoundTime]) -> Claim:
    """Return the speed-ups without padding, where many chunks waste as little as one."""
    left = ", ".join(_range(speedups(unpadded, workload)) for workload in WORKLOADS[1:])
    return Claim("the three speed-ups if chunks were not padded to powers of two", "", left, None)


def own_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare rounds under measured costs with the promises of this library."""
    wanted = (RESNET.model, RESNET.clients, "SecAgg", 0.1)
    at_ten = group_by(rounds, "model", "clients", "graph", "dropout")[wanted]
    single = next(time for time in at_ten if time.scheme == Scheme.SINGLE.value)
    (plain,) = added_share(at_ten, Scheme.SINGLE, lambda time: time.plain)
    (pipelined,) = added_share(at_ten, Scheme.SINGLE, lambda time: time.pipelined)
    where, adds = f"{single.model}, n = {single.clients}, 10 % dropout:", "XNoise (single) adds to the"
    both_ways = sum(single.pipelined_busy[way] for way in ("comm", "comm-down")) / single.pipelined_share
    over, gain = 1 / both_ways, single.plain / single.pipelined
    return [
        Claim(
            f"{where} aggregation over the slowest link's transfers, up and down",
            f"at most {MOST_OVER}",
            f"{over:.3f}",
            over <= MOST_OVER,
        ),
        Claim(f"{where} plain over pipelined aggregation", f"at least {LEAST_GAIN}", f"{gain:.2f}", gain >= LEAST_GAIN),
        Claim(
            f"{adds} pipelined round", f"at most {MOST_PIPELINED:.0%}", f"{pipelined:.1%}", pipelined <= MOST_PIPELINED
        ),
        Claim(f"{adds} plain round", f"at most {MOST_PLAIN:.0%} (paper: 12-34 %)", f"{plain:.1%}", plain <= MOST_PLAIN),
    ]


def share_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare the share of aggregation in plain rounds, by number of clients, with the paper."""
    groups = group_by(rounds, "graph", "scheme")
    noisy, bare = ([time.share for time in groups["SecAgg", scheme]] for scheme in ("orig", "none"))
    both, more = [*noisy, *bare], all(a >= b for a, b in zip(noisy, bare, strict=True))
    plus = [time.share for time in rounds if time.graph == "SecAgg+"]
    return [
        Claim("SecAgg in a plain round", "86-91 %, up to 97 %", f"{min(both):.1%} to {max(both):.1%}", None),
        Claim("more with DP than without", "slightly", _percent(noisy, ", "), more),
        Claim("more at scale", "yes", _percent(noisy, " < "), noisy == sorted(noisy)),
        Claim("SecAgg+ dominates, too", "yes", f"{min(plus):.0%} to {max(plus):.0%}", min(plus) > 0.5),
    ]


def speedups(rounds: Iterable[RoundTime], workload: Workload) -> list[float]:
    """Return the speed-ups of a workload's rounds."""
    return [time.speedup for time in group_by(rounds, "model", "clients")[workload.model, workload.clients]]


def added_share(rounds: Iterable[RoundTime], scheme: Scheme, seconds: Callable[[RoundTime], float]) -> list[float]:
    """Return the relative increase of a scheme's seconds over those of `orig`, for every configuration."""
    groups = group_by(rounds, "model", "clients", "graph", "dropout").values()
    by_scheme = ({time.scheme: seconds(time) for time in group} for group in groups)
    return [taken[scheme.value] / taken[Scheme.ORIG.value] - 1 for taken in by_scheme]


def _added_by_exact(rounds: Sequence[RoundTime]) -> str:
    """Format the most that the paper's XNoise adds to plain rounds, `other` included, by rate of dropout."""
    groups = group_by(rounds, "graph", "dropout")
    at_rates = (groups["SecAgg", float(rate)] for rate in RATES)
    return _percent(
        (max(added_share(group, Scheme.EXACT, lambda time: time.plain + time.other)) for group in at_rates), ", "
    )


def _more(more: Sequence[float], less: Sequence[float]) -> tuple[str, bool]:
    """Return in how many configurations one workload gains more than another, and whether in all."""
    count = sum(a > b for a, b in zip(more, less, strict=True))
    return f"in {count} of {len(more)} configurations", count == len(more)


def _chunks(rounds: Sequence[RoundTime]) -> str:
    groups = group_by(rounds, "model", "clients").values()
    return ", ".join(" or ".join(map(str, sorted({time.chunks for time in group}))) for group in groups)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def _percent(values: Iterable[float], between: str) -> str:
    return between.join(f"{100 * value:.0f}" for value in values) + " %"
