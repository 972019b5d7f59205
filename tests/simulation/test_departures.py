"""Who leaves a round: nothing reaches a client from the request on at which it does, even if that one never comes."""

import pytest

from dordis.protocol import requests_in
from dordis.protocols import delivery
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import Agree, CollectInput, PrepareInput, ShareKeys, Unmask
from dordis.rounds import invitation
from dordis.rounds.invitation import SendModel, Train
from dordis.simulation.departures import Departures

INVITED = (1, 2, 3, 4)


class Script:
    """Some are there, and some of those leave."""

    def __init__(self, there=INVITED, **leaving):
        self.there, self.told = frozenset(there), {int(name[1:]): stage for name, stage in leaving.items()}
        self.asked = []

    def available(self, index, clients):
        self.asked.append(index)
        return self.there.intersection(clients)

    def leaving(self, index, clients):
        return {u: stage for u, stage in self.told.items() if u in clients}


def begun(protocol=SECAGG, **script):
    departures = Departures(Script(**script), protocol)
    departures.begin(7, INVITED)
    return departures


def blank(kind):
    """Return a request of a kind; what is in it does not matter here."""
    return kind(*[0] * len(kind.__struct_fields__))


def all_requests(protocol):
    return (*requests_in(vars(invitation)), *protocol.requests, *requests_in(vars(delivery)))


@pytest.mark.parametrize("protocol", [SECAGG, PLAINTEXT], ids=lambda protocol: protocol.name)
def test_who_leaves_at_a_request_answers_it_no_more_nor_any_after_it(protocol):
    order = [kind for kind in all_requests(protocol) if not kind.ahead]
    for place, stage in enumerate(order):
        departures = begun(protocol, u2=stage.__name__)
        lost = [departures.lost(2, blank(kind)) for kind in order]
        assert lost == [False] * place + [True] * (len(order) - place)
        assert not any(departures.lost(1, blank(kind)) for kind in order)


def test_a_request_that_never_comes_is_passed_by():
    departures = begun(u2="Agree")
    assert not departures.lost(2, CollectInput(0))
    assert departures.lost(2, Unmask(0, b""))


def test_whoever_is_gone_stays_gone_in_every_chunk():
    departures = begun(u2="Agree")
    assert departures.lost(2, Agree(0, b"", b""))
    assert departures.lost(2, CollectInput(1))
    assert departures.lost(2, PrepareInput(1))


def test_working_ahead_is_no_request_to_leave_at():
    departures = begun(u2="CollectInput")
    assert not departures.lost(2, PrepareInput(0))
    assert departures.lost(2, CollectInput(0))


def test_whoever_is_not_there_leaves_at_once():
    departures = begun(there=(1, 3), u3="Unmask", u4="ShareKeys")
    assert departures.leaving == {2: "Invite", 3: "Unmask", 4: "Invite"}
    assert [departures.is_early(u) for u in INVITED] == [False, True, False, True]
    assert departures.lost(2, blank(invitation.Invite))


def test_a_client_may_leave_between_the_invitation_and_the_round():
    departures = begun(u1="Train")
    assert departures.is_early(1)
    assert not departures.lost(1, SendModel(0, b""))
    assert departures.lost(1, Train())


def test_every_round_begins_anew():
    script = Script(u2="ShareKeys")
    departures = Departures(script, SECAGG)
    departures.begin(0, INVITED)
    assert departures.lost(2, ShareKeys({}))
    script.told = {3: "ShareKeys"}
    departures.begin(1, INVITED)
    assert not departures.lost(2, ShareKeys({}))
    assert departures.lost(3, ShareKeys({}))
    assert script.asked == [0, 1]


def test_who_is_there_is_asked_of_the_model():
    assert begun(there=(2, 3)).present(5, [1, 2]) == {2}
