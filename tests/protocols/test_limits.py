"""Ceilings: a value at its ceiling is accepted, a larger one is refused before anything is computed from it."""

import re
from pathlib import Path

import msgspec
import pytest

from dordis import wire
from dordis.errors import MalformedMessage, ParametersRefused
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols import limits
from dordis.protocols import parameters as module
from dordis.protocols.cohort import CohortParameters, agree_on
from dordis.protocols.limits import check_ceilings, check_components, check_places
from dordis.protocols.parameters import Encoding, check_rules
from dordis.protocols.secagg.messages import AdvertiseKeys

GOOD = agree_on(run=bytes(32), index=0, clients=range(1, 8), threshold=5, bits=16, ends=[4], variances=[8])
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ceilings.md"


def words(count: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in range(1, count + 1))


def changed(**changes: object) -> CohortParameters:
    encoding = {name: changes.pop(name) for name in list(changes) if name in Encoding.__struct_fields__}
    changes |= {"encoding": msgspec.structs.replace(GOOD.encoding, **encoding)} if encoding else {}
    return msgspec.structs.replace(GOOD, **changes)


def sized(most: int, **make: object) -> tuple[dict[str, object], dict[str, object]]:
    """Return the changes that are at a ceiling, and those beyond it."""
    at, beyond = ({name: of(size) for name, of in make.items()} for size in (most, most + 1))
    return at, beyond


AT_AND_BEYOND = {
    "clients": sized(limits.MOST_CLIENTS, members=words),
    "clients in a sum": sized(limits.MOST_CLIENTS, n_max=int),
    "chunks": sized(limits.MOST_CHUNKS, ends=words),
    "variances": sized(limits.MOST_CHUNKS, variances=lambda count: dict.fromkeys(range(count), "8")),
    "different variances": sized(limits.MOST_VARIANCES, variances=lambda count: {k: str(k + 1) for k in range(count)}),
    "degree": sized(limits.MOST_DEGREE, degree=int),
    **{name: sized(limits.LONGEST_NAME, **{name: lambda size: "x" * size}) for name in ("mode", "mechanism", "noise")},
    **{name: sized(limits.LONGEST_HASH, **{name: bytes}) for name in ("tables", "model", "beacon", "rotation")},
    "scale": ({"scale": limits.LARGEST_FACTOR}, {"scale": 1e155}),
    "a small scale": ({"scale": 1 / limits.LARGEST_FACTOR}, {"scale": 5e-324}),
    "no scale": ({"scale": 1.0}, {"scale": 0.0}),
    "clip": ({"clip": limits.LARGEST_FACTOR}, {"clip": float("inf")}),
    "no number": ({"clip": 0.0}, {"clip": float("nan")}),
}


@pytest.mark.parametrize(("at", "beyond"), AT_AND_BEYOND.values(), ids=AT_AND_BEYOND)
def test_what_is_at_a_ceiling_is_checked_further_and_what_is_beyond_is_not(at, beyond, monkeypatch):
    check_ceilings(changed(**at))
    monkeypatch.setattr(module, "check_identity", lambda parameters: pytest.fail("it was looked at"))
    with pytest.raises(ParametersRefused, match=r"at most|lies in"):
        check_rules(changed(**beyond))


def test_components_of_noise_have_a_ceiling():
    most = limits.MOST_COMPONENTS
    check_components(changed(scheme=Scheme.EXACT.value, n_min=1, n_max=most))
    check_components(changed(scheme=Scheme.SINGLE.value, n_min=1, n_max=most + 1))
    for beyond in ({"n_max": most + 1}, {"n_max": most // 2 + 1, "variances": {0: "8", 1: "9"}}):
        with pytest.raises(ParametersRefused, match="components of noise"):
            check_components(changed(scheme=Scheme.EXACT.value, n_min=1, **beyond))


def test_noise_tables_have_a_ceiling_and_are_not_built_beyond_it():
    check_places(limits.MOST_PLACES)
    with pytest.raises(ParametersRefused, match="lower the scale"):
        agree_on(
            run=bytes(32), index=0, clients=[1, 2], threshold=2, bits=32, ends=[1, 2, 3, 4], tolerance=0,
            variances=[10**10 - k for k in range(4)],
        )  # fmt: skip


def test_maps_beyond_a_ceiling_are_not_read():
    for message in (
        AdvertiseKeys(GOOD, dict.fromkeys(range(limits.MOST_CLIENTS + 1), b"")),
        AdvertiseKeys(GOOD, {1: bytes(limits.LONGEST_PROOF + 1)}),
        AdvertiseKeys(changed(variances=dict.fromkeys(range(limits.MOST_CHUNKS + 1), "8"))),
    ):
        with pytest.raises(MalformedMessage, match="not a message that is expected"):
            wire.carry(message, AdvertiseKeys)


def test_the_largest_parameters_within_all_ceilings_can_be_read():
    n, m = limits.MOST_CLIENTS, limits.MOST_CHUNKS
    ids = range(2**63 - n, 2**63)
    largest = changed(
        members=b"".join(u.to_bytes(8, "little") for u in ids),
        ends=words(m),
        variances=dict.fromkeys(range(m), "9" * 64),
        mode="x" * limits.LONGEST_NAME,
        model=bytes(limits.LONGEST_HASH),
    )
    message = AdvertiseKeys(largest, dict.fromkeys(ids, bytes(limits.LONGEST_PROOF)))
    assert wire.carry(message, AdvertiseKeys) == message
    assert wire.size(message) > limits.LONGEST_OPENING / 2
    with pytest.raises(MalformedMessage, match="exceeds the limit"):
        wire.carry(AdvertiseKeys(changed(beacon=bytes(limits.LONGEST_OPENING))), AdvertiseKeys)


SHOWN = {
    "clients of a round, n": limits.MOST_CLIENTS,
    "chunks of a round, m": limits.MOST_CHUNKS,
    "different variances of the chunks": limits.MOST_VARIANCES,
    "noise components of all variances": limits.MOST_COMPONENTS,
    "places in all noise tables": limits.MOST_PLACES,
    "degree of the graph, k": limits.MOST_DEGREE,
    "coordinates, d, folded or not": limits.LARGEST_DIM,
    "scale, its inverse, clip bound": limits.LARGEST_FACTOR,
    "magnitude of a model's numbers": limits.LARGEST_WEIGHT,
    "characters of a name": limits.LONGEST_NAME,
    "bytes of a hash": limits.LONGEST_HASH,
    "bytes of a proof of selection": limits.LONGEST_PROOF,
    "bytes of a signature": limits.LONGEST_SIGNATURE,
    "bytes of the parameters with all proofs": limits.LONGEST_OPENING,
    "bytes of an invitation": limits.LONGEST_INVITE,
    "missed sums that are replayed": limits.MOST_REPLAYS,
    "pieces of a model, beyond one for each 64 KiB": limits.FEW_PIECES,
    "bytes of a missed sum's parameters": limits.LONGEST_REPLAY,
}
"""The rows of the page, each with its ceiling."""


def test_the_page_shows_every_ceiling():
    rows = re.findall(r"^\| ([^|]+) \| ([0-9,]+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {what: int(most.replace(",", "")) for what, most in rows} == SHOWN
    values = {value for name, value in vars(limits).items() if name.startswith(("MOST_", "LARGEST_", "LONGEST_"))}
    assert values == {*SHOWN.values()}
