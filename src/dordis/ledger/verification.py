"""Verify runs and receipts without trust in the server: the files of a run agree, and its receipts can be recomputed.

The files of a run are ledger, receipts, records of rounds, and model (`check_evidence`).  A ledger that was shortened,
or altered and hashed again, is valid by itself.  But every receipt states the ledger's head, the hash of its last line
after the round, and records and model name the rounds, so missing lines are found.  Consistent changes of all files are
found only by signatures, or by parties that kept a head or a receipt.

A receipt is recomputed: its parameters must have the stated hash and keep the protocol's rules, the charged noise must
follow from noise plan and survivors, and in malicious mode a quorum must have signed the survivors.  A run is verified
if its files agree, all its receipts verify, and the ledger charges every round what its parameters cost.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dordis import wire
from dordis.crypto.suite import DEFAULT
from dordis.errors import DordisError, InputError, LedgerDamaged
from dordis.identity.registry import Registry, SignedRegistry, members_before, registry_with_helpers
from dordis.identity.revocations import check_revocations
from dordis.ledger import ledger
from dordis.ledger.client_spending import Account
from dordis.ledger.ledger import LedgerSummary
from dordis.ledger.receipt import Receipt, check_chain, read_receipt_files
from dordis.ledger.round_charge import Charge
from dordis.ledger.stated_epsilon import StatedEpsilon, check_budget_stated, stated_epsilon, summarise
from dordis.privacy.mechanisms import TABLE
from dordis.privacy.xnoise_components import removal_context
from dordis.protocol import ClientId
from dordis.protocols import SUMMING, summing_protocol
from dordis.protocols.parameters import Parameters, check_rules
from dordis.protocols.summing import SummingProtocol
from dordis.records.manifest import Manifest, Predecessor
from dordis.records.run_records import LEDGER, MODEL, RECEIPTS, REGISTRY, RESULT, ROUNDS, RoundRecord, StoredRun

_CLOSE = 1e-6  # epsilons on another machine differ by rounding


@dataclass(frozen=True)
class VerifiedReceipt:
    """A verified receipt; `signers` has the verified signers of every chunk, empty if signatures were not verified."""

    receipt: Receipt
    parameters: Parameters
    signers: tuple[tuple[int, ...], ...]

    @property
    def is_signed(self) -> bool:
        """Tell whether the survivors of every chunk are signed by a quorum, and the signatures were verified."""
        return all(self.signers)


@dataclass(frozen=True)
class VerifiedRun:
    """A run whose files agree and whose receipts verify; `summary` is None if the run has no epsilon."""

    run: StoredRun
    receipts: tuple[VerifiedReceipt, ...]
    summary: LedgerSummary | None
    has_registry: bool

    @property
    def signed_rounds(self) -> int:
        """Return the number of rounds with verified signatures of a quorum."""
        return sum(one.is_signed for one in self.receipts)


def verify_run(run: StoredRun, known: Registry | SignedRegistry | None = None) -> VerifiedRun:
    """Verify all files of a run; raise LedgerDamaged if they disagree, or if a receipt does not verify.

    Signatures are verified with the keys of the registry `known`, or else of the registry that the server stored with
    the run.  The run's members in each of these two registries must have the root that the manifest states.  If `known`
    is signed, none of the members' keys may have been revoked before the run began.
    """
    registry = None
    for source in (read_stored_registry(run), known):
        if source is not None:
            registry = members_at_start(source, run.manifest)
            check_root(registry, run)
            check_keys_valid(source, registry, run.manifest)
    summary = check_evidence(run)
    receipts = read_receipts(run)
    signing = None if run.manifest.fidelity == "ideal" else registry  # in ideal runs no message is sent or signed
    keys = None if signing is None else signing.signing_keys()
    verified = tuple(verify_receipt(one, keys) for _, one in sorted(receipts.items()))
    if summary is not None:
        account, _ = ledger.read_ledger(run.path / LEDGER, run.id)
        for one in verified:
            check_charge(one.parameters, account)
            check_epsilon(one.receipt, account)
    return VerifiedRun(run, verified, summary, registry is not None)


def members_at_start(known: Registry | SignedRegistry, manifest: Manifest) -> Registry:
    """Return the members with which a run began, from the registry `known`.

    `known` may be newer than the run if the authority signed it: then it may list further clients, and keys of the
    run's members may be revoked.
    """
    listed = manifest.members
    if isinstance(known, SignedRegistry):
        helpers = manifest.assistance.helpers if manifest.assistance else ()
        known = members_before(registry_with_helpers(known, helpers), known.membership.revoked, listed or {})
    return known.restrict(listed or known)


def check_keys_valid(known: Registry | SignedRegistry, members: Registry, manifest: Manifest) -> None:
    """Raise LedgerDamaged if the signed registry `known` says that keys of a run were revoked before the run began."""
    if not isinstance(known, SignedRegistry):
        return
    try:
        check_revocations(manifest, members, known.membership.revoked)
    except DordisError as error:
        raise LedgerDamaged(f"the run does not verify: {error}") from None


def read_stored_registry(run: StoredRun) -> Registry | None:
    """Return the registry that the server stored with a run; None if it stored none, as for simulated runs."""
    return Registry.load(run.path / REGISTRY) if (run.path / REGISTRY).exists() else None


def verify_receipt(receipt: Receipt, keys: Mapping[ClientId, bytes] | None = None) -> VerifiedReceipt:
    """Verify one receipt by itself; raise LedgerDamaged if its contents contradict each other or a signature is wrong.

    `keys` are the clients' public signing keys; if None, the signatures are not verified.
    """
    protocol = builtin_protocol(receipt.protocol)
    try:
        parameters = wire.decode(receipt.agreed, protocol.parameters)
        check_rules(parameters)
        check_parameters(receipt, parameters)
        check_noise(receipt, parameters)
        signers = verify_signatures(receipt, parameters, protocol, keys)
    except LedgerDamaged:
        raise
    except DordisError as error:
        raise LedgerDamaged(f"the receipt of round index {receipt.index} does not verify: {error}") from None
    return VerifiedReceipt(receipt, parameters, signers)


def builtin_protocol(name: str) -> SummingProtocol:
    """Return a protocol of dordis by name; raise InputError for others: a receipt must not load code."""
    if name not in SUMMING:
        raise InputError(
            f"the receipt names the protocol '{name[:80]}', which does not come with dordis: its authors have to "
            "verify it"
        )
    return summing_protocol(name)


def check_root(registry: Registry, run: StoredRun) -> None:
    """Raise LedgerDamaged unless the registry has the root that the run's manifest states."""
    if registry.root().hex() != run.manifest.registry:
        raise LedgerDamaged(
            f"the manifest of the run at {run.path} names another registry than the given one: get the newest registry "
            "of the run's federation from its authority; if this is the newest, the run has other members or keys"
        )


def check_parameters(receipt: Receipt, parameters: Parameters) -> None:
    """Raise LedgerDamaged unless the agreed parameters match the hash, run, index, model and clients in a receipt."""
    written = (receipt.parameters, receipt.run, receipt.index, receipt.model)
    if written != (parameters.digest.hex(), parameters.run.hex(), parameters.index, parameters.model.hex()):
        raise LedgerDamaged(f"the receipt of round index {receipt.index} does not fit the parameters in it")
    if parameters.clients and receipt.clients != tuple(map(int, parameters.clients)):
        raise LedgerDamaged(f"the receipt of round index {receipt.index} names other clients than its parameters")


def check_noise(receipt: Receipt, parameters: Parameters) -> None:
    """Raise LedgerDamaged unless the noise that a receipt states for every chunk follows from noise plan and survivors.

    The noise left in the sum may be more than follows from these, because some due noise could not be removed.
    """
    chunks = range(len(parameters.chunks))
    stated = (receipt.survivors, receipt.signatures, receipt.planned, receipt.left, receipt.charged)
    if {len(one) for one in stated} != {len(chunks)}:
        raise LedgerDamaged(f"the receipt of round index {receipt.index} does not name all {len(chunks)} chunks")
    for chunk in chunks:
        survivors, plan = receipt.survivors[chunk], parameters.plans[chunk]
        if not set(survivors) <= set(receipt.clients) or list(survivors) != sorted(set(survivors)):
            raise LedgerDamaged(f"chunk {chunk} of round index {receipt.index}: survivors are not clients of the round")
        if not parameters.n_min <= len(survivors) <= parameters.n_max:
            raise LedgerDamaged(
                f"chunk {chunk} of round index {receipt.index} is a sum over {len(survivors)} clients: the parameters "
                f"allow {parameters.n_min} to {parameters.n_max}"
            )
        lots = removal_context(parameters.round, chunk, parameters.digest)
        expected = parameters.variances[chunk], str(plan.charged_variance(survivors, lots))
        kept = Fraction(receipt.left[chunk]) >= plan.variance_left(survivors, lots)
        if (receipt.planned[chunk], receipt.charged[chunk]) != expected or not kept:
            raise LedgerDamaged(
                f"chunk {chunk} of round index {receipt.index}: the noise in the receipt is not what its survivors keep"
            )


def verify_signatures(
    receipt: Receipt, parameters: Parameters, protocol: SummingProtocol, keys: Mapping[ClientId, bytes] | None
) -> tuple[tuple[int, ...], ...]:
    """Return, for every chunk, the clients whose signatures on the survivors of this chunk are verified.

    Raise if a signature is wrong, or if the signers are no quorum.  No chunk has signers if `keys` is None, or if
    nobody signs: in semi-honest mode, or with a protocol without signatures.
    """
    if keys is None or protocol.check_signed is None or not parameters.is_malicious:
        return tuple(() for _ in receipt.survivors)
    for chunk, signatures in enumerate(receipt.signatures):
        survivors = [ClientId(u) for u in receipt.survivors[chunk]]
        protocol.check_signed(parameters, chunk, survivors, signatures, keys, DEFAULT)
    return tuple(tuple(sorted(signed)) for signed in receipt.signatures)


def check_charge(parameters: Parameters, account: Account) -> None:
    """Raise LedgerDamaged if the ledger's charge of a round does not follow from the parameters of the round.

    Clients, noise plan, and the sensitivity and length of every sum are compared.  The charge of a round with a third
    party's mechanism is not checked, because the cost of this mechanism cannot be recomputed here.
    """
    charged = account.rounds[parameters.index].charge
    if parameters.encoding.mechanism not in TABLE:
        return
    due = Charge.from_parameters(parameters, arrived=[ClientId(u) for u in charged.clients])
    if _terms(due) != _terms(charged) or charged.failure < due.failure:
        raise LedgerDamaged(
            f"the ledger's charge of round index {parameters.index} does not follow from its parameters"
        )


def _terms(charge: Charge) -> tuple[object, ...]:
    """Return the fields of a charge that follow from the parameters alone."""
    shared = (charge.clients, charge.scheme, charge.tolerance, charge.colluders, charge.fraction, charge.reserve)
    return *shared, charge.variances, charge.n_max, charge.without_dropout.releases


def check_epsilon(receipt: Receipt, account: Account) -> None:
    """Raise LedgerDamaged unless the epsilon in a receipt is the epsilon that the ledger gives after that round."""
    if receipt.epsilon is None or not is_close(receipt.epsilon, account.epsilon_after(receipt.index)):
        raise LedgerDamaged(
            f"the receipt of round index {receipt.index} states the epsilon {receipt.epsilon}, and the ledger gives "
            f"{account.epsilon_after(receipt.index)}"
        )


def check_evidence(run: StoredRun) -> LedgerSummary | None:
    """Return the summary of a run's ledger; None if the run has no epsilon.

    Raise `LedgerDamaged` if the files of the run disagree: then no epsilon can be stated.
    """
    check_order(run)
    if run.result is not None:  # while a run is open, its model may be older than its records
        check_last(run)
    if not run.manifest.trust.proves:
        return None
    account, heads = ledger.read_ledger(run.path / LEDGER, run.id)
    check_predecessor(run.manifest.predecessor, account, heads)
    check_budget_stated(account, run.manifest)
    receipts = read_receipts(run)
    check_chain(receipts)
    check_receipts(receipts, account, heads)
    check_rounds(run.rounds, receipts, account)
    check_course(run.rounds, account)
    stated = stated_epsilon(account, run.manifest, run.evident)
    check_recorded(run, stated)
    return summarise(account, heads, stated)


def check_predecessor(named: Predecessor | None, account: Account, heads: Collection[str]) -> None:
    """Raise LedgerDamaged unless the ledger continues the ledger of exactly the predecessor that the manifest names.

    `named` is None if the manifest names none.  `heads` are the hashes of all lines of the ledger.
    """
    before = "" if account.predecessor is None else account.predecessor.run.hex()
    if before != ("" if named is None else named.run) or (named is not None and named.head not in heads):
        raise LedgerDamaged(
            "the privacy ledger lacks the rounds of the predecessor run, which count for the same clients: restore it"
        )


def read_receipts(run: StoredRun) -> dict[int, Receipt]:
    """Return the receipts of a run by index; raise LedgerDamaged if one is malformed or of another run."""
    receipts = read_receipt_files(run.path / RECEIPTS)
    for receipt in receipts.values():
        check_receipt(receipt, run)
    return receipts


def check_receipt(receipt: Receipt, run: StoredRun) -> None:
    """Raise LedgerDamaged unless a receipt is of this run."""
    if receipt.run != run.id.hex():
        raise LedgerDamaged(f"the receipt {receipt.file_name} is of another run or round: restore the right one")


def check_receipts(receipts: Mapping[int, Receipt], account: Account, heads: Collection[str]) -> None:
    """Raise LedgerDamaged if the ledger lacks the line whose hash a receipt states, or contradicts the receipt.

    `heads` are the hashes of the ledger's lines.
    """
    for index, receipt in receipts.items():
        if receipt.ledger not in heads:
            raise LedgerDamaged(
                f"the privacy ledger lacks the line that the receipt of round index {index} names: it was cut, or "
                "altered and hashed again; restore it"
            )
        if not receipt.agrees_with(account.rounds.get(index)):
            raise LedgerDamaged(f"the privacy ledger and the receipt of round index {index} contradict each other")


def check_order(run: StoredRun) -> None:
    """Raise LedgerDamaged unless the recorded rounds of a run have consecutive numbers and increasing indices."""
    numbers, indices = [record.number for record in run.rounds], [record.index for record in run.rounds]
    expected = list(range(run.manifest.before + 1, run.manifest.before + 1 + len(numbers)))
    if numbers != expected or indices != sorted(set(indices)):
        raise LedgerDamaged(f"{ROUNDS} and {MODEL} do not list every round once, in order: restore both from a backup")


def check_rounds(rounds: Collection[RoundRecord], receipts: Mapping[int, Receipt], account: Account) -> None:
    """Raise LedgerDamaged unless every recorded round has a completed charge, and a receipt that matches the record."""
    for record in rounds:
        known = account.rounds.get(record.index)
        if known is None or known.state != "completed":
            raise LedgerDamaged(
                f"round {record.number} is in {ROUNDS} but not in the privacy ledger: restore the ledger"
            )
        if record.index not in receipts:
            raise LedgerDamaged(f"the receipt of round {record.number} is missing: restore the directory {RECEIPTS}")
        if not receipts[record.index].matches_record(record):
            raise LedgerDamaged(f"round {record.number}: {ROUNDS} and the receipt disagree; restore both from a backup")


def check_course(rounds: Collection[RoundRecord], account: Account) -> None:
    """Raise LedgerDamaged if the epsilon in a round's record differs from the ledger's epsilon after this round."""
    for record in rounds:
        if not is_close(record.epsilon, account.epsilon_after(record.index)):
            raise LedgerDamaged(
                f"round {record.number}: the epsilon in {ROUNDS} is not the one that the privacy ledger gives; restore "
                "both from a backup"
            )


def is_close(first: float | None, second: float | None) -> bool:
    """Tell whether two epsilons are equal up to rounding on another machine; False if either or both are None."""
    return first is not None and second is not None and math.isclose(first, second, rel_tol=_CLOSE)


def check_recorded(run: StoredRun, stated: StatedEpsilon) -> None:
    """Raise LedgerDamaged if the epsilon in the result file of a run, spent or stated, exceeds that in `stated`.

    `stated` is computed from the ledger; if its epsilon is smaller, lines of the ledger are missing.
    """
    if run.result is None:
        return
    for said, known in ((run.result.spent, stated.spent), (run.result.epsilon, stated.epsilon)):
        if said is not None and known < said * (1 - _CLOSE):
            raise LedgerDamaged(
                f"{RESULT} has an epsilon of {said:.4g}, and the privacy ledger gives {known:.4g}: lines are "
                "missing from the ledger; restore it from a backup"
            )


def check_model(run: StoredRun) -> None:
    """Raise LedgerDamaged if a run has finished rounds but no model, so that it cannot be resumed."""
    finished = run.rounds or (run.result is not None and run.result.rounds > run.manifest.before)
    if finished and not (run.path / MODEL).exists():
        raise LedgerDamaged(f"the run at {run.path} has finished rounds and no {MODEL}: restore it, or start a new run")


def check_last(run: StoredRun) -> None:
    """Raise LedgerDamaged if the stored model is not the model after the last recorded round."""
    if run.rounds and run.rounds[-1] != run.last and (run.path / MODEL).exists():
        raise LedgerDamaged(f"the {MODEL} of the run at {run.path} is not the one after its last round: restore it")
