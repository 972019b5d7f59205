"""Parameters that break a rule are refused by the server and by every client, and the hash binds all of them."""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis import wire
from dordis.errors import Aborted, InputError, MalformedMessage, ParametersRefused
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import CohortParameters, agree_on
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.parameters import check_tables
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.simulation.exchange import LocalExchange

AGREED = {
    "run": bytes(range(32)),
    "index": 1,
    "clients": range(1, 11),
    "threshold": 5,
    "tolerance": 4,
    "colluders": 1,
    "bits": 16,
    "ends": [3, 7],
    "scheme": Scheme.SINGLE,
    "variances": [5, Fraction(7, 2)],
}
P = agree_on(**AGREED)
ME = 4


def words(*numbers):
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def variance(text):
    return {"variances": {0: text, 1: "7/2"}}


REFUSED = {
    "no such mode": ({"mode": "friendly"}, "mode"),
    "mode left empty": ({"mode": ""}, "mode"),
    "round id too short": ({"round": bytes(39)}, "round id"),
    "round id too long": ({"round": bytes(41)}, "round id"),
    "no members": ({"members": b""}, "eight bytes"),
    "half a member": ({"members": words(1, 2, 3, 4, 5, 6, 7, 8, 9) + b"1234"}, "eight bytes"),
    "members unsorted": ({"members": words(2, 1, 3, 4, 5, 6, 7, 8, 9, 10)}, "ascending"),
    "a member twice": ({"members": words(1, 1, 3, 4, 5, 6, 7, 8, 9, 10)}, "distinct"),
    "a member too large": ({"members": words(1, 2, 3, 4, 5, 6, 7, 8, 9, 2**63)}, "2\\^63"),
    "t = 0": ({"threshold": 0, "quorum": 0, "colluders": 0}, "must lie in 1..10"),
    "t < 0": ({"threshold": -1, "quorum": -1, "colluders": 0}, "must lie in 1..10"),
    "t > n": ({"threshold": 11, "quorum": 11, "n_min": 10, "fraction": 1}, "must lie in 1..10"),
    "T < 0": ({"n_min": 11}, "tolerance"),
    "n_min = 0": ({"n_min": 0, "colluders": 0, "fraction": 1}, "tolerance"),
    "n_max > n": ({"n_max": 11}, "n_max is the number"),
    "T > n - t": ({"n_min": 4, "fraction": 1}, "tolerance"),
    "T_C < 0": ({"colluders": -1}, "colluders"),
    "T_C = t": ({"colluders": 5}, "colluders"),
    "T_C huge": ({"colluders": 2**63}, "colluders"),
    "no bits": ({"bits": 0}, "bits"),
    "too many bits": ({"bits": 33}, "bits"),
    "no chunks": ({"ends": b"", "variances": {}}, "chunks"),
    "half an end": ({"ends": words(3, 7) + b"123"}, "chunks"),
    "an empty chunk": ({"ends": words(7, 7)}, "ascending"),
    "an empty first chunk": ({"ends": words(0, 7)}, "ascending"),
    "chunks backwards": ({"ends": words(7, 3)}, "ascending"),
    "a vector too long": ({"ends": words(3, 2**31 + 1)}, "2\\^31"),
    "no such scheme": ({"scheme": "more"}, "scheme"),
    "scheme by its name": ({"scheme": "SINGLE"}, "scheme"),
    "noise without a scheme": ({"scheme": "none"}, "variance 0"),
    "c = 0": ({"fraction": 0}, "c must be"),
    "c < 0": ({"fraction": -1}, "c must be"),
    "c > n / T": ({"fraction": 3}, "c <= n / T"),
    "reserve < 0": ({"reserve": -1}, "reserve"),
    "reserve = n - T_C": ({"reserve": 9}, "reserve"),
    "a variance too few": ({"variances": {0: "5"}}, "one noise variance"),
    "a variance too many": ({"variances": {0: "5", 1: "7/2", 2: "1"}}, "one noise variance"),
    "a variance for no chunk": ({"variances": {0: "5", 2: "7/2"}}, "one noise variance"),
    "no variance": ({"variances": {}}, "one noise variance"),
    "variance 0": (variance("0"), "positive"),
    "variance off the grid": (variance("1/3"), "2\\^-20"),
    "variance finer than the grid": (variance(f"1/{2**21}"), "2\\^-20"),
    "variance too large for a table": (variance(str(10**12)), "10\\^10"),
}
"""Fields that replace agreed ones, and what the refusal must speak of."""

MISWRITTEN = ["10/2", "7/1", "-5", "+5", "1/0", "0/0", "nan", "inf", "1e3", "5.0", " 5", "5 ", "05", "", "/", "1//2"]
MISWRITTEN += ["1/2/3", "-1/2", "5\n", "1_0", "٥", "½", "five", "/3", "3/", "1" * 5000, "1/" + "1" * 5000]
REFUSED |= {f"variance {text[:9]!r}": (variance(text), "reduced fraction") for text in MISWRITTEN}


def replaced(fields):
    return msgspec.structs.replace(P, **fields)


def refuses_as_a_client(parameters):
    """Return what a client raises; it must not have drawn a secret nor sent a byte, and must be gone for good."""
    drawn = []
    client = SecAggClient(
        ME, NoisyInput(np.zeros(7, np.uint32)), entropy=lambda size: drawn.append(size) or bytes(size)
    )
    exchange = LocalExchange({ME: client})
    assert list(exchange({ME: AdvertiseKeys(parameters)})) == []
    assert not exchange.sent
    assert not drawn
    assert not client.state.secrets
    with pytest.raises(Aborted):
        client.handle(AdvertiseKeys(P))
    ((_, error),) = exchange.errors
    return error


def test_the_agreed_parameters_are_accepted():
    SecAggServer(P)
    client = SecAggClient(ME, NoisyInput(np.zeros(7, np.uint32)))
    exchange = LocalExchange({ME: client})
    assert len(list(exchange({ME: AdvertiseKeys(P)}))) == 1


@pytest.mark.parametrize("fields", [{"tables": bytes(32)}, {"tables": b""}, variance("6")])
def test_tables_of_other_noise_are_refused(fields):
    check_tables(P)
    with pytest.raises(ParametersRefused, match="tables"):
        check_tables(replaced(fields))


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED)
def test_the_server_refuses_parameters_that_break_a_rule(fields, reason):
    with pytest.raises(ParametersRefused, match=reason):
        SecAggServer(replaced(fields))


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_client_refuses_parameters_that_break_a_rule_before_it_sends_anything(fields, reason):
    error = refuses_as_a_client(replaced(fields))
    assert isinstance(error, ParametersRefused)
    with pytest.raises(ParametersRefused, match=reason):
        raise error


@pytest.mark.parametrize(
    "fields",
    [
        {"threshold": 11},
        {"threshold": 0, "colluders": 0, "tolerance": 0},
        {"tolerance": 6},
        {"tolerance": -1},
        {"colluders": 5},
        {"colluders": -1},
        {"bits": 0},
        {"bits": 33},
        {"run": bytes(31)},
        {"clients": [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]},
        {"clients": [1, 2, 3, 4, 5, 6, 7, 8, 9, 2**63]},
        {"clients": []},
        {"ends": []},
        {"ends": [7, 3]},
        {"ends": [0, 7]},
        {"ends": [3, 2**31 + 1]},
        {"variances": [5]},
        {"variances": [5, 5, 5]},
        {"variances": [5, -5]},
        {"variances": [5, 0]},
        {"variances": [5, Fraction(1, 3)]},
        {"variances": [5, 10**12]},
        {"variances": None},
        {"scheme": Scheme.NONE},
        {"fraction": 0},
        {"fraction": 3},
        {"reserve": 9},
        {"mode": "friendly"},
    ],
    ids=str,
)
def test_a_round_that_breaks_a_rule_is_not_agreed_on(fields):
    with pytest.raises(ParametersRefused):
        agree_on(**AGREED | fields)


@pytest.mark.parametrize(
    "fields",
    [{"clients": [-1, *range(9)]}, {"clients": [2**64, *range(9)]}, {"ends": [-3, 7]}, {"index": -1}, {"index": 2**64}],
    ids=str,
)
def test_a_number_that_does_not_fit_its_field_is_refused(fields):
    with pytest.raises(InputError):
        agree_on(**AGREED | fields)


def test_a_client_refuses_a_round_without_itself():
    error = refuses_as_a_client(replaced({"members": words(1, 2, 3, 5, 6, 7, 8, 9, 10, 11)}))
    assert isinstance(error, ParametersRefused)


def test_a_client_refuses_a_round_for_vectors_of_another_length():
    assert isinstance(refuses_as_a_client(agree_on(**AGREED | {"ends": [3, 8]})), InputError)


def test_limits_themselves_are_allowed():
    n = 10
    for fields in (
        {"bits": 1},
        {"bits": 32},
        {"threshold": n, "tolerance": 0},
        {"threshold": 2, "tolerance": n - 2, "fraction": 1},
        {"threshold": 1, "colluders": 0, "tolerance": n - 1, "fraction": 1},
        {"colluders": 4},
        {"reserve": 8},
        {"ends": [1, 2**31]},
        {"variances": [Fraction(1, 2**20), 10**9]},
        {"clients": [*range(9), 2**63 - 1]},
    ):
        SecAggServer(agree_on(**AGREED | fields))


@pytest.mark.parametrize("n", [2, 3, 7, 10, 50, 101])
def test_by_default_four_fifths_of_those_who_can_be_missed_may_drop_before_the_upload(n):
    for t in range(2, n + 1):
        p = agree_on(
            run=bytes(32), index=0, clients=range(n), threshold=t, bits=8, ends=[1], scheme=Scheme.NONE, variances=[0]
        )
        assert p.tolerance == int(Fraction(8, 10) * (n - t) // 1)
        assert p.colluders == 1


def another(value):
    """Return a different value that the wire can carry."""
    match value:
        case bytes():
            return value + b"x"
        case str():
            return value + "x"
        case int() | float():
            return value + 1
        case dict():
            return {key: another(item) for key, item in value.items()} or {0: "x"}
        case msgspec.Struct():
            name = value.__struct_fields__[0]
            return msgspec.structs.replace(value, **{name: another(getattr(value, name))})
    return "x"


@pytest.mark.parametrize("name", CohortParameters.__struct_fields__)
def test_the_hash_changes_with_every_field(name):
    assert replaced({name: another(getattr(P, name))}).digest != P.digest


@pytest.mark.parametrize("name", P.encoding.__struct_fields__)
def test_the_hash_changes_with_every_field_of_the_encoding(name):
    changed = msgspec.structs.replace(P.encoding, **{name: another(getattr(P.encoding, name))})
    assert replaced({"encoding": changed}).digest != P.digest


def test_the_hash_survives_the_wire_and_names_the_round():
    assert wire.decode(wire.encode(P), CohortParameters).digest == P.digest
    assert len(P.digest) == 32
    assert agree_on(**AGREED | {"index": 2}).digest != P.digest


def sized(n):
    return agree_on(run=bytes(32), index=0, clients=range(0, 3 * n, 3), threshold=1, colluders=0, bits=8, ends=[1])


SIZES = {n: sized(n) for n in (1, 7, 8, 9, 16, 33)}


@given(st.sampled_from(sorted(SIZES)), st.data())
def test_a_set_of_clients_survives_its_bitmap(n, data):
    p = SIZES[n]
    members = data.draw(st.sets(st.sampled_from(p.clients)))
    bitmap = p.pack(members)
    assert p.unpack(bitmap) == tuple(sorted(members))
    assert bitmap == sum(2 ** (u // 3) for u in members).to_bytes(-(-n // 8), "little")


@given(st.sampled_from(sorted(SIZES)), st.binary(max_size=8))
def test_bytes_are_the_bitmap_of_one_set_or_refused(n, data):
    p = SIZES[n]
    if len(data) == -(-n // 8) and int.from_bytes(data, "little") < 2**n:
        assert p.pack(p.unpack(data)) == data
    else:
        with pytest.raises(MalformedMessage):
            p.unpack(data)


@pytest.mark.parametrize(("n", "bitmap"), [(8, b""), (8, b"\1\0"), (9, b"\1"), (9, b"\0\2"), (7, b"\x80"), (1, b"\2")])
def test_a_bitmap_of_the_wrong_length_or_with_padding_is_refused(n, bitmap):
    with pytest.raises(MalformedMessage):
        SIZES[n].unpack(bitmap)
