"""A client's intake of a round's model: from its cache, in pieces from the server, or by replay of missed sums."""

from contextlib import suppress

from dordis.errors import ProtocolError, UnexpectedRequest
from dordis.protocol import Journal
from dordis.rounds import invitation as checks
from dordis.rounds.catch_up import ModelCatchUp
from dordis.rounds.client_owner import ClientOwner
from dordis.rounds.events import Invited
from dordis.rounds.invitation import PieceReceived, SendModel, SendSum, SumUsed
from dordis.rounds.model import ModelBytes, ModelCache


class ModelIntake:
    """The model of one round, compared with the digest in the invitation before training."""

    def __init__(
        self, invited: Invited, models: ModelCache, follower: ModelCatchUp, journal: Journal, owner: ClientOwner
    ) -> None:
        self._invite, self._accepted, self._models = invited.invite, invited.accepted, models
        self._follower, self._journal, self._owner = follower, journal, owner
        self.model = models.get(self._invite.model)
        self._pieces, self._count = bytearray(), 0

    def recall(self, piece: SendModel) -> None:
        """Add a piece that was stored in the journal."""
        self._count += 1
        self._pieces += piece.data

    def take_piece(self, request: SendModel) -> PieceReceived:
        """Store the next piece of the model; a piece that a restarted server repeats is accepted again."""
        held = self._pieces if self.model is None or self._accepted.has_model else self.model.data
        start, end, size = request.offset, request.offset + len(request.data), len(held)
        if self.model is None and start == size and 0 < len(request.data) <= self._invite.model_bytes - size:
            checks.check_pieces(self._invite, self._count + 1)
            self._owner.take_piece(self._count + 1)
            self._journal.note(request)
            self._count += 1
            self._pieces += request.data
        elif not 0 <= start < end <= size or held[start:end] != request.data:
            raise UnexpectedRequest(
                f"a piece of the model begins at byte {start}, and {size} bytes have come: pieces are sent in order"
            )
        return PieceReceived(start)

    def replay(self, request: SendSum) -> SumUsed:
        """Apply a missed sum to the last model; cache the result if it has the digest in the invitation."""
        followed = self._follower.take(request)
        if followed is None:
            return SumUsed(b"")
        if self.model is None:
            with suppress(ProtocolError):  # more sums follow, or the server has to send the model
                checks.check_model(self._invite, followed)
                self._models.keep(followed)
                self.model = followed
        return SumUsed(followed.digest)

    @property
    def is_whole(self) -> bool:
        """Tell whether all pieces of the model have arrived."""
        return len(self._pieces) == self._invite.model_bytes

    def assemble(self) -> ModelBytes:
        """Return the model from the cache or from its pieces; raise if its digest is wrong or a number too large."""
        if self.model is None:
            model = ModelBytes.read(self._invite.dtype, bytes(self._pieces))
            checks.check_model(self._invite, model)
            self.model, self._pieces = model, bytearray()
        checks.check_trainable(self.model)
        self._models.keep(self.model)
        self.model = self._models.get(self._invite.model) or self.model
        return self.model

    def forget(self) -> None:
        """Drop the model and its pieces."""
        self.model, self._pieces = None, bytearray()
