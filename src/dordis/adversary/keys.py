"""Public keys that are not their owner's: replaced, exchanged, copied, altered or of low order."""

import secrets
from abc import abstractmethod

import msgspec
import numpy as np

from dordis.adversary import names
from dordis.adversary.attack import Attack, gained
from dordis.adversary.cast import BOTH, STRANGER, agreed, keys_of
from dordis.adversary.session import Session, Trail
from dordis.crypto import agreement, sharing
from dordis.crypto.suite import DEFAULT
from dordis.federation.registry import Identity, Registry
from dordis.privacy.noise import add_noise
from dordis.protocol import ClientId
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg import statements
from dordis.protocols.secagg.escrow import Escrow
from dordis.protocols.secagg.masking import Channel, split
from dordis.protocols.secagg.messages import Advertisement, DeliverShares

LOW_ORDER = (1).to_bytes(32, "little")


class ServerInTheMiddle(Attack):
    """The server plays every peer of the victim, under keys of its own."""

    name = "all peers' keys replaced by the server's"
    text = "The victim shares its secrets with the server's keys: its update lies open, but for its base noise."
    graphs = BOTH
    checks = (names.KEYS_SIGNED, names.VERIFY)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Open the victim's shares, send it others, rebuild its secrets and take them off its upload."""
        session = Session(agreed(graph), trail)
        session.advertise()
        victim, *peers = session.parameters.clients
        channels = {u: agreement.generate() for u in peers}
        for u in peers:
            masks = agreement.public(agreement.generate())
            session.keys[u] = msgspec.structs.replace(
                session.keys[u], channel=agreement.public(channels[u]), masking=masks
            )
        session.share([victim])
        opened = self.opened(session, victim, channels)
        answer = {int(u): self.channel(session, u, victim, channels[u]).encrypt(opened[u]) for u in sorted(opened)}
        session.ask(victim, DeliverShares(session.parameters.pack(session.parameters.clients), answer))
        session.upload([victim])
        masking_key, self_mask, seed = self.rebuilt(session, opened)
        public = {u: session.masking_key(u) for u in opened}
        update = session.stripped(victim, self_mask, masking_key, public)
        add_noise(update, seed, session.parameters.plans[0].removable[0], subtract=True)
        update &= np.uint32(2**session.parameters.bits - 1)
        return gained(
            bool((update == session.truth(victim, removed=True)).all()),
            "recovered the victim's update with its base noise only",
            "masks that the adversary does not know",
            "what came out is not the update",
        )

    def channel(self, session: Session, sender: ClientId, receiver: ClientId, private: bytes) -> Channel:
        """Return one direction of a channel between a peer that the server plays and the victim."""
        keys = [session.keys[u].channel for u in (sender, receiver)]
        honest = next(key for key in keys if key != agreement.public(private))
        return Channel(DEFAULT, session.parameters, sender, receiver, keys, agreement.agree(private, honest))

    def opened(self, session: Session, victim: ClientId, channels: dict[ClientId, bytes]) -> dict[ClientId, bytes]:
        """Open all that the victim sent."""
        sent = session.shares[victim].ciphertexts
        return {
            u: self.channel(session, victim, u, channels[u]).decrypt(sent[u])
            for u in sorted(session.parameters.neighbourhoods[victim] - {victim})
        }

    def rebuilt(self, session: Session, opened: dict[ClientId, bytes]) -> tuple[bytes, bytes, bytes]:
        """Rebuild the masking key, the self-mask and the removable seed."""
        count = Escrow(session.parameters, 0).shared
        cut = {u: split(shares, sharing.SHARE_BYTES, count) for u, shares in opened.items()}
        masking_key, self_mask, seed = (session.rebuild({u: cut[u][i] for u in cut}) for i in range(count))
        return masking_key, self_mask, seed


class AlteredBroadcast(Attack):
    """The victim is shown a U1 with other keys than everyone sent."""

    graphs = BOTH
    mode = "malicious"

    @abstractmethod
    def alter(self, session: Session, victim: ClientId) -> None:
        """Alter the keys."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask the victim to share its secrets with them."""
        session = Session(agreed(graph, mode=self.mode), trail)
        session.advertise()
        victim = session.parameters.clients[0]
        self.alter(session, victim)
        session.share([victim])
        return "the victim shared its secrets under keys that are not their owners'"


class KeysExchanged(AlteredBroadcast):
    """Two peers' entries change places."""

    name = "two peers' keys exchanged"
    text = "The keys of two peers, with their signatures, change places: shares would go to the wrong one of them."
    checks = (names.KEYS_SIGNED, names.VERIFY)

    def alter(self, session: Session, victim: ClientId) -> None:
        """Exchange the last two."""
        first, second = session.parameters.clients[-2:]
        session.keys[first], session.keys[second] = session.keys[second], session.keys[first]


class KeyAltered(AlteredBroadcast):
    """One masking key is the server's."""

    name = "one peer's masking key replaced"
    text = "One peer's masking key is the server's own: it would know the mask that the victim shares with that peer."
    checks = (names.KEYS_SIGNED, names.VERIFY)

    def alter(self, session: Session, victim: ClientId) -> None:
        """Replace the last one's."""
        peer = session.parameters.clients[-1]
        key = agreement.public(agreement.generate())
        session.keys[peer] = msgspec.structs.replace(session.keys[peer], masking=key)


class ColluderKeys(AlteredBroadcast):
    """A colluder signs what it should not."""

    @abstractmethod
    def made(self, session: Session, victim: ClientId) -> bytes:
        """Return the masking key that the colluder shows."""

    def alter(self, session: Session, victim: ClientId) -> None:
        """Sign other keys in the name of the last client, which colludes."""
        colluder = session.parameters.clients[-1]
        altered = msgspec.structs.replace(session.keys[colluder], masking=self.made(session, victim))
        signed = session.sign(colluder, statements.keys(session.parameters, colluder, altered))
        session.keys[colluder] = msgspec.structs.replace(altered, signature=signed)


class KeyDuplicated(ColluderKeys):
    """A colluder shows the victim's own key."""

    name = "a key copied by a colluder"
    text = "A colluder signs the victim's masking key as its own, to make masks that it does not know cancel or repeat."
    checks = (names.KEYS_DISTINCT,)

    def made(self, session: Session, victim: ClientId) -> bytes:
        """Copy the victim's."""
        return session.keys[victim].masking


class KeyCopiedInDisguise(ColluderKeys):
    """X25519 ignores the top bit: another spelling of the same key."""

    name = "a key copied in another spelling"
    text = "A colluder signs the victim's masking key with the ignored bit set, so that the copy does not show."
    checks = (names.KEYS_WELL_FORMED,)

    def made(self, session: Session, victim: ClientId) -> bytes:
        """Set the top bit."""
        key = session.keys[victim].masking
        return key[:-1] + bytes([key[-1] | 0x80])


class LowOrderKey(ColluderKeys):
    """A colluder shows a key with which every agreement gives the same."""

    name = "a key of low order"
    text = "A colluder signs a masking key of low order, with which the shared secret is zero whoever computes it."
    checks = (names.KEYS_WELL_FORMED,)

    def made(self, session: Session, victim: ClientId) -> bytes:
        """Use the point of order 1."""
        return LOW_ORDER


class OwnKeysAltered(AlteredBroadcast):
    """The victim's own entry is altered."""

    name = "the client's own keys altered"
    text = "The victim is shown its own token hash altered to one whose token the server knows, and goes on."
    mode = SEMI_HONEST
    checks = (names.OWN_KEYS,)

    def alter(self, session: Session, victim: ClientId) -> None:
        """Replace the token hash."""
        session.keys[victim] = msgspec.structs.replace(session.keys[victim], tokens=secrets.token_bytes(32))


class StrangerInU1(AlteredBroadcast):
    """U1 names a client that is not in U."""

    name = "U1 with a client outside U"
    text = "The server adds a client of its own making to U1, to raise the number of those who seem to take part."
    mode = SEMI_HONEST
    checks = (names.SUBSET,)

    def alter(self, session: Session, victim: ClientId) -> None:
        """Add a stranger with keys of the server's."""
        channel, masks = (agreement.public(agreement.generate()) for _ in range(2))
        session.keys[STRANGER] = Advertisement(channel, masks, secrets.token_bytes(32))


class UnregisteredClient(Attack):
    """U has a client that is not in the registry."""

    name = "U with a client outside the registry"
    text = "The server fills the round up with clients of its own making, whose noise it knows."
    graphs = BOTH
    checks = (names.REGISTERED,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Replace the last client by a stranger."""
        clients = (*agreed(graph).clients[:-1], STRANGER)
        session = Session(agreed(graph, clients=clients), trail)
        session.advertise(clients[:1])
        return "the victim entered a round with a client that nobody registered"


class LowOrderRegistered(Attack):
    """A colluder registers a VRF key with which it could prove more than one lot."""

    name = "a registered key of low order"
    text = "A colluder registers a VRF key outside the prime-order group: it could choose among several lots a round."
    checks = (names.REGISTRY_KEYS,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Register the identity element."""
        trail.stage = "registration"
        mine = keys_of(STRANGER).identity()
        Registry({STRANGER: Identity(mine.signing, LOW_ORDER)})
        return "the registry took a key of low order"


ATTACKS: tuple[Attack, ...] = (
    ServerInTheMiddle(),
    KeysExchanged(),
    KeyAltered(),
    KeyDuplicated(),
    KeyCopiedInDisguise(),
    LowOrderKey(),
    LowOrderRegistered(),
    OwnKeysAltered(),
    StrangerInU1(),
    UnregisteredClient(),
)
