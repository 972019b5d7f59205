"""The messages of a round as sequence diagrams, one for each protocol, from the servers' workflows and the messages.

SecAgg's rows are the steps of `list_rows`; which request a step sends is in `SECAGG_MESSAGES`, and
tests/test_architecture.py compares it with the requests of a round that is run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dordis.protocol import Message, Role, requests_in
from dordis.protocols import delivery
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.secagg import SECAGG
from dordis.rounds import invitation
from tools.drawing import WIDTH, draw_arrow, draw_box, draw_line, wrap_picture, write
from tools.round_steps import Row, find_gate

Texts = dict[str, tuple[str, str, str]]
"""For each request what it brings, what its answer brings, and what the server does with the answers."""

SECAGG_MESSAGES: dict[str, Texts] = {
    "invite": {"Invite": ("terms, digest of the model", "the owner consents", "who takes part, and who has the model")},
    "send_model": {"SendModel": ("a piece of the model (or SendSum: a missed sum)", "it is here", "")},
    "train": {"Train": ("make your update", "it is made", "U: the clients that are ready")},
    "advertise_keys": {"AdvertiseKeys": ("the parameters", "public keys, signed", "U1: their keys go to all of U1")},
    "share_keys": {
        "ShareKeys": (
            "the keys of U1",
            "shares of all seeds, encrypted to peers",
            "U2: the server cannot read the shares",
        )
    },
    "deliver_shares": {"DeliverShares": ("U2, its shares", "senders whose shares are wrong", "")},
    "prepare_inputs": {"PrepareInput": ("mask your input", "noise and masks are added", "")},
    "collect_inputs": {"CollectInput": ("upload", "the masked vector", "U3: added up, still under masks")},
    "agree": {"Agree": ("U3 (in the malicious mode)", "a signature on U3", "one U3 for everybody")},
    "unmask": {
        "Unmask": ("U3, a quorum of signatures", "shares of masks, own seeds due", "removes all masks"),
    },
    "release_secrets": {
        "RemoveNoise": ("whose due seeds are missing, if any", "shares of these seeds", "restores the seeds"),
    },
    "dispatch": {"Dispatch": ("the sum", "it is here", "")},
    "store": {"Store": ("decode it and keep it", "it is kept", "the round is over")},
}
"""The requests of the steps of a round with SecAgg; steps that are not here send none."""
ASSISTED_MESSAGES: Texts = {
    "Introduce": ("a round begins", "signed public keys", ""),
    "SendContribution": ("the parameters", "boxes, masked vector", ""),
    "OpenBoxes": ("headers, its boxes", "wrong boxes", "U3: clients with sound boxes"),
    "AgreeOnSurvivors": ("U3", "a signature", "one U3 for an index of a run"),
    "Reveal": ("U3, signatures", "mask sums, or digests", "removes all masks"),
}
"""The requests of an assisted round."""
LOCAL = {"remove_noise": "removes the excess noise", "decode": "decodes the sum into real units"}
"""Steps in which the server computes alone."""
REQUESTS = {kind.__name__: kind for kind in (
    *requests_in(vars(invitation)), *SECAGG.requests, *ASSISTED.requests, *requests_in(vars(delivery)),
)}  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """The parties of a sequence diagram: the x of each line of life, and where notes on the server's work begin."""

    parties: dict[Role | None, tuple[int, str]]
    notes: int

    @property
    def server(self) -> int:
        """Return the x of the server."""
        return self.parties[None][0]


def draw_messages(columns: Columns, request: type[Message], texts: tuple[str, str, str], y: int) -> Iterator[str]:
    """Yield a request of the server, its answer, and what the server does then."""
    sent, answered, after = texts
    start, end = columns.server, columns.parties[request.role][0]
    reply = "" if request.reply is None else request.reply.__name__
    yield draw_arrow(start, end, y + 16)
    yield write(min(start, end) + 12, y + 11, f"{request.__name__}: {sent}", "note")
    yield draw_arrow(end, start, y + 38)
    yield write(min(start, end) + 12, y + 33, f"{reply}: {answered}")
    if after:
        yield write(columns.notes, y + 42, after)


def draw_gate(columns: Columns, gate: str, y: int) -> Iterator[str]:
    """Yield the line that no message crosses before the gate has done its work."""
    yield draw_line(min(x for x, _ in columns.parties.values()) - 60, y + 12, columns.notes - 8, y + 12, "rule")
    yield write(columns.notes, y + 16, gate, "gate")


def finish(columns: Columns, parts: list[str], y: int, title: str) -> str:
    """Return the picture, with the names of the parties and their lines of life."""
    lives = [draw_line(x, 34, x, y) for x, _ in columns.parties.values()]
    boxes = [draw_box(x - 76, 8, 152, "s-comp", name) for x, name in columns.parties.values()]
    heading = write(columns.notes + 70, 24, "what the server does then", "note")
    return wrap_picture([*lives, *boxes, heading, *parts], y + 10, title)


def draw_secagg(rows: Sequence[Row]) -> str:
    """Return the messages of a round with SecAgg as SVG, from the steps of its servers."""
    columns = Columns({Role.CLIENT: (270, "clients"), None: (730, "server")}, 750)
    parts: list[str] = []
    y = 46
    for part, group in groupby(rows, lambda row: row.part.split(":")[0]):
        parts += [draw_line(8, y, WIDTH - 8, y), write(12, y + 20, part.split(",")[0], "name")]
        parts.append(write(12, y + 38, "once a round" if "," in part else "for every chunk", "note"))
        y += 6
        for row in group:
            if row.gate:
                parts += draw_gate(columns, row.gate, y)
                y += 24
            if row.step in LOCAL:
                parts.append(write(columns.notes, y + 16, LOCAL[row.step]))
                y += 20
            for name, texts in SECAGG_MESSAGES.get(row.step, {}).items():
                parts += draw_messages(columns, REQUESTS[name], texts, y)
                y += 50
        y += 4
    return finish(columns, parts, y, "The messages of a round with SecAgg")


def draw_assisted() -> str:
    """Return the messages of an assisted round as SVG: one row each, an arrow between the two parties."""
    columns = Columns(
        {Role.CLIENT: (90, "clients that come"), None: (420, "server"), Role.HELPER: (780, "helpers")}, 800
    )
    parts: list[str] = []
    y = 46
    for request in ASSISTED.requests:
        if gate := find_gate(request):
            parts += draw_gate(columns, gate, y)
            y += 24
        parts += draw_messages(columns, request, ASSISTED_MESSAGES[request.__name__], y)
        y += 50
    for text in LOCAL.values():
        parts.append(write(columns.notes, y + 14, text))
        y += 20
    return finish(columns, parts, y, "The messages of an assisted round")
