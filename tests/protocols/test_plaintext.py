"""The plaintext protocol has the dropouts, failures, noise and sums of SecAgg, bit for bit."""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dordis.errors import (
    Aborted,
    ParametersRefused,
    ProtocolError,
    RoundFailed,
    TooFewClients,
    TooManyDropouts,
    UnexpectedRequest,
)
from dordis.pipeline import executor as drive
from dordis.privacy.skellam_noise import noise
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols import summing_protocol
from dordis.protocols.cohort import agree_on
from dordis.protocols.escrow import IssuedSecrets, draw_secrets
from dordis.protocols.noise_addition_and_removal import NoisyInput, PrivateServer
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.plaintext import (
    PLAINTEXT,
    Begin,
    Contribute,
    Contribution,
    Disclose,
    Disclosure,
    Joined,
    PlaintextClient,
    PlaintextServer,
)
from dordis.protocols.secagg import SECAGG
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import Round, random_inputs

IDS, T, DIM = (2, 3, 5, 7, 11, 13, 17), 3, 10


def agreed(scheme=Scheme.SINGLE, chunks=1, **options):
    variances = [Fraction(200 + chunk) for chunk in range(chunks)]
    noisy = {"scheme": scheme, "variances": variances if scheme is not Scheme.NONE else None}
    given = {"run": bytes(32), "index": 1, "clients": IDS, "threshold": 4, "tolerance": T, "bits": 16}
    return agree_on(ends=[DIM * (chunk + 1) for chunk in range(chunks)], **given | noisy | options)


def seeds_of(u, plan):
    """Return seeds that anyone can compute."""
    return IssuedSecrets(*(tuple(bytes([u, place, k] * 10 + [0, 0]) for k in range(len(part)))
                        for place, part in enumerate((plan.base, plan.removable))))  # fmt: skip


class Play:
    """A round in which some requests are lost: client, name, chunk."""

    def __init__(self, parameters, losses=(), **options):
        self.parameters, self.inputs = parameters, random_inputs(parameters, 4)
        self.seeds = {u: {k: seeds_of(u, plan) for k, plan in enumerate(parameters.plans)} for u in parameters.clients}
        self.clients = {u: PlaintextClient(u, NoisyInput(x), self.seeds[u]) for u, x in self.inputs.items()}
        lost = lambda u, m: (u, type(m).__name__, getattr(m, "chunk", -1)) in frozenset(losses)  # noqa: E731
        self.exchange = LocalExchange(self.clients, lost)
        self.server = PrivateServer(PlaintextServer(parameters, **options), parameters)

    def run(self):
        return drive.run(self.server, self.exchange)

    def expected(self, chunk, survivors, removed):
        """Add up the inputs of some clients and all of their noise but what was removed, in 64 bits."""
        total, plan = np.zeros(DIM, np.int64), self.parameters.plans[chunk]
        for u in survivors:
            own = self.seeds[u][chunk]
            kept = [k for k in range(len(plan.removable)) if k not in removed.get(u, ())]
            parts = [*zip(own.private, plan.base, strict=True), *((own.deposited[k], plan.removable[k]) for k in kept)]
            total += self.inputs[u][self.parameters.chunks[chunk]].astype(np.int64)
            total += sum((noise(seed, variance, DIM).astype(np.int64) for seed, variance in parts), np.zeros(DIM, int))
        return total % 2**self.parameters.bits


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG, Scheme.NONE])
@pytest.mark.parametrize("dropped", range(T + 1))
def test_the_sum_is_that_of_the_survivors_with_just_the_noise_that_must_stay(scheme, dropped):
    play = Play(agreed(scheme, chunks=2), {(u, "Contribute", 1) for u in IDS[:dropped]})
    outputs = play.run()
    assert [output.survivors for output in outputs] == [IDS, IDS[dropped:]]
    for chunk, output in enumerate(outputs):
        due = play.parameters.due(chunk, output.survivors)
        assert np.array_equal(output.total, play.expected(chunk, output.survivors, due))
        assert (output.stayed, output.named) == ({}, frozenset())
        plan = play.parameters.plans[chunk]
        kept = {u: sum(plan.removable) - sum(plan.removable[k] for k in due[u]) for u in output.survivors}
        assert output.left == sum(sum(plan.base) + kept[u] for u in output.survivors)
        assert output.charged >= plan.variance or scheme is Scheme.ORIG


def test_noise_whose_seed_is_not_told_stays_and_is_named():
    parameters = agreed()
    due = parameters.due(0, IDS)
    silent = [u for u in IDS if due[u]][:2]
    play = Play(parameters, {(u, "Disclose", 0) for u in silent})
    (output,) = play.run()
    assert output.survivors == IDS
    assert output.stayed == {u: due[u] for u in silent}
    removed = {u: ks for u, ks in due.items() if u not in silent}
    assert np.array_equal(output.total, play.expected(0, IDS, removed))
    removable = parameters.plans[0].removable
    whole = Play(parameters).run()[0]
    assert output.left - whole.left == sum(removable[k] for u in silent for k in due[u])


def test_components_that_are_to_be_kept_are():
    parameters = agreed(Scheme.EXACT)
    due = parameters.due(0, IDS)
    kept = {IDS[0]: due[IDS[0]][:1]}
    play = Play(parameters, withheld={0: kept})
    (output,) = play.run()
    assert output.stayed == kept
    removed = {u: tuple(k for k in ks if k not in kept.get(u, ())) for u, ks in due.items()}
    assert np.array_equal(output.total, play.expected(0, IDS, removed))


@pytest.mark.slow
@given(
    early=st.sets(st.sampled_from(IDS), max_size=5),
    late=st.sets(st.sampled_from(IDS), max_size=5),
)
def test_it_fails_as_secagg_does_or_gives_the_same_bits(early, late):
    parameters = agreed()
    session = Round(parameters, random_inputs(parameters, 4), {(u, "CollectInput", 0) for u in early | late})
    secagg = session.outcome()
    clients = {u: PlaintextClient(u, NoisyInput(x), session.seeds(u)) for u, x in session.inputs.items()}
    losses = {(u, "Begin", -1) for u in early} | {(u, "Contribute", 0) for u in late}
    exchange = LocalExchange(clients, lambda u, m: (u, type(m).__name__, getattr(m, "chunk", -1)) in losses)
    if isinstance(secagg, RoundFailed):
        with pytest.raises(type(secagg)) as failure:
            drive.run(PrivateServer(PlaintextServer(parameters), parameters), exchange)
        assert isinstance(failure.value, TooManyDropouts | TooFewClients)
        return
    for one, other in zip(
        drive.run(PrivateServer(PlaintextServer(parameters), parameters), exchange), secagg, strict=True
    ):
        assert (one.survivors, one.left, one.charged) == (other.survivors, other.left, other.charged)
        assert np.array_equal(one.total, other.total)


@pytest.mark.parametrize("stage", ["Begin", "Contribute"])
def test_too_many_dropouts_end_the_round_before_anything_is_disclosed(stage):
    play = Play(agreed(), {(u, stage, -1 if stage == "Begin" else 0) for u in IDS[: T + 1]})
    with pytest.raises(TooManyDropouts):
        play.run()
    assert all(client.state.passed.get(0, 0) < 2 for client in play.clients.values())


# The machines


def test_a_client_answers_in_order_and_once():
    parameters = agreed()
    client = PlaintextClient(2, NoisyInput(random_inputs(parameters, 4)[2]))
    everyone = parameters.pack(IDS)
    assert client.handle(Begin(parameters)) == Joined()
    upload = client.handle(Contribute(0))
    assert client.handle(Contribute(0)) == upload
    disclosure = client.handle(Disclose(0, everyone))
    assert set(disclosure.seeds) == set(parameters.due(0, IDS)[2])
    with pytest.raises(UnexpectedRequest):
        client.handle(Disclose(0, parameters.pack(IDS[1:])))
    with pytest.raises(Aborted):
        client.handle(Contribute(0))


def test_a_client_that_is_not_in_u3_discloses_nothing():
    parameters = agreed()
    client = PlaintextClient(2, NoisyInput(random_inputs(parameters, 4)[2]))
    client.handle(Begin(parameters))
    client.handle(Contribute(0))
    with pytest.raises(ProtocolError, match="not in it"):
        client.handle(Disclose(0, parameters.pack(IDS[1:])))


def test_a_client_refuses_parameters_that_break_a_rule():
    with pytest.raises(ParametersRefused):
        PlaintextClient(2, NoisyInput(np.zeros(DIM, np.uint32))).handle(
            Begin(msgspec.structs.replace(agreed(), bits=40))
        )
    with pytest.raises(ParametersRefused):
        PlaintextServer(msgspec.structs.replace(agreed(), bits=40))


def test_seeds_are_drawn_from_the_entropy_that_is_given():
    parameters, drawn = agreed(chunks=2), []
    client = PlaintextClient(
        2, NoisyInput(random_inputs(parameters, 4)[2]), entropy=lambda n: drawn.append(n) or bytes(n)
    )
    client.handle(Begin(parameters))
    assert drawn == [32] * sum(len(plan.base) + len(plan.removable) for plan in parameters.plans)


def test_closing_erases_seeds_and_input():
    play = Play(agreed())
    play.run()
    client = play.clients[2]
    assert client.state.issued
    client.close()
    assert not client.state.issued
    with pytest.raises(ProtocolError, match="over"):
        _ = client.input


def test_no_seed_is_shown():
    play = Play(agreed())
    play.run()
    for shown in (repr(play.clients[2].state), repr(play.clients[2].state.issued)):
        assert "\\x" not in shown


@pytest.mark.parametrize(
    "reply",
    [Contribution(0, b"short"), Contribution(1, bytes(4 * DIM)), Disclosure(0, {}), Joined()],
    ids=["a short one", "another chunk", "another kind", "another stage"],
)
def test_a_malformed_contribution_counts_as_a_dropout(reply):
    play = Play(agreed())

    def exchange(requests):
        for u, answer in play.exchange(requests):
            yield u, reply if u == 3 and isinstance(answer, Contribution) else answer

    (output,) = drive.run(play.server, exchange)
    survivors = tuple(u for u in IDS if u != 3)
    assert output.survivors == survivors
    removed = play.parameters.due(0, survivors)
    assert np.array_equal(output.total, play.expected(0, survivors, removed))


@pytest.mark.parametrize("seeds", [{}, {0: bytes(32), 1: bytes(32), 9: bytes(32)}], ids=["none", "others"])
def test_seeds_that_are_not_the_due_ones_are_not_used(seeds):
    parameters = agreed()
    due = parameters.due(0, IDS)
    liar = next(u for u in IDS if due[u])
    play = Play(parameters)

    def exchange(requests):
        for u, answer in play.exchange(requests):
            yield u, Disclosure(0, seeds) if u == liar and isinstance(answer, Disclosure) else answer

    (output,) = drive.run(play.server, exchange)
    assert output.stayed == {liar: due[liar]}


# What it is


def test_it_is_found_by_its_name_and_protects_nobody():
    assert summing_protocol("plaintext") is PLAINTEXT
    assert PLAINTEXT.stages == ("Begin", "Contribute", "Disclose")
    assert PLAINTEXT.stages[PLAINTEXT.upload] == "Contribute"
    assert PLAINTEXT.modes == {SEMI_HONEST}
    assert not PLAINTEXT.hides_updates
    assert SECAGG.hides_updates
    assert SECAGG.modes == {SEMI_HONEST, MALICIOUS}


def test_the_parties_say_which_requests_upload_and_disclose():
    for protocol in (PLAINTEXT, SECAGG):
        uploads, discloses = ([kind for kind in protocol.requests if getattr(kind, what)] for what in WHAT)
        assert len(uploads) == len(discloses) == 1
        order = protocol.requests
        assert order.index(uploads[0]) < order.index(discloses[0])


WHAT = ("uploads", "discloses")


FIVE = (1, 2, 3, 4, 5)
P = agree_on(
    run=bytes(32), index=0, clients=FIVE, threshold=3, tolerance=2, bits=13, ends=[4], scheme=Scheme.SINGLE,
    variances=[50],
)  # fmt: skip
DUE = [u for u, ks in P.due(0, FIVE).items() if ks]
VECTOR = np.arange(4, dtype=np.uint32)


def begun(u, issued=None):
    client = PlaintextClient(u, NoisyInput(VECTOR), issued)
    client.handle(Begin(P))
    return client


def test_parameters_that_break_a_rule_are_refused():
    with pytest.raises(ParametersRefused):
        PlaintextClient(1, NoisyInput(VECTOR)).handle(Begin(replace(P, threshold=0)))


def test_given_secrets_are_kept_and_the_input_has_their_noise():
    issued = draw_secrets(P.escrow(0), lambda size: b"s" * size)
    client = begun(1, {0: issued})
    sent = client.handle(Contribute(0)).vector
    assert client.issued(0) == issued
    assert np.array_equal(np.frombuffer(sent, "<u4"), NoisyInput(VECTOR).chunk(P, 0, issued))


@pytest.mark.parametrize("u", FIVE)
def test_due_secrets_are_disclosed_and_no_others(u):
    client = begun(u)
    client.handle(Contribute(0))
    seeds = client.handle(Disclose(0, P.pack(FIVE))).seeds
    assert seeds == {k: client.issued(0).deposited[k] for k in P.due(0, FIVE)[u]}
    assert bool(seeds) is (u in DUE)


def test_a_client_outside_u3_discloses_nothing():
    client = begun(1)
    client.handle(Contribute(0))
    with pytest.raises(ProtocolError, match="not in it"):
        client.handle(Disclose(0, P.pack(FIVE[1:])))
