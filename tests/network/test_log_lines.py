"""Log lines: one for each event, in UTC, with run and round, without control characters, tracebacks and secrets."""

import base64
import json
import logging

import pytest
from cryptography.hazmat.primitives import serialization

from dordis.errors import ParametersRefused
from dordis.identity.keys import load_keys
from dordis.network.log_lines import ClientRoundLog, LineFormatter, round_fields
from tests.network.deployed_run import DeployedRun
from tests.network.raw_client import open_tls, read_to_end

RUN = bytes(range(32))


def record(message, *arguments, **fields):
    made = logging.LogRecord("dordis.network", logging.WARNING, "", 0, message, arguments, None)
    made.created = 0.0
    vars(made).update(fields)
    return made


def test_a_line_has_time_in_utc_level_and_the_round_that_was_named_last():
    text = LineFormatter()
    assert text.format(record("begins", **round_fields(RUN, 3))) == (
        "1970-01-01T00:00:00.000Z WARNING run=00010203 round=3 begins"
    )
    assert text.format(record("client %d left", 7, client=7, request=12)) == (
        "1970-01-01T00:00:00.000Z WARNING run=00010203 round=3 client=7 request=12 client 7 left"
    )


def test_json_lines_have_the_same_fields():
    formatter = LineFormatter(as_json=True)
    formatter.format(record("begins", **round_fields(RUN, 3)))
    event = json.loads(formatter.format(record("client %d left", 7, client=7, request=12)))
    assert event == {
        "time": "1970-01-01T00:00:00.000Z", "level": "warning", "run": RUN.hex(), "round": 3, "client": 7,
        "request": 12, "event": "client 7 left",
    }  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True])
def test_text_of_others_makes_no_line_and_no_control_sequence(as_json):
    line = LineFormatter(as_json).format(record("refused: %s", "x\n1970 INFO forged\x1b[2J\r\u2028"))
    assert line.isprintable()


def test_a_client_logs_one_line_for_each_round(caplog):
    caplog.set_level(logging.INFO)
    rounds = ClientRoundLog(lambda: "epsilon 1.5 of 6 is spent")
    rounds.begin(RUN, 1)
    for _ in range(3):  # chunks
        rounds.take_part()
    rounds.begin(RUN, 1)  # the invitation comes again after a reconnection
    rounds.take_part()
    rounds.begin(RUN, 2)
    rounds.decline(ParametersRefused("the budget does not cover this round"))
    for index in (3, 4):
        rounds.begin(RUN, index)
    for _ in range(2):
        rounds.end()
    assert [(line.round, line.message) for line in caplog.records] == [
        (1, "invited, took part: the update is uploaded; epsilon 1.5 of 6 is spent"),
        (2, "invited, declined: the budget does not cover this round"),
        (3, "invited, did not take part: the server asked for no update"),
        (4, "invited, did not take part: the server asked for no update"),
    ]


@pytest.mark.network
@pytest.mark.parametrize(
    "sent",
    [b"\x00\xff\r\n\r\n", b"GET /login HTTP/1.1\r\nHost: \x01\r\n\r\n", b"GET / HTTP/1.1\r\nA" + b"b" * 20000],
    ids=["no HTTP", "a control character", "a long header"],
)
def test_a_malformed_request_leaves_no_traceback(challenging, caplog, sent):
    connection = open_tls(challenging)
    connection.sendall(sent)
    read_to_end(connection)
    lines = [LineFormatter().format(one) for one in caplog.records]
    assert not [line for line in lines if "Traceback" in line or "\n" in line]


@pytest.mark.network
@pytest.mark.slow
def test_the_logs_of_a_deployed_run_name_each_round_and_hold_no_secret(processes, tmp_path):
    keys = ["federation.rounds=2", "app.options.dim=100000", "deployment.wait=600", "protocol.tolerance=1"]
    fleet = DeployedRun(processes, tmp_path, 4, keys)
    fleet.serve()
    for u in range(1, 5):
        fleet.join(u)
    assert fleet.end() == 0
    logs = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    for u in range(1, 5):
        assert logs[f"c{u}.log"].count("invited, took part") == 2
        assert "has spent epsilon" in logs[f"c{u}.log"]
    assert logs["server.log"].count("the round begins") == 2
    drawn = [secret for path in tmp_path.glob("*.key") for secret in secrets_in(path)]
    drawn.append((fleet.run / "selection.key").read_bytes())
    assert len(drawn) == 5 + 2 * 4 + 1
    seeds = {seed for path in tmp_path.glob("*.seeds") for seed in path.read_text().split()}
    assert len(seeds) >= 2 * 4 * 5  # rounds, clients, and the seeds of masks, upload and noise of at least one chunk
    drawn += map(bytes.fromhex, seeds)
    for secret in drawn:
        for form in (secret.hex(), base64.b64encode(secret).decode().rstrip("="), repr(secret)[2:-1]):
            assert not [name for name, text in logs.items() if form in text]


def secrets_in(path):
    """Return the private keys of a key file as bytes."""
    private = load_keys(path)
    number = private.tls.private_numbers().private_value
    assert private.tls.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).count(number.to_bytes(32)) == 1  # fmt: skip
    return [number.to_bytes(32), *([private.keys.signing, private.keys.vrf] if private.keys else [])]
