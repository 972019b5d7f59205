"""A helper: it signs keys for coming rounds, opens boxes, agrees on one U3 a round, and reveals mask sums over this U3.

A box is a client's seeds, encrypted to one helper; U3 are the survivors, the clients in the sum.  A client has one seed
for each *set* of helpers, and sends it to all members of the set; the set's *rank* is its index in the parameters'
`sets`.  Each seed gives a mask, and *pieces* of the client's noise seeds (see `messages`).  A *header* is the part of a
contribution that the client signs: it has digests of the vector and the boxes.  A helper has no data and sees no
update.  Before the request `Reveal` it sends only keys, signatures and the ids of clients with wrong boxes.  Until then
not even the digest of a mask sum is sent: with the digest the server could test guesses at an update.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import CryptoError, ParametersRefused, UnexpectedRequest
from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId, Message
from dordis.protocols import parameters as rules
from dordis.protocols.assisted import checks
from dordis.protocols.assisted.client import BOX
from dordis.protocols.assisted.messages import (
    AgreeOnSurvivors,
    BoxesOpened,
    Entry,
    Introduce,
    OpenBoxes,
    Reveal,
    Revealed,
    SurvivorsAgreed,
    digest_value,
    due_pieces,
    epoch_key_statement,
    piece,
    sum_masks,
    survivors_statement,
)
from dordis.protocols.assisted.parameters import AssistedParameters, EpochKey, EpochKeys
from dordis.protocols.escrow import SECRET_BYTES
from dordis.protocols.one_message import open_box
from dordis.protocols.parameters import RUN_BYTES, pack_words
from dordis.protocols.summing import VerifyClient, accept_any_client, helper_keys

KEYS_AHEAD = 4
"""K, the number of rounds for which a helper sends keys at a time."""
DAY = 24 * 3600
LIFETIME = 3600 + DAY
"""Default lifetime of a key in seconds: 25 hours."""


class HelperStore(Protocol):
    """The durable state of a helper: its private keys of rounds, and for each round the digest of the agreed U3."""

    def get(self, key: str) -> bytes | None:
        """Return a stored value; empty if it was erased, None if there never was one."""

    def claim(self, key: str, value: bytes) -> bytes:
        """Return the value stored under the key (empty if erased); if there never was one, store `value` first."""

    def erase(self, key: str) -> None:
        """Erase a value; `get` returns empty for its key from now on."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys of stored values that begin with `prefix`, without those of erased values."""


class MemoryStore(HelperStore):
    """A store that lasts as long as the process: for simulations and tests."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def claim(self, key: str, value: bytes) -> bytes:
        return self._values.setdefault(key, value)

    def erase(self, key: str) -> None:
        self._values[key] = b""

    def keys(self, prefix: str) -> list[str]:
        return [key for key, value in self._values.items() if value and key.startswith(prefix)]


class HelperPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A helper's limits on the rounds that it accepts."""

    runs: frozenset[str] | None = None
    """Ids of the accepted runs, in hex; None: any run."""
    clients: int = 2
    """Smallest accepted n_min, the least number of clients in a sum."""
    colluders: int = 0
    """Smallest accepted T_C, the number of colluding clients that a round withstands."""
    faulty: int = 1
    """Smallest accepted f, the number of colluding helpers that a round withstands."""
    helpers: frozenset[int] | None = None
    """Ids of the helpers that a round may have; None: any."""
    most_clients: int = 1 << 14
    most_coordinates: int = 1 << 40
    """Largest product of a round's number of coordinates and its largest number of clients, n_max."""
    rounds_a_day: int = 10_000
    """Largest number of new rounds in 24 hours for which keys are sent; enforced by deployed helpers only."""
    key_days: int = 30
    """Longest lifetime of the helper's private keys for rounds, in days; enforced by deployed helpers only."""


def check_policy(policy: HelperPolicy, parameters: AssistedParameters) -> None:
    """Raise ParametersRefused if the policy forbids the round."""
    refused = (
        (policy.runs is not None and parameters.run.hex() not in policy.runs, "runs"),
        (parameters.n_min < policy.clients, "clients"),
        (parameters.colluders < policy.colluders, "colluders"),
        (parameters.faulty < policy.faulty, "faulty"),
        (policy.helpers is not None and not policy.helpers >= set(parameters.members), "helpers"),
        (parameters.n_max > policy.most_clients, "most_clients"),
        (parameters.n_max * parameters.dim > policy.most_coordinates, "most_coordinates"),
    )
    for is_refused, line in refused:
        if is_refused:
            raise ParametersRefused(f"the helper's policy, line '{line}', forbids this round")


@dataclass(frozen=True)
class OpenedHeader:
    """The digest of a contribution's header, and the seeds in this helper's box, by the rank of their helper set."""

    digest: bytes
    seeds: Mapping[int, bytes] = field(repr=False)


@dataclass
class HelperRound:
    """A helper's data of one round, kept in memory; if the helper is restarted, the server sends the boxes again."""

    parameters: AssistedParameters
    opened: dict[ClientId, OpenedHeader] = field(default_factory=dict)
    faults: dict[ClientId, bytes] = field(default_factory=dict)
    """Clients whose box or seeds are wrong, with the digests of their headers."""


class AssistedHelper:
    """One helper; `secret` is its long-term signing key, `registry` has the public keys of clients and helpers.

    The helper takes part in rounds of one `run`, or of any run if `run` is None.  `verify_client` raises for clients
    that were not selected for a round; by default all clients are accepted, as with open arrival.
    """

    def __init__(
        self,
        me: ClientId,
        *,
        secret: bytes,
        registry: Mapping[ClientId, bytes],
        suite: Suite = DEFAULT,
        store: HelperStore | None = None,
        policy: HelperPolicy = HelperPolicy(),  # noqa: B008  frozen
        clock: Callable[[], float] = time.time,
        entropy: Entropy = secrets.token_bytes,
        threads: int = 1,
        lifetime: int = LIFETIME,
        run: bytes | None = None,
        verify_client: VerifyClient = accept_any_client,
    ) -> None:
        self._lifetime, self._run, self._verify_client = lifetime, run, verify_client
        self.me, self._secret, self._suite, self._threads = me, secret, suite, threads
        self._clients, self._helpers = registry, helper_keys(registry)
        self._store: HelperStore = MemoryStore() if store is None else store
        self._policy, self._clock, self._entropy = policy, clock, entropy
        self._rounds: dict[bytes, HelperRound] = {}

    def __repr__(self) -> str:
        return f"<AssistedHelper {self.me}>"

    def handle(self, request: Message) -> Message:
        """Return the reply to a request, or raise if the request is refused; first erase expired private keys."""
        self.erase_expired()
        self.check_request(request)
        match request:
            case Introduce():
                return self.introduce(request)
            case OpenBoxes():
                return self.open(request)
            case AgreeOnSurvivors():
                return self.agree(request)
            case Reveal():
                return self.reveal(request)
        raise UnexpectedRequest(f"a helper does not answer {type(request).__name__}")

    def check_request(self, request: Message) -> None:
        """Raise MalformedMessage if a request has no valid round id, ParametersRefused if it is for another run.

        A helper that was created without a run answers requests of any run.
        """
        if isinstance(request, Introduce | OpenBoxes | AgreeOnSurvivors | Reveal):
            round = request.parameters.round if isinstance(request, OpenBoxes) else request.round
            checks.check_round_id(round)
            checks.check_joined_run(self._run, round)

    # Keys

    def erase_expired(self) -> None:
        """Erase expired private keys, and forget the data of their rounds."""
        if erase_expired_keys(self._store, self._clock()):
            self._drop_closed_rounds()

    def introduce(self, request: Introduce) -> EpochKeys:
        """Return the public keys for this round and the next ones; erase the private keys of earlier rounds."""
        run, index = request.round[:RUN_BYTES], int.from_bytes(request.round[RUN_BYTES:], "big")
        for key in self._store.keys(_epoch(run)):
            if int(key.rpartition("/")[2]) < index:
                self._store.erase(key)
        self._drop_closed_rounds()
        shown = (self._epoch_key(run, epoch) for epoch in range(index, index + KEYS_AHEAD))
        return EpochKeys({key.epoch: key for key in shown if key is not None})

    def _epoch_key(self, run: bytes, epoch: int) -> EpochKey | None:
        """Return the signed public key for an epoch (one round), drawn at the first call; None once it is erased."""
        fresh = self._suite.agreement.generate(self._entropy) + (int(self._clock()) + self._lifetime).to_bytes(8, "big")
        held = self._store.claim(_epoch(run, epoch), fresh)
        if not held:
            return None
        public = self._suite.agreement.public_key(held[:SECRET_BYTES])
        key = EpochKey(epoch, epoch, epoch, _end(held), public, b"")
        return msgspec.structs.replace(
            key, signature=self._suite.signature.sign(self._secret, epoch_key_statement(run, key))
        )

    def _drop_closed_rounds(self) -> None:
        """Forget the data, such as clients' seeds, of rounds whose private key is erased."""
        self._rounds = {round: held for round, held in self._rounds.items() if self._private(held.parameters)}

    def _private(self, parameters: AssistedParameters) -> bytes | None:
        """Return the private key to this helper's public key in the parameters; None if it is erased or unknown."""
        key = parameters.helpers.get(self.me)
        held = None if key is None else self._store.get(_epoch(parameters.run, key.epoch))
        return held[:SECRET_BYTES] if held else None

    # Boxes

    def open(self, request: OpenBoxes) -> BoxesOpened:
        """Open clients' boxes and return the clients whose box or seeds are wrong.

        Without the private key for the round, open no box, and return a reply that says `unable`.
        Raise if the parameters are refused, or if an entry is one that the server should have refused already.
        """
        parameters = request.parameters
        private = self._private(parameters)
        if private is None:
            return BoxesOpened(b"", unable=True)
        held = self._rounds.get(parameters.round)
        if held is None:
            self._check_parameters(parameters, private)
            held = self._rounds[parameters.round] = HelperRound(parameters)
        checks.check_same_parameters(held.parameters.digest, parameters.digest)
        for u, entry in request.entries.items():
            self._open_entry(held, private, ClientId(u), entry)
        return BoxesOpened(pack_words(sorted(u for u in request.entries if u in held.faults)))

    def _check_parameters(self, parameters: AssistedParameters, private: bytes) -> None:
        rules.check_rules(parameters)
        checks.check_helpers_registered(parameters, self._helpers)
        checks.check_own_key(parameters, self.me, self._suite.agreement.public_key(private))
        check_policy(self._policy, parameters)

    def _open_entry(self, held: HelperRound, private: bytes, client: ClientId, entry: Entry) -> None:
        """Open the box of one contribution, and record its client as opened or as faulty."""
        digest = hashlib.sha256(entry.header).digest()
        known = held.opened[client].digest if client in held.opened else held.faults.get(client)
        checks.check_one_header(known, digest, client)
        if known is not None:
            return
        parameters = held.parameters
        header = checks.read_header(parameters, client, entry.header)
        checks.check_header_signed(self._clients, client, entry.header, entry.signature, self._suite)
        self._verify_client(parameters.index, client, header.proof)
        checks.check_box_digest(parameters, header, self.me, entry.box)
        ranks, own = parameters.ranks[self.me], parameters.own_key(self.me)
        try:
            plaintext = open_box(
                self._suite, parameters, private, int(self.me), client, header.key, entry.box, own=own.key, use=BOX
            )
            checks.check_seed_count(plaintext, len(ranks))
            seeds = {rank: plaintext[32 * place : 32 * place + 32] for place, rank in enumerate(ranks)}
            checks.check_seeds(parameters, header, client, seeds)
        except CryptoError:
            held.faults[client] = digest
        else:
            held.opened[client] = OpenedHeader(digest, seeds)

    # U3

    def agree(self, request: AgreeOnSurvivors) -> SurvivorsAgreed:
        """Return a signature on U3, the survivors; raise if the helper has agreed on another U3 in this round."""
        statement = self._claim(self._held(request.round), request.survivors)
        return SurvivorsAgreed(self._suite.signature.sign(self._secret, statement))

    def _claim(self, held: HelperRound, words: bytes) -> bytes:
        """Return the statement on U3, given as `words` of eight bytes, after storing the statement's digest durably.

        Raise if U3 is invalid, or if the digest of another statement is stored: a round has one agreed U3 only.
        """
        statement = self._statement(held, words)
        digest = hashlib.sha256(statement).digest()
        checks.check_same_statement(self._store.claim(_claimed(held.parameters.round), digest), digest)
        return statement

    def _statement(self, held: HelperRound, words: bytes) -> bytes:
        survivors = checks.read_survivors(words)
        checks.check_survivor_count(held.parameters, survivors)
        checks.check_all_opened(survivors, held.opened)
        return survivors_statement(held.parameters, (held.opened[u].digest for u in survivors))

    def _held(self, round: bytes) -> HelperRound:
        if round not in self._rounds:
            raise UnexpectedRequest("no boxes of this round were opened here: send them first")
        return self._rounds[round]

    # Sums

    def reveal(self, request: Reveal) -> Revealed:
        """Return the value of each requested set of helpers, in whole or as a digest, as `request.sets` says.

        The value is the sum of the masks that the clients in U3 added for the set, and their pieces of noise seeds.

        Raise if this helper agreed on another U3 in this round.  In the malicious mode raise also unless this helper
        and a quorum of helpers have signed this U3.
        """
        held = self._held(request.round)
        parameters = held.parameters
        if parameters.is_malicious:
            statement = self._statement(held, request.survivors)
            claimed = self._store.get(_claimed(parameters.round))
            checks.check_agreed(claimed)
            checks.check_same_statement(claimed or b"", hashlib.sha256(statement).digest())
            checks.check_quorum(parameters, statement, request.signatures, self._helpers, self._suite)
        else:
            self._claim(held, request.survivors)
        checks.check_own_sets(parameters, self.me, request.sets)
        digests, pieces, wholes = dict[int, bytes](), dict[int, bytes](), list[bytes]()
        for rank, is_whole in request.sets.items():
            masks, revealed = self._value(held, rank, checks.read_survivors(request.survivors))
            if is_whole:
                pieces[rank] = revealed
                wholes.append(masks)
            else:
                digests[rank] = digest_value(parameters, rank, masks, revealed)
        return Revealed(digests, pieces, b"".join(wholes))

    def _value(self, held: HelperRound, rank: int, survivors: tuple[ClientId, ...]) -> tuple[bytes, bytes]:
        """Return, for the set `rank`, the packed sum of survivors' masks and the pieces of the released noise seeds."""
        parameters, seeds = held.parameters, {u: held.opened[u].seeds[rank] for u in survivors}
        masks = sum_masks(self._suite, parameters, rank, seeds, self._threads)
        due = due_pieces(parameters, survivors)
        return masks, b"".join(piece(parameters, chunk, u, rank, k, seeds[u]) for chunk, u, k in due)


def erase_expired_keys(store: HelperStore, now: float) -> bool:
    """Erase the private keys that have expired at time `now`; return whether there were any."""
    expired = [key for key in store.keys("epoch/") if _end(store.get(key) or b"") <= now]
    for key in expired:
        store.erase(key)
    return bool(expired)


def _epoch(run: bytes, epoch: int | None = None) -> str:
    """Return the name of the stored private key for round index `epoch`; without `epoch`, the prefix of these names."""
    return f"epoch/{run.hex()}/{'' if epoch is None else epoch}"


def _end(held: bytes) -> int:
    """Return when a stored private key expires, in seconds since 1970."""
    return int.from_bytes(held[SECRET_BYTES:], "big")


def _claimed(round: bytes) -> str:
    return f"survivors/{round.hex()}"
