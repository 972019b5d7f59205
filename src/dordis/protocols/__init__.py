"""Summing protocols: parameters of a round, SecAgg, assisted and plaintext sums, distributed noise, delivery.

The table of summing protocols has their short names; those of third parties are named `package.module:NAME`.
"""

from dordis.loading import load_object
from dordis.protocols.summing import SummingProtocol

SUMMING = {
    "secagg": "dordis.protocols.secagg:SECAGG",
    "secagg+": "dordis.protocols.secagg:SECAGG_PLUS",
    "assisted": "dordis.protocols.assisted:ASSISTED",
    "plaintext": "dordis.protocols.plaintext:PLAINTEXT",
}


def summing_protocol(name: str) -> SummingProtocol:
    """Return the summing protocol with a name, as `protocol.use` of a configuration states it.

    >>> summing_protocol("secagg+").sparse
    True
    """
    return load_object(SUMMING.get(name, name), "protocol.use", SummingProtocol)
