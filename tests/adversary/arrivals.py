"""Open arrival: a party spoils the sum, excludes clients from it, or has an uncounted contribution accepted."""

import asyncio
from collections.abc import Callable, Iterator

import numpy as np

from dordis.errors import InputError
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, MemoryJournal, Message, OpenCall, Replies, Requests
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.parameters import SEMI_HONEST, common_part, complete
from dordis.protocols.summing import Roster
from dordis.rounds.arrivals import Arrivals, ArrivalStore
from dordis.rounds.invitation import Train
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.selection.selection import OpenArrival
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import enter
from tests.adversary.participants import (
    BITS,
    COMPLETE,
    DIM,
    INDEX,
    NO_MODEL,
    RUN,
    WHOLE,
    Holder,
    careful_owner,
    honest_client,
    invitation,
    lenient,
    registry,
)
from tests.adversary.session import Session, foiled_unless
from tests.protocols.shared_example import EXAMPLE, N_MAX, N_MIN, SHARED, parties, play

Contributions = Iterator[tuple[ClientId, Message]]
LEAST = 5
"""The least cohort of the run."""


class OpenRound:
    """A round of the protocol with two helpers, whose engine admits what `come` brings to its open call."""

    def __init__(self, session: Session, scheme: Scheme = Scheme.NONE, arriving: int = N_MAX) -> None:
        session.trail.stage = EXAMPLE.Contribute.__name__
        everyone = range(1, arriving + 1)
        self.parameters, self.clients, self.inputs, self.helpers = parties(scheme, everyone)
        self.store = ArrivalStore()

    def contribution(self, u: ClientId) -> Message:
        """Return the contribution of an honest client."""
        return self.clients[u].handle(EXAMPLE.Contribute(self.parameters))

    def run(self, come: Callable[[OpenCall], Contributions]) -> tuple[np.ndarray, np.ndarray]:
        """Run the round; return the sum that was opened, and that of the honest inputs."""
        arrivals = Arrivals(self.store, PrivacyGate(), lambda u: None)  # type: ignore[arg-type, return-value]

        async def bring(call: Requests) -> Replies:
            return come(call)  # type: ignore[arg-type]

        def exchange(requests: Requests) -> Replies:
            if isinstance(requests, OpenCall):
                return asyncio.run(arrivals.take(requests, bring))
            return [(h, self.helpers[h].handle(request)) for h, request in requests.items()]

        outputs = play(self.parameters, self.clients, self.helpers, exchange)
        opened = np.concatenate([output.total for output in outputs])
        return opened, sum(self.inputs.values()) % 2**self.parameters.bits


open_arrival = {"graphs": (COMPLETE,), "stage": "Contribute"}


@attack(
    "a client that contributes twice",
    refused_by="check_admissible (UnexpectedRequest)",
    checks=(names.ARRIVALS + "check_admissible",),
    **open_arrival,
)
def contribute_twice(session: Session) -> str:
    """A colluding client contributes a second time, with other seeds: the helpers can open only one of the two."""
    round, (_, again, _, _) = OpenRound(session), parties(Scheme.NONE, [1])

    def come(call: OpenCall) -> Contributions:
        first = ClientId(1)
        for u, reply in [
            (first, round.contribution(first)),
            (first, again[first].handle(EXAMPLE.Contribute(round.parameters))),
            *((u, round.contribution(u)) for u in list(round.clients)[1:-1]),
        ]:
            call.admit(u, reply)
            yield u, reply

    opened, _ = round.run(come)
    honest = sum(vector for u, vector in round.inputs.items() if u not in (1, N_MAX)) % 2**round.parameters.bits
    spoilt = (opened - honest) % 2**round.parameters.bits
    foiled_unless(bool((spoilt != round.inputs[ClientId(1)]).any()), "the sum", "it is that of the inputs")
    return "the sum of all clients is garbage, and nobody is named"


@attack(
    "more contributions than the noise is planned for",
    refused_by="check_admissible (UnexpectedRequest)",
    checks=(names.ARRIVALS + "check_admissible",),
    **open_arrival,
)
def exceed_n_max(session: Session) -> str:
    """After n_max contributions another one is brought: the ring and the noise are planned for no more than n_max."""
    round = OpenRound(session, arriving=N_MAX + 1)
    acknowledged: list[ClientId] = []

    def come(call: OpenCall) -> Contributions:
        for u in round.clients:
            reply = round.contribution(u)
            call.admit(u, reply)
            acknowledged.append(u)
            yield u, reply

    try:
        round.run(come)
    except InputError:  # there is no noise plan for so many
        foiled_unless(len(acknowledged) > N_MAX, "the server", "it took no more")
    return f"one client's contribution too many was acknowledged, and no sum over {len(acknowledged)} can be opened"


@attack(
    "a contribution after the round was closed",
    refused_by="check_open (UnexpectedRequest)",
    checks=(names.ARRIVALS + "check_open",),
    **open_arrival,
)
def come_late(session: Session) -> str:
    """When time is up and U3 fixed, a client's contribution is still acknowledged: it believes that it took part."""
    round = OpenRound(session)
    late = ClientId(N_MAX)

    def come(call: OpenCall) -> Contributions:
        for u in list(round.clients)[:-1]:
            reply = round.contribution(u)
            call.admit(u, reply)
            yield u, reply
        call.close()
        call.admit(late, round.contribution(late))

    opened, everyone = round.run(come)
    foiled_unless(late in round.store.clients and bool((opened != everyone).any()), "the server", "it was not late")
    return "a contribution was counted and acknowledged that is in no sum"


@attack(
    "a sum over fewer clients than n_min",
    refused_by="check_arrived (TooFewClients)",
    checks=(names.ARRIVED,),
    **open_arrival,
)
def keep_clients_away(session: Session) -> str:
    """Whoever keeps clients away has fewer than n_min contribute: their noise alone is less than was planned."""
    round = OpenRound(session, arriving=N_MIN - 1)

    def come(call: OpenCall) -> Contributions:
        for u in round.clients:
            reply = round.contribution(u)
            call.admit(u, reply)
            yield u, reply

    opened, everyone = round.run(come)
    foiled_unless(bool((opened == everyone).all()), "the helpers", "they did not open it")
    return f"a sum over {N_MIN - 1} clients was opened"


def contribute_to(session: Session, n_min: int) -> str:
    """Have a client whose owner expects open arrival contribute to a round over `n_min` clients or more."""
    session.trail.stage = EXAMPLE.Contribute.__name__
    make, round = SHARED.helper, RUN + INDEX.to_bytes(8, "big")
    helpers = {ClientId(h): make(ClientId(h), secret=bytes([h]) * 32, registry={}, suite=None) for h in (1, 2)}  # type: ignore[misc, arg-type]
    introductions = {h: helper.handle(SHARED.introduces(round)) for h, helper in helpers.items()}
    common = common_part(
        run=RUN, index=INDEX, n_min=n_min, n_max=8, colluders=0, bits=BITS, ends=[DIM], variances=[64],
        mode=SEMI_HONEST, encoding=encoding_of(WHOLE, bytes(32)), model=NO_MODEL.digest,
    )  # fmt: skip
    parameters = complete(SHARED.agree(common, Roster(introductions=introductions)))
    policy = lenient(colluders=0, cohort=2, modes=frozenset({SEMI_HONEST}), protocols=frozenset({SHARED.name}))
    victim = session.victim
    owner = careful_owner(victim, policy, OpenArrival(registry(), RUN, LEAST))
    client = honest_client(victim, Holder(np.ones(DIM)), lambda round: MemoryJournal(), owner, SHARED)
    invite = invitation(parameters)
    for request in (type(invite)(**{**_fields(invite), "protocol": SHARED.name}), Train()):
        client.handle(request)
    client.handle(EXAMPLE.Contribute(parameters))
    return f"the victim contributed to a sum over {n_min} clients, most of them colluders"


def _fields(invite: object) -> dict[str, object]:
    return {name: getattr(invite, name) for name in type(invite).__struct_fields__}  # type: ignore[attr-defined]


ATTACKS = (
    Attack(
        "a list of clients where any may contribute",
        "The server lists the clients of the round, colluders but for the victim, which nobody selected.",
        lambda session: enter(session, careful_owner(session.victim, selection=OpenArrival(registry(), RUN, LEAST))),
        refused_by="check_no_list (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.SELECTION + "selection.check_no_list",),
        graphs=(COMPLETE,),
    ),
    Attack(
        "a least number of contributions below the run's",
        "The parameters allow a sum over two clients: the victim and a colluder, whose input the server subtracts.",
        lambda session: contribute_to(session, 2),
        refused_by="check_least_arrivals (ParametersRefused)",
        checks=(names.SELECTION + "selection.check_least_arrivals",),
        **open_arrival,
    ),
    contribute_twice,
    exceed_n_max,
    come_late,
    keep_clients_away,
)
