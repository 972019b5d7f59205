"""The privacy statement of a run in plain words, from its records: what is protected, from whom, how well, and why."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dordis.crypto.suite import OPERATIONS, RoundSize, security_bits
from dordis.privacy.accounting import PAPER
from dordis.privacy.mechanisms import NoiseFrom
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, Assistance
from dordis.records.manifest import Manifest
from dordis.report.facts import RunFacts, odds_factor
from dordis.report.numbers import format_count, format_number, format_percent, format_range
from dordis.report.tables import describe_further
from dordis.runs.retry import TRIES
from dordis.selection.colluders import OPEN, is_drawn


@dataclass(frozen=True)
class StatementItem:
    """A part of the privacy statement: a heading, paragraphs, and the items of a list."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """A privacy statement: its main sentence, whether a finite epsilon is proved, and the details."""

    headline: str
    proves: bool
    items: tuple[StatementItem, ...]


def write_statement(facts: RunFacts) -> Statement:
    """Return the privacy statement of a run."""
    stated = facts.reportable_epsilon
    proves = stated is not None and math.isfinite(stated) and not facts.ledger.problem
    if not facts.trust.proves:
        why = (facts.run.manifest.words.unproved, "There is no epsilon, whatever else this report shows.")
        items: tuple[StatementItem, ...] = (
            StatementItem("What is proved", why),
            StatementItem("Noise", tuple(_noise(facts))),
            *_consents(facts),
            _run(facts),
            _evidence(facts),
        )
    else:
        items = (
            StatementItem("What is protected", tuple(_unit(facts))),
            StatementItem("From whom", tuple(_adversary(facts))),
            *_consents(facts),
            StatementItem("How well", tuple(_amount(facts)), facts.run.manifest.terms),
            StatementItem("How often a client may take part", tuple(_participation(facts))),
            StatementItem("Mechanism and noise", (*_mechanism(facts), *_noise(facts))),
            StatementItem("How epsilon is computed", (_accountant(facts),)),
            StatementItem("What is outside the guarantee", (), tuple(_outside(facts))),
            _run(facts),
            _evidence(facts),
        )
    return Statement(" ".join(filter(None, (_headline(facts, proves), facts.exposure))), proves, items)


_UNIT = (
    "One client, with everything that it contributes to this run. Two courses of the run are compared that differ in "
    "this only: all updates of that client are replaced by zero (zero-out adjacency). That the client takes part "
    "counts as known."
)

_RECORD = (
    "One record: {record} of one client's data. Two courses of the run are compared that differ in this only: "
    "the gradient of that record is replaced by zero wherever it was sampled. That the client takes part, and how many "
    "records it declared at most, counts as known; which of its records were sampled does not. A client as a whole has "
    "no epsilon in this run."
)


def _unit(facts: RunFacts) -> Iterator[str]:
    manifest = facts.run.manifest
    sampled = manifest.plan.records
    yield _RECORD.format(record=manifest.record) if sampled else _UNIT
    if sampled:
        several = "" if manifest.record_column else ", or with several rows at one of them,"
        yield (
            f"Every round samples each record with probability {format_number(sampled.probability)}. A person with "
            f"records at several clients{several} has a larger epsilon than is stated here."
        )
    if said := facts.run.manifest.unit:
        yield f"{said[:1].upper()}{said[1:]}."


def _headline(facts: RunFacts, proves: bool) -> str:
    if not facts.trust.proves:
        return "This run proves nothing about privacy."
    if facts.ledger.problem:
        return "The privacy ledger of this run does not verify: no epsilon can be stated."
    if not proves:
        return "No finite epsilon is recorded: as far as the records go, this run proves nothing about privacy."
    would = "A deployment like this simulation would be" if facts.trust.simulated else "This run is"
    pair = (
        f"(epsilon = {format_number(facts.reportable_epsilon)}, delta = {format_number(facts.run.manifest.plan.delta)})"
    )
    manifest = facts.run.manifest
    unit = f"record ({manifest.record} of a client's data)" if manifest.plan.records else "client"
    over = f", which is more than its budget of {format_number(facts.budget)}" if facts.is_overspent else ""
    return f"{would} {pair}-differentially private for each single {unit}, against {_against(facts)}{over}."


def _against(facts: RunFacts) -> str:
    manifest = facts.run.manifest
    match facts.trust.noise:
        case NoiseFrom.SERVER:
            return "everyone but the server, which is trusted"
        case NoiseFrom.CLIENT:
            return "the server and all other clients"
    if not facts.trust.hides_updates:
        return "those who see the sums only, not against the server"
    servers = {MALICIOUS: "a malicious server", SEMI_HONEST: "a server that follows the protocol"}
    trusted = manifest.assistance
    helpers = f" and {trusted.faulty} of {len(trusted.helpers)} helpers" if trusted else ""
    return f"{servers.get(manifest.mode, 'a server')} and up to {_colluders(manifest, 'colluding client')}{helpers}"


def _adversary(facts: RunFacts) -> Iterator[str]:
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
            if facts.run.manifest.assistance:
                yield from _helpers(facts.run.manifest.assistance)
            elif facts.trust.hides_updates:
                yield _computational(facts)
            if facts.run.manifest.plan.colluders == 0:
                yield "Nobody may collude: a client that sees results is not covered, since it knows its own noise."


def _helpers(trusted: Assistance) -> Iterator[str]:
    """Yield sentences on the number of helpers, how many may collude, and what one more colluder would reveal."""
    count, seen = len(trusted.helpers), trusted.faulty + 1
    noise = "no noise at all" if trusted.no_base else "the client's own noise alone, which is less than is proved here"
    yield (
        f"Sums are opened by {count} helpers, of whom at most {trusted.faulty} may collude with the server and the "
        f"clients above. {seen} helpers together with the server could see every single update under {noise}. The "
        "server and the helpers learn which clients contributed."
    )
    yield (
        "Against the server and the helpers the guarantee is computational: it rests on keys of 128 bits (AES-128, "
        "X25519, SHA-256, Ed25519; docs/security.md)."
    )


def _computational(facts: RunFacts) -> str:
    """Return sentences on the computational security of all tries; worst case: every two clients share keys."""
    manifest, records, config = facts.run.manifest, facts.run.rounds, facts.run.manifest.config
    tries, chunks = config.get("federation", {}).get("tries", TRIES), config.get("performance", {}).get("chunks", 1)
    exact = config.get("privacy", {}).get("noise", {}).get("scheme") == Scheme.EXACT.value
    size = RoundSize(
        clients=max((manifest.per_round, *(len(record.clients) for record in records))),
        chunks=max((chunks if isinstance(chunks, int) else 1, *(len(record.survivors) for record in records))),
        coordinates=manifest.plan.dim,
        components=manifest.plan.tolerance + 1 if exact else 2,
    )
    attempts = max((tries * manifest.rounds, *(record.index + 1 for record in records)))
    return (
        "Against the server the guarantee is computational: it rests on keys of 128 bits (AES-128, X25519, SHA-256). "
        f"The view of an adversary that computes 2^{OPERATIONS} operations, in "
        f"{format_count(manifest.rounds, 'round')} of {format_count(size.clients, 'client')} and all tries of them, "
        "differs from a view that has only the noisy sums by at most "
        f"2^-{math.floor(security_bits(size, attempts))}, on top of delta (docs/proofs/bounds.md)."
    )


def _server(facts: RunFacts, colluders: str) -> Iterator[str]:
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
    """Return in words how many colluders the plan tolerates: in the registry or, if unknown, in a single round."""
    plan = manifest.plan
    if plan.all_colluders is None:
        return f"{format_count(plan.colluders, noun)} of a round"
    return f"{format_count(plan.all_colluders, noun)} of the {manifest.clients:,} registered ones"


def _selection(manifest: Manifest) -> Iterator[str]:
    """Yield sentences on how many colluders can be in one round, even if the server tries many manifests."""
    plan, has_beacon = manifest.plan, bool(manifest.config.get("deployment", {}).get("beacon"))
    if not plan.all_colluders:
        return
    if is_drawn(manifest.selection, has_beacon):
        yield (
            f"At most {plan.colluders:,} of these are in one round, except with a chance of 2^-40 per round, which "
            "delta covers: public randomness that was unknown when the run id was fixed draws the clients. This "
            "holds for a server that tries 2^64 manifests."
        )
    elif manifest.selection == OPEN:
        yield (
            "Any registered client may contribute, so the server can admit all colluders to one round. The noise is "
            f"planned for all {plan.all_colluders:,} of them; more colluders in the registry are not covered."
        )
    else:
        yield (
            "The selection does not use public randomness, so the server can choose a manifest that selects colluders "
            f"together. The noise is planned for a round with all {plan.all_colluders:,} colluders of the registry; "
            "more colluders in the registry are not covered."
        )


def _consents(facts: RunFacts) -> Iterator[StatementItem]:
    if facts.run.manifest.consents:
        said = (
            "The policy of an owner refuses the following unless it is told otherwise. The owners of the clients of "
            "this run allowed it explicitly:"
        )
        yield StatementItem("What owners consented to", (said,), facts.run.manifest.consents)


def _amount(facts: RunFacts) -> Iterator[str]:
    epsilon, budget, delta = facts.reportable_epsilon, facts.budget, facts.run.manifest.plan.delta
    if epsilon is None or math.isinf(epsilon):
        yield f"No finite epsilon is recorded, at delta = {format_number(delta)}."
        return
    yield (
        f"epsilon = {format_number(epsilon)} at delta = {format_number(delta)}, for the client that has spent most; "
        + ("no budget was set." if budget is None else f"the budget is {format_number(budget)}.")
    )
    if facts.stated_epsilon is not None:
        spent = f"Epsilon spent so far is {format_number(facts.spent)}; the stated epsilon is larger: "
        yield f"{'' if facts.stated_epsilon.is_spent else spent}{facts.stated_epsilon.basis.value}."
    if facts.is_overspent:
        yield f"This is MORE than the budget of {format_number(budget)}."
    yield from _carried(facts)
    yield (
        f"That is: any set of outcomes is at most e^{format_number(epsilon)} = {format_number(odds_factor(epsilon))} "
        "times as probable with the client's updates as without them, and the other way round, up to an additional "
        f"probability of {format_number(delta)}."
    )


def _carried(facts: RunFacts) -> Iterator[str]:
    """Yield sentences about the earlier runs that this run continues, and whose epsilon it includes; none if none."""
    predecessor, summary = facts.run.manifest.predecessor, facts.ledger.summary
    if predecessor is None or summary is None:
        return
    members = "the same members" if predecessor.registry == facts.run.manifest.registry else "other members"
    yield (
        f"This run continues, with {members}, the run {predecessor.run[:16]} after "
        f"{format_count(predecessor.rounds, 'round')}. Its ledger contains the rounds of "
        f"{format_count(len(summary.predecessors), 'earlier run')}: the epsilon of a client adds up over all of them."
    )


def _participation(facts: RunFacts) -> Iterator[str]:
    manifest = facts.run.manifest
    yield (
        f"The plan covers {format_count(manifest.plan.cap, 'participation')} of a client, with "
        f"{manifest.per_round:,} of {manifest.clients:,} clients in each of {format_count(manifest.rounds, 'round')}. "
        f"In this run the most frequent client took part {format_count(facts.most_participations, 'time')}; epsilon "
        "is computed from actual participations."
    )
    yield (
        "Independently of this, a deployed client counts the cost of its rounds over all runs and servers, and refuses "
        "to take part more often, or to spend more, than its owner allows."
    )
    summary = facts.ledger.summary
    if not facts.trust.stops:
        yield "Nothing stops this run at its budget: the ledger counts epsilon, and the rounds continue."
    elif summary is not None and summary.budget is not None:
        yield "A round that would exceed the budget of one of its clients is not started."


def _mechanism(facts: RunFacts) -> Iterator[str]:
    manifest, plan = facts.run.manifest, facts.run.manifest.plan
    yield f"Mechanism '{manifest.mechanism}': {manifest.words.mechanism or 'its author has to say what it does'}."
    if plan.quantile is not None:
        ratio = "" if plan.sigma is None else f": {format_number(plan.sigma / plan.clip)} times the bound in a sum"
        yield (
            f"The norm of an update is clipped to a bound that begins at {format_number(plan.clip)} and follows the "
            f"{format_percent(plan.quantile)} quantile of the norms. The noise is proportional to the bound{ratio}. "
            "Every round also releases a noisy count of the norms below the bound; epsilon covers both together."
        )
    else:
        deviation = f", and the planned noise on a sum has a standard deviation of {format_number(plan.sigma)}"
        noise = "" if plan.sigma is None else deviation
        yield f"The norm of an update is clipped to {format_number(plan.clip)}{noise}, before scaling to integers."
    yield from describe_further(plan)


def _noise(facts: RunFacts) -> Iterator[str]:
    """Yield sentences about the noise strategy, and about the effect of dropout on the noise."""
    manifest = facts.run.manifest
    yield f"Noise strategy '{manifest.noise}': {manifest.words.noise}"
    if facts.trust.noise is NoiseFrom.CLIENTS and facts.noise_ratios:
        yield (
            f"In the finished rounds {format_range(facts.lost_before_upload)} clients were lost before their upload. "
            "The variance that epsilon is based on, without the noise that colluders may know, was "
            f"{format_range(facts.noise_ratios)} times its target."
        )


def _accountant(facts: RunFacts) -> str:
    if sampled := facts.run.manifest.plan.records:
        return (
            f"All {sampled.events} events that were planned, spare ones for failed rounds included, are composed "
            "numerically by the privacy loss distributions of the library dp-accounting, each a Poisson sample under "
            f"Gaussian noise of {format_number(sampled.multiplier)} times what one record can change. All of them are "
            "stated, however many took place. The distance of the sampled noise from its exact distribution, and the "
            "chances that rounding or the number of sampled records exceeds its bound, are charged to delta."
        )
    charged = " The statistical distance of the sampler from the exact noise is charged to delta."
    sampler = charged if facts.trust.noise is NoiseFrom.CLIENTS else ""
    by = (
        "By Gaussian differential privacy, in which Skellam noise counts as Gaussian noise of a variance that is "
        "smaller by one half of a squared step of the grid (docs/accounting.md)"
    )
    if facts.ledger.summary is not None and not facts.ledger.summary.gaussian:
        by = "By Renyi differential privacy at integer orders, converted to epsilon by the library dp-accounting"
    paper = facts.run.manifest.config.get("privacy", {}).get("accounting") == PAPER
    rounds = "all rounds, also those without the client" if paper else "the rounds that a client took part in"
    added = f"{by}: from the actual noise of each round, not the planned one, added up over {rounds}."
    return f"{added}{sampler} No amplification by sampling of clients is claimed."


def _outside(facts: RunFacts) -> Iterator[str]:
    yield "Dropout that depends on a client's data. Participation and dropout, with their times, are visible."
    yield (
        "The metrics in this report and the data they are measured on: metrics have no noise, so the data must be "
        f"public or the server's{f' ({facts.run.manifest.measured})' if facts.run.manifest.measured else ''}."
    )
    yield "Other runs over the same clients' data: their epsilons add up."
    yield (
        "Choosing settings by trials on the same clients, such as learning rates or the clip bound: every trial is a "
        "run of its own. Choose on public data, or add the trials up with dordis ledger sum."
    )
    yield "The number of classes, if it is read from the clients' labels (set the option classes to avoid that)."
    by_record = "A client as a whole, and a person with several records: epsilon is for a single record."
    by_client = "A person with several clients, and groups of clients: epsilon is for a single client."
    yield by_record if facts.run.manifest.plan.records else by_client
    if facts.trust.noise is NoiseFrom.CLIENTS:
        yield "More colluders than stated, and a registry that admits many clients of one owner."
    if facts.trust.noise is NoiseFrom.SERVER:
        yield f"The server, and anybody who breaks into it: the strategy '{facts.run.manifest.noise}' trusts it."
    yield "The client's own device, and side channels on it."


def _run(facts: RunFacts) -> StatementItem:
    said = "Deployed: every client answered over the network, and every message of the protocol was sent."
    if facts.trust.simulated:
        protocol = "every message of the protocol was made, sent and answered, by"
        if facts.run.manifest.fidelity == "ideal":
            protocol = "the protocol was not run; its result was computed, with noise of the same law, by"
        said = (
            f"SIMULATED {facts.run.manifest.where}: {protocol} one party that had everybody's data. What is stated "
            "here is what a deployment like this would prove; this run itself protected nobody."
        )
    return StatementItem("What was run", (said, facts.exposure) if facts.exposure else (said,))


def _evidence(facts: RunFacts) -> StatementItem:
    summary = facts.ledger.summary
    if facts.ledger.problem or summary is None:
        damaged = ("THE PRIVACY LEDGER DOES NOT VERIFY.", facts.ledger.problem)
        none = ("There is no privacy ledger: nothing is proved.",)
        return StatementItem("Evidence", damaged if facts.ledger.problem else none, (f"run {facts.run_id}",))
    said = (
        f"The privacy ledger is whole: {format_count(summary.lines, 'line')}, each chained to the one before. Its "
        f"{format_count(summary.completed, 'completed round')} and {summary.reserved} charged without an output were "
        "recomputed for this report.",
        "The receipts and the records of the rounds agree with it. A person who rewrites all of them together is "
        "detected only by parties who kept a head elsewhere, such as clients in their receipts: "
        "dordis ledger verify ledger.jsonl --run RUN --head HEAD",
    )
    return StatementItem("Evidence", said, (f"run {summary.run}", f"head {summary.head}"))
