"""Every attack of the suite is refused, by the check that is there for it and at the stage where it is."""

from pathlib import Path

import pytest

from dordis.adversary.attack import Attack
from dordis.adversary.participants import SPARSE
from dordis.adversary.suite import ATTACKS

VARIANTS = [(attack, graph) for attack in ATTACKS for graph in attack.graphs]
REFUSED = {
    # invitations
    "a model other than the one named": ("check_model (ProtocolError)", "Train"),
    "a model that is cut short": ("check_model (ProtocolError)", "Train"),
    "parameters for another model": ("check_same_model (ParametersRefused)", "AdvertiseKeys"),
    "parameters for another round": ("check_same_round (ParametersRefused)", "AdvertiseKeys"),
    "a model in crumbs": ("check_pieces (UnexpectedRequest)", "SendModel"),
    "a block that is longer than the vector": ("check_block (ParametersRefused)", "AdvertiseKeys"),
    "parameters below the promised terms": ("check_terms_kept (ParametersRefused)", "AdvertiseKeys"),
    "an invitation under another registry": ("check_pinned (ParametersRefused)", "Invite"),
    "an invitation to a round at a negative cost": ("check_terms (ParametersRefused)", "Invite"),
    "an invitation to a client that is not due": ("check_due (ProtocolError)", "Invite"),
    "another number of the round for one client": ("told_number", "Train"),
    "an invitation that is none": ("check_invite (MalformedMessage)", "Invite"),
    # questions about data
    "a model on which training fails for some data": ("contain", "Train"),
    "a sum on which the application fails for some data": ("contain", "Store"),
    "a model on which training takes longer for some data": ("wait_out", "Train"),
    "trainings that no round counts": ("check_trainings (ParametersRefused)", "Train"),
    "a model that is not finite": ("check_trainable (ParametersRefused)", "Train"),
    "a model of huge numbers": ("check_trainable (ParametersRefused)", "Train"),
    "a model of another length": ("check_form (ParametersRefused)", "Invite"),
    "a model of other numbers": ("check_form (ParametersRefused)", "Invite"),
    # different views
    "two U3 of equal size": ("check_enough (ProtocolError)", "Unmask"),
    "two U3 of different size": ("check_enough (ProtocolError)", "Unmask"),
    "two U2: a client's neighbours are hidden from it": ("check_neighbours (ProtocolError)", "DeliverShares"),
    "two U2: a client is shown nobody else": ("check_enough (ProtocolError)", "DeliverShares"),
    "two U2: a lost peer is named in U3": ("check_subset (ProtocolError)", "Agree"),
    "U2 with more than T missing": ("check_tolerated (TooManyDropouts)", "DeliverShares"),
    "U2 without the client itself": ("check_present (ProtocolError)", "DeliverShares"),
    "different parameters for two clients": ("check_keys_signed (InvalidSignature)", "ShareKeys"),
    "a different model for two clients": ("check_keys_signed (InvalidSignature)", "ShareKeys"),
    # false survivors and signatures
    "Unmask for another U3 than the one signed": ("check_same_survivors (ProtocolError)", "Unmask"),
    "U3 with a client that never uploaded": ("check_tokens (ProtocolError)", "Agree"),
    "understated |D|: a silent client is counted in": ("check_tokens (ProtocolError)", "Agree"),
    "understated |D|: a client outside U2 is counted in": ("check_subset (ProtocolError)", "Unmask"),
    "|D| > T": ("check_tolerated (TooManyDropouts)", "Agree"),
    "one signature fewer than the quorum": ("check_enough (ProtocolError)", "Unmask"),
    "forged signatures on U3": ("check_quorum_signed (InvalidSignature)", "Unmask"),
    "signatures of another chunk": ("check_quorum_signed (InvalidSignature)", "Unmask"),
    "signatures of another round": ("check_quorum_signed (InvalidSignature)", "Unmask"),
    "signatures of another type": ("check_quorum_signed (InvalidSignature)", "Unmask"),
    "a signer outside U3": ("check_subset (ProtocolError)", "Unmask"),
    "U3 with a client outside U": ("Parameters.unpack (MalformedMessage)", "Unmask"),
    # order of requests
    "Unmask without Agree": ("check_turn (UnexpectedRequest)", "Unmask"),
    "disclosure before the upload": ("check_turn (UnexpectedRequest)", "Unmask"),
    "upload before the set-up is complete": ("check_setup_complete (UnexpectedRequest)", "CollectInput"),
    "masking before the set-up is complete": ("check_setup_complete (UnexpectedRequest)", "PrepareInput"),
    "an earlier stage after a later one": ("check_turn (UnexpectedRequest)", "Agree"),
    "noise removal before unmasking": ("check_turn (UnexpectedRequest)", "RemoveNoise"),
    "a chunk that does not exist": ("ProtocolClient._locate (UnexpectedRequest)", "CollectInput"),
    "both halves of a mask, in two requests": ("check_same_request (UnexpectedRequest)", "Agree"),
    "a late upload": ("check_same_request (UnexpectedRequest)", "Agree"),
    "another request at a stage that was answered": ("check_same_request (UnexpectedRequest)", "Unmask"),
    # replays and restarts
    "the same request again": ("the journal", "ShareKeys"),
    "the same request after a restart from older state": ("the journal", "ShareKeys"),
    "another request after a restart from older state": ("check_same_request (UnexpectedRequest)", "Unmask"),
    "a client restored after it left the round": ("MemoryJournal.claim (Aborted)", "CollectInput"),
    "state restored without its journal": ("SecAggClient.__init__ (InputError)", "AdvertiseKeys"),
    "a server that restarts and shares keys again": ("check_same_request (UnexpectedRequest)", "ShareKeys"),
    "a server that restarts and agrees again": ("check_same_request (UnexpectedRequest)", "Agree"),
    "shares of an earlier round": ("check_nobody_accused (ProtocolError)", "CollectInput"),
    "an invitation to another protocol": ("check_protocol (ParametersRefused)", "Invite"),
    "a sparse graph for a complete one": ("check_dense (ParametersRefused)", "AdvertiseKeys"),
    "a round that was left, again": ("check_not_left (UnexpectedRequest)", "Invite"),
    "keys of an earlier round": ("check_keys_signed (InvalidSignature)", "ShareKeys"),
    "a request of an earlier chunk": ("check_turn (UnexpectedRequest)", "Unmask"),
    # restarts from the disk
    "another request after a restart from the disk": ("check_same_request (UnexpectedRequest)", "ShareKeys"),
    "a round that the client has left, after a restart": ("check_in_round (Aborted)", "Invite"),
    "a round that the client has left, after another one": ("check_ahead (Aborted)", "Invite"),
    "two processes of one client": ("check_alone (InputError)", "Invite"),
    # keys
    "all peers' keys replaced by the server's": ("check_keys_signed (InvalidSignature)", "ShareKeys"),
    "two peers' keys exchanged": ("check_keys_signed (InvalidSignature)", "ShareKeys"),
    "one peer's masking key replaced": ("check_keys_signed (InvalidSignature)", "ShareKeys"),
    "a key copied by a colluder": ("check_keys_distinct (ProtocolError)", "ShareKeys"),
    "a key copied in another spelling": ("check_keys_well_formed (InvalidKey)", "ShareKeys"),
    "a key of low order": ("check_keys_well_formed (InvalidKey)", "ShareKeys"),
    "a registered key of low order": ("check_keys (InvalidKey)", "registration"),
    "the client's own keys altered": ("check_own_keys (ProtocolError)", "ShareKeys"),
    "U1 with a client outside U": ("check_subset (ProtocolError)", "ShareKeys"),
    "U with a client outside the registry": ("check_registered (ParametersRefused)", "AdvertiseKeys"),
    # shares
    "shares altered in transit": ("check_nobody_accused (ProtocolError)", "CollectInput"),
    "shares cut in transit": ("check_nobody_accused (ProtocolError)", "CollectInput"),
    "ciphertexts exchanged between receivers": ("check_nobody_accused (ProtocolError)", "CollectInput"),
    "shares withheld": ("check_delivered (ProtocolError)", "DeliverShares"),
    "a dealer that sends too few shares": ("check_nobody_accused (ProtocolError)", "CollectInput"),
    "shares altered by their dealer": ("ChunkServer._rebuilt (Unrecoverable)", "Unmask"),
    "shares altered by their holder": ("ChunkServer._rebuilt (TooFewClients)", "Unmask"),
    "alive in one chunk and dropped in another": ("masks that the adversary does not know", "Unmask"),
    # blame
    "a wrong share among the fewest answers": ("the rules of eviction", "Unmask"),
    "a share that its dealer did not hash": ("the rules of eviction", "DeliverShares"),
    "two colluders that accuse one dealer": ("the rules of eviction", "DeliverShares"),
    "a malformed upload in every round": ("the rules of eviction", "CollectInput"),
    "a wrong signature in every round": ("the rules of eviction", "ShareKeys"),
    "a restart after an eviction": ("the evictions on disk", "Invite"),
    # noise
    "stage 5 for a seed that is not due": ("check_subset (ProtocolError)", "RemoveNoise"),
    "a seed that does not match its commitment": ("ChunkServer._is_committed", "RemoveNoise"),
    "a mask of another seed than was shared": ("check_possible (ImpossibleSum)", "Unmask"),
    # delivery
    "a sum that is longer than its chunk": ("check_delivered (ProtocolError)", "Dispatch"),
    "a sum over fewer clients than there can be": ("check_counted (ProtocolError)", "Dispatch"),
    "a second sum of the same chunk": ("check_same_request (UnexpectedRequest)", "Dispatch"),
    # missed sums
    "a sum of another run": ("check_missed (UnexpectedRequest)", "SendSum"),
    "sums that are longer than the model": ("check_shorter (UnexpectedRequest)", "SendSum"),
    "more sums than any client misses": ("check_shorter (UnexpectedRequest)", "SendSum"),
    "a missed sum with more behind it": ("check_whole (ProtocolError)", "SendSum"),
    "a missed sum under parameters that cannot be": ("check_ceilings (ParametersRefused)", "SendSum"),
    "sums that lead to another model": ("check_model (ProtocolError)", "Train"),
    # parameters
    "2t <= n + T_C: two quorums, split views": ("check_majority (ParametersRefused)", "AdvertiseKeys"),
    "T_C >= t": ("check_thresholds (ParametersRefused)", "AdvertiseKeys"),
    "a share threshold below the rule": ("check_graph (ParametersRefused)", "AdvertiseKeys"),
    "a graph that can be cut in two": ("check_neighbourhood (ParametersRefused)", "AdvertiseKeys"),
    "T > n - t": ("check_thresholds (ParametersRefused)", "AdvertiseKeys"),
    "a client more than once in U": ("check_identity (ParametersRefused)", "AdvertiseKeys"),
    "SecAgg+ without a beacon": ("check_unpredictable (ParametersRefused)", "AdvertiseKeys"),
    "a field of a megabyte": ("check_ceilings (ParametersRefused)", "AdvertiseKeys"),
    "parameters that are too long to be read": ("check_size (MalformedMessage)", "AdvertiseKeys"),
    "more proofs than there can be clients": ("decode (MalformedMessage)", "AdvertiseKeys"),
    "a variance written in another way": ("check_written (ParametersRefused)", "AdvertiseKeys"),
    "a variance of a chunk that is not there": ("check_noise (ParametersRefused)", "AdvertiseKeys"),
    "other noise tables": ("check_tables (ParametersRefused)", "AdvertiseKeys"),
    "chunks that overlap": ("check_vector (ParametersRefused)", "AdvertiseKeys"),
    "a round without the client itself": ("check_member (ParametersRefused)", "AdvertiseKeys"),
    # folding
    "signs that are chosen for one update": ("encode", "AdvertiseKeys"),
    "a projection by another rule": ("check_projection (ParametersRefused)", "AdvertiseKeys"),
    "a sum delivered in other bits": ("check_projection (ParametersRefused)", "AdvertiseKeys"),
    "more buckets than are summed": ("check_projection (ParametersRefused)", "AdvertiseKeys"),
    "more buckets than the bound is made for": ("check_bound (ParametersRefused)", "AdvertiseKeys"),
    "folding under noise that is not on the buckets": ("check_folds (ParametersRefused)", "AdvertiseKeys"),
    "a projection of longer updates": ("check_agreed (ParametersRefused)", "AdvertiseKeys"),
    # the owner's terms
    "outside the owner's policy: modes": ("check_mode (ParametersRefused)", "Invite"),
    "outside the owner's policy: cohort": ("check_cohort (ParametersRefused)", "Invite"),
    "outside the owner's policy: quorum": ("check_quorum (ParametersRefused)", "AdvertiseKeys"),
    "outside the owner's policy: colluders": ("check_colluders (ParametersRefused)", "Invite"),
    "outside the owner's policy: bits": ("check_bits (ParametersRefused)", "Invite"),
    "outside the owner's policy: mechanisms": ("check_mechanism (ParametersRefused)", "Invite"),
    "outside the owner's policy: schemes": ("check_scheme (ParametersRefused)", "Invite"),
    "outside the owner's policy: variance": ("check_variance (ParametersRefused)", "AdvertiseKeys"),
    "outside the owner's policy: noise": ("check_noise (ParametersRefused)", "Invite"),
    "a participation beyond the cap": ("check_cap (ParticipationRefused)", "CollectInput"),
    "a participation hidden by a new run id": ("check_cap (ParticipationRefused)", "CollectInput"),
    "the same round id again": ("check_machine (ParametersRefused)", "CollectInput"),
    "a participation beyond the policy's cap": ("check_cap (ParticipationRefused)", "CollectInput"),
    "outside the owner's policy: epsilon": ("check_budgeted (ParametersRefused)", "Invite"),
    "rounds failed on purpose to spend a client's budget": ("check_budget (BudgetRefused)", "Invite"),
    "an upload that was paid for at the invitation only": ("check_budget (BudgetRefused)", "CollectInput"),
    "a clipping bit without noise": ("check_budget (BudgetRefused)", "Invite"),
    "a sparse graph that was drawn under many indices": ("check_budget (BudgetRefused)", "AdvertiseKeys"),
    "a clipping bit below the noise that the owner asks for": ("check_noise (ParametersRefused)", "Invite"),
    "a clipping bit of a huge scale": ("check_bit (ParametersRefused)", "AdvertiseKeys"),
    "an update that is longer than the owner has memory for": ("check_coordinates (ParametersRefused)", "Invite"),
    "a model that is larger than the owner has memory for": ("check_model_bytes (ParametersRefused)", "Invite"),
    "a model in more pieces than the owner allows": ("check_pieces (ParametersRefused)", "SendModel"),
    "a protocol that the owner does not allow": ("check_protocol (ParametersRefused)", "Invite"),
    # selection
    "a VRF proof of another round": ("check_proof (InvalidProof)", "AdvertiseKeys"),
    "a VRF proof by another key": ("check_proof (InvalidProof)", "AdvertiseKeys"),
    "a lot that is not below the threshold": ("check_threshold (ProtocolError)", "AdvertiseKeys"),
    "a beacon of the server's own": ("check_beacon (ProtocolError)", "AdvertiseKeys"),
    "a circle of the server's own": ("check_beacon (ProtocolError)", "AdvertiseKeys"),
    "a run id of the server's own": ("check_run (ProtocolError)", "Invite"),
    "a run id that is not the hash of its manifest": ("check_run_hash (ProtocolError)", "log-in"),
    "a manifest with another configuration": ("check_agreed (ParametersRefused)", "log-in"),
    "a manifest of another registry": ("check_agreed (ParametersRefused)", "log-in"),
    "a manifest whose members are not the registry's": ("check_members (ParametersRefused)", "log-in"),
    "a beacon that was known before the manifest": ("check_later (ProtocolError)", "log-in"),
    "run after run until one suits": ("check_few_runs (ParametersRefused)", "log-in"),
    "manifests tried until colluders are together": ("the plan", "log-in"),
    "most of the selected left out": ("check_cohort (ParametersRefused)", "AdvertiseKeys"),
    "proofs of clients that are not in U": ("check_complete (MalformedMessage)", "AdvertiseKeys"),
    "a selection without the client itself": ("check_member (ParametersRefused)", "AdvertiseKeys"),
    "a client out of its turn": ("check_window (ProtocolError)", "AdvertiseKeys"),
    "a selection that nobody can verify": ("check_semi_honest (ParametersRefused)", "Invite"),
    "a lot after that of a later index": ("check_forward (UnexpectedRequest)", "Invite"),
    "a lot under an index that the run does not have": ("check_provided (ProtocolError)", "Invite"),
    # bytes
    "an oversized message": ("check_size (MalformedMessage)", "decode"),
    "truncated bytes": ("decode (MalformedMessage)", "decode"),
    "trailing bytes": ("decode (MalformedMessage)", "decode"),
    "another protocol version": ("check_version (MalformedMessage)", "decode"),
    "a client twice in U1": ("check_canonical (MalformedMessage)", "ShareKeys"),
    "both halves of a mask, in one request": ("check_canonical (MalformedMessage)", "Unmask"),
    "a signer twice": ("check_canonical (MalformedMessage)", "Unmask"),
    "a signature of a megabyte": ("decode", "AdvertiseKeys"),
    "a masked vector of the wrong length": ("add_packed", "CollectInput"),
    "a masked vector of the wrong width": ("add_packed", "CollectInput"),
    "a masked vector out of range": ("add_packed", "CollectInput"),
    # liars on the network
    "a second announcement of another size": ("check_same_size", "Contribute"),
    "garbage before a restart of the server": ("is_garbled", "Begin"),
    "an answer just in time for every piece of the model": ("left_for", "SendModel"),
    # directories of runs
    "a ledger that was cut": ("check_receipts (LedgerDamaged)", "verify"),
    "a ledger that was deleted and begun again": ("check_receipts (LedgerDamaged)", "verify"),
    "the ledger of a cheaper run": ("check_run (LedgerDamaged)", "verify"),
    "the ledger of a cheaper run, hashed again": ("check_budget_stated (LedgerDamaged)", "verify"),
    "a smaller budget in the ledger": ("check_budget_stated (LedgerDamaged)", "verify"),
    "records that say that less was spent": ("check_course (LedgerDamaged)", "verify"),
    "a ledger that was cut, without the receipt that shows it": ("check_rounds (LedgerDamaged)", "verify"),
    "a ledger, receipts and records that were cut": ("check_rounds (LedgerDamaged)", "verify"),
    "a run that was cut but for its result": ("check_recorded (LedgerDamaged)", "verify"),
    "a run without its receipts": ("check_rounds (LedgerDamaged)", "verify"),
    "the receipts of another run": ("check_receipt (LedgerDamaged)", "verify"),
    "another client in a round": ("check_rounds (LedgerDamaged)", "verify"),
    "a finished run without its model": ("check_model (LedgerDamaged)", "verify"),
    "the model of another run": ("check_order (LedgerDamaged)", "verify"),
    "the model of an earlier round": ("check_last (LedgerDamaged)", "verify"),
    "a successor that forgets what was spent": ("check_predecessor (LedgerDamaged)", "verify"),
    "a successor after an eviction": ("Evictions.inherit", "verify"),
    "two runs of one population, as if of two": ("check_root (LedgerDamaged)", "verify"),
}
"""By whom and at which request."""
OTHERWISE_ON_THE_SPARSE_GRAPH = {
    "a share threshold below the rule": ("check_neighbourhood (ParametersRefused)", "AdvertiseKeys"),
}


def named(variant: tuple[Attack, str]) -> str:
    return f"{variant[0].name} [{variant[1]}]"


@pytest.mark.parametrize("variant", VARIANTS, ids=named)
def test_the_attack_is_refused(variant: tuple[Attack, str]) -> None:
    attack, graph = variant
    outcome = attack.run(graph)
    assert not outcome.succeeded, outcome.detail
    expected = REFUSED[attack.name]
    if graph == SPARSE:
        expected = OTHERWISE_ON_THE_SPARSE_GRAPH.get(attack.name, expected)
    assert (outcome.refused_by, outcome.stage) == expected


def test_attacks_have_names_of_their_own_and_say_what_they_are_for() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert REFUSED.keys() == {attack.name for attack in ATTACKS}
    for attack in ATTACKS:
        assert attack.text.endswith(".")
        assert attack.graphs


def short(name: str) -> str:
    """Return a check's name without its module: the last part, and the class before it if there is one."""
    *_, owner, own = name.split(".")
    return f"`{owner}.{own}`" if owner[0].isupper() else f"`{own}`"


def test_the_threat_model_lists_every_attack_and_what_stands_in_its_way() -> None:
    page = (Path(__file__).parents[2] / "docs" / "threat_model.md").read_text(encoding="utf-8").replace("\\|", "|")
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in page.splitlines()]
    listed = {row[0].removesuffix(" (SecAgg+ only)"): row[1] for row in rows if len(row) == 2}
    for attack in ATTACKS:
        guarded = ", ".join(short(name) for name in attack.checks) or listed[attack.name]
        together = ", ".join(short(name) for name in attack.overlapping)
        assert listed[attack.name] == (f"any of {together}" if together else guarded)
