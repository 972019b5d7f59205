"""Clipping bits as further releases, for tests."""

from fractions import Fraction

from dordis.privacy.clipping import CLIPPING_BIT, bit_value, clipping_bit, fraction_below
from dordis.privacy.further_releases import FurtherSum, FurtherValue, PlannedRelease, plan_release


def planned_bit(scale, variance):
    """Return the bit of a scale under noise of a variance."""
    return PlannedRelease(clipping_bit(scale), Fraction(variance))


def plan_bit(multiplier, clients, bits, **options):
    """Plan the bit as a plan of a run does."""
    return plan_release(FurtherValue(CLIPPING_BIT, 0.1), multiplier, clients, bits, **options)


def encode_bit(norm, bound, scale, bits):
    """Return a client's bit over the ring."""
    return clipping_bit(scale).encode(bit_value(norm, bound), bits)


def read_fraction(total, survivors, scale, bits):
    """Return the fraction below the bound from a sum over the ring."""
    return fraction_below(FurtherSum.from_total(clipping_bit(scale), total, survivors, bits))


def aggregate_below(aggregate):
    """Return the fraction below the bound that an aggregate holds."""
    return fraction_below(aggregate.further.get(CLIPPING_BIT))
