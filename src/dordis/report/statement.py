"""The privacy statement of a run, in plain words: what is protected, from whom, how well, and how that is known.

Every sentence is chosen by what the records say; where they say nothing, nothing is claimed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dordis.federation.colluders import is_drawn
from dordis.federation.manifest import Manifest
from dordis.federation.retry import TRIES
from dordis.privacy.mechanisms.mechanism import NoiseFrom
from dordis.privacy.xnoise import Scheme
from dordis.protocols.concrete_bounds import OPERATIONS, RoundSize, security_bits
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.report.facts import Facts, odds
from dordis.report.numbers import count, number, percent, span


@dataclass(frozen=True)
class Item:
    """A part of the statement: a heading, paragraphs and points."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """A privacy statement: its sum in one sentence, whether anything is proved at all, and its parts."""

    headline: str
    proves: bool
    items: tuple[Item, ...]


def statement(facts: Facts) -> Statement:
    """State what a run proves."""
    proves = facts.stated is not None and math.isfinite(facts.stated) and not facts.ledger.problem
    if not facts.trust.proves:
        why = (facts.run.manifest.words.unproved, "There is no epsilon, whatever else this report shows.")
        items: tuple[Item, ...] = (
            Item("What is proved", why),
            Item("Noise", tuple(_noise(facts))),
            *_consents(facts),
            _run(facts),
            _evidence(facts),
        )
    else:
        items = (
            Item("What is protected", tuple(_unit(facts))),
            Item("From whom", tuple(_adversary(facts))),
            *_consents(facts),
            Item("How well", tuple(_amount(facts)), facts.run.manifest.terms),
            Item("How often a client may take part", tuple(_participation(facts))),
            Item("Mechanism and noise", (*_mechanism(facts), *_noise(facts))),
            Item("How epsilon is computed", (_accountant(facts),)),
            Item("What is outside the guarantee", (), tuple(_outside(facts))),
            _run(facts),
            _evidence(facts),
        )
    return Statement(" ".join(filter(None, (_headline(facts, proves), facts.exposure))), proves, items)


_UNIT = (
    "One client, with everything that it contributes to this run. Two courses of the run are compared that differ in "
    "this only: all updates of that client are replaced by zero (zero-out adjacency). That the client takes part "
    "counts as known."
)


def _unit(facts: Facts) -> Iterator[str]:
    yield _UNIT
    if said := facts.run.manifest.unit:
        yield f"{said[:1].upper()}{said[1:]}."


def _headline(facts: Facts, proves: bool) -> str:
    if not facts.trust.proves:
        return "This run proves nothing about privacy."
    if facts.ledger.problem:
        return "The privacy ledger of this run does not verify: no epsilon can be stated."
    if not proves:
        return "No finite epsilon is recorded: as far as the records go, this run proves nothing about privacy."
    would = "A deployment like this simulation would be" if facts.trust.simulated else "This run is"
    pair = f"(epsilon = {number(facts.stated)}, delta = {number(facts.run.manifest.plan.delta)})"
    over = f", which is more than its budget of {number(facts.budget)}" if facts.overspent else ""
    return f"{would} {pair}-differentially private for each single client, against {_against(facts)}{over}."


def _against(facts: Facts) -> str:
    manifest = facts.run.manifest
    match facts.trust.noise:
        case NoiseFrom.SERVER:
            return "everyone but the server, which is trusted"
        case NoiseFrom.CLIENT:
            return "the server and all other clients"
    if not facts.trust.hides_updates:
        return "those who see the sums only, not against the server"
    servers = {MALICIOUS: "a malicious server", SEMI_HONEST: "a server that follows the protocol"}
    return f"{servers.get(manifest.mode, 'a server')} and up to {_colluders(manifest, 'colluding client')}"


def _adversary(facts: Facts) -> Iterator[str]:
    match facts.trust.noise:
        case NoiseFrom.SERVER:
            yield (
                "Everyone who sees what is released, other clients included. Not the server: it sees the sums without "
                "noise, adds the noise, and is trusted with both."
            )
        case NoiseFrom.CLIENT:
            yield "The server and all other clients together, in either mode: a client's own noise is enough for it."
        case _:
            yield from _server(facts, f"up to {_colluders(facts.run.manifest, 'client')}")
            if facts.trust.hides_updates:
                yield _computational(facts)
            if facts.run.manifest.plan.colluders == 0:
                yield "Nobody may collude: a client that sees results is not covered, since it knows its own noise."


def _computational(facts: Facts) -> str:
    """Say what the cryptography of the run is worth, with all rounds that it may try; every graph has fewer pairs."""
    manifest, records = facts.run.manifest, facts.run.rounds
    config, plan = manifest.config, manifest.plan
    tries, chunks = config.get("federation", {}).get("tries", TRIES), config.get("performance", {}).get("chunks", 1)
    exact = config.get("privacy", {}).get("noise", {}).get("scheme") == Scheme.EXACT.value
    size = RoundSize(
        clients=max((manifest.per_round, *(len(record.clients) for record in records))),
        chunks=max((chunks if isinstance(chunks, int) else 1, *(len(record.survivors) for record in records))),
        coordinates=plan.dim,
        components=plan.tolerance + 1 if exact else 2,
    )
    attempts = max((tries * manifest.rounds, *(record.index + 1 for record in records)))
    return (
        "Against the server the guarantee is computational: it rests on keys of 128 bits (AES-128, X25519, SHA-256). "
        f"For an adversary that computes 2^{OPERATIONS} operations, what it sees in {count(manifest.rounds, 'round')} "
        f"of {count(size.clients, 'client')}, with all tries of these, differs from what the noise alone allows by at "
        f"most 2^-{math.floor(security_bits(size, attempts))}, on top of delta (docs/security.md, Concrete bounds)."
    )


def _server(facts: Facts, colluders: str) -> Iterator[str]:
    manifest = facts.run.manifest
    if not facts.trust.hides_updates:
        yield f"Only those who see nothing but the sums. {facts.exposure} Against the server nothing is proved."
    elif manifest.mode == MALICIOUS:
        yield (
            f"The server, even if it deviates from the protocol in any way, together with {colluders} who deviate too "
            "and tell it all they know."
        )
        beacon = ", and the public beacon" if manifest.beacon else ""
        yield f"Trusted are a client's own device and the registry of the clients' public keys{beacon}."
        yield from _selection(manifest)
    elif manifest.mode == SEMI_HONEST:
        yield (
            f"The server, as long as it follows the protocol (semi-honest), together with {colluders}: they keep and "
            "combine all they see. A server that deviates, for instance by telling clients different lists of who is "
            "left, is not covered."
        )
    else:
        yield f"A server of the mode '{manifest.mode}', which this report does not know, together with {colluders}."


def _colluders(manifest: Manifest, noun: str) -> str:
    """Return the number of colluders, of the registry or of a round."""
    plan = manifest.plan
    if plan.all_colluders is None:
        return f"{count(plan.colluders, noun)} of a round"
    return f"{count(plan.all_colluders, noun)} of the {manifest.clients:,} registered ones"


def _selection(manifest: Manifest) -> Iterator[str]:
    """Say how T_C follows from the colluders of the registry, against a server that tries manifests."""
    plan, has_beacon = manifest.plan, bool(manifest.config.get("deployment", {}).get("beacon"))
    if not plan.all_colluders:
        return
    if is_drawn(manifest.selection, has_beacon):
        yield (
            f"At most {plan.colluders:,} of these are in one round, except with a chance of 2^-40 per round, which "
            "delta covers: public randomness that was unknown when the run id was fixed draws the clients. This "
            "holds for a server that tries 2^64 manifests."
        )
    else:
        yield (
            "The selection does not use public randomness, so the server can choose a manifest that selects colluders "
            f"together. The noise is planned for a round with all {plan.all_colluders:,} colluders of the registry; "
            "more colluders in the registry are not covered."
        )


def _consents(facts: Facts) -> Iterator[Item]:
    if facts.run.manifest.consents:
        said = (
            "The policy of an owner refuses the following unless it is told otherwise. The owners of the clients of "
            "this run allowed it explicitly:"
        )
        yield Item("What owners consented to", (said,), facts.run.manifest.consents)


def _amount(facts: Facts) -> Iterator[str]:
    epsilon, budget, delta = facts.stated, facts.budget, facts.run.manifest.plan.delta
    if epsilon is None or math.isinf(epsilon):
        yield f"No finite epsilon is recorded, at delta = {number(delta)}."
        return
    yield (
        f"epsilon = {number(epsilon)} at delta = {number(delta)}, for the client that has spent most; "
        + ("no budget was set." if budget is None else f"the budget is {number(budget)}.")
    )
    if facts.proof is not None:
        more = (
            ""
            if facts.proof.is_spent
            else f"Spent so far is epsilon = {number(facts.spent)}; the stated epsilon is larger: "
        )
        yield f"{more}{facts.proof.basis.value}."
    if facts.overspent:
        yield f"This is MORE than the budget of {number(budget)}."
    yield from _carried(facts)
    yield (
        f"That is: whatever there is to be seen is at most e^{number(epsilon)} = {number(odds(epsilon))} times as "
        f"probable with the client's updates as without them, and the other way round, but for an additional "
        f"probability of {number(delta)}."
    )


def _carried(facts: Facts) -> Iterator[str]:
    """Say that a run goes on from another one, and that epsilon adds up."""
    predecessor, summary = facts.run.manifest.predecessor, facts.ledger.summary
    if predecessor is None or summary is None:
        return
    members = "the same members" if predecessor.registry == facts.run.manifest.registry else "other members"
    yield (
        f"This run goes on, with {members}, from the run {predecessor.run[:16]} after "
        f"{count(predecessor.rounds, 'round')}. Its ledger has the rounds of {count(len(summary.predecessors), 'run')} "
        "before: epsilon of a client that was in them adds up over all."
    )


def _participation(facts: Facts) -> Iterator[str]:
    manifest = facts.run.manifest
    yield (
        f"The plan covers {count(manifest.plan.cap, 'participation')} of a client, with {manifest.per_round:,} of "
        f"{manifest.clients:,} clients in each of {count(manifest.rounds, 'round')}. In this run's rounds the most "
        f"frequent client took part {count(facts.participations, 'time')}; epsilon is for what took place."
    )
    yield (
        "Beyond: a client of a deployment counts for itself what its rounds cost, over all runs and servers, and "
        "refuses to take part more often, or to spend more, than its owner allows."
    )
    summary = facts.ledger.summary
    if not facts.trust.stops:
        yield "Nothing stops this run at its budget: what is spent is counted, and the rounds go on."
    elif summary is not None and summary.budget is not None:
        yield "A round that would take one of its clients beyond the budget is not started."


def _mechanism(facts: Facts) -> Iterator[str]:
    manifest, plan = facts.run.manifest, facts.run.manifest.plan
    said = manifest.words.mechanism or "its author has to say what it does"
    yield f"Mechanism '{manifest.mechanism}': {said}."
    if plan.quantile is not None:
        ratio = "" if plan.sigma is None else f", of {number(plan.sigma / plan.clip)} times the bound in a sum"
        yield (
            f"The norm of an update is clipped to a bound that begins at {number(plan.clip)} and follows the "
            f"{percent(plan.quantile)} quantile of the norms. Noise goes with the bound{ratio}. Every round also "
            "releases a count of the norms below the bound, with its own noise; epsilon covers both together."
        )
    else:
        noise = (
            "" if plan.sigma is None else f", and the noise on a sum has a standard deviation of {number(plan.sigma)}"
        )
        yield f"The norm of an update is clipped to {number(plan.clip)}{noise}, in units of updates, as planned."


def _noise(facts: Facts) -> Iterator[str]:
    """Say how the noise comes about, and what dropout did to it."""
    manifest = facts.run.manifest
    yield f"Noise strategy '{manifest.noise}': {manifest.words.noise}"
    if facts.trust.noise is NoiseFrom.CLIENTS and facts.ratios:
        yield (
            f"In the finished rounds {span(facts.lost)} clients were lost before their upload, and the variance that "
            f"privacy counts on, without what colluders may know, was {span(facts.ratios)} times its target."
        )


def _accountant(facts: Facts) -> str:
    together = facts.trust.noise is NoiseFrom.CLIENTS
    sampler = " How far the sampler is from the law of its noise is charged to delta." if together else ""
    by = (
        "By Gaussian differential privacy, in which Skellam noise counts as Gaussian noise of a variance that is "
        "smaller by one half of a squared step of the grid (docs/accounting.md)"
    )
    if facts.ledger.summary is not None and not facts.ledger.summary.gaussian:
        by = "By Renyi differential privacy at integer orders, converted to epsilon by the library dp-accounting"
    return (
        f"{by}: of the noise that counted in each round, not of that which was planned, and added up over the rounds "
        f"that a client took part in.{sampler} Sampling of clients is not counted in favour of privacy."
    )


def _outside(facts: Facts) -> Iterator[str]:
    yield "Dropout that depends on a client's data. Who takes part and who drops out, and when, is seen."
    yield (
        "The metrics in this report and the data they are measured on: metrics have no noise, so the data must be "
        f"public or the server's{f' ({facts.run.manifest.measured})' if facts.run.manifest.measured else ''}."
    )
    yield "Other runs over the same clients' data: what each of them spends adds up."
    yield (
        "Choosing settings by trials on the same clients, such as learning rates or the clip bound: every trial is a "
        "run of its own, and this ledger counts only its own rounds. Choose on public data, or add the trials up with "
        "dordis ledger sum."
    )
    yield (
        "The number of classes, if it is read from the clients' labels: it counts as public. To avoid that, set the "
        "option classes of the data."
    )
    yield "A person behind several clients, and groups of clients: each client counts for itself."
    if facts.trust.noise is NoiseFrom.CLIENTS:
        yield "More colluders than that, and a registry that admits many clients of one owner."
    if facts.trust.noise is NoiseFrom.SERVER:
        yield f"The server, and whoever breaks into it: the strategy '{facts.run.manifest.noise}' trusts it."
    yield "The client's own device, and side channels on it."


def _run(facts: Facts) -> Item:
    said = "Deployed: every client answered over the network, and every message of the protocol was sent."
    if facts.trust.simulated:
        protocol = "every message of the protocol was made, sent and answered, by"
        if facts.run.manifest.fidelity == "ideal":
            protocol = "the protocol was not run; its result was computed, with noise of the same law, by"
        said = (
            f"SIMULATED {facts.run.manifest.where}: {protocol} one party that had everybody's data. What is stated "
            "here is what a deployment like this would prove; this run itself protected nobody."
        )
    return Item("What was run", (said, facts.exposure) if facts.exposure else (said,))


def _evidence(facts: Facts) -> Item:
    summary = facts.ledger.summary
    if facts.ledger.problem:
        said = ("THE PRIVACY LEDGER DOES NOT VERIFY.", facts.ledger.problem)
        return Item("Evidence", said, (f"run {facts.run_id}",))
    if summary is None:
        return Item("Evidence", ("There is no privacy ledger: nothing is proved.",), (f"run {facts.run_id}",))
    said = (
        f"The privacy ledger is whole: {count(summary.lines, 'line')}, each chained to the one before. Its "
        f"{count(summary.completed, 'completed round')} and {summary.reserved} charged without an output were "
        "recomputed for this report.",
        "The receipts and the records of the rounds bear it out. Somebody who rewrites all of them together is noticed "
        "only by those who kept a head elsewhere, such as clients in their receipts: "
        "dordis ledger verify ledger.jsonl --run RUN --head HEAD",
    )
    return Item("Evidence", said, (f"run {summary.run}", f"head {summary.head}"))
