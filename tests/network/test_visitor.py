"""A client that visits: it fetches tasks until the run is over, and the model that a task names."""

from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest

from dordis.errors import Aborted, BeaconNotPublished, HistoryContradicted, LoginRefused
from dordis.identity.keys import load_client_credentials
from dordis.ledger.receipt import read_receipt_files
from dordis.network.authentication import LoginCredentials
from dordis.network.client_transfers import Address
from dordis.network.visitor import RunOver, Visitor
from dordis.owner.receipts import Attended, KeptReceipts, Shown
from dordis.protocol import ClientId
from dordis.protocols.plaintext import PLAINTEXT
from dordis.records.run_records import RECEIPTS, load_run
from dordis.rounds.app import RoundInfo
from tests.adversary.receipts import finished, job_of, registry_of
from tests.network.test_visits import MODEL, Visits, run

pytestmark = pytest.mark.network


@pytest.fixture
def visits(folder):
    visits = Visits(folder)
    yield visits
    visits.server.stop()


def visitor(visits, u=1):
    own = load_client_credentials(visits.folder / f"c{u}.key", datetime.now(UTC))
    address = Address("localhost", visits.server.port)
    return Visitor(address, LoginCredentials(own), lambda welcome: None, PLAINTEXT, 0.1)


def test_a_task_is_fetched_once_until_the_run_is_over(visits):
    async def visit():
        own = visitor(visits)
        assert await own._fetch_task() is None
        visits.open()
        assert await own._fetch_task() == (b"task 5", None)
        visits.endpoint.end_run()
        with pytest.raises(RunOver):
            await own._fetch_task()
        return own._requests.connected

    connected = run(visit())
    assert connected.requests == 1
    assert connected.seconds > 0


def test_a_client_that_is_no_member_is_told_so(visits):
    authenticator = visits.endpoint._authenticator
    authenticator.registry = authenticator.registry.restrict([2, 3])
    with pytest.raises(LoginRefused, match="client 1 is unknown to this run"):
        run(visitor(visits)._fetch_task())


def test_a_model_is_fetched_whole(visits):
    class Named:
        model, model_bytes, dtype = MODEL.digest, len(MODEL.data), MODEL.dtype

    class OneTask:
        invite = Named

    async def visit():
        visits.open()
        return await visitor(visits)._model(OneTask)

    assert run(visit()).digest == MODEL.digest


class Member:
    """The client of a run that a visitor has joined."""

    me, members = ClientId(1), registry_of(job_of()).signing_keys()


def joined(visits, tmp_path, altered=None):
    """Return a visitor that was in both rounds of a run, with the history that it was shown."""
    path = finished()[0]
    own, stored = visitor(visits), load_run(path)
    own._receipts, run = KeptReceipts(tmp_path / "kept"), stored.id
    shown = [Shown(i, one.digest, one) for i, one in sorted(read_receipt_files(path / RECEIPTS).items())]
    shown = [altered(one) for one in shown] if altered else shown
    own._receipts._add(run, [*(Attended(one.index, one.receipt.parameters) for one in shown), shown[0]])
    return own, run


@pytest.mark.parametrize("comes_with_the_task", [True, False])
def test_a_history_that_contradicts_what_the_client_kept_is_refused(visits, tmp_path, comes_with_the_task):
    def lie(entry):
        return msgspec.structs.replace(entry, digest="0" * 64) if entry.index == 0 else entry

    async def visit(own, run):
        visits.open()
        own._joined = (run, Member) if comes_with_the_task else None
        document, shown = await own._fetch_task()
        assert (document, shown is not None) == (b"task 5", comes_with_the_task)
        await own._check_history(Member, run, shown)

    own, id = joined(visits, tmp_path)
    run(visit(own, id))
    assert sorted(own._receipts.read(id).shown) == [0, 1]
    own, id = joined(visits, tmp_path / "other", lie)
    with pytest.raises(HistoryContradicted, match=r"round index [01]"):
        run(visit(own, id))


@pytest.mark.parametrize(
    ("error", "looks_again"),
    [(BeaconNotPublished("the beacon of round 5 is not published yet"), True), (Aborted("not selected"), False)],
)
def test_a_task_whose_beacon_is_not_published_here_yet_is_looked_at_again(visits, monkeypatch, error, looks_again):
    task = SimpleNamespace(invite=SimpleNamespace(info=RoundInfo(1, 5, bytes(32))))
    monkeypatch.setattr("dordis.network.visitor.read_task", lambda *_: task)

    async def join(_):
        return SimpleNamespace(close=lambda: None)

    async def refuse(*_):
        raise error

    async def visit():
        visits.open()
        own = visitor(visits)
        own._client, own._contribution = join, refuse
        assert await own._visit() is False
        return await own._fetch_task()

    assert run(visit()) == ((b"task 5", None) if looks_again else None)
