"""Assisted rounds: the server, with a helper and some clients, wants a second or a smaller sum, or false blame.

There are four helpers, of whom one may collude. A second sum that lacks one client reveals the update of that client,
protected by the client's own noise only. False blame is a complaint or a lie for which an honest party is blamed. A
helper that is restored from an old copy of its store may sign two U3: it counts as colluding, and no check refuses
that. (A deployed helper notices if its state directory is lost, or older than the count beside its key file. Then it
erases the keys in the directory, and makes no second key for a round.) The task of a deployed round is signed by the
key of the server's certificate: `tests/network/test_tasks.py` shows that a task is refused if it was altered, or made
by a stranger or a member, and that it is accepted if `check_task_signed` or `check_purpose` is removed.
"""

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dordis.crypto import signature
from dordis.crypto.suite import DEFAULT
from dordis.kernels.ring import pack, unpack
from dordis.owner.participation import MemoryParticipation
from dordis.owner.policy import Policy
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ENCODER, ClientId, Message
from dordis.protocols.assisted import AssistedHelper
from dordis.protocols.assisted.disputes import Complaints
from dordis.protocols.assisted.helper import HelperPolicy
from dordis.protocols.assisted.messages import (
    AgreeOnSurvivors,
    Entry,
    Header,
    Introduce,
    OpenBoxes,
    Reveal,
    SendContribution,
    SignedContribution,
    header_statement,
)
from dordis.protocols.assisted.parameters import AssistedParameters
from dordis.protocols.noise_addition_and_removal import client_noise
from dordis.protocols.one_message import seal_boxes
from dordis.protocols.parameters import pack_words, unpack_words
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.participants import COMPLETE, careful_owner
from tests.adversary.session import Session, foiled_unless
from tests.protocols.assisted.parties import (
    BITS,
    NOW,
    ROUND,
    Accuser,
    Liar,
    Round,
    Served,
    lie_about_all,
    secret,
)

CHECKS = "dordis.protocols.assisted.checks."
RULES = "dordis.protocols.assisted.parameters."
SMALLER = tuple(range(1, 7))
"""U3 without client 7."""


class Asked(Served):
    """A round whose requests leave a trail."""

    def __init__(self, session: Session, **settings: Any) -> None:
        super().__init__(**settings)
        self.trail = session.trail

    def ask(self, h: int, request: Message) -> Any:
        """Ask a helper."""
        self.trail.stage = type(request).__name__
        return self.helpers[h].handle(request)

    def sign(self, u3: Iterable[int], helpers: Iterable[int] = (1, 2, 3, 4)) -> dict[int, bytes]:
        """Have helpers sign a U3."""
        return {h: self.ask(h, AgreeOnSurvivors(ROUND, pack_words(u3))).signature for h in helpers}

    def masks(self, u3: Iterable[int], signatures: dict[int, bytes], helpers: Iterable[int]) -> np.ndarray[Any, Any]:
        """Return the sum of all masks of U3, revealed by these helpers."""
        total, left = np.zeros(30, np.uint32), set(range(len(self.parameters.sets)))
        for h in helpers:
            for rank in sorted(left & set(self.parameters.ranks[ClientId(h)])):
                revealed = self.ask(h, Reveal(ROUND, pack_words(u3), signatures, {rank: True}))
                total += unpack(revealed.masks, BITS, 30)
                left.remove(rank)
        return total

    def single_out(self, signed: dict[tuple[int, ...], tuple[dict[int, bytes], tuple[int, ...]]]) -> str:
        """Open two sums that differ in one client: its input is left, under its own noise alone."""
        sums = []
        for u3, (signatures, helpers) in signed.items():
            added = sum(unpack(self.sent[u].vector, BITS, 30).astype(np.uint64) for u in u3)
            sums.append(added - self.masks(u3, signatures, helpers))
        (victim,) = set.symmetric_difference(*map(set, signed))
        client, noisy = self.round.clients[ClientId(victim)], []
        for chunk, span in enumerate(self.parameters.chunks):
            noise = client_noise(self.parameters, chunk, client.issued(chunk))
            noisy.append(self.round.inputs[ClientId(victim)][span] + sum(noise))
        seen, own = (sums[0] - sums[1]) % 2**BITS, np.concatenate(noisy) % 2**BITS
        foiled_unless(bool((seen == own).all()), "arithmetic", "the difference is not the victim's input")
        return f"the input of client {victim} under its own noise alone"

    def restart(self) -> None:
        """Restart all helpers, each with its store."""
        for h, helper in self.helpers.items():
            self.helpers[h] = AssistedHelper(
                h, secret=secret(b"helper", h), registry=self.round.registry, store=helper._store, clock=lambda: NOW
            )

    def resign(self, u: int, header: Header, box: bytes, signer: int | None = None) -> Entry:
        """Return what helper 1 gets of a header that somebody signed."""
        encoded = ENCODER.encode(header)
        signed = signature.sign(secret(b"client", signer or u), header_statement(encoded))
        return Entry(encoded, signed, box)

    def header(self, u: int) -> Header:
        """Return the header of a client."""
        return msgspec.msgpack.decode(self.sent[u].header, type=Header)

    def accuse(self, entries: dict[int, Entry], honest: int = 1) -> str:
        """Have helper 1 open boxes; the gain is that it accuses an honest client."""
        named = unpack_words(self.ask(1, OpenBoxes(self.parameters, entries)).named)
        foiled_unless(honest in named, "the helper", "it accuses nobody honest")
        return "an honest helper accuses an honest client"


assisted = partial(attack, graphs=(COMPLETE,))


@assisted(
    "two U3, each to one half of the helpers",
    refused_by="check_quorum (ProtocolError)",
    stage="Reveal",
    checks=(CHECKS + "check_quorum",),
)
def split_helpers(session: Session) -> str:
    """Show one U3 to two helpers and a smaller one to the two others, and have both opened."""
    served = Asked(session)
    served.open_all()
    whole, halves = tuple(served.sent), ((1, 2), (3, 4))
    signed = {u3: (served.sign(u3, half), half) for u3, half in zip((whole, SMALLER), halves, strict=True)}
    return served.single_out(signed)


@assisted(
    "a second U3 with one client less",
    refused_by="check_same_statement (UnexpectedRequest)",
    stage="AgreeOnSurvivors",
    checks=(CHECKS + "check_same_statement",),
)
def ask_twice(session: Session) -> str:
    """Have all helpers agree on U3, and then on a smaller one."""
    served = Asked(session)
    served.open_all()
    helpers = tuple(map(int, served.helpers))
    return served.single_out({u3: (served.sign(u3), helpers) for u3 in (tuple(served.sent), SMALLER)})


@assisted(
    "a second U3 after the helpers restarted",
    refused_by="check_same_statement (UnexpectedRequest)",
    stage="AgreeOnSurvivors",
    checks=(CHECKS + "check_same_statement",),
)
def ask_after_restart(session: Session) -> str:
    """Open one U3, restart all helpers, send the boxes again, and have a smaller U3 opened."""
    served = Asked(session)
    served.open_all()
    helpers, whole = tuple(map(int, served.helpers)), tuple(served.sent)
    first = served.masks(whole, served.sign(whole), helpers)
    served.restart()
    served.open_all()
    second = served.masks(SMALLER, served.sign(SMALLER), helpers)
    foiled_unless(bool((first != second).any()), "arithmetic", "both sums have the same masks")
    return "the masks of two sums that differ in one client"


@assisted(
    "other parameters under the same index, to helpers",
    refused_by="check_same_statement (UnexpectedRequest)",
    stage="AgreeOnSurvivors",
    checks=(CHECKS + "check_same_statement",),
)
def other_hash(session: Session) -> str:
    """After a sum, restart the helpers and show them other parameters of the same index, with boxes made for these."""
    served = Asked(session)
    served.open_all()
    served.sign(tuple(served.sent))
    served.restart()
    other = Asked(session, n_min=6)
    other.helpers.update(served.helpers)
    other.round.helpers.update(served.helpers)
    other.open_all()
    other.sign(tuple(other.sent))
    return "helpers agreed on two U3 of one index, under two parameter hashes"


@assisted(
    "other parameters under the same index, to clients",
    refused_by="check_same_request (UnexpectedRequest)",
    stage="SendContribution",
    overlapping=(names.CLAIM, names.TURN),
)
def ask_client_twice(session: Session) -> str:
    """Ask a client for a second contribution under other parameters of the same index."""
    served = Asked(session)
    session.trail.stage = "SendContribution"
    again = served.round.clients[ClientId(1)].handle(SendContribution(served.round.agree(n_min=6)))
    foiled_unless(again.header != served.sent[1].header, "the journal", "it sent the same bytes")
    return "two contributions of one update under one index"


@assisted(
    "a mask sum before U3 is agreed on",
    refused_by="check_agreed (UnexpectedRequest)",
    stage="Reveal",
    overlapping=(CHECKS + "check_agreed", CHECKS + "check_same_statement"),
)
def reveal_early(session: Session) -> str:
    """Ask a helper that has signed nothing for the digest of a mask sum, which tests guesses about it."""
    served = Asked(session)
    served.open_all()
    whole = tuple(served.sent)
    signatures = served.sign(whole, (2, 3, 4))
    served.ask(1, Reveal(ROUND, pack_words(whole), signatures, {0: False}))
    return "the digest of a mask sum, from a helper that is not bound to a U3"


def reveal_with(session: Session, signatures: Callable[[Asked, tuple[int, ...]], dict[int, bytes]]) -> str:
    """Have helper 1 reveal for signatures that are not a quorum's on its U3."""
    served = Asked(session)
    served.open_all()
    whole = tuple(served.sent)
    own = served.sign(whole, (1,))
    shown = dict(sorted((signatures(served, whole) | own).items()))
    served.ask(1, Reveal(ROUND, pack_words(whole), shown, {0: True}))
    return "a mask sum without a quorum for this U3"


def of_epoch_key(served: Asked, u3: tuple[int, ...]) -> dict[int, bytes]:
    """Return signatures of helpers on something else: their keys."""
    return {h: served.parameters.own_key(ClientId(h)).signature for h in (2, 3)}


quorum = partial(
    Attack, refused_by="check_quorum (InvalidSignature)", stage="Reveal", checks=(CHECKS + "check_quorum",),
    graphs=(COMPLETE,),
)  # fmt: skip


@assisted(
    "U3 below n_min",
    refused_by="check_survivor_count (ProtocolError)",
    stage="AgreeOnSurvivors",
    checks=(CHECKS + "check_survivor_count",),
)
def too_few(session: Session) -> str:
    """Have a sum opened over fewer than n_min clients: it has less noise than planned."""
    served = Asked(session)
    served.open_all()
    few = (1, 2, 3)
    served.masks(few, served.sign(few), tuple(map(int, served.helpers)))
    plan = served.parameters.plans[0]
    left = plan.variance_left(few, b"")
    foiled_unless(left < plan.variance, "the plan", "enough noise is left")
    return f"a sum under {float(left / plan.variance):.2f} of the planned variance"


@assisted(
    "invented clients in U3",
    refused_by="check_header_signed (InvalidSignature)",
    stage="OpenBoxes",
    checks=(CHECKS + "check_header_signed",),
)
def invent_clients(session: Session) -> str:
    """Fill U3 up with contributions in the names of registered clients, whose seeds the server knows."""
    served = Asked(session, came=1, n_min=5)
    forger = Round(came=9, seed=8)
    for h in served.parameters.present:
        entries = {}
        for u in (1, 2, 3, 4, 5):
            client, signer = forger.clients[ClientId(u)], secret(b"client", 1)
            client._signing = signer
            if u not in served.sent:
                served.sent[u] = client.handle(SendContribution(served.parameters))
        entries = served.entries(h, (1, 2, 3, 4, 5))
        foiled_unless(not served.ask(h, OpenBoxes(served.parameters, entries)).named, "the helper", "it names them")
    u3 = (1, 2, 3, 4, 5)
    served.masks(u3, served.sign(u3), tuple(map(int, served.helpers)))
    return "a sum of one client, all others being the server's inventions"


@assisted(
    "the header of another round",
    refused_by="check_header_round (ProtocolError)",
    stage="OpenBoxes",
    checks=(CHECKS + "check_header_round",),
)
def replay_header(session: Session) -> str:
    """Show helpers a client's header of a round with other parameters: its box does not open, and it is accused."""
    served, other = Asked(session), Served(n_min=6)
    return served.accuse({1: other.entries(1, (1,))[1]})


@assisted(
    "the header of one client as that of another",
    refused_by="check_header_client (ProtocolError)",
    stage="OpenBoxes",
    overlapping=(CHECKS + "check_header_client", CHECKS + "check_header_signed"),
)
def swap_headers(session: Session) -> str:
    """Show a helper a colluder's header and box as those of an honest client, which is accused."""
    served = Asked(session)
    return served.accuse({1: served.entries(1, (2,))[2]})


@assisted(
    "boxes exchanged between helpers",
    refused_by="check_box_digest (ProtocolError)",
    stage="OpenBoxes",
    checks=(CHECKS + "check_box_digest",),
)
def exchange_boxes(session: Session) -> str:
    """Give helper 1 the box for helper 2: it does not open, and its honest client is accused."""
    served = Asked(session)
    return served.accuse({1: msgspec.structs.replace(served.entries(1, (1,))[1], box=served.entries(2, (1,))[1].box)})


@assisted(
    "parameters that name another key of the helper",
    refused_by="check_own_key (ParametersRefused)",
    stage="OpenBoxes",
    overlapping=(CHECKS + "check_own_key", CHECKS + "check_header_round"),
)
def other_key(session: Session) -> str:
    """Show helper 1 parameters with another key than its live one: no box opens, and honest clients are accused."""
    served = Asked(session)
    entries, keys = served.entries(1, (1,)), dict(served.parameters.helpers)
    keys[1] = msgspec.structs.replace(served.parameters.own_key(ClientId(1)), key=bytes(range(32)))
    served.parameters = msgspec.structs.replace(served.parameters, helpers=keys)
    return served.accuse(entries)


@assisted(
    "other parameters in mid-round",
    refused_by="check_same_parameters (UnexpectedRequest)",
    stage="OpenBoxes",
    overlapping=(CHECKS + "check_same_parameters", CHECKS + "check_header_round"),
)
def change_parameters(session: Session) -> str:
    """Open some boxes under one hash, and others, made for another hash, in the same round."""
    served, other = Asked(session), Served(n_min=6)
    served.ask(1, OpenBoxes(served.parameters, served.entries(1, (2,))))
    served.parameters = other.parameters
    return served.accuse(other.entries(1, (1,)))


def wrong_seed(served: Asked, h: int, u: int) -> SignedContribution:
    """Return a contribution of a colluder whose box for one helper holds a wrong seed; all else is consistent."""
    client, parameters = served.round.clients[ClientId(u)], served.parameters
    keys = {int(k): parameters.own_key(k).key for k in parameters.present}
    seeds = {k: b"".join(client.state.seeds[rank] for rank in parameters.ranks[ClientId(k)]) for k in keys}
    seeds[h] = bytes(32) + seeds[h][32:]
    public, boxes = seal_boxes(DEFAULT, parameters, ClientId(u), keys, seeds, client._entropy, use="assisted-box")
    header = msgspec.structs.replace(
        served.header(u), key=public, boxes=b"".join(hashlib.sha256(boxes[k]).digest() for k in sorted(boxes))
    )
    encoded = ENCODER.encode(header)
    signed = signature.sign(secret(b"client", u), header_statement(encoded))
    return SignedContribution(encoded, signed, b"".join(boxes[k] for k in sorted(boxes)), served.sent[u].vector)


class Scripted:
    """A client that sends what it was given."""

    def __init__(self, reply: Message) -> None:
        self._reply = reply

    def handle(self, request: Message) -> Message:
        """Send it."""
        return self._reply


@assisted(
    "a seed that is another one for one helper",
    refused_by="complaints",
    stage="OpenBoxes",
    checks=(CHECKS + "check_seeds",),
)
def frame_helper(session: Session) -> str:
    """A colluding client gives one honest helper a wrong seed, so that its mask sums differ from those of others."""
    served = Asked(session)
    session.trail.stage = "OpenBoxes"
    bad = wrong_seed(served, 1, 7)
    clients = {u: Scripted(bad if u == 7 else sent) for u, sent in served.sent.items()}
    served.round.play(clients=clients)
    evicted = served.round.served.setup.standing.helpers
    foiled_unless(1 in evicted, "complaints", "the helper names the client, which is left out")
    return "an honest helper is taken for a liar"


@assisted(
    "a helper that accuses everybody",
    refused_by="Complaints._settled",
    stage="OpenBoxes",
    checks=("dordis.protocols.assisted.disputes.Complaints._settled",),
)
def accuse_everybody(session: Session) -> str:
    """A colluding helper names all clients that the server wants to leave out of U3."""
    served = Asked(session, came=9)
    session.trail.stage = "OpenBoxes"
    served.round.helpers[ClientId(4)] = Accuser(served.round.helpers[ClientId(4)], (1, 2, 3))
    outputs = served.round.play()
    foiled_unless(1 not in outputs[0].survivors, "Complaints._settled", "the helper is evicted, nobody is left out")
    return "the server chose who is in the sum"


def play_or_fail(session: Session, liars: Iterable[int], stage: str) -> str:
    """Have helpers lie about their sums; the gain is a wrong sum that is taken for a right one."""
    round = Round()
    session.trail.stage = stage
    for h in liars:
        round.helpers[ClientId(h)] = Liar(round.helpers[ClientId(h)], lie_about_all)
    outputs = round.play()
    expected = round.expected((*round.inputs,))
    right = [(output.total == total).all() for output, (total, _) in zip(outputs, expected, strict=True)]
    foiled_unless(not all(right), "voices", "the sum is right")
    return "a wrong sum"


@assisted(
    "a liar among the helpers",
    refused_by="voices",
    stage="Reveal",
    checks=("dordis.protocols.assisted.parameters.AssistedParameters.voices",),
)
def lie_alone(session: Session) -> str:
    """One helper gives wrong mask sums."""
    return play_or_fail(session, (1,), "Reveal")


@assisted(
    "more liars than can collude",
    refused_by="check_confirmed (Unconfirmed)",
    stage="Reveal",
    checks=("dordis.protocols.assisted.server.check_confirmed",),
)
def lie_together(session: Session) -> str:
    """Two helpers give different wrong mask sums: no value has two voices."""
    return play_or_fail(session, (1, 2), "Reveal")


@assisted(
    "a vector that was replaced on the way",
    refused_by="check_vector_digest (ProtocolError)",
    stage="SendContribution",
    checks=(CHECKS + "check_vector_digest",),
)
def replace_vector(session: Session) -> str:
    """Replace the vector of a contribution, so that the sum is wrong and its client is blamed."""
    served = Asked(session)
    session.trail.stage = "SendContribution"
    other = pack(np.ones(30, np.uint32), BITS).tobytes()
    served.round.server().setup.check(ClientId(1), msgspec.structs.replace(served.sent[1], vector=other))
    return "the server took a vector that its client did not send"


@assisted(
    "a contribution of a client that is left out",
    refused_by="check_not_left_out (MalformedMessage)",
    stage="SendContribution",
    checks=("dordis.protocols.assisted.server.check_not_left_out",),
)
def return_after_complaint(session: Session) -> str:
    """A client that a helper could not understand contributes again, and is subtracted every round."""
    served = Asked(session)
    session.trail.stage = "SendContribution"
    setup = served.round.server().setup
    setup.standing = Complaints(edges=frozenset({(1, 1)}))
    setup.check(ClientId(1), served.sent[1])
    return "the server took it"


@assisted(
    "a helper's key that the server made",
    refused_by="check_epoch_keys_signed (InvalidSignature)",
    stage="SendContribution",
    checks=(CHECKS + "check_epoch_keys_signed",),
)
def replace_keys(session: Session) -> str:
    """Name keys of its own for two helpers: with their boxes the server has a seed of every set."""
    served = Asked(session)
    keys = dict(served.parameters.helpers)
    for h in (1, 2):
        own = DEFAULT.agreement.public_key(bytes([h]) * 32)
        keys[h] = msgspec.structs.replace(served.parameters.own_key(ClientId(h)), key=own)
    return contribute_under(session, msgspec.structs.replace(served.parameters, helpers=keys))


def contribute_under(session: Session, parameters: AssistedParameters, now: float = NOW) -> str:
    """Have a client contribute under parameters that it should refuse."""
    session.trail.stage = "SendContribution"
    client = Round().clients[ClientId(1)]
    client._clock = lambda: now
    client.handle(SendContribution(parameters))
    return "the victim contributed"


@assisted(
    "an expired key",
    refused_by="check_epoch_keys_fresh (ParametersRefused)",
    stage="SendContribution",
    checks=(CHECKS + "check_epoch_keys_fresh",),
)
def expired_key(session: Session) -> str:
    """Name keys whose private halves should have been erased: whoever kept a copy reads the boxes."""
    return contribute_under(session, Round().parameters, NOW + 10**6)


def break_rule(session: Session, **settings: Any) -> str:
    """Have a client contribute under parameters that break a rule."""
    own = settings.pop("own", {})
    parameters = Round(**settings).parameters
    return contribute_under(session, msgspec.structs.replace(parameters, **own))


def no_base_noise(session: Session) -> str:
    """Choose c = 1, although enough clients arrive for c = 2."""
    parameters = Round(options={"no_base": True}).agree(fraction=1)
    return contribute_under(session, msgspec.structs.replace(parameters, no_base=False))


def same_key(session: Session) -> str:
    """Name the key of helper 2 for helper 1, too."""
    keys = dict(Round().parameters.helpers)
    return break_rule(session, own={"helpers": keys | {1: keys[2]}})


def key_of_another_round(session: Session) -> str:
    """Name the helpers' keys of an earlier round, whose private halves may have leaked since."""
    parameters = Round().parameters
    return contribute_under(session, msgspec.structs.replace(parameters, round=parameters.run + (9).to_bytes(8, "big")))


def missing_keys(session: Session) -> str:
    """Name no key for two helpers: two others are enough to open sums, and no two quorums need an honest helper."""
    keys = dict(Round().parameters.helpers)
    return break_rule(session, own={"helpers": keys | {1: None, 2: None}})


rule = partial(Attack, stage="SendContribution", graphs=(COMPLETE,))


def serve_elsewhere(session: Session) -> str:
    """Ask a helper to serve in a run that its policy does not name."""
    served = Asked(session)
    served.helpers[1]._policy = HelperPolicy(runs=frozenset())
    served.ask(1, OpenBoxes(served.parameters, {}))
    return "the helper serves in another run"


def accept_helpers(session: Session, policy: Policy, **own: Any) -> str:
    """Have an owner consent to parameters with helpers."""
    session.trail.stage = "consent"
    parameters = msgspec.structs.replace(Round().parameters, **own)
    policy.check(parameters)
    return "the owner consented"


def join_another_run(session: Session) -> str:
    """Ask a helper for a key in a run whose manifest it has not seen."""
    session.trail.stage = "Introduce"
    registry, own = Round().registry, secret(b"helper", 1)
    helper = AssistedHelper(ClientId(1), secret=own, registry=registry, clock=lambda: NOW, run=ROUND[:32])
    keys = helper.handle(Introduce(bytes([1]) * 32 + bytes(8))).keys
    return f"{len(keys)} signed keys for a run with members, helpers and times of the server's choice"


LENIENT = {
    "colluders": 0, "without_guarantee": True, "schemes": frozenset(s.value for s in Scheme),
    "mechanisms": frozenset({"none"}), "protocols": frozenset({"assisted"}),
}  # fmt: skip


ALL = frozenset({1, 2, 3, 4})


def come_again(session: Session) -> str:
    """Have a client take part more often than the noise of the run was planned for."""
    session.trail.stage = "attend"
    owner = careful_owner(ClientId(1), Policy(**LENIENT), participation=MemoryParticipation())
    parameters = msgspec.structs.replace(Round().parameters, participations=1)
    for index in (0, 1):
        owner.attend(msgspec.structs.replace(parameters, round=bytes(32) + index.to_bytes(8, "big")), bytes(32))
    return "the client took part twice"


ATTACKS = (
    split_helpers,
    ask_twice,
    ask_after_restart,
    other_hash,
    ask_client_twice,
    reveal_early,
    quorum(
        "a quorum of repeated signatures",
        "Show the signature of one helper as that of two others.",
        lambda session: reveal_with(session, lambda served, u3: dict.fromkeys((2, 3), served.sign(u3, (2,))[2])),
    ),
    quorum(
        "signatures on something else",
        "Show signatures of helpers under their keys as signatures on U3.",
        lambda session: reveal_with(session, of_epoch_key),
    ),
    quorum(
        "signatures on another U3",
        "Show signatures of helpers on a smaller U3.",
        lambda session: reveal_with(session, lambda served, u3: served.sign(SMALLER, (2, 3))),
    ),
    too_few,
    invent_clients,
    replay_header,
    swap_headers,
    exchange_boxes,
    other_key,
    change_parameters,
    frame_helper,
    accuse_everybody,
    lie_alone,
    lie_together,
    replace_vector,
    return_after_complaint,
    replace_keys,
    expired_key,
    rule(
        "two helpers with one key",
        "Name the key of one helper for another one, too.",
        same_key,
        refused_by="check_keys_repeated (ParametersRefused)",
        overlapping=(RULES + "check_keys_repeated", CHECKS + "check_epoch_keys_signed"),
    ),
    rule(
        "helpers' keys of another round",
        "Name keys of an earlier round, whose private halves may have leaked since.",
        key_of_another_round,
        refused_by="check_keys_cover (ParametersRefused)",
        checks=(RULES + "check_keys_cover",),
    ),
    rule(
        "more than m - q helpers without a key",
        "Name no key for two of four helpers.",
        missing_keys,
        refused_by="check_keys_present (ParametersRefused)",
        checks=(RULES + "check_keys_present",),
    ),
    rule(
        "fewer than 3 f + 1 helpers",
        "Run a round against a malicious server with three helpers, of whom any can stop it.",
        partial(break_rule, m=3, options={"abort": True}, own={"can_abort": False}),
        refused_by="check_abortable (ParametersRefused)",
        checks=(RULES + "check_abortable",),
    ),
    rule(
        "no helper may collude",
        "State f = 0, so that every helper alone holds the seeds of the only set.",
        partial(break_rule, own={"faulty": 0}),
        refused_by="check_helpers (ParametersRefused)",
        checks=(RULES + "check_helpers",),
    ),
    rule(
        "no noise of one's own",
        "State n_min below half of n_max, so that c = 1: two helpers and the server see updates without any noise.",
        partial(break_rule, n_min=4, options={"no_base": True}, own={"no_base": False}),
        refused_by="check_arrivals (ParametersRefused)",
        checks=(RULES + "check_arrivals",),
    ),
    rule(
        "no noise of one's own, although enough clients arrive",
        "State c = 1, so that all noise is removable: two helpers and the server see updates without any noise.",
        no_base_noise,
        refused_by="check_arrivals (ParametersRefused)",
        checks=(RULES + "check_arrivals",),
    ),
    rule(
        "a noise scheme that helpers cannot remove",
        "State the scheme `conservative`, whose noise follows other rules than arrivals.",
        partial(break_rule, scheme=Scheme.ORIG, own={"scheme": Scheme.CONSERVATIVE.value}),
        refused_by="check_scheme (ParametersRefused)",
        checks=(RULES + "check_scheme",),
    ),
    Attack(
        "a run that the helper does not serve in",
        "Ask a helper to open boxes of a run that its policy does not name.",
        serve_elsewhere,
        refused_by="check_policy (ParametersRefused)",
        stage="OpenBoxes",
        checks=("dordis.protocols.assisted.helper.check_policy",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "a key for a run that the helper has not joined",
        "Ask a helper for a key in a run whose manifest it has not seen.",
        join_another_run,
        refused_by="check_joined_run (ParametersRefused)",
        stage="Introduce",
        checks=(CHECKS + "check_joined_run",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "helpers that the owner did not name",
        "Run a round with a helper that the client's owner did not name.",
        lambda session: accept_helpers(session, Policy(**LENIENT, helpers=frozenset({1, 2, 3}))),
        refused_by="check_helpers (ParametersRefused)",
        stage="consent",
        checks=("dordis.owner.policy.check_helpers",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "fewer helpers that must collude than the owner wants",
        "Run a round in which m - f helpers are fewer than the owner's policy asks for.",
        lambda session: accept_helpers(session, Policy(**LENIENT, helpers=ALL, honest_helpers=4)),
        refused_by="check_helpers (ParametersRefused)",
        stage="consent",
        checks=("dordis.owner.policy.check_helpers",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "fewer colluding helpers than the owner fears",
        "Run a round that withstands f helpers where the owner's policy asks for more.",
        lambda session: accept_helpers(session, Policy(**LENIENT, helpers=ALL, faulty_helpers=2)),
        refused_by="check_helpers (ParametersRefused)",
        stage="consent",
        checks=("dordis.owner.policy.check_helpers",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "n_min below the owner's cohort",
        "Run a round of up to nine clients in which five are enough, where the owner's policy asks for six.",
        lambda session: accept_helpers(session, Policy(**LENIENT, helpers=ALL, cohort=6)),
        refused_by="check_cohort (ParametersRefused)",
        stage="consent",
        checks=("dordis.owner.policy.check_cohort",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "no noise of one's own, without consent",
        "Run a round in which helpers can remove all noise of a client, although its owner did not agree to that.",
        lambda session: accept_helpers(session, Policy(**LENIENT, helpers=ALL), no_base=True),
        refused_by="check_base_noise (ParametersRefused)",
        stage="consent",
        checks=("dordis.owner.policy.check_base_noise",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "more participations than the noise is planned for",
        "Have a client that comes by itself take part once more than the hashed number.",
        come_again,
        refused_by="check_run_cap (ParticipationRefused)",
        stage="attend",
        checks=("dordis.owner.participation.check_run_cap",),
        graphs=(COMPLETE,),
    ),
)
