"""All exceptions that dordis raises on purpose, as one tree.

::

    DordisError
    ├── InputError             an argument or setting is unusable: the message says what to pass instead
    │   ├── BeaconNotPublished  the public randomness of a round is not in this party's beacon file yet
    │   ├── MissingExtra       an optional dependency is not installed
    │   ├── HopelessPlan       the noise of the planned run is much larger than its signal
    │   ├── UnusableUpdate     the update that an application prepared cannot be encoded
    │   │   └── Diverged        the model or an update is too large or not finite, so no further round can succeed
    │   └── ParametersRefused  the parameters of a round break a rule, or this client's owner forbids them
    │       ├── ParticipationRefused  this client has taken part as often as its owner allows
    │       └── BudgetRefused  with the round this client would spend a larger epsilon than its owner allows
    ├── CryptoError            a key, ciphertext, signature, proof or share of another party is invalid
    │   ├── InvalidKey         malformed or low-order public key
    │   ├── DecryptionFailed   the ciphertext, its key or its associated data were altered
    │   ├── InvalidSignature   the signature does not verify
    │   ├── InvalidProof       the VRF proof does not verify
    │   └── SharingError       the shares do not determine a secret
    ├── NotReady               this client's application declined a round to which the client was invited
    ├── LoginRefused           an identity is unknown, revoked, expired, already logged in, or of another federation
    ├── ProtocolError          a peer deviated from the protocol
    │   ├── MalformedMessage   bytes do not decode to a message of the expected kind
    │   ├── HistoryContradicted  what a server states about earlier rounds contradicts this client's own records
    │   ├── UnexpectedRequest  a request is out of order, repeated with other content, or after the end
    │   └── Aborted            this client or server has ended the round for good
    ├── NothingTrained         a run ended before its first round was finished
    ├── BudgetExceeded         the next round would exceed the privacy budget: it is not started
    │   ├── DataBudgetExceeded  the run would exceed the budget of the ledger of its data
    │   ├── BudgetUsedUp       too few clients have budget left for one more round
    │   └── EventsUsedUp       all planned events of a run with records as the unit of privacy are used
    ├── LedgerDamaged          the privacy ledger was altered, or lines of it are missing: the run stops
    ├── AuditFailed            an audit found that rounds reveal more than their stated epsilon allows
    └── RoundFailed            the round ends without an output, by accident or by sabotage
        ├── TooFewClients      fewer answers than the threshold
        ├── TooManyDropouts    more clients lost than the noise tolerates
        ├── TooFewHelpers      fewer helpers answered than a sum needs
        ├── Unconfirmed        too few helpers gave the same mask sum
        ├── ImpossibleSum      the norm of the sum is too large for honest updates with noise
        └── Unrecoverable      a secret cannot be recovered, because a client sent wrong shares

`InputError` is also a `ValueError`.  No message ever contains a key, seed, share or plaintext.
"""

import errno
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Values of `OSError.errno` for a file system that accepts no more data, or fails; such an error is no bug."""


class DordisError(Exception):
    """Root of the tree: catch this to catch everything dordis raises on purpose."""


class InputError(DordisError, ValueError):
    """An argument is unusable; the message says what is wrong and what to pass instead."""


class BeaconNotPublished(InputError):
    """The public randomness of a round is not in this party's beacon file yet."""


class MissingExtra(InputError):
    """An optional dependency is needed and absent; `extra` is the name of the package extra to install."""

    def __init__(self, extra: str) -> None:
        # A clone is installed from its own folder, so that the package need not be on a package index.
        clone = Path(__file__).resolve().parents[2]
        source = f"-e '{clone}[{extra}]'" if (clone / "pyproject.toml").is_file() else f"'dordis[{extra}]'"
        super().__init__(f"this needs the extra '{extra}': pip install {source}")
        self.extra = extra


class HopelessPlan(InputError):
    """The noise of a planned run is much larger than its signal; `ratio` is the signal-to-noise ratio of the run."""

    def __init__(self, ratio: float, needed: str) -> None:
        super().__init__(
            f"the plan is hopeless: over the whole run the noise is {1 / ratio:.3g} times as large as the signal, so "
            f"the budget would be spent on next to nothing. {needed}"
        )
        self.ratio = ratio


class NothingTrained(DordisError):
    """A run ended before its first round was finished; the message says why, and `path` is the run's directory."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(f"nothing was trained: {reason}; the records are in {path}")
        self.path = path


class UnusableUpdate(InputError):
    """The update that a client's application prepared cannot be encoded: a mistake in the application."""


class Diverged(UnusableUpdate):
    """Training diverged: numbers of the model or of an update are not finite or too large; a new run is needed."""


class ParametersRefused(InputError):
    """The parameters of a round break a rule of the protocol or of the client's owner."""


class ParticipationRefused(ParametersRefused):
    """This client has taken part as often as its owner allows, over all runs and servers."""

    def __init__(self, count: int, cap: int, limit: str = "its owner allows") -> None:
        super().__init__(f"this client has taken part {count} times, {limit} {cap}")
        self.count, self.cap = count, cap


class BudgetRefused(ParametersRefused):
    """With this round the client would spend a larger epsilon, over all runs and servers, than its owner allows."""

    def __init__(self, epsilon: float, budget: float, delta: float, failure: float = 0.0) -> None:
        told = (
            "nothing is proved about this round" if epsilon == float("inf") else f"epsilon would become {epsilon:.4g}"
        )
        if failure >= delta:
            told = f"the graphs or random selections of its rounds fail with probability {failure:.3g}"
        super().__init__(f"{told}, this client's owner allows {budget:.4g} at delta {delta:.3g}, over all rounds")
        self.epsilon, self.budget, self.delta = epsilon, budget, delta


class CryptoError(DordisError):
    """A key, ciphertext, signature, proof or share that another party sent is invalid."""


class InvalidKey(CryptoError):
    """A public key is malformed or of low order."""


class DecryptionFailed(CryptoError):
    """A ciphertext cannot be decrypted: the ciphertext, the key or the associated data were altered."""


class InvalidSignature(CryptoError):
    """A signature does not verify under the given key and message."""


class InvalidProof(CryptoError):
    """A VRF proof does not verify under the given key and input."""


class SharingError(CryptoError):
    """The given shares do not determine a secret: they are too few, malformed or inconsistent."""


class NotReady(DordisError):
    """The application of a client declined a round in `is_ready`, before the client received the model."""


class LoginRefused(DordisError):
    """A party cannot prove its identity, or is not admitted; the message says why and what to do."""


class ProtocolError(DordisError):
    """A peer deviated from the protocol."""


class HistoryContradicted(ProtocolError):
    """What a server states about the earlier rounds of a run contradicts this client's own records of them."""


class MalformedMessage(ProtocolError):
    """Bytes do not decode to a message of the expected kind, or a field of the message has an impossible value."""


class UnexpectedRequest(ProtocolError):
    """A request or a contribution is out of order, repeated with other content, too large, or for another round."""


class Aborted(ProtocolError):
    """This client or server of the protocol has ended its round for good and answers no more requests."""


class BudgetExceeded(DordisError):
    """A round would exceed the privacy budget of a client; another try of the round would exceed it too."""

    def __init__(self, client: int, epsilon: float, budget: float) -> None:
        super().__init__(f"client {client} would have spent epsilon {epsilon:.4g}, the budget is {budget:.4g}")
        self.client, self.epsilon, self.budget = client, epsilon, budget


class DataBudgetExceeded(BudgetExceeded):
    """A run would exceed the budget of the ledger of its data; it was not started."""

    def __init__(self, epsilon: float, budget: float) -> None:
        DordisError.__init__(
            self,
            f"with this run the data would have spent epsilon {epsilon:.4g}, but their ledger allows {budget:.4g}: "
            "plan the run for a smaller epsilon",
        )
        self.epsilon, self.budget = epsilon, budget


class BudgetUsedUp(BudgetExceeded):
    """Too few clients have budget left for one more round: the run ends before its planned rounds."""

    def __init__(self, able: int, needed: int) -> None:
        DordisError.__init__(
            self,
            f"{able} scheduled clients have budget left for one more round, but {needed} are needed: failed rounds, or "
            "other runs, have used it up",
        )
        self.able, self.needed = able, needed


class EventsUsedUp(BudgetExceeded):
    """All planned events of a run that samples records are used: failed tries of rounds used events too."""

    def __init__(self, events: int) -> None:
        DordisError.__init__(
            self,
            f"all {events} planned events of this run are used, including retries: its epsilon covers no further event",
        )
        self.events = events


class LedgerDamaged(DordisError):
    """The ledger was altered, or lines are missing; `line` is the number of the damaged line, from 1, or None."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line} of the privacy ledger {message}")
        self.line = line


class AuditFailed(DordisError):
    """An audit found that rounds reveal more than their stated epsilon allows; `findings` has a sentence for each."""

    def __init__(self, findings: tuple[str, ...]) -> None:
        super().__init__("; ".join(findings))
        self.findings = findings


class RoundFailed(DordisError):
    """The round ends without an output.

    `named` are the clients that provably deviated from the protocol in this round.  Each of the `accusations` is a pair
    of clients, the dealer and the holder of a share: at least one of the two lied.  A client that merely did not answer
    is neither named nor accused. docs/proofs/blame.md says which clients are evicted.
    """

    def __init__(
        self,
        message: str,
        named: frozenset[int] = frozenset(),
        accusations: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        super().__init__(message)
        self.named, self.accusations = named, accusations


class TooFewClients(RoundFailed):
    """Fewer clients than the threshold answered a stage, or sent usable shares."""

    def __init__(self, stage: str, answered: int, needed: int, named: frozenset[int] = frozenset()) -> None:
        super().__init__(f"{answered} clients answered {stage}, {needed} are needed", named)
        self.stage, self.answered, self.needed = stage, answered, needed


class TooManyDropouts(RoundFailed):
    """More clients dropped out than the tolerance for which the noise is planned; nothing was disclosed."""

    def __init__(self, dropped: int, tolerated: int, named: frozenset[int] = frozenset()) -> None:
        super().__init__(f"{dropped} clients dropped out, the noise tolerates {tolerated}", named)
        self.dropped, self.tolerated = dropped, tolerated


class TooFewHelpers(RoundFailed):
    """Too few helpers answered to remove the masks from a sum; nothing was disclosed."""

    def __init__(self, stage: str, answered: int, needed: int) -> None:
        super().__init__(f"{answered} helpers answered {stage}, {needed} are needed: start the others")
        self.stage, self.answered, self.needed = stage, answered, needed


class Unconfirmed(RoundFailed):
    """Too few of the helpers that hold the same masks sent the same sum of masks: the round is charged and has no sum.

    `rank` is the index of this set of helpers in the list of all helper sets.
    """

    def __init__(self, rank: int, heard: int, needed: int) -> None:
        super().__init__(
            f"{heard} helpers of set {rank} answered, but fewer than {needed} of them gave the same mask sum: too many "
            "helpers were lost, or lied"
        )
        self.rank, self.heard, self.needed = rank, heard, needed


class ImpossibleSum(RoundFailed):
    """The norm of a sum is too large for honest updates with noise: it is not used, and nobody is evicted for it.

    `excess` is the squared norm of the sum divided by the bound on it; `survivors` is U3, the clients whose inputs are
    in the sum.  Either the input of one of these clients was wrong, or the server lost a part of its state.
    """

    def __init__(
        self, chunk: int, excess: float, survivors: tuple[int, ...], named: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(
            f"the sum of chunk {chunk} over {len(survivors)} clients is garbage: its norm is {math.sqrt(excess):.3g} "
            "times the largest possible, because a mask, a seed or an upload was wrong; the sum is not used",
            named,
        )
        self.chunk, self.excess, self.survivors = chunk, excess, survivors


class Unrecoverable(RoundFailed):
    """A secret cannot be recovered: its shares are unusable, or do not match the hashes that their dealer sent."""


@contextmanager
def explain_os_errors(action: str) -> Iterator[None]:
    """Turn an OSError into an InputError that says which `action` failed, such as "read the file x", and why."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot {action}: {error.strerror or error}") from None
