"""Escrow: secrets are drawn in a fixed order, never shown in a repr, and released by the rule."""

from itertools import count

from dordis.protocols.escrow import SECRET_BYTES, Escrow, draw_secrets


def test_private_secrets_are_drawn_before_deposited_ones():
    drawn = count()
    issued = draw_secrets(Escrow(2, 3, lambda _: {}), lambda size: next(drawn).to_bytes(size, "big"))
    assert [int.from_bytes(secret, "big") for secret in issued.private + issued.deposited] == [0, 1, 2, 3, 4]
    assert {len(secret) for secret in issued.private + issued.deposited} == {SECRET_BYTES}


def test_the_rule_decides_which_secrets_are_released():
    escrow = Escrow(0, 2, lambda survivors: {u: (0,) if u > 1 else () for u in survivors})
    assert escrow.releases([1, 2]) == {1: (), 2: (0,)}


def test_issued_secrets_are_not_shown():
    assert repr(draw_secrets(Escrow(1, 1, lambda _: {}), lambda size: b"s" * size)) == "<IssuedSecrets>"
