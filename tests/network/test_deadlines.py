"""Deadlines: one for all requests of a kind in a round, learned but for training."""

import asyncio

from dordis import wire
from dordis.config.schema import Deadlines
from dordis.network.deadlines import CLIENTS, DROPOUT, LEAST_SAMPLES, AdaptiveDeadlines, SlowClients, compile_kernels
from dordis.network.exchange import NetworkExchange
from dordis.network.messages import BodyInfo, Reply, Request
from dordis.rounds.invitation import PieceReceived, SendModel
from dordis.simulation.virtual_devices import run_virtually
from tests.network.local_server import PARAMETERS
from tests.protocols.assisted.parties import Round
from tests.rounds.parties import invite_to

SLOW = 4
"""The client that replies late."""
STAGE, LATE, PIECES = 60.0, 59.0, 12


class Ignored:
    """Upload and download endpoints without connections."""

    def begin_round(self):
        pass

    def forget(self, client, id):
        pass

    def offer(self, data):
        return BodyInfo(len(data), bytes(32))

    def withdraw(self, digest):
        pass


async def _sent_model(late):
    """Send twelve pieces of a model to two clients, one of them late; return the clients that have it, and the time."""
    loop, deadlines = asyncio.get_running_loop(), AdaptiveDeadlines(Deadlines(stage=STAGE, grace=STAGE))

    def send(u, message):
        asked = wire.decode(message, Request)
        answer = Reply(asked.id, wire.encode(PieceReceived(0)))
        loop.call_later(
            late if u == SLOW else 1.0, lambda: asked.id in exchange._open[u] and exchange.take_reply(u, answer)
        )
        return True

    exchange = NetworkExchange(send, Ignored(), Ignored(), deadlines)
    exchange.prepare(invite_to(PARAMETERS))
    receiving = {1, SLOW}
    for piece in range(PIECES):
        replies = await exchange(dict.fromkeys(sorted(receiving), SendModel(piece, b"piece")))
        while any(batch.open for batch in exchange._batches):
            await asyncio.sleep(0.5)
        receiving = {u for u, _ in replies}
        await asyncio.sleep(0)
    return receiving, loop.time()


def test_a_client_that_replies_just_in_time_costs_one_deadline_for_all_pieces():
    receiving, seconds = run_virtually(_sent_model(LATE))
    assert receiving == {1}
    assert seconds < STAGE + 2.0 * PIECES


def test_a_slow_client_within_the_deadline_of_the_whole_model_gets_it():
    receiving, _ = run_virtually(_sent_model(STAGE / PIECES - 0.5))
    assert receiving == {1, SLOW}


def test_the_deadline_of_training_follows_from_the_agreed_time_and_is_not_learned():
    deadlines = AdaptiveDeadlines(Deadlines(stage=60.0, quantile=0.5, factor=1.0, least=0.5), train_seconds=7.0)
    for kind in ("Train", "Unmask"):
        for _ in range(LEAST_SAMPLES):
            deadlines.record(kind, 1.0)
    assert deadlines.deadline("Train") == 7.0 + 60.0
    assert deadlines.deadline("Unmask") == 1.0
    assert AdaptiveDeadlines(Deadlines(train=30.0, stages={"Train": 20.0}), 7.0).deadline("Train") == 20.0
    assert AdaptiveDeadlines(Deadlines(train=30.0)).deadline("Train") == 30.0


def test_by_default_a_silent_client_costs_a_learned_deadline_and_training_is_not_learned():
    deadlines = AdaptiveDeadlines(Deadlines())
    for kind in ("Train", "CollectInput", "Unmask", "Invite"):
        for _ in range(LEAST_SAMPLES):
            deadlines.record(kind, 0.1)
    assert {deadlines.deadline(kind) for kind in ("CollectInput", "Unmask", "Invite")} == {Deadlines().least}
    assert Deadlines().least < Deadlines().stage
    assert deadlines.deadline("Train") == Deadlines().train


def test_a_slow_client_is_left_out_for_longer_each_time_and_like_others_after_a_round_in_time(caplog):
    slow, everyone = SlowClients(tolerance=1), frozenset({1, 2, 3})
    invitations = []
    for _ in range(12):
        invited = slow.without_resting(everyone)
        invitations.append(3 in invited)
        slow.end_round(invited, missed={3: "Train"})
    assert invitations == [True, False, True, False, False, True, False, False, False, False, True, False]
    assert "client 3 missed a deadline in each of its latest 4 rounds" in caplog.text
    back = SlowClients(tolerance=1)
    back.end_round(everyone, missed={3: "Train"})
    back.without_resting(everyone)
    back.end_round(everyone, missed={})
    assert not back.misses
    assert back.without_resting(everyone) == everyone


def test_no_more_clients_are_left_out_than_may_drop_out_and_the_slowest_first():
    slow, everyone = SlowClients(tolerance=2), frozenset(range(1, 9))
    slow.end_round(everyone, missed={7: "Invite"})
    slow.without_resting(everyone)
    slow.end_round(everyone, missed=dict.fromkeys((2, 3, 4, 7), "Unmask"))
    assert slow.without_resting(everyone) == everyone - {7, 2}
    assert slow.totals == {7: {"Invite": 1, "Unmask": 1}, 2: {"Unmask": 1}, 3: {"Unmask": 1}, 4: {"Unmask": 1}}


def test_one_slow_client_is_left_out_even_if_no_dropout_is_tolerated():
    slow, everyone = SlowClients(tolerance=0), frozenset({1, 2, 3})
    slow.end_round(everyone, {2: "Train", 3: "Train"})
    assert slow.without_resting(everyone) == {1, 3}


def test_helpers_have_more_time_for_more_headers_and_masks_and_their_deadlines_are_not_learned():
    """60 s, and 2 ms for each header or 5 s for 10^9 coordinates; each of four helpers is in three sets."""
    deadlines, parameters = AdaptiveDeadlines(Deadlines()), Round(n_max=9, n_min=5).parameters
    for kind in ("Introduce", "OpenBoxes", "AgreeOnSurvivors", "Reveal"):
        for _ in range(2 * LEAST_SAMPLES):
            deadlines.record(kind, 0.01)
    assert deadlines.deadline("Reveal") == 60.0
    deadlines.set_parameters(parameters)
    assert deadlines.deadline("OpenBoxes") == 60.0 + 0.002 * 9
    assert deadlines.deadline("AgreeOnSurvivors") == deadlines.deadline("Introduce") == 60.0
    assert deadlines.deadline("Reveal") == 60.0 + 5.0 * 9 * parameters.dim * 3 / 1e9
    deadlines.settings = Deadlines(stages={"Reveal": 7.0}, header=1.0)
    deadlines.set_parameters(parameters)
    assert (deadlines.deadline("OpenBoxes"), round(deadlines.deadline("Reveal"), 3)) == (69.0, 7.0)
    deadlines.set_parameters(PARAMETERS)  # of a protocol without helpers
    assert deadlines.deadline("OpenBoxes") == 60.0


def test_the_compiling_round_has_a_sum_without_the_dropout():
    output = compile_kernels()
    assert set(output.survivors) == set(CLIENTS) - {DROPOUT}
    assert output.total.any()  # zero updates, and the noise of the survivors
