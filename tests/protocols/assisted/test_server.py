"""Whole assisted rounds: the right sum, bit for bit, with any arrivals and with helpers that are lost or lie."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import TooFewClients, TooFewHelpers, Unconfirmed
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId
from dordis.protocols.assisted.disputes import Complaints
from dordis.protocols.assisted.messages import AgreeOnSurvivors, OpenBoxes, Reveal, Revealed
from dordis.protocols.noise_addition_and_removal import client_noise
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from tests.protocols.assisted.parties import BITS, Accuser, Liar, Round, Silent, lie_about_all

SIZES = {MALICIOUS: [(4, 1), (5, 1), (7, 2), (3, 1), (2, 1)], SEMI_HONEST: [(3, 1), (4, 1), (2, 1), (5, 1), (7, 2)]}


def options(m, f, mode):
    return {"abort": True} if mode == MALICIOUS and m < 3 * f + 1 else {}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_sum_is_that_of_the_plaintext_protocol_bit_for_bit(data):
    """Over (m, f), modes, schemes, arrivals, chunks, and as many lost and lying helpers as a round survives."""
    mode = data.draw(st.sampled_from([MALICIOUS, SEMI_HONEST]))
    m, f = data.draw(st.sampled_from(SIZES[mode]))
    n_max = data.draw(st.integers(4, 10))
    n_min = data.draw(st.integers(-(-n_max // 2), n_max))
    ends = data.draw(st.sampled_from([(30,), (12, 30), (1, 2, 30)]))
    round = Round(
        came=data.draw(st.integers(n_min, n_max)), n_min=n_min, n_max=n_max, m=m, f=f, mode=mode, ends=ends,
        scheme=data.draw(st.sampled_from([Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG, Scheme.NONE])),
        variances=(400, 900, 100)[: len(ends)], options=options(m, f, mode), seed=data.draw(st.integers(0, 2**16)),
    )  # fmt: skip
    lost, lying = draw_faults(data, m, f, mode)
    for h in lost:
        round.helpers[h] = Silent(
            round.helpers[h], data.draw(st.sampled_from([(OpenBoxes,), (AgreeOnSurvivors,), (Reveal,)]))
        )
    for h in lying:
        round.helpers[h] = Liar(round.helpers[h], lie_about_all)
    round.assert_right(round.play())
    assert round.served.setup.standing.helpers <= set(lying)
    assert not round.served.setup.standing.clients


def draw_faults(data, m, f, mode):
    """Draw helpers that are lost and helpers that lie, no more than the specification says a round survives."""
    if mode == SEMI_HONEST:
        faulty, liars = m - f - (1 if m > f else 0), 0
        faulty = min(faulty, m - f - 1)
    else:
        faulty = max(0, min(m - 2 * f - 1, m - ((m + f) // 2 + 1)))
        liars = data.draw(st.integers(0, min(f, faulty)))
    order = data.draw(st.permutations(range(1, m + 1)))
    lost = data.draw(st.integers(0, faulty - liars))
    return [ClientId(h) for h in order[:lost]], [ClientId(h) for h in order[lost : lost + liars]]


@pytest.mark.parametrize(("m", "f", "lying"), [(4, 1, 1), (7, 2, 2)])
@pytest.mark.parametrize("killed_at", [OpenBoxes, AgreeOnSurvivors, Reveal])
def test_lost_and_lying_helpers_do_not_change_the_sum_and_liars_are_named(m, f, lying, killed_at):
    killed = Round(m=m, f=f)
    for h in range(1, (m - 2 * f - 1) + 1):
        killed.helpers[h] = Silent(killed.helpers[h], (killed_at,))
    killed.assert_right(killed.play())
    assert killed.served.setup.standing == Complaints()
    lied = Round(m=m, f=f)
    for h in range(m, m - lying, -1):
        lied.helpers[h] = Liar(lied.helpers[h], lie_about_all)
    lied.assert_right(lied.play())
    assert lied.served.setup.standing == Complaints(helpers=frozenset(range(m - lying + 1, m + 1)))


def test_helpers_beyond_the_quorum_end_the_round_before_anything_is_disclosed():
    for kind, error in ((OpenBoxes, TooFewHelpers), (AgreeOnSurvivors, TooFewHelpers), (Reveal, Unconfirmed)):
        round = Round()
        for h in (1, 2):
            round.helpers[h] = Silent(round.helpers[h], (kind,))
        with pytest.raises(error):
            round.play()


def test_two_liars_of_four_are_noticed():
    round = Round()
    for h in (1, 2):
        round.helpers[h] = Liar(round.helpers[h], lie_about_all)
    with pytest.raises(Unconfirmed):
        round.play()


@pytest.mark.parametrize("count", [1, 2])
def test_a_digest_without_its_whole_and_the_reverse_prove_a_liar(count):
    """A helper whose digest is right and whose whole is not, and one that does the opposite."""

    def wrong_wholes(reply):
        masks = bytearray(reply.masks)
        masks[:1] = bytes([masks[0] ^ 1]) if masks else b""
        return Revealed(reply.digests, reply.pieces, bytes(masks))

    def wrong_digests(reply):
        return Revealed({rank: bytes(32) for rank in reply.digests}, reply.pieces, reply.masks)

    alter = (wrong_wholes, wrong_digests)[count - 1]
    for h in (1, 2, 3, 4):
        round = Round()
        round.helpers[h] = Liar(round.helpers[h], alter)
        round.assert_right(round.play())
        assert round.served.setup.standing.helpers == {h}


def test_a_malformed_reply_names_its_helper():
    round = Round()
    round.helpers[2] = Liar(round.helpers[2], lambda reply: Revealed({}, {}, b""))
    round.assert_right(round.play())
    assert round.served.setup.standing.helpers == {2}


def test_an_accused_client_is_left_out_and_its_vector_subtracted():
    round = Round(came=8)
    round.helpers[3] = Accuser(round.helpers[3], (2,))
    survivors = [u for u in round.inputs if u != 2]
    round.assert_right(round.play(), survivors)
    standing = round.served.setup.standing
    assert standing == Complaints(edges=frozenset({(3, 2)}))
    again = Round(came=8)
    server = again.server()
    server.setup.standing = standing
    again.assert_right(again.play(server), survivors)
    assert [u for u, _ in again.exchange.errors] == [2]


def test_a_helper_that_accuses_more_clients_than_can_collude_is_evicted_and_they_stay():
    round = Round(came=8)
    round.helpers[3] = Accuser(round.helpers[3], (2, 5))
    round.assert_right(round.play())
    assert round.served.setup.standing == Complaints(helpers=frozenset({3}))


def test_complaints_of_a_run_are_judged_by_the_colluders_of_the_registry():
    """Colluders of several rounds may complain of an honest helper: together they are more than T_C of one round."""
    for run_colluders, expected in (
        (None, Complaints(helpers=frozenset({3}))),
        (2, Complaints(edges=frozenset({(3, 2), (3, 5)}))),
    ):
        round = Round(came=8)
        round.helpers[3] = Accuser(round.helpers[3], (2, 5))
        server = round.server()
        server.setup.run_colluders = run_colluders
        round.play(server)
        assert server.setup.standing == expected


def test_helpers_without_a_key_are_silent_and_the_sum_is_right():
    for absent in ((1,), (4,)):
        round = Round(absent=absent)
        round.assert_right(round.play())
    round = Round(m=7, f=2, absent=(2, 7))
    round.assert_right(round.play())


def test_too_few_arrivals_end_the_round_before_helpers_are_asked():
    round = Round(came=4)
    with pytest.raises(TooFewClients):
        round.play()
    assert not round.exchange.helper_seconds


def test_too_few_are_left_after_complaints():
    round = Round(came=5)
    round.helpers[3] = Accuser(round.helpers[3], (2,))
    with pytest.raises(TooFewClients):
        round.play()


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
@pytest.mark.parametrize("came", range(5, 10))
def test_the_noise_left_is_the_planned_one_for_every_number_of_arrivals(scheme, came):
    round = Round(came=came, scheme=scheme)
    for chunk, output in enumerate(round.play()):
        plan = round.parameters.plans[chunk]
        assert plan.kappa * plan.variance <= output.left <= plan.kappa * plan.variance * (1 + Fraction(1, 1000))
        assert output.charged >= plan.variance


def test_every_helper_is_asked_for_about_as_much():
    round = Round()
    asked = {}
    for h, helper in round.helpers.items():
        handle = helper.handle

        def seen(request, h=h, handle=handle):
            if isinstance(request, Reveal):
                asked[h] = sorted(request.sets.values())
            return handle(request)

        helper.handle = seen
    round.play()
    assert asked == {h: [False, True] for h in range(1, 5)}


@pytest.mark.parametrize("came", range(10, 21))
def test_measured_from_zero_updates_the_noise_is_the_planned_one_for_every_number_of_arrivals(came):
    """Over 2^16 coordinates; with the noise of T_C colluders subtracted at least sigma*^2 is left."""
    dim, sigma = 1 << 16, 10_000
    round = Round(came=came, n_min=10, n_max=20, ends=(dim,), variances=(sigma,), colluders=2, seed=came)
    for client in round.clients.values():
        client.input.vector[:] = 0
    (output,) = round.play()
    plan, due = round.parameters.plans[0], round.parameters.due(0, output.survivors)
    assert 0.975 <= spread(output.total) / float(plan.kappa * sigma) <= 1.025
    richest = sorted(round.inputs, key=lambda u: len(due[u]))[: plan.colluders]
    for u in richest:
        base, *removable = client_noise(round.parameters, 0, round.clients[u].issued(0))
        output.total[:] -= base + sum(noise for k, noise in enumerate(removable) if k not in due[u])
    assert spread(output.total) >= 0.975 * sigma
    assert output.charged >= sigma


def spread(total):
    """Return the mean square of a sum over the ring, taken as signed numbers."""
    signed = (total << np.uint32(32 - BITS)).view(np.int32) >> (32 - BITS)
    return float(np.mean(np.square(signed.astype(np.float64))))
