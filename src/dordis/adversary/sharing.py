"""Shares that are not what they should be: spoiled on their way, by their dealer, by their holder."""

import secrets
from abc import abstractmethod
from copy import deepcopy
from math import prod
from typing import Any

import msgspec

from dordis.adversary import names
from dordis.adversary.attack import Attack, recovered
from dordis.adversary.cast import BOTH, agreed, honest_client
from dordis.adversary.play import Deviant, SpoiledSum
from dordis.adversary.session import Session, Trail
from dordis.crypto import agreement, sharing
from dordis.crypto.suite import DEFAULT
from dordis.kernels.field import PRIME
from dordis.protocol import ClientId, MemoryJournal, Message
from dordis.protocols.secagg import SecAggClient, statements
from dordis.protocols.secagg.masking import Channel, split
from dordis.protocols.secagg.messages import DeliverShares, EncryptedShares, ShareKeys, Unmask, Unmasking
from dordis.simulation.exchange import Lost, nothing_lost


class SpoiledDelivery(Attack):
    """The victim cannot open what it is sent, and would mask with nobody if it uploaded all the same."""

    graphs = BOTH
    checks = (names.NOBODY_ACCUSED,)

    @abstractmethod
    def spoil(self, session: Session, victim: ClientId) -> dict[int, bytes]:
        """Return what the victim is sent."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Do all the rest as it should be, and rebuild the victim's self-mask."""
        session = Session(agreed(graph), trail)
        session.advertise()
        session.share()
        victim, *others = session.u2
        session.open(others)
        session.ask(victim, DeliverShares(session.delivery(victim).members, self.spoil(session, victim)))
        session.upload()
        _, masks = session.disclosed(session.u2, session.finish(session.u2, without=[victim]))
        return recovered(session, victim, session.stripped(victim, session.rebuild(masks[victim])))


class CiphertextsAltered(SpoiledDelivery):
    """One bit of each is altered."""

    name = "shares altered in transit"
    text = "The server alters every ciphertext to the victim, which is left with no peer to mask with."

    def spoil(self, session: Session, victim: ClientId) -> dict[int, bytes]:
        """Flip a bit."""
        sent = session.delivery(victim).ciphertexts
        return {u: bytes([text[0] ^ 1]) + text[1:] for u, text in sent.items()}


class CiphertextsCut(SpoiledDelivery):
    """The end of each is missing."""

    name = "shares cut in transit"
    text = "The server cuts every ciphertext to the victim, which is left with no peer to mask with."

    def spoil(self, session: Session, victim: ClientId) -> dict[int, bytes]:
        """Cut off a share."""
        return {u: text[: -sharing.SHARE_BYTES] for u, text in session.delivery(victim).ciphertexts.items()}


class CiphertextsExchanged(SpoiledDelivery):
    """Each was meant for another."""

    name = "ciphertexts exchanged between receivers"
    text = "The victim is sent what was meant for others, and is left with no peer to mask with."

    def spoil(self, session: Session, victim: ClientId) -> dict[int, bytes]:
        """Take what each sender sent to somebody else."""
        sent = {int(u): reply.ciphertexts for u, reply in session.shares.items()}
        meant = session.delivery(victim).ciphertexts
        return {u: next(text for v, text in sent[u].items() if v != victim) for u in meant}


class SharesWithheld(SpoiledDelivery):
    """Nothing is delivered at all."""

    name = "shares withheld"
    text = "The victim is shown the true U2 and no ciphertexts, and is left with no peer to mask with."
    checks = (names.DELIVERED,)

    def spoil(self, session: Session, victim: ClientId) -> dict[int, bytes]:
        """Send nothing."""
        return {}


class TooFewShares(Attack):
    """A dealer encrypts fewer shares than there are secrets."""

    name = "a dealer that sends too few shares"
    text = "A dealer leaves the last share out: the victim could not answer for its noise and would be blamed for it."
    graphs = BOTH
    checks = (names.SHARE_LENGTH, names.NOBODY_ACCUSED)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Let the dealer encrypt anew, with its own channel key."""
        session = Session(agreed(graph), trail)
        session.advertise()
        session.share()
        victim = session.u2[0]
        dealer = min(session.parameters.neighbourhoods[victim] - {victim})
        mine = session.honest[dealer].state
        keys = [session.keys[u].channel for u in (dealer, victim)]
        channel = Channel(DEFAULT, session.parameters, dealer, victim, keys, agreement.agree(mine.channel, keys[1]))
        due = session.delivery(victim)
        short = due.ciphertexts | {int(dealer): channel.encrypt(mine.own_shares[: -sharing.SHARE_BYTES])}
        session.ask(victim, DeliverShares(due.members, short))
        session.upload([victim])
        return "the victim took too few shares and uploaded"


class LyingDealer:
    """A dealer that commits to the self-mask it uses, and shares another."""

    def __init__(self, session: Session, me: ClientId) -> None:
        self._session, self._me = session, me
        self._client: SecAggClient = session.honest[me]

    def handle(self, request: Message) -> Message:
        """Answer honestly but for the shares."""
        if not isinstance(request, ShareKeys):
            return self._client.handle(request)
        state = deepcopy(self._client.state)
        state.secrets = {0: msgspec.structs.replace(state.secrets[0], self_mask=secrets.token_bytes(32))}
        double = honest_client(self._me, self._session.inputs[self._me], journal=MemoryJournal(), state=state)
        honest: Any = self._client.handle(request)
        mixed: EncryptedShares = msgspec.structs.replace(honest, ciphertexts=double.share_keys(request).ciphertexts)
        signed = self._session.sign(self._me, statements.shares(self._session.parameters, self._me, mixed))
        return msgspec.structs.replace(mixed, signature=signed)


class SharesAlteredByDealer(SpoiledSum):
    """All shares fit together, and give another secret than was committed to."""

    name = "shares altered by their dealer"
    text = "A dealer shares another self-mask than it uses and committed to: the sum would be off by the difference."
    graphs = BOTH
    checks = (names.COMMITTED_SECRET,)

    def corrupt(self, session: Session) -> Lost:
        """Corrupt the first client."""
        dealer = session.parameters.clients[0]
        session.parties[dealer] = LyingDealer(session, dealer)
        return nothing_lost


class SharesAlteredByHolder(SpoiledSum):
    """With the fewest answers there is nothing to correct by, and every combination gives some secret."""

    name = "shares altered by their holder"
    text = "Among the fewest answers a holder shifts its share so that another self-mask comes out, and the sum is off."
    graphs = BOTH
    checks = (names.COMMITTED_SECRET,)

    def corrupt(self, session: Session) -> Lost:
        """Lose answers until t are left for one dealer, and shift the first limb of its secret by one."""
        parameters = session.parameters
        dealer = parameters.clients[0]
        holders = sorted(parameters.neighbourhoods[dealer])
        silent, answering = holders[parameters.threshold :], holders[: parameters.threshold]
        liar = answering[1]
        points = [parameters.point(v) for v in answering]
        shift = pow(weight_at_zero(points, parameters.point(liar)), -1, PRIME)
        place = sorted(parameters.neighbourhoods[liar]).index(dealer)

        def alter(reply: Unmasking) -> Message:
            shares = list(split(reply.mask_shares, sharing.SHARE_BYTES, len(reply.mask_shares) // sharing.SHARE_BYTES))
            limb = (int.from_bytes(shares[place][:4], "little") + shift) % PRIME
            shares[place] = limb.to_bytes(4, "little") + shares[place][4:]
            return msgspec.structs.replace(reply, mask_shares=b"".join(shares))

        session.parties[liar] = Deviant(session.honest[liar], Unmask, alter)
        return lambda u, request: isinstance(request, Unmask) and u in silent


def weight_at_zero(points: list[int], point: int) -> int:
    """Return the weight of one share in the secret, given the points of all."""
    others = [x for x in points if x != point]
    return prod(others) * pow(prod(x - point for x in others), -1, PRIME) % PRIME


class AnotherChunk(Attack):
    """The victim uploads in one chunk and is lost in the other: a half of its mask becomes known in each."""

    name = "alive in one chunk and dropped in another"
    text = "The masking key that one chunk discloses is tried on the upload of the other, whose self-mask is known."
    graphs = BOTH
    overlapping = (names.FRESH_SECRETS, names.KEYS_DISTINCT)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Put the halves together."""
        session = Session(agreed(graph, ends=[4, 8]), trail)
        session.set_up()
        victim, *others = session.u2
        session.upload()
        session.upload(others, chunk=1)
        _, masks = session.disclosed(session.u2, session.finish(session.u2))
        keys, _ = session.disclosed(others, session.finish(others, chunk=1))
        private, self_mask = session.rebuild(keys[victim]), session.rebuild(masks[victim])
        peers = {u: session.masking_key(u) for u in session.parameters.neighbourhoods[victim] - {victim}}
        return recovered(session, victim, session.stripped(victim, self_mask, private, peers))


ATTACKS: tuple[Attack, ...] = (
    CiphertextsAltered(),
    CiphertextsCut(),
    CiphertextsExchanged(),
    SharesWithheld(),
    TooFewShares(),
    SharesAlteredByDealer(),
    SharesAlteredByHolder(),
    AnotherChunk(),
)
