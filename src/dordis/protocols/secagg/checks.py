"""What a client insists on before it answers: each check is one function, so that a test can take it out and see."""

from collections.abc import Mapping, Set
from itertools import chain

from dordis.errors import MalformedMessage, ParametersRefused, ProtocolError, TooManyDropouts
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg.masking import KEY_BYTES, split
from dordis.protocols.secagg.messages import Advertisement


def check_member(parameters: Parameters, me: ClientId) -> None:
    """I am one of the round's clients."""
    if me not in parameters.rank:
        raise ParametersRefused(f"client {me} is not among the clients of this round")


def check_subset(members: Set[int], of: Set[int], what: str) -> None:
    """These clients are among those."""
    if not members <= of:
        raise ProtocolError(f"{what} names clients that cannot be there")


def check_present(members: Set[int], me: ClientId, what: str) -> None:
    """I am among these clients."""
    if me not in members:
        raise ProtocolError(f"{what} leaves me out")


def check_enough(members: Set[int], parameters: Parameters, what: str) -> None:
    """These clients are at least t."""
    if len(members) < parameters.threshold:
        raise ProtocolError(f"{what} has {len(members)} clients, fewer than the threshold {parameters.threshold}")


def check_tolerated(members: Set[int], parameters: Parameters) -> None:
    """No more than T clients are missing: otherwise too little noise would be left."""
    dropped = len(parameters.clients) - len(members)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance)


def check_own_keys(advertisements: Mapping[int, Advertisement], me: ClientId, own: Advertisement) -> None:
    """My keys are broadcast as I sent them."""
    if advertisements[me] != own:
        raise ProtocolError("my own keys were altered in the broadcast")


def check_keys_well_formed(advertisements: Mapping[int, Advertisement], parameters: Parameters) -> None:
    """Everyone has one channel key, and a masking key and a token hash for each chunk."""
    chunks = len(parameters.chunks)
    for advertisement in advertisements.values():
        fields = (advertisement.channel, advertisement.masking, advertisement.tokens)
        if tuple(map(len, fields)) != (KEY_BYTES, KEY_BYTES * chunks, KEY_BYTES * chunks):
            raise MalformedMessage("an advertisement has keys of the wrong number or length")


def check_keys_distinct(advertisements: Mapping[int, Advertisement], parameters: Parameters) -> None:
    """No key occurs twice: a copied key would make two masks or two channels the same."""
    chunks = len(parameters.chunks)
    keys = list(
        chain.from_iterable(
            (advertisement.channel, *split(advertisement.masking, KEY_BYTES, chunks))
            for advertisement in advertisements.values()
        )
    )
    if len(set(keys)) != len(keys):
        raise ProtocolError("a public key occurs twice in the broadcast")


def check_not_empty(members: Set[int], what: str) -> None:
    """There is something to answer."""
    if not members:
        raise ProtocolError(f"{what} names nobody")


def check_share_length(share: bytes, own: bytes) -> None:
    """A peer's shares are as many as mine: all secrets of all chunks."""
    if len(share) != len(own):
        raise MalformedMessage("a peer sent the wrong number of shares")


def check_nobody_accused(accused: bool) -> None:
    """I do not upload once I have accused a sender: my shares of its secrets would be missing."""
    if accused:
        raise ProtocolError("the round cannot go on after an accusation")
