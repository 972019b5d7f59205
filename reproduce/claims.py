"""Claims of the paper and of this library about round times, compared with simulated rounds."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from dordis.privacy.xnoise_components import Scheme
from reproduce.round_times import RATES, RESNET, WORKLOADS, RoundTime, Workload, group_by

MOST_OVER, LEAST_GAIN, MOST_PIPELINED, MOST_PLAIN = 1.15, 1.5, 0.03, 0.08
"""The promises of this library for ResNet-18, 100 clients, 10 % dropout and the scheme `single`, in order: the largest
ratio of pipelined aggregation to the transfers of the slowest link, the least ratio of plain to pipelined aggregation,
and the largest relative increase of pipelined and of plain aggregation by XNoise, compared with `orig`."""
ABOUT_ONE = 1.15
PAPER_IDLE = (0.53, 0.63, 0.93)
NEAR = 0.02
OVERLAP_COSTS = "overlap"
"""Name of the cost mix under which overlap alone, without savings of padding, gives the paper's speed-ups."""


FITTED = "fitted: costs were chosen to give it, so it proves nothing"
MEASURED = "the measured costs are larger"
PADDED = "much of the gain in the paper's code comes from padding that chunks avoid there"
MODELLED = "the model's costs are not those of the paper's cluster"


class Claim(msgspec.Struct, frozen=True):
    """A claim about round times, the observed value, and whether it holds; None if it cannot count as a success."""

    statement: str
    claimed: str
    observed: str
    holds: bool | None
    reason: str = ""
    """Why it does not hold, or why it cannot count."""

    @property
    def verdict(self) -> str:
        """Return yes, NO with the reason, or why the claim cannot count."""
        if self.holds is None:
            return self.reason
        return "yes" if self.holds else f"NO: differs, because {self.reason}"


def fitted(statement: str, claimed: str, observed: str, near: bool) -> Claim:
    """Return a claim to which costs were fitted: it proves nothing if the result is `near`, and is NO otherwise."""
    missed = f"{MODELLED}, although one of them was fitted to this result"
    return Claim(statement, claimed, observed, None if near else False, FITTED if near else missed)


def paper_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare rounds that were simulated under `PAPER` or `OVERLAP` with the paper's statements."""
    cnn, resnet, resnet_16, vgg = (speedups(rounds, workload) for workload in WORKLOADS)
    large = [*resnet, *resnet_16, *vgg]
    plain = next(t for t in rounds if (t.model, t.clients, t.scheme, t.dropout) == (RESNET.model, 16, "orig", 0.1))
    idle = [1 - plain.plain_busy[name] for name in ("s-comp", "c-comp", "comm")]
    near = all(abs(ours - paper) <= 0.02 for ours, paper in zip(idle, PAPER_IDLE, strict=True))
    where = "idle shares in a plain round, ResNet-18, n = 16: s-comp, c-comp, comm"
    added, counts = _added_by_exact(rounds), _common_chunks(rounds)
    overlap_alone = rounds[0].costs == OVERLAP_COSTS
    padded = PADDED if overlap_alone else "a SecAgg+ round has less work to overlap"
    return [
        fitted(where, "53, 63, 93 %", _percent(idle, ", "), near),
        fitted("speed-up, CNN 1M", "negligible", _range(cnn), max(cnn) <= ABOUT_ONE),
        _within("speed-up, ResNet-18, n = 100", (1.7, 2.0), resnet, padded),
        fitted(
            "speed-up, ResNet-18, n = 16", "1.3-1.5", _range(resnet_16), 1.3 <= min(resnet_16) <= max(resnet_16) <= 1.5
        ),
        _within("speed-up, VGG-19, n = 16", (1.9, 2.5), vgg, padded),
        fitted("speed-up, ResNet-18 and VGG-19", "1.3-2.5", _range(large), 1.3 <= min(large) <= max(large) <= 2.5)
        if overlap_alone
        else _within("speed-up, ResNet-18 and VGG-19", (1.3, 2.5), large, padded),
        Claim("larger models gain more", "yes", *_more(vgg, resnet_16), MODELLED),
        Claim("more clients gain more", "yes", *_more(resnet, resnet_16), MODELLED),
        fitted(
            "largest increase of the time of a plain round by XNoise (exact), compared with orig, no dropout",
            "34 %",
            _percent(added[:1], ""),
            _near(added[0], 0.34),
        ),
        Claim(
            "the same increase with 10, 20 and 30 % dropout",
            "19, 13, 12 %",
            _percent(added[1:], ", "),
            all(_near(ours, paper) for ours, paper in zip(added[1:], (0.19, 0.13, 0.12), strict=False)),
            MODELLED,
        ),
        Claim(
            "most frequent number of chunks: CNN, ResNet-18 with n = 100, ResNet-18 with n = 16, VGG-19",
            "2, 11, 3 or 6, 5",
            ", ".join(map(str, counts)),
            counts[:2] == [2, 11] and counts[2] in (3, 6) and counts[3] == 5,
            "without the padding of the paper's code other numbers of chunks are best",
        ),
    ]


def _within(statement: str, claimed: tuple[float, float], values: Sequence[float], reason: str) -> Claim:
    """Return the claim that all speed-ups, rounded to two digits, lie in the claimed range."""
    low, high = claimed
    holds = low <= round(min(values), 2) <= round(max(values), 2) <= high
    return Claim(statement, f"{low}-{high}", _range(values), holds, reason)


def _near(ours: float, paper: float) -> bool:
    return abs(ours - paper) <= NEAR


def padding_claim(unpadded: Sequence[RoundTime]) -> Claim:
    """Return the speed-ups of rounds without padding, as a claim that neither holds nor fails."""
    left = ", ".join(_range(speedups(unpadded, workload)) for workload in WORKLOADS[1:])
    return Claim(
        "speed-ups of ResNet-18 (n = 100, n = 16) and of VGG-19 if chunks were not padded to powers of two",
        "",
        left,
        None,
        "no claim of the paper",
    )


def own_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare rounds under measured costs with the promises of this library."""
    wanted = (RESNET.model, RESNET.clients, "SecAgg", 0.1)
    at_ten = group_by(rounds, "model", "clients", "graph", "dropout")[wanted]
    single = next(time for time in at_ten if time.scheme == Scheme.SINGLE.value)
    (plain,) = added_share(at_ten, Scheme.SINGLE, lambda time: time.plain)
    (pipelined,) = added_share(at_ten, Scheme.SINGLE, lambda time: time.pipelined)
    where, adds = f"{single.model}, n = {single.clients}, 10 % dropout:", "XNoise (single) adds to orig's"
    both_ways = sum(single.pipelined_busy.get(way, 0.0) for way in ("comm", "comm-down")) / single.pipelined_share
    over, gain = 1 / both_ways, single.plain / single.pipelined
    return [
        Claim(
            f"{where} pipelined aggregation, divided by the slowest link's transfers up and down",
            f"at most {MOST_OVER}",
            f"{over:.3f}",
            over <= MOST_OVER,
            MEASURED,
        ),
        Claim(
            f"{where} plain aggregation, divided by pipelined aggregation",
            f"at least {LEAST_GAIN}",
            f"{gain:.2f}",
            gain >= LEAST_GAIN,
            MEASURED,
        ),
        Claim(
            f"{adds} pipelined aggregation",
            f"at most {MOST_PIPELINED:.0%}",
            f"{pipelined:.1%}",
            pipelined <= MOST_PIPELINED,
            MEASURED,
        ),
        Claim(
            f"{adds} plain aggregation",
            f"at most {MOST_PLAIN:.0%} (paper: 12-34 %)",
            f"{plain:.1%}",
            plain <= MOST_PLAIN,
            MEASURED,
        ),
    ]


def share_claims(rounds: Sequence[RoundTime]) -> list[Claim]:
    """Compare the share of aggregation in plain rounds, by number of clients, with the paper."""
    groups = group_by(rounds, "graph", "scheme")
    noisy, bare = ([time.share for time in groups["SecAgg", scheme]] for scheme in ("orig", "none"))
    both, more = [*noisy, *bare], all(a >= b for a, b in zip(noisy, bare, strict=True))
    plus = [time.share for time in rounds if time.graph == "SecAgg+"]
    return [
        Claim(
            "share of aggregation in a plain round with SecAgg",
            "86-91 %, up to 97 %",
            f"{min(both):.1%} to {max(both):.1%}",
            0.86 <= round(min(both), 2) <= round(max(both), 2) <= 0.97,
            MODELLED,
        ),
        Claim("the share is larger with DP than without", "slightly", _percent(noisy, ", "), more, MODELLED),
        Claim(
            "the share grows with n (16, 32, 64, 100)", "yes", _percent(noisy, " < "), noisy == sorted(noisy), MODELLED
        ),
        Claim(
            "with SecAgg+, too, aggregation takes most of a round",
            "yes",
            f"{min(plus):.0%} to {max(plus):.0%}",
            min(plus) > 0.5,
            MODELLED,
        ),
    ]


def speedups(rounds: Iterable[RoundTime], workload: Workload) -> list[float]:
    """Return the speed-ups of a workload's rounds."""
    return [time.speedup for time in group_by(rounds, "model", "clients")[workload.model, workload.clients]]


def added_share(rounds: Iterable[RoundTime], scheme: Scheme, seconds: Callable[[RoundTime], float]) -> list[float]:
    """Return the relative increase of a scheme's seconds over those of `orig`, for every configuration."""
    groups = group_by(rounds, "model", "clients", "graph", "dropout").values()
    by_scheme = ({time.scheme: seconds(time) for time in group} for group in groups)
    return [taken[scheme.value] / taken[Scheme.ORIG.value] - 1 for taken in by_scheme]


def _added_by_exact(rounds: Sequence[RoundTime]) -> list[float]:
    """Return for each rate of dropout the largest relative increase of a plain round, `other` included, by `exact`."""
    groups = group_by(rounds, "graph", "dropout")
    at_rates = (groups["SecAgg", float(rate)] for rate in RATES)
    return [max(added_share(group, Scheme.EXACT, lambda time: time.plain + time.other)) for group in at_rates]


def _more(more: Sequence[float], less: Sequence[float]) -> tuple[str, bool]:
    """Tell in how many configurations the speed-up in `more` exceeds that in `less`, and whether in all."""
    count = sum(a > b for a, b in zip(more, less, strict=True))
    return f"in {count} of {len(more)} configurations", count == len(more)


def _common_chunks(rounds: Sequence[RoundTime]) -> list[int]:
    """Return the most frequent number of chunks of each workload."""
    groups = group_by(rounds, "model", "clients").values()
    return [Counter(time.chunks for time in group).most_common(1)[0][0] for group in groups]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def _percent(values: Iterable[float], between: str) -> str:
    return between.join(f"{100 * value:.0f}" for value in values) + " %"
