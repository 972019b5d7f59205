"""A whole round on the one engine: the paper's five stages, whoever is lost wherever, and what is counted of it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dordis import wire
from dordis.crypto.suite import DEFAULT
from dordis.errors import BudgetExceeded, InputError, TooManyDropouts, UnusableUpdate
from dordis.pipeline import executor as drive
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian, NoMechanism
from dordis.protocol import Resource
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG, SECAGG_PLUS
from dordis.rounds.engine import AgreedRound, RoundServer
from dordis.rounds.invitation import SendModel
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.rounds.watch import StageBegan
from tests.privacy.clipping_bits import aggregate_below, encode_bit, planned_bit
from tests.rounds.parties import BLOCK, DIM, IDS, MODEL, SCALE, VARIANCE, Federation, agreed, invite_to, skellam

CHUNKS = 3
SPARSE = {"degree": 4, "threshold": 3, "quorum": 5, "beacon": bytes(32)}
PROTOCOLS = {
    "plaintext": (PLAINTEXT, {}),
    "SecAgg": (SECAGG, {}),
    "SecAgg, malicious": (SECAGG, {"mode": MALICIOUS}),
    "SecAgg+": (SECAGG_PLUS, SPARSE),
}
every_protocol = pytest.mark.parametrize(("protocol", "options"), PROTOCOLS.values(), ids=PROTOCOLS)
NO_NOISE = NoMechanism(Grid(DIM, BLOCK, SCALE, 24))
PAPER = ["c-comp", "comm", "s-comp", "comm-down", "c-comp"]


def leaving(**stages):
    """Lose clients from a request on, named as u3="Unmask": nothing reaches them any more."""
    stages = {int(name[1:]): stage for name, stage in stages.items()}
    gone = set()

    def lost(u, request):
        if type(request).__name__ == stages.get(u):
            gone.add(u)
        return u in gone

    return lost


def losing(*losses):
    """Lose single requests: client, name, chunk."""
    return lambda u, request: (u, type(request).__name__, getattr(request, "chunk", -1)) in losses


class Watched(Federation):
    """A federation whose requests and replies are written down."""

    @classmethod
    def of(cls, protocol, clients=IDS, lost=None):
        written, bytes_ = [], {"up": 0, "down": 0, "model": 0}

        def tap(exchange):
            def deliver(requests):
                written.extend(type(request).__name__ for request in requests.values())
                for u, reply in exchange(requests):
                    bytes_["up"] += wire.size(reply)
                    bytes_["down"] += wire.size(requests[u])
                    bytes_["model"] += wire.size(requests[u]) * isinstance(requests[u], SendModel)
                    yield u, reply

            return deliver

        made = super().of(protocol, clients, lost, tap=tap)
        made.written, made.bytes = written, bytes_
        return made

    def whole(self, parameters, **options):
        """Gather and sum."""
        self.gather(invite_to(parameters))
        return self.sum(parameters, **options)


def machine(protocol, parameters, receivers=None, mechanism=None):
    """Return the server's machine of a round."""
    private = DistributedDP(parameters, mechanism or DistributedDP.from_parameters(parameters, DIM).mechanism)
    return RoundServer(protocol.server(parameters, {}, {}, suite=DEFAULT), private, receivers)


def delivered(home):
    """Return what the applications were given, by client."""
    return {u: member.app.told[1][1] for u, member in home.members.items() if len(member.app.told) == 2}


def sum_of(clients):
    """Return the sum of the updates of some clients: each is a constant vector."""
    return sum(u / 100 for u in clients) * np.ones(DIM)


# The machine


@pytest.mark.parametrize("mechanism", [skellam(), NO_NOISE], ids=["XNoise", "no noise"])
@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "plaintext"])
def test_a_chunk_has_the_five_stages_of_the_paper(name, mechanism):
    protocol, options = PROTOCOLS[name]
    server = machine(protocol, agreed(chunks=CHUNKS, mechanism=mechanism, **options))
    assert len(server.chunks) == CHUNKS
    for chunk in server.chunks:
        stages = [resource.value for resource, _ in itertools.groupby(step.resource for step in chunk.workflow)]
        assert stages == PAPER
    steps = [step.run for chunk in server.chunks for step in chunk.workflow]
    assert [step.run for step in server.workflow] == [step.run for step in server.setup.workflow] + steps
    assert all(step.resource is Resource.CLIENT for step in server.setup.workflow)


def test_a_chunk_of_the_plaintext_protocol_begins_with_its_upload():
    """There is nothing that its clients compute ahead."""
    (chunk,) = machine(PLAINTEXT, agreed()).chunks
    stages = [resource.value for resource, _ in itertools.groupby(step.resource for step in chunk.workflow)]
    assert stages == PAPER[1:]


@pytest.mark.parametrize("mechanism", [skellam(), NO_NOISE], ids=["XNoise", "no noise"])
@every_protocol
def test_server_and_clients_have_the_aggregate_that_decoding_the_sums_gives(protocol, options, mechanism):
    parameters = agreed(chunks=CHUNKS, mechanism=mechanism, **options)
    upload = protocol.stages[protocol.upload]
    home = Watched.of(protocol, lost=losing((3, upload, 1)))
    result = home.whole(parameters)
    expected = DistributedDP.from_parameters(parameters, DIM).decode(result.outputs)
    n = len(IDS)
    assert expected.survivors == (n, n - 1, n)
    given = delivered(home)
    assert sorted(given) == sorted(IDS)
    for aggregate in (result.aggregate, *given.values()):
        assert np.array_equal(aggregate.total, expected.total)
        assert np.array_equal(aggregate.mean, expected.mean)
        assert aggregate.survivors == expected.survivors
    assert not home.exchange.errors


@every_protocol
def test_the_aggregate_is_the_sum_of_the_updates(protocol, options):
    parameters = agreed(mechanism=NO_NOISE, **options)
    result = Watched.of(protocol, lost=leaving(u3=protocol.stages[protocol.upload])).whole(parameters)
    left = [u for u in IDS if u != 3]
    assert np.allclose(result.aggregate.total, sum_of(left), atol=2 * len(left) / SCALE)
    assert result.outputs[0].survivors == tuple(left)


def test_the_clipping_bit_is_delivered_too():
    parameters = agreed(bit=planned_bit(1000, 4))
    home = Watched.of(SECAGG)
    result = home.whole(parameters)
    norms = [np.linalg.norm(np.full(DIM, u / 100)) for u in IDS]
    assert aggregate_below(result.aggregate) == pytest.approx(sum(norm <= 1.0 for norm in norms) / len(IDS), abs=0.01)
    assert {aggregate_below(aggregate) for aggregate in delivered(home).values()} == {aggregate_below(result.aggregate)}
    assert encode_bit(0.5, 1.0, 1000, 20).size == result.outputs[-1].total.size


def test_chunks_may_overtake_each_other():
    parameters = agreed(chunks=CHUNKS)
    home = Watched.of(SECAGG)
    home.gather(invite_to(parameters))
    server = home.engine.server(AgreedRound(parameters, skellam()))
    drive.advance(server.setup.workflow, home.exchange)
    workflows = [chunk.workflow for chunk in reversed(server.chunks)]
    for steps in zip(*workflows, strict=True):
        drive.advance(steps, home.exchange)
    expected = DistributedDP.from_parameters(parameters, DIM).decode(server.output())
    assert np.array_equal(server.aggregate().mean, expected.mean)
    assert all(np.array_equal(aggregate.mean, expected.mean) for aggregate in delivered(home).values())


def test_losses_at_the_end_harm_only_those_who_are_lost():
    *most, last = IDS
    home = Watched.of(SECAGG, lost=losing(*((u, "Dispatch", 0) for u in most), (last, "Store", 2)))
    result = home.whole(agreed(chunks=CHUNKS))
    assert all(output.survivors == IDS for output in result.outputs)
    assert not delivered(home)
    assert not home.exchange.errors


def test_nothing_is_delivered_to_nobody():
    parameters = agreed()
    home = Watched.of(SECAGG)
    home.gather(invite_to(parameters))
    server = machine(SECAGG, parameters, receivers=())
    requests = []

    def exchange(asked):
        requests.extend(type(request).__name__ for request in asked.values())
        return home.exchange(asked)

    drive.run(server, exchange)
    assert server.aggregate().survivors == (len(IDS),)
    assert not {"Dispatch", "Store", "RemoveNoise"} & {*requests}


def test_a_chunk_that_is_not_decoded_yet_has_no_value():
    with pytest.raises(InputError, match="not decoded yet"):
        machine(SECAGG, agreed()).aggregate()


def test_where_the_server_adds_noise_to_the_whole_sum_it_is_decoded_at_the_end_and_given_to_nobody():
    grid = Grid(DIM, BLOCK, SCALE, 24)
    mechanism = CentralGaussian(grid, 1.0, skellam().sensitivity, sigma=1000.0)
    home = Watched.of(SECAGG)
    parameters = agreed(chunks=CHUNKS, mechanism=mechanism)
    result = home.whole(parameters, mechanism=mechanism)
    assert not {"Dispatch", "Store"} & {*home.written}
    assert not delivered(home)
    noise = result.aggregate.total - sum_of(IDS)
    assert 250 < np.std(noise) < 3000  # 30 numbers of deviation 1000: outside with probability below 1e-9


def test_decoded_chunks_are_values_that_hide_their_content():
    parameters = agreed()
    home = Watched.of(SECAGG)
    home.gather(invite_to(parameters))
    server = machine(SECAGG, parameters)
    drive.run(server, home.exchange)
    chunk = server.chunks[0].decoded
    assert "array" not in repr(chunk)
    assert replace(chunk, survivors=1).survivors == 1


# Gathering


def test_all_who_answer_are_ready_and_none_of_them_is_sent_the_model_twice():
    home = Watched.of(PLAINTEXT)
    gathered = home.gather(invite_to(agreed()))
    assert gathered.ready == dict.fromkeys(IDS, b"")
    assert list(gathered.stages) == ["invite", "send model", "train"]
    assert home.written.count("SendModel") == len(IDS)
    again = home.gather(invite_to(agreed(index=1)))
    assert again.ready == gathered.ready
    assert home.written.count("SendModel") == len(IDS)
    assert again.model_bytes == 0 < gathered.model_bytes


@pytest.mark.parametrize("stage", ["Invite", "SendModel", "Train"])
def test_whoever_is_lost_before_u_is_fixed_is_not_ready(stage):
    home = Watched.of(PLAINTEXT, lost=leaving(u2=stage, u5=stage))
    assert tuple(home.gather(invite_to(agreed())).ready) == (1, 3, 4, 6, 7)


def test_nobody_may_be_ready():
    home = Watched.of(PLAINTEXT, lost=lambda u, request: True)
    assert home.gather(invite_to(agreed())).ready == {}


def test_whoever_refuses_or_is_not_selected_is_not_ready():
    home = Watched.of(PLAINTEXT)
    home.members[2].owner.refuses = "accept"
    home.members[5].owner.selected = False
    assert tuple(home.gather(invite_to(agreed())).ready) == (1, 3, 4, 6, 7)
    assert [u for u, _ in home.exchange.errors] == [2]


def test_a_mistake_of_the_application_is_raised():
    home = Watched.of(PLAINTEXT)
    home.members[2].app.update = np.full(DIM, np.nan)
    with pytest.raises(UnusableUpdate, match="client 2"):
        home.gather(invite_to(agreed()))


@pytest.mark.parametrize("stage", ["Invite", "SendModel", "Train"])
@every_protocol
def test_those_lost_before_u_do_not_count_against_its_tolerance(protocol, options, stage):
    clients, ready = tuple(range(1, 13)), (1, 3, 4, 6, 7, 8, 9, 10, 12)
    options = options | {"tolerance": 2} | ({"degree": 8} if protocol.sparse else {})
    lost_early = {"u2": stage, "u5": stage, "u11": stage}
    upload = protocol.stages[protocol.upload]
    late = {"u1": upload, "u12": upload}
    home = Watched.of(protocol, clients, lost=leaving(**lost_early, **late))
    parameters = agreed(ready, **options)
    assert tuple(home.gather(invite_to(parameters)).ready) == ready
    result = home.sum(parameters)
    assert result.outputs[0].survivors == ready[1:-1]
    assert result.dropped == {upload: (1, 12)}
    everyone = Watched.of(protocol, clients, lost=leaving(**dict.fromkeys(lost_early, upload), **late))
    with pytest.raises(TooManyDropouts):
        everyone.whole(agreed(clients, **options))


# Dropout


def stages_of(protocol):
    return (*protocol.stages, "Dispatch", "Store")


@pytest.mark.parametrize(
    ("name", "stage"), [(name, stage) for name, (protocol, _) in PROTOCOLS.items() for stage in stages_of(protocol)]
)
def test_dropped_names_the_first_request_that_was_not_answered(name, stage):
    protocol, options = PROTOCOLS[name]
    parameters = agreed(**options)
    home = Watched.of(protocol, lost=leaving(u3=stage))
    result = home.whole(parameters)
    never = stage == "RemoveNoise" or (stage == "Agree" and not parameters.is_malicious)
    assert (stage not in home.written) is never  # all told their seeds; nobody has to sign
    assert result.dropped == ({} if never else {stage: (3,)})


def test_dropped_names_who_helps_nobody():
    parameters = agreed()
    owing = next(u for u, ks in parameters.due(0, IDS).items() if ks and u != 3)
    home = Watched.of(SECAGG, lost=leaving(**{f"u{owing}": "Unmask", "u3": "RemoveNoise"}))
    result = home.whole(parameters)
    assert result.dropped == {"Unmask": (owing,), "RemoveNoise": (3,)}
    assert not result.outputs[0].stayed


def test_whoever_raises_is_said_to_refuse():
    home = Watched.of(SECAGG)
    home.gather(invite_to(agreed()))
    home.members[4].owner.refuses = "attend"
    assert home.sum(agreed()).dropped == {"refused": (4,)}


@every_protocol
def test_whoever_leaves_the_noise_left_is_that_of_the_plan(protocol, options):
    stages = protocol.stages
    home = Watched.of(protocol, lost=leaving(u3=stages[0], u6=stages[protocol.upload]))
    (output,) = home.whole(agreed(**options)).outputs
    survivors = tuple(u for u in IDS if u not in (3, 6))
    assert output.survivors == survivors
    n, T, colluders = len(IDS), len(IDS) - 5, 1
    target = VARIANCE * (n - T) / (n - T - colluders)
    assert target <= output.left <= target * 1.001
    assert output.charged >= VARIANCE


# The ledger


@every_protocol
def test_the_charge_comes_once_and_before_the_first_request_that_discloses(protocol, options):
    home = Watched.of(protocol)
    home.whole(agreed(chunks=CHUNKS, **options), gate=PrivacyGate(charge=lambda dropped: home.written.append("charge")))
    disclosing = [request.__name__ for request in protocol.requests if request.discloses]
    assert home.written.count("charge") == 1
    assert home.written.index("charge") < min(home.written.index(name) for name in disclosing)
    uploads = [request.__name__ for request in protocol.requests if request.uploads]
    assert home.written.index(uploads[0]) < home.written.index("charge")


@every_protocol
def test_what_owners_may_count_is_told_once_and_before_the_first_request_for_data(protocol, options):
    """Also of clients who then do not answer: nobody knows whether they counted."""
    stages, told = protocol.stages, []
    home = Watched.of(protocol, lost=leaving(u3=stages[0], u6=stages[protocol.upload]))
    home.whole(
        agreed(chunks=CHUNKS, **options), gate=PrivacyGate(lambda asked: told.append((len(home.written), {*asked})))
    )
    ((when, asked),) = told
    assert asked == {*IDS} - {3}
    uploads = [request.__name__ for request in protocol.requests if request.uploads]
    assert not {*uploads} & {*home.written[:when]}


@every_protocol
def test_the_charge_is_told_how_many_are_lost_where_that_is_known(protocol, options):
    told = []
    home = Watched.of(protocol, lost=leaving(u3=protocol.stages[0]))
    home.whole(agreed(**options), gate=PrivacyGate(charge=told.append))
    assert told == [{0: 1}]


@every_protocol
def test_nothing_is_disclosed_if_the_charge_fails(protocol, options):
    home = Watched.of(protocol)

    def refuse(dropped):
        raise BudgetExceeded(1, 9.0, 6.0)

    with pytest.raises(BudgetExceeded):
        home.whole(agreed(chunks=CHUNKS, **options), gate=PrivacyGate(charge=refuse))
    disclosing = {request.__name__ for request in protocol.requests if request.discloses}
    assert not disclosing & {*home.written}
    assert not delivered(home)


def test_nothing_is_charged_for_a_round_that_fails_before():
    home = Watched.of(SECAGG, lost=leaving(u1="CollectInput", u2="CollectInput", u3="CollectInput"))
    charged = []
    with pytest.raises(TooManyDropouts):
        home.whole(agreed(), gate=PrivacyGate(charge=lambda dropped: charged.append(1)))
    assert not charged


# What is counted and told


@every_protocol
def test_the_bytes_of_all_messages_are_counted_and_those_of_the_model(protocol, options):
    home = Watched.of(protocol)
    parameters = agreed(chunks=2, **options)
    gathered = home.gather(invite_to(parameters))
    first = dict(home.bytes)
    assert (gathered.up, gathered.down, gathered.model_bytes) == (first["up"], first["down"], first["model"])
    assert gathered.model_bytes > len(IDS) * len(MODEL.data)
    result = home.sum(parameters)
    assert result.up == home.bytes["up"] - first["up"]
    assert result.down == home.bytes["down"] - first["down"]


def test_without_a_meter_nothing_is_counted():
    home = Watched.of(PLAINTEXT)
    home.engine._meter = None
    gathered = home.gather(invite_to(agreed()))
    result = home.sum(agreed())
    assert (gathered.up, gathered.down, gathered.model_bytes, result.up, result.down) == (None,) * 5


def test_every_stage_is_told_when_it_begins_and_timed():
    home, told = Watched.of(SECAGG), []
    parameters = agreed(mode=MALICIOUS)
    home.gather(invite_to(parameters))
    result = home.engine.sum(AgreedRound(parameters, skellam()), told.append)
    names = ["AdvertiseKeys", "ShareKeys", "DeliverShares", "PrepareInput", "CollectInput", "Agree", "Unmask"]
    asked = [event.stage for event in told if isinstance(event, StageBegan) and event.clients]
    assert asked == [*names, "Dispatch", "Store"]
    assert list(result.stages) == [
        "advertise keys", "share keys", "deliver shares", "prepare inputs", "collect inputs", "agree", "unmask",
        "release secrets", "remove noise", "decode", "dispatch", "store",
    ]  # fmt: skip
    assert all(seconds >= 0 for seconds in result.stages.values())
    assert result.timeline.completion > 0


def test_a_result_does_not_show_the_sum():
    result = Watched.of(SECAGG).whole(agreed(mode=SEMI_HONEST))
    assert "array" not in repr(result)
